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

/// llm-d's scorers by default, and their weights.
const EPP: [(&str, u32); 3] =
    [("queue-scorer", 2), ("kv-cache-utilization-scorer", 2), ("prefix-cache-scorer", 3)];

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
        Contender::new("epp", epp(&EPP), llmd.clone()),
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

/// The contenders for a pool some of whose endpoints compute prompts for the others: llm-d's ways of splitting, its weights in
/// both profiles, and the default, to which they are endpoints like others.
pub fn splitters(routing: &Routing) -> Vec<Contender> {
    let llmd = Routing { metrics_ms: 50.0, ..routing.clone() };
    let of = |name: &str, decider: &str, parameters: Value| {
        Contender::new(name, split(&EPP, decider, parameters), llmd.clone())
    };
    vec![
        of("split-always", "always-disagg-pd-decider", json!({})),
        of("split-uncached-512", "prefix-based-pd-decider", json!({"nonCachedTokens": 512})),
        of("split-uncached-4096", "prefix-based-pd-decider", json!({"nonCachedTokens": 4_096})),
        of("split-load", "load-based-pd-decider", json!({})),
        Contender::new("least_prefill", json!("least_prefill"), routing.clone()),
    ]
}

/// llm-d's configuration of two profiles with the same scorers, and of what decides between them.
fn split(scorers: &[(&str, u32)], decider: &str, parameters: Value) -> Value {
    let mut config = epp(scorers);
    let listed = config["schedulingProfiles"][0]["plugins"].take();
    let handler = json!({"deciders": {"prefill": decider}});
    let more = [
        json!({"type": decider, "parameters": parameters}),
        json!({"type": "disagg-profile-handler", "parameters": handler}),
        json!({"type": "prefill-filter"}),
        json!({"type": "decode-filter"}),
    ];
    let plugins = |config: &Value| config["plugins"].as_array().cloned().unwrap_or_default();
    config["plugins"] = plugins(&config).into_iter().chain(more).collect();
    let profile = |name: &str| {
        let filter = json!({"pluginRef": format!("{name}-filter")});
        let listed = listed.as_array().cloned().unwrap_or_default();
        json!({"name": name, "plugins": std::iter::once(filter).chain(listed).collect::<Value>()})
    };
    config["schedulingProfiles"] = json!([profile("prefill"), profile("decode")]);
    config
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
        let routing = Routing::default();
        let all = [contenders(&routing), splitters(&routing)].concat();
        let all = &all[..all.len() - 1];
        for (at, contender) in all.iter().enumerate() {
            Policy::read(&contender.routing.choose.policy).unwrap();
            assert!(all.iter().take(at).all(|other| other.name != contender.name), "{}", contender.name);
        }
    }
}
