//! `load-aware-scorer`, `active-request-scorer`, `token-load-scorer`: load against a measure.
//!
//! ```text
//! load-aware       0.5 * (1 - min(waiting, threshold) / threshold)
//! active-request   1 up to idleThreshold requests in flight, else (most - n) / most * maxBusyScore
//! token-load       1 - min(1, (queued tokens + this request's uncached tokens) / queueThresholdTokens)
//! ```
//!
//! In flight and queued are the pool's own leases, booked with the choice: llm-d counts them after it, so that a burst
//! sees itself too late. An engine that does not say how many wait is taken to be like the others for what was sent there; if
//! none says it, requests in flight are taken.

use crate::policy::number::{Amount, Ratio};
use crate::policy::{Candidate, Round, Score, scale};
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LoadAware {
    threshold: NonZeroU32,
}

impl Default for LoadAware {
    fn default() -> Self {
        const THRESHOLD: NonZeroU32 = NonZeroU32::new(128).unwrap();
        Self { threshold: THRESHOLD }
    }
}

impl Score for LoadAware {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let threshold = f64::from(self.threshold.get());
        scale::known_or_in_flight(round, scores, Candidate::waiting);
        for score in scores {
            *score = 0.5 * (1.0 - score.min(threshold) / threshold);
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ActiveRequests {
    idle_threshold: u32,
    max_busy_score: Ratio,
}

impl Default for ActiveRequests {
    fn default() -> Self {
        Self { idle_threshold: 0, max_busy_score: Ratio::of(1.0) }
    }
}

impl Score for ActiveRequests {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let most = round.candidates.iter().map(|candidate| candidate.in_flight).max().unwrap_or(0);
        scale::fill(round, scores, |candidate| match candidate.in_flight {
            idle if idle <= self.idle_threshold => 1.0,
            busy => f64::from(most - busy) / f64::from(most.max(1)) * self.max_busy_score.get(),
        });
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct TokenLoad {
    queue_threshold_tokens: NonZeroU64,
    /// Accepted as llm-d has it; images are in the estimate of tokens already.
    non_text_token_weight: Amount,
}

impl Default for TokenLoad {
    fn default() -> Self {
        const TOKENS: NonZeroU64 = NonZeroU64::new(4_194_304).unwrap();
        Self { queue_threshold_tokens: TOKENS, non_text_token_weight: Amount::of(1.0) }
    }
}

impl Score for TokenLoad {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let threshold = self.queue_threshold_tokens.get() as f64;
        scale::fill(round, scores, |candidate| {
            let own = u64::from(candidate.uncached_tokens(round.demand));
            1.0 - (candidate.queued_tokens.saturating_add(own) as f64 / threshold).min(1.0)
        });
    }
}
