//! `prefix-cache-affinity-filter`: only those that hold the prompt, while their queue is worth it.
//!
//! ```text
//! sticky   = those that hold affinityThreshold of the prompt or more
//! wait     = queued tokens / peakPrefillThroughput
//! keep     = sticky, if least wait of sticky - least wait of the others <= maxTTFTPenaltyMs; else all
//! ```
//!
//! llm-d's "sticky until saturated", for a load score behind it. With `explorationProbability` the filter is passed over.
//! A penalty of 0 never lets go. Throughput is the engine's, in tokens per second: measure your own. In llm-d what is in
//! flight is counted after the choice and per process; here it is booked with the choice, over all gateways of a scorer.

use crate::policy::number::{Amount, Ratio};
use crate::policy::{Candidate, Keep, Round};
use crate::random::Random;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Sticky {
    affinity_threshold: Ratio,
    exploration_probability: Ratio,
    #[serde(rename = "maxTTFTPenaltyMs")]
    max_ttft_penalty_ms: Amount,
    ttft_source: Source,
    peak_prefill_throughput: Amount,
}

/// Where the wait is taken from; the latency predictor is not carried.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
enum Source {
    #[default]
    PrefillThroughput,
}

impl Default for Sticky {
    fn default() -> Self {
        Self {
            affinity_threshold: Ratio::of(0.8),
            exploration_probability: Ratio::of(0.0),
            max_ttft_penalty_ms: Amount::of(18_000.0),
            ttft_source: Source::default(),
            peak_prefill_throughput: Amount::of(15_928.0),
        }
    }
}

impl Keep for Sticky {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], random: &mut Random) {
        let is_sticky = |candidate: &&Candidate| {
            candidate.cached_tokens > 0 && candidate.hit(round.demand) >= self.affinity_threshold.get()
        };
        let wait_ms = |candidate: &Candidate| {
            candidate.queued_tokens as f64 * 1000.0 / self.peak_prefill_throughput.get().max(1.0)
        };
        let least = |sticky: bool| {
            let those = round.candidates.iter().filter(|candidate| is_sticky(candidate) == sticky);
            those.map(wait_ms).reduce(f64::min)
        };
        let (Some(sticky), Some(others)) = (least(true), least(false)) else { return };
        let penalty = self.max_ttft_penalty_ms.get();
        let too_long = penalty > 0.0 && sticky - others > penalty;
        if too_long || random.unit() < self.exploration_probability.get() {
            return;
        }
        for (keep, candidate) in keep.iter_mut().zip(round.candidates) {
            *keep = is_sticky(&candidate);
        }
    }
}
