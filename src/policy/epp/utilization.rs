//! `utilization-filter`, `active-request-filter` and `utilization-detector`: without those that are too full.
//!
//! ```text
//! filter     out, if any condition's metric is above its maxValue
//! active     out, if more than maxRequests are in flight: the pool's own leases, booked with the choice
//! detector   out, if waiting > queueDepthThreshold * (1 + headroom) or KV usage > kvCacheUtilThreshold * (1 + headroom)
//! ```
//!
//! What an engine does not say leaves nobody out: in llm-d a scrape 200 ms old makes an endpoint full, and a slow
//! scrape has blocked whole pools. If everybody would be out the detector keeps all; the filters do, with
//! `fallbackOnEmpty`. (`attributes.ADDRESS.max_in_flight` bounds requests in flight whatever the policy, and is answered 429.)

use crate::policy::number::{Amount, Excess, Ratio};
use crate::policy::{Candidate, Keep, Round};
use crate::random::Random;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::num::NonZeroU32;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Filter {
    conditions: Vec<Condition>,
    #[serde(default)]
    fallback_on_empty: bool,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, tag = "metric", rename_all = "kebab-case", rename_all_fields = "camelCase")]
enum Condition {
    RunningRequests { max_value: Amount },
    WaitingQueue { max_value: Amount },
    KvCacheUtilization { max_value: Ratio },
    ActiveRequests { max_value: Amount },
}

impl Condition {
    fn holds(&self, candidate: &Candidate) -> bool {
        let (value, most) = match self {
            Self::RunningRequests { max_value } => (candidate.running(), max_value.get()),
            Self::WaitingQueue { max_value } => (candidate.waiting(), max_value.get()),
            Self::KvCacheUtilization { max_value } => (candidate.kv_usage(), max_value.get()),
            Self::ActiveRequests { max_value } => (Some(f64::from(candidate.in_flight)), max_value.get()),
        };
        value.is_none_or(|value| value <= most)
    }
}

/// Whether a filter of these parameters goes by anything that engines say.
pub(super) fn asks_engines(parameters: &Value) -> bool {
    let own = |condition: &Condition| matches!(condition, Condition::ActiveRequests { .. });
    Filter::deserialize(parameters).is_ok_and(|filter| !filter.conditions.iter().all(own))
}

impl Keep for Filter {
    fn is_for_load(&self) -> bool {
        true
    }

    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        let holds =
            |candidate: &Candidate| self.conditions.iter().all(|condition| condition.holds(candidate));
        leave_out(round, keep, self.fallback_on_empty, holds);
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Active {
    max_requests: NonZeroU32,
    #[serde(default)]
    fallback_on_empty: bool,
}

impl Keep for Active {
    fn is_for_load(&self) -> bool {
        true
    }

    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        let most = self.max_requests.get();
        leave_out(round, keep, self.fallback_on_empty, |candidate| candidate.in_flight <= most);
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Detector {
    queue_depth_threshold: Amount,
    kv_cache_util_threshold: Ratio,
    headroom: Excess,
    /// Accepted as llm-d has it; `choose.stale_ms` says when a scrape is forgotten.
    metrics_staleness_threshold: Option<String>,
}

impl Default for Detector {
    fn default() -> Self {
        Self {
            queue_depth_threshold: Amount::of(5.0),
            kv_cache_util_threshold: Ratio::of(0.8),
            headroom: Excess::of(0.0),
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

/// Keeps those for which `holds` is true; or all if it is for none, with `fall_back`.
pub(super) fn leave_out(
    round: &Round<'_>,
    keep: &mut [bool],
    fall_back: bool,
    holds: impl Fn(&Candidate) -> bool,
) {
    if fall_back && !round.candidates.iter().any(&holds) {
        return;
    }
    for (keep, candidate) in keep.iter_mut().zip(round.candidates) {
        *keep = holds(candidate);
    }
}
