//! Whom to compare, and on what.

use crate::routing::Routing;
use serde_json::{Value, json};

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

/// The contenders that come with the lab.
pub fn contenders(routing: &Routing) -> Vec<Contender> {
    let rows: Vec<(&str, Value)> = vec![
        ("round_robin", json!("round_robin")),
        ("p2c", json!("p2c")),
        ("least_requests", json!("least_requests")),
        ("least_prefill", json!("least_prefill")),
    ];
    rows.into_iter().map(|(name, policy)| Contender::new(name, policy, routing.clone())).collect()
}

/// A workload of the suite: where the differences show.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The trace or the kind of generated traffic.
    pub workload: &'static str,
    /// How much quicker than written.
    pub rate: f64,
    /// Requests of it that are run; 0 is all.
    pub requests: usize,
}

/// The suite: high and low sharing, near the knee of eight `a100-llama3-8b`.
pub const SUITE: &[Case] = &[
    Case { workload: "conversation", rate: 1.0, requests: 6_000 },
    Case { workload: "synthetic", rate: 1.4, requests: 0 },
    Case { workload: "azure-code", rate: 4.0, requests: 0 },
    Case { workload: "azure-conv", rate: 6.0, requests: 0 },
    Case { workload: "chat", rate: 1.0, requests: 8_000 },
    Case { workload: "shared-prefix", rate: 1.0, requests: 5_000 },
    Case { workload: "hot-prefix", rate: 1.0, requests: 8_000 },
    Case { workload: "agents", rate: 1.0, requests: 6_000 },
    Case { workload: "lora", rate: 1.0, requests: 6_000 },
    Case { workload: "tenants", rate: 1.0, requests: 6_000 },
    Case { workload: "bursts", rate: 1.0, requests: 6_000 },
    Case { workload: "lengths", rate: 1.0, requests: 6_000 },
];
