//! `least_prefill`: the endpoint where the first token would come soonest.
//!
//! ```text
//! cost = queued_tokens + uncached_tokens + batch_weight * in_flight^2
//! ```
//!
//! A prompt waits for the prompts before it, then for its own part that is not cached; both are work in the same
//! unit, tokens to compute, so they add up without a weight. On public traces this sum gives the best TTFT of
//! the published formulas (LMetric, arXiv 2603.15202, is its near twin), and needs nothing from the engine.
//!
//! The last term is resident decode work. The sum alone would send every request with one long shared prefix to
//! the one endpoint that holds it, since each adds few uncached tokens, until its batch is far larger than the
//! others'. A batch of n slows each of its n members in proportion to n, hence the square: it is nothing at
//! light load (affinity holds), and outgrows any prefix when a batch runs full. 32 tokens make ten requests in
//! flight worth 3,200 uncached tokens.

use super::{Candidate, Demand, Score, cheapest_first};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeastPrefill {
    /// Prefill tokens that one request in flight is worth, by the square of their number; 0 turns the term off.
    batch_weight: u32,
}

impl Default for LeastPrefill {
    fn default() -> Self {
        Self { batch_weight: 32 }
    }
}

impl Score for LeastPrefill {
    fn score(&self, demand: &Demand, candidates: &[Candidate], scores: &mut [f64]) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let batch = f64::from(candidate.in_flight).powi(2) * f64::from(self.batch_weight);
            *score = candidate.queued_tokens as f64 + f64::from(candidate.uncached_tokens(demand)) + batch;
        }
        cheapest_first(scores);
    }
}
