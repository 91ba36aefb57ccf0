//! Every plugin of llm-d by its type.

use super::super::pickers::{Any, Best, Share};
use super::super::{Keep, Need, Pick, Score};
use super::disagg::{self, Decider, Handler};
use super::not_carried::NOT_CARRIED;
use super::{
    affinity, checked, context_length, keep, kv_cache, labels, latency, load, no_hit_lru, prefix, relative,
};
use super::{residency, score, session, utilization};
use crate::invalid::Invalid;
use crate::policy::lmetric::LMetric;
use crate::policy::lora::LoraAffinity;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::num::NonZeroU32;

/// A plugin.
pub(super) struct Plugin {
    pub(super) kind: &'static str,
    /// Names it had.
    also: &'static [&'static str],
    /// Parameters that llm-d knows and that are another part's here, with what that is.
    passed: &'static [Passed],
    /// Parameters that llm-d knows and that are not carried, as `profiles.encode`, with the reason.
    refused: Passed,
    /// What it rests on.
    needs: &'static [Need],
    /// Whether it does, with these parameters.
    needs_with: fn(&Value) -> bool,
    pub(super) make: Make,
    /// Reads its parameters and gives them back with defaults.
    check: fn(Value) -> Result<Value, Invalid>,
}

/// Parameters, with what becomes of them here.
type Passed = &'static [(&'static str, &'static str)];

/// A scorer, and what it leaves out, if anything.
pub(super) type Scored = (Box<dyn Score>, Option<Box<dyn Keep>>);

/// What becomes of it.
#[derive(Clone, Copy)]
pub(super) enum Make {
    /// A scorer, which may leave candidates out as well.
    Score(fn(Value) -> Result<Scored, Invalid>),
    Keep(fn(Value) -> Result<Box<dyn Keep>, Invalid>),
    Pick(fn(Value) -> Result<Box<dyn Pick>, Invalid>),
    Handler,
    Decider(fn(Value) -> Result<Box<dyn Decider>, Invalid>),
    /// Its work is done in another place, or always.
    Elsewhere(&'static str),
}

/// The handler of a single profile.
pub(super) const SINGLE: &str = "single-profile-handler";

const INDEX: Passed = &[
    ("blockSize", "blocks are cut by `extract`: request.block_tokens"),
    ("blockSizeTokens", "blocks are cut by `extract`: request.block_tokens"),
    ("hashBlockSize", "blocks are cut by `extract`: request.block_tokens"),
    ("autoTune", "there is nothing to tune: blocks grow with what precedes them"),
    ("maxPrefixTokensToMatch", "`extract` hashes up to request.max_blocks blocks"),
    ("maxPrefixBlocksToMatch", "`extract` hashes up to request.max_blocks blocks"),
    ("lruCapacityPerServer", "the index holds choose.index_tokens tokens per endpoint"),
    ("prefixHashSource", "hashes come from `extract`"),
];
const EVENTS: Passed = &[
    ("speculativeIndexing", "what was sent counts as cached at once"),
    ("speculativeTTL", "what was sent counts as cached at once"),
    ("tokenProcessorConfig", "blocks are cut by `extract`"),
    ("kvEventsConfig", "the scorer's `precise` says whose KV events are read"),
    ("indexerConfig", "the index holds choose.index_tokens tokens per endpoint"),
];
const TOKENS: Passed = &[
    ("modelName", "tokens are estimated by `extract`"),
    ("backend", "tokens are estimated by `extract`"),
    ("vllm", "tokens are estimated by `extract`"),
    ("estimate", "tokens are estimated by `extract`"),
    ("udsTokenizerConfig", "tokens are estimated by `extract`"),
    ("tokenizersPoolConfig", "tokens are estimated by `extract`"),
];
const SCRAPE: Passed = &[
    ("scheme", "`signals` says where metrics are"),
    ("path", "`signals` says where metrics are"),
    ("port", "`signals` says where metrics are"),
    ("insecureSkipVerify", "`signals` says where metrics are"),
    ("interval", "`signals` says how often"),
    ("engineConfigs", "engines are known by the names of their metrics"),
    ("defaultEngine", "engines are known by the names of their metrics"),
    ("engineLabelKey", "engines are known by the names of their metrics"),
];
const IN_FLIGHT: Passed = &[
    ("addEstimatedOutputTokens", "prompt tokens are counted"),
    ("outputRatio", "prompt tokens are counted"),
    ("inFlightLoadProducerName", "the pool's own leases are counted"),
];
const PREDICTED: Passed = &[
    ("samplingMean", "latency is learned from every answer"),
    ("sloBufferFactor", "the objective is taken as it is"),
    ("contextTTL", "leases end by themselves after choose.lease_ms"),
    ("streamingMode", "streams show their first token, others their end"),
    ("endpointRoleLabel", "roles are for filters"),
];
const NO_ENCODE: &str = "encode is not split off";
const NO_CALIBRATION: &str = "write what was measured into peakPrefillThroughput";
const ONE_INDEX: Passed = &[("prefixMatchInfoProducerName", "there is one index")];
const SESSION: Passed = &[
    ("algorithm", "the session is the one that `extract` publishes; nothing is written to the client"),
    ("mode", "the session is the one that `extract` publishes; nothing is written to the client"),
    ("headerName", "`extract` says which header names the session"),
    ("profileName", "an instance belongs to the profile that names it"),
    ("evictionSweepSeconds", "bindings are forgotten as others come"),
    ("missThreshold", "a binding is followed whenever its endpoint may be chosen"),
];

const fn row(kind: &'static str, make: Make, check: fn(Value) -> Result<Value, Invalid>) -> Plugin {
    Plugin { kind, also: &[], passed: &[], refused: &[], needs: &[], needs_with: |_| true, make, check }
}

impl Plugin {
    const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    const fn passed(self, passed: &'static [Passed]) -> Self {
        Self { passed, ..self }
    }

    const fn refused(self, refused: Passed) -> Self {
        Self { refused, ..self }
    }

    const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    /// It needs that with such parameters only.
    const fn needs_with(self, needs_with: fn(&Value) -> bool) -> Self {
        Self { needs_with, ..self }
    }

    /// What it rests on, with these parameters.
    pub(super) fn rests_on(&self, parameters: &Value) -> &'static [Need] {
        if (self.needs_with)(parameters) { self.needs } else { &[] }
    }

    /// Reads parameters: gives them with defaults, and what is said of those that are another part's.
    pub(super) fn read(&self, mut parameters: Map<String, Value>) -> Result<(Value, Vec<Invalid>), Invalid> {
        for (name, why) in self.refused {
            let (first, rest) = name.split_once('.').unwrap_or((name, ""));
            if parameters.get(first).is_some_and(|value| rest.is_empty() || value.get(rest).is_some()) {
                return Err(Invalid::new(format!("parameters.{name}"), format!("not carried: {why}")));
            }
        }
        let mut notes = Vec::new();
        for (name, why) in self.passed.iter().copied().flatten() {
            if parameters.remove(*name).is_some() {
                notes.push(Invalid::new(format!("parameters.{name}"), format!("not used: {why}")));
            }
        }
        if let Make::Elsewhere(why) = self.make {
            notes.push(Invalid::new("type", format!("not needed: {why}")));
        }
        let read = (self.check)(Value::Object(parameters)).map_err(|invalid| invalid.within("parameters"))?;
        Ok((read, notes))
    }
}

/// Without parameters.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Picker {
    /// How many are named: `choose.attempts` says so here, and is not less.
    max_num_of_endpoints: NonZeroU32,
}

impl Default for Picker {
    fn default() -> Self {
        Self { max_num_of_endpoints: NonZeroU32::MIN }
    }
}

const ELSEWHERE: fn(Value) -> Result<Value, Invalid> = checked::<Nothing>;

const fn elsewhere(kind: &'static str, why: &'static str) -> Plugin {
    row(kind, Make::Elsewhere(why), ELSEWHERE)
}

/// A policy of llm-d's queues, with whatever parameters: they do nothing here.
const fn flow_control(kind: &'static str) -> Plugin {
    row(kind, Make::Elsewhere("requests wait in `limit`'s queue, in its order"), Ok)
}

static PLUGINS: &[Plugin] = &[
    // Scorers.
    row("queue-scorer", Make::Score(score::<relative::Waiting>), checked::<relative::Waiting>)
        .also(&["queue"])
        .needs(&[Need::Signals]),
    row(
        "running-requests-size-scorer",
        Make::Score(score::<relative::Running>),
        checked::<relative::Running>,
    )
    .also(&["running-requests-scorer"])
    .needs(&[Need::Signals]),
    row("kv-cache-utilization-scorer", Make::Score(score::<kv_cache::Free>), checked::<kv_cache::Free>)
        .also(&["kv-cache-scorer"])
        .needs(&[Need::Signals]),
    row("prefix-cache-scorer", Make::Score(score::<prefix::Prefix>), checked::<prefix::Prefix>)
        .also(&["prefix-cache", "precise-prefix-cache-scorer", "kvcache-aware-scorer"])
        .passed(&[ONE_INDEX, INDEX, EVENTS]),
    row("load-aware-scorer", Make::Score(score::<load::LoadAware>), checked::<load::LoadAware>)
        .needs(&[Need::Signals]),
    row("active-request-scorer", Make::Score(score::<load::ActiveRequests>), checked::<load::ActiveRequests>)
        .passed(&[IN_FLIGHT]),
    row("token-load-scorer", Make::Score(score::<load::TokenLoad>), checked::<load::TokenLoad>)
        .passed(&[IN_FLIGHT]),
    row("lora-affinity-scorer", Make::Score(score::<LoraAffinity>), checked::<LoraAffinity>)
        .needs(&[Need::Adapters]),
    row("lmetric-scorer", Make::Score(score::<LMetric>), checked::<LMetric>).passed(&[ONE_INDEX, IN_FLIGHT]),
    row("no-hit-lru-scorer", Make::Score(score::<no_hit_lru::NoHitLru>), checked::<no_hit_lru::NoHitLru>)
        .passed(&[ONE_INDEX]),
    row("session-affinity-scorer", Make::Score(score::<session::Session>), checked::<session::Session>)
        .passed(&[SESSION]),
    row("context-length-aware", Make::Score(context_length::make), checked::<context_length::ContextLength>)
        .refused(&[("reusableTokensProducerName", "caches are not moved between engines")]),
    row("latency-scorer", Make::Score(score::<latency::Latency>), checked::<latency::Latency>),
    // Filters.
    row("label-selector-filter", Make::Keep(keep::<labels::Selector>), checked::<labels::Selector>)
        .also(&["by-label-selector"]),
    row("by-label", Make::Keep(keep::<labels::ByLabel>), checked::<labels::ByLabel>),
    row("decode-filter", Make::Keep(labels::decode), ELSEWHERE),
    row("prefill-filter", Make::Keep(labels::prefill), ELSEWHERE),
    row("encode-filter", Make::Keep(labels::encode), ELSEWHERE),
    row("prefix-cache-affinity-filter", Make::Keep(keep::<affinity::Sticky>), checked::<affinity::Sticky>)
        .passed(&[ONE_INDEX, IN_FLIGHT])
        .refused(&[
            ("prefillCalibrationFile", NO_CALIBRATION),
            ("prefillCalibrationFingerprint", NO_CALIBRATION),
            ("prefillCalibrationRequired", NO_CALIBRATION),
        ]),
    row("session-affinity-filter", Make::Keep(keep::<session::Session>), checked::<session::Session>)
        .passed(&[SESSION]),
    row("utilization-filter", Make::Keep(keep::<utilization::Filter>), checked::<utilization::Filter>)
        .passed(&[IN_FLIGHT])
        .needs(&[Need::Signals])
        .needs_with(utilization::asks_engines),
    row("active-request-filter", Make::Keep(keep::<utilization::Active>), checked::<utilization::Active>)
        .passed(&[IN_FLIGHT]),
    row("utilization-detector", Make::Keep(keep::<utilization::Detector>), checked::<utilization::Detector>)
        .needs(&[Need::Signals]),
    row("lora-residency-filter", Make::Keep(keep::<residency::Homes>), checked::<residency::Homes>)
        .needs(&[Need::Signals, Need::Adapters]),
    row("served-model-filter", Make::Keep(keep::<residency::Served>), checked::<residency::Served>)
        .needs(&[Need::Models, Need::Adapters]),
    row("slo-headroom-tier-filter", Make::Keep(keep::<latency::Tier>), checked::<latency::Tier>),
    // Pickers.
    row("max-score-picker", Make::Pick(|_| Ok(Box::new(Best))), checked::<Picker>).also(&["max-score"]),
    row("random-picker", Make::Pick(|_| Ok(Box::new(Any))), checked::<Picker>).also(&["random"]),
    row("weighted-random-picker", Make::Pick(|_| Ok(Box::<Share>::default())), checked::<Picker>),
    // Profile handlers and what decides for them.
    row(SINGLE, Make::Handler, ELSEWHERE).also(&["single-profile"]),
    row("disagg-profile-handler", Make::Handler, checked::<Handler>).refused(&[
        ("profiles.encode", NO_ENCODE),
        ("deciders.encode", NO_ENCODE),
        (
            "profiles.fallback",
            "give endpoints that do both the role prefill-decode and attributes.ADDRESS.priority 1: they serve where no other can",
        ),
        ("decodeProfile", "an older form: write profiles.decode"),
        ("prefillProfile", "an older form: write profiles.prefill"),
        ("encodeProfile", NO_ENCODE),
        ("deciderPluginName", "an older form: write deciders.prefill"),
        ("prefillDeciderPluginName", "an older form: write deciders.prefill"),
        ("encodeDeciderPluginName", NO_ENCODE),
    ]),
    row("prefix-based-pd-decider", Make::Decider(disagg::by_prefix), checked::<disagg::ByPrefix>),
    row("always-disagg-pd-decider", Make::Decider(disagg::always), ELSEWHERE),
    row("load-based-pd-decider", Make::Decider(disagg::by_load), checked::<disagg::ByLoad>),
    // Work that is done elsewhere here.
    elsewhere("disagg-headers-handler", "`pick` sets x-prefiller-host-port itself")
        .also(&["prefill-header-handler", "prefill-header"])
        .passed(&[&[
            ("prefillProfile", "the handler names it"),
            ("encodeProfile", "encode is not split off"),
        ]]),
    flow_control("global-strict-fairness-policy"),
    flow_control("round-robin-fairness-policy"),
    flow_control("program-aware-fairness"),
    flow_control("fcfs-ordering-policy"),
    flow_control("edf-ordering-policy"),
    flow_control("slo-deadline-ordering-policy"),
    flow_control("program-score-ordering-policy"),
    flow_control("static-usage-limit-policy"),
    elsewhere("openai-parser", "`extract` knows each dialect by its path"),
    elsewhere("anthropic-parser", "`extract` knows each dialect by its path"),
    elsewhere("vllmhttp-parser", "`extract` knows each dialect by its path"),
    elsewhere("sglanghttp-parser", "`extract` knows each dialect by its path"),
    elsewhere("passthrough-parser", "what `extract` does not know passes untouched"),
    elsewhere("token-producer", "tokens are estimated by `extract`").also(&["tokenizer"]).passed(&[TOKENS]),
    elsewhere("approx-prefix-cache-producer", "there is one index, built from what was sent")
        .passed(&[INDEX]),
    elsewhere(
        "precise-prefix-cache-producer",
        "the scorer's `precise` says whose KV events are read; without it the index is built from what was sent",
    )
    .passed(&[EVENTS]),
    elsewhere("inflight-load-producer", "leases count it, booked with the choice").passed(&[IN_FLIGHT]),
    elsewhere("session-id-producer", "`extract` publishes the session")
        .passed(&[&[("headerName", "`extract` says which header names the session")]]),
    elsewhere("agent-identity", "`extract` publishes session and tenant")
        .passed(&[&[("additionalSessionHeaders", "`extract` says which headers name the session")]]),
    elsewhere("predicted-latency-producer", "latency is learned from answers, without a model")
        .also(&["latency-predictor-producer", "latency-predictor"])
        .passed(&[PREDICTED]),
    elsewhere("metrics-data-source", "`signals` has engines scraped").passed(&[SCRAPE]),
    elsewhere("models-data-source", "`signals.models_path` says where lists of models are").passed(&[SCRAPE]),
    elsewhere("models-data-extractor", "LoRA adapters are read from lists of models").passed(&[SCRAPE]),
    elsewhere("core-metrics-extractor", "engines are known by the names of their metrics").passed(&[SCRAPE]),
    elsewhere("endpoint-notification-source", "endpoints come from the pool's list"),
    elsewhere("k8s-notification-source", "endpoints come from the pool's list").passed(&[&[
        ("group", "no objects of Kubernetes are watched"),
        ("version", "no objects of Kubernetes are watched"),
        ("kind", "no objects of Kubernetes are watched"),
    ]]),
    elsewhere("file-discovery", "the scorer's `discovery` watches a file of endpoints").passed(&[&[
        ("path", "the scorer's `discovery` says which file"),
        ("watchFile", "the scorer's `discovery` looks at it every second"),
    ]]),
    elsewhere("outlen-bucket", "load is prompt tokens; `limit` learns how long answers are"),
    row("request-attribute-reporter", Make::Elsewhere("`meter` publishes what answers used"), Ok),
    row("models-responder", Make::Elsewhere("a GET of /v1/models is answered by one endpoint"), Ok),
    elsewhere("header-based-testing-filter", "the scorer's `picker.conformance` does it"),
    elsewhere("destination-endpoint-served-verifier", "the scorer's `picker.conformance` does it"),
];

/// The plugin of a type.
pub(super) fn plugin(kind: &str) -> Result<&'static Plugin, Invalid> {
    if let Some(plugin) = PLUGINS.iter().find(|plugin| plugin.kind == kind || plugin.also.contains(&kind)) {
        return Ok(plugin);
    }
    if let Some((_, why)) = NOT_CARRIED.iter().find(|(known, _)| *known == kind) {
        return Err(Invalid::new("type", format!("{kind} is not carried: {why}")));
    }
    Err(Invalid::unknown("type", "plugin", kind, PLUGINS.iter().map(|plugin| plugin.kind)))
}

#[cfg(test)]
/// Every type that is known, and whether it runs, is done elsewhere, or is not carried.
pub(super) fn types() -> impl Iterator<Item = (&'static str, &'static str)> {
    let carried = PLUGINS.iter().map(|plugin| match plugin.make {
        Make::Elsewhere(_) => (plugin.kind, "elsewhere"),
        _ => (plugin.kind, "runs"),
    });
    carried.chain(NOT_CARRIED.iter().map(|(kind, _)| (*kind, "not carried")))
}
