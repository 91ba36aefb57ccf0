//! Whom to compare, and on what.

use crate::routing::{Routing, Share};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;

/// A policy with the routers it runs in.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in tables.
    pub name: String,
    /// Its routers.
    pub routing: Routing,
}

impl Contender {
    /// A policy, by name or with parameters, in these routers.
    pub fn new(name: &str, policy: Value, mut routing: Routing) -> Self {
        routing.choose.policy = policy;
        Self { name: name.to_owned(), routing }
    }
}

/// The contenders that come with the lab: every policy for engines, peers with the parameters and the routers that they
/// ship with.
pub fn contenders(routing: &Routing) -> Vec<Contender> {
    let rows: Vec<(&str, Value)> = vec![
        ("round_robin", json!("round_robin")),
        ("random", json!("random")),
        ("p2c", json!("p2c")),
        ("least_requests", json!("least_requests")),
        ("least_kv", json!("least_kv")),
        ("least_load", json!("least_load")),
        ("peak_ewma", json!("peak_ewma")),
        ("consistent_hash", json!("consistent_hash")),
        ("prefix_hash", json!("prefix_hash")),
        ("sglang", json!({"cache_aware": {"defaults": "gateway"}})),
        ("sglang-library", json!({"cache_aware": {"defaults": "library"}})),
        ("dynamo", json!("dynamo")),
        ("dynamo-scale-4", json!({"dynamo": {"prefill_load_scale": 4}})),
        ("lmetric", json!("lmetric")),
        ("least_prefill", json!("least_prefill")),
    ];
    let mut all: Vec<Contender> =
        rows.into_iter().map(|(name, policy)| Contender::new(name, policy, routing.clone())).collect();
    // llm-d looks at metrics every 50 ms; Higress' picker every 2 s, in each proxy for itself.
    let llmd = Routing { metrics_ms: 50.0, ..routing.clone() };
    let higress = Routing { metrics_ms: 2_000.0, share: Share::Nothing, ..routing.clone() };
    let peers = [
        Contender::new(
            "epp",
            epp(&[("queue-scorer", 2), ("kv-cache-utilization-scorer", 2), ("prefix-cache-scorer", 3)]),
            llmd.clone(),
        ),
        Contender::new(
            "epp-tokens",
            epp(&[("prefix-cache-affinity-filter", 0), ("token-load-scorer", 1)]),
            llmd,
        ),
        Contender::new(
            "higress",
            epp(&[
                ("queue-scorer", 2),
                ("kv-cache-utilization-scorer", 2),
                ("prefix-cache-scorer", 3),
                ("active-request-scorer", 1),
            ]),
            higress,
        ),
    ];
    let before_ours = all.len() - 1;
    all.splice(before_ours..before_ours, peers);
    all
}

/// llm-d's configuration of one profile: plugins and their weights, 0 for a filter, which has none.
fn epp(plugins: &[(&str, u32)]) -> Value {
    let declared: Vec<Value> = plugins.iter().map(|(kind, _)| json!({"type": kind})).collect();
    let listed = plugins.iter().map(|(kind, weight)| match weight {
        0 => json!({"pluginRef": kind}),
        weight => json!({"pluginRef": kind, "weight": weight}),
    });
    let listed: Vec<Value> = listed.collect();
    json!({
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": declared,
        "schedulingProfiles": [{"name": "default", "plugins": listed}],
    })
}

/// A workload of the suite: where the differences show.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The trace or the kind of generated traffic.
    pub workload: Cow<'static, str>,
    /// The engine.
    pub engine: Cow<'static, str>,
    /// How much quicker than written.
    pub speed: f64,
    /// Requests of it that are run; 0 is all.
    #[serde(default)]
    pub requests: usize,
}

/// The suite: high and low sharing, on eight endpoints, near the knee where choosing matters and beyond which nothing helps.
pub const SUITE: &[Case] = &[
    case("conversation", "h100-llama3-8b", 2.0, 0),
    case("conversation", "a100-llama3-8b", 0.7, 0),
    case("synthetic", "h100-llama3-8b", 2.2, 0),
    case("synthetic", "a100-llama3-8b", 0.6, 0),
    case("azure-code", "h100-llama3-8b", 6.0, 0),
    case("azure-conv", "h100-llama3-8b", 18.0, 0),
    case("chat", "a100-llama3-8b", 2.0, 15_000),
    case("shared-prefix", "a100-llama3-8b", 0.6, 5_000),
    case("hot-prefix", "a100-llama3-8b", 1.5, 8_000),
    case("agents", "a100-llama3-8b", 1.4, 8_000),
    case("lora", "h100-llama3-8b", 1.0, 8_000),
    case("tenants", "h100-llama3-8b", 4.0, 10_000),
    case("bursts", "h100-llama3-8b", 5.5, 10_000),
    case("lengths", "h100-llama3-8b", 4.0, 10_000),
];

const fn case(workload: &'static str, engine: &'static str, speed: f64, requests: usize) -> Case {
    Case { workload: Cow::Borrowed(workload), engine: Cow::Borrowed(engine), speed, requests }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::policy::Policy;

    #[test]
    fn every_contender_can_be_read_and_is_named_once() {
        let all = contenders(&Routing::default());
        for (at, contender) in all.iter().enumerate() {
            Policy::read(&contender.routing.choose.policy).unwrap();
            assert!(all.iter().take(at).all(|other| other.name != contender.name), "{}", contender.name);
        }
    }
}
