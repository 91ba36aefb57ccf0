//! Every policy by name, and how a configuration names one.

use super::choose::{Policy, Profile, Scratch, Weighted};
use super::pickers::{Any, Best, Next, OfTwo, Share, Turns};
use super::{
    Need, Needed, Pick, Score, cache_aware, consistent_hash, dynamo, epp, ewma, latency_based, least_kv,
    least_load, least_requests, litellm, lmetric, lora, orca, prefill, weights,
};
use crate::invalid::{Invalid, read_value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// What a row makes of parameters: what is judged, who is taken, and the parameters with defaults filled in.
pub(super) struct Made {
    pub(super) score: Box<dyn Score>,
    pub(super) picker: Box<dyn Pick>,
    pub(super) effective: Value,
}

/// One policy.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// What other routers call it.
    also: &'static [&'static str],
    /// What it rests on.
    needs: &'static [Need],
    pub(super) build: fn(Value) -> Result<Made, Invalid>,
}

const fn row(name: &'static str, build: fn(Value) -> Result<Made, Invalid>) -> Row {
    Row { name, also: &[], needs: &[], build }
}

impl Row {
    const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }
}

/// Every policy. The first is the default.
pub(super) const POLICIES: &[Row] = &[
    row("least_prefill", made::<prefill::LeastPrefill, Next>),
    row("least_requests", made::<least_requests::LeastRequests, Best>).also(&[
        "least-busy",
        "least_request",
        "least-request",
        "shortest_queue",
    ]),
    row("p2c", made::<least_requests::LeastRequests, OfTwo>).also(&["power_of_two", "power-of-two"]),
    row("random", made::<weights::Alike, Any>).also(&["RANDOM"]),
    row("round_robin", made::<weights::Alike, Next>).also(&[
        "roundrobin",
        "round-robin",
        "rr",
        "ROUND_ROBIN",
    ]),
    row("weighted_round_robin", made::<weights::Weight, Turns>).needs(&[Need::Weights]),
    row("weighted_least_requests", made::<weights::PerRequest, Turns>),
    row("peak_ewma", made::<ewma::PeakEwma, OfTwo>),
    row("consistent_hash", made::<consistent_hash::ConsistentHash, Best>)
        .also(&["session", "consistent_hashing"]),
    row("prefix_hash", made::<consistent_hash::PrefixHash, Best>),
    row("least_kv", made::<least_kv::LeastKv, Best>).also(&["least-kv-cache"]).needs(&[Need::Signals]),
    row("least_load", made::<least_load::LeastLoad, Best>).needs(&[Need::Signals]),
    row("cache_aware", made::<cache_aware::CacheAware, Best>),
    row("dynamo", dynamo::build).also(&["kv"]),
    row("lmetric", made::<lmetric::LMetric, Best>),
    row("lora_affinity", made::<lora::LoraAffinity, Best>).needs(&[Need::Adapters]),
    row("client_side_weighted_round_robin", made::<orca::Orca, Turns>)
        .also(&["cswrr", "CLIENT_SIDE_WEIGHTED_ROUND_ROBIN"]),
    row("simple_shuffle", made::<litellm::SimpleShuffle, Share>).also(&["simple-shuffle"]),
    row("usage_based", made::<litellm::UsageBased, Best>)
        .also(&["usage-based-routing", "usage-based-routing-v2"]),
    row("latency_based", made::<latency_based::LatencyBased, Best>).also(&["latency-based-routing"]),
    row("cost_based", made::<litellm::CostBased, Best>).also(&["cost-based-routing"]).needs(&[Need::Prices]),
];

/// What other routers call theirs that is of another name and other parameters here, as `docs/policies.md` has it.
const ELSEWHERE: &[(&str, &str)] = &[
    ("least-gpu-cache", "least_kv"),
    ("least-latency", "peak_ewma"),
    ("load-balance", "peak_ewma"),
    ("throughput", "usage_based"),
    ("least-busy-time", "least_load"),
    ("prefix-cache", "least_prefill"),
    ("prefix-cache-preble", "least_prefill"),
    ("session-affinity", "consistent_hash"),
    ("vtc-basic", "`fair_by` of limit's queue"),
    ("least-loaded", "least_requests"),
    ("device-aware-weighted", "weighted_least_requests"),
    ("LEAST_REQUEST", "p2c"),
    ("RING_HASH", "consistent_hash"),
    ("MAGLEV", "consistent_hash"),
    ("global_least_request", "least_requests"),
    ("prefix_cache", "least_prefill"),
    ("LeastBusy", "least_requests"),
    ("LeastFirstTokenLatency", "peak_ewma"),
    ("LeastTotalLatency", "latency_based"),
    ("prefixaware", "least_prefill"),
    ("kvaware", "least_prefill"),
    ("dp_min_token", "least_prefill, with each rank as an endpoint"),
    ("manual", "session-affinity-scorer in an EndpointPickerConfig"),
    ("bucket", "context-length-aware in an EndpointPickerConfig"),
    ("slo", "latency-scorer in an EndpointPickerConfig"),
    ("pd", "disagg-profile-handler in an EndpointPickerConfig"),
    ("disaggregated_prefill", "disagg-profile-handler in an EndpointPickerConfig"),
    ("endpoint_metrics", "an EndpointPickerConfig"),
    ("ai-endpoint-picker", "an EndpointPickerConfig"),
];

/// What is said of a name that is none.
fn unknown(name: &str) -> Invalid {
    match ELSEWHERE.iter().find(|(theirs, _)| theirs.eq_ignore_ascii_case(name)) {
        Some((_, ours)) => Invalid::new("", format!("{name:?} is another router's name: here it is {ours}")),
        None => Invalid::unknown("", "policy", name, Policy::names()),
    }
}

/// A score that is its own configuration, and a picker without any.
fn made<S, P>(params: Value) -> Result<Made, Invalid>
where
    S: Score + Serialize + DeserializeOwned + 'static,
    P: Pick + Default + 'static,
{
    let score: S = read_value(params)?;
    let effective = effective(&score);
    Ok(Made { score: Box::new(score), picker: Box::<P>::default(), effective })
}

/// A configuration with its defaults filled in.
pub(super) fn effective(config: &impl Serialize) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

/// The row of a name.
pub(super) fn row_of(name: &str) -> Option<&'static Row> {
    POLICIES.iter().find(|row| row.name == name || row.also.contains(&name))
}

impl Policy {
    /// Reads a policy: its name; an object of its name and parameters, `{"least_prefill": {"held_weight": 0}}`; or
    /// llm-d's `EndpointPickerConfig`.
    pub fn read(value: &Value) -> Result<Self, Invalid> {
        let default = POLICIES.first().map_or("", |row| row.name);
        let (name, params) = match value {
            Value::Null => (default, None),
            Value::String(name) => (name.as_str(), None),
            Value::Object(map) if epp::is_config(map) => return epp::read(value),
            Value::Object(map) if map.len() == 1 => match map.iter().next() {
                Some((name, params)) => (name.as_str(), Some(params.clone())),
                None => ("", None),
            },
            _ => {
                return Err(Invalid::new(
                    "",
                    "expected the name of a policy, one name with its parameters, or an EndpointPickerConfig",
                ));
            }
        };
        let Some(row) = row_of(name) else {
            return Err(unknown(name));
        };
        let params = params.filter(|params| !params.is_null()).unwrap_or_else(|| Value::Object(Map::new()));
        let made = (row.build)(params).map_err(|invalid| invalid.within(name))?;
        Ok(Self {
            name: row.name.into(),
            effective: Value::Object(Map::from_iter([(row.name.to_owned(), made.effective)])),
            profile: Profile {
                keepers: Vec::new(),
                scorers: vec![Weighted { name: row.name.into(), weight: 1.0, score: made.score }],
                picker: made.picker,
                scratch: Scratch::default(),
            },
            split: None,
            notes: Vec::new(),
            needs: row
                .needs
                .iter()
                .map(|need| Needed { at: String::new(), name: row.name, need: *need })
                .collect(),
        })
    }

    /// The names of all policies.
    pub fn names() -> impl Iterator<Item = &'static str> {
        POLICIES.iter().map(|row| row.name)
    }
}
