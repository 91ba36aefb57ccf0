//! `utilization-filter` and `utilization-detector`: without those that are too full.
//!
//! ```text
//! filter     out, if any condition's metric is above its maxValue
//! detector   out, if waiting > queueDepthThreshold * (1 + headroom) or KV usage > kvCacheUtilThreshold * (1 + headroom)
//! ```
//!
//! What an engine does not say leaves nobody out: in llm-d a scrape 200 ms old makes an endpoint full, and a slow
//! scrape has blocked whole pools. If everybody would be out the detector keeps all; the filter does, with
//! `fallbackOnEmpty`.

use crate::policy::number::{Amount, Ratio};
use crate::policy::{Candidate, Keep, Round};
use crate::random::Random;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Filter {
    conditions: Vec<Condition>,
    #[serde(default)]
    fallback_on_empty: bool,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Condition {
    metric: Metric,
    max_value: Amount,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Metric {
    RunningRequests,
    WaitingQueue,
    KvCacheUtilization,
    ActiveRequests,
}

impl Condition {
    fn holds(&self, candidate: &Candidate) -> bool {
        let value = match self.metric {
            Metric::RunningRequests => candidate.running(),
            Metric::WaitingQueue => candidate.waiting(),
            Metric::KvCacheUtilization => candidate.kv_usage(),
            Metric::ActiveRequests => Some(f64::from(candidate.in_flight)),
        };
        value.is_none_or(|value| value <= self.max_value.get())
    }
}

impl Keep for Filter {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        let holds =
            |candidate: &Candidate| self.conditions.iter().all(|condition| condition.holds(candidate));
        leave_out(round, keep, self.fallback_on_empty, holds);
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Detector {
    queue_depth_threshold: Amount,
    kv_cache_util_threshold: Ratio,
    headroom: Amount,
    /// Accepted as llm-d has it; `choose.stale_ms` says when a scrape is forgotten.
    metrics_staleness_threshold: Option<String>,
}

impl Default for Detector {
    fn default() -> Self {
        Self {
            queue_depth_threshold: Amount::of(5.0),
            kv_cache_util_threshold: Ratio::of(0.8),
            headroom: Amount::of(0.0),
            metrics_staleness_threshold: None,
        }
    }
}

impl Keep for Detector {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        let room = 1.0 + self.headroom.get();
        let most = (self.queue_depth_threshold.get() * room, self.kv_cache_util_threshold.get() * room);
        leave_out(round, keep, true, |candidate| {
            candidate.waiting().is_none_or(|waiting| waiting <= most.0)
                && candidate.kv_usage().is_none_or(|usage| usage <= most.1)
        });
    }
}

fn leave_out(round: &Round<'_>, keep: &mut [bool], fall_back: bool, holds: impl Fn(&Candidate) -> bool) {
    if fall_back && !round.candidates.iter().any(&holds) {
        return;
    }
    for (keep, candidate) in keep.iter_mut().zip(round.candidates) {
        *keep = holds(candidate);
    }
}
