//! `least_prefill`: the endpoint where the first token would come soonest.
//!
//! ```text
//! cost = queued_tokens + 1.5 * uncached_tokens + 64 * in_flight^2
//! ```
//!
//! A prompt waits for the prompts before it, then for its own part that is not cached; both are work in the same
//! unit, tokens to compute, so they add up. On public traces this sum gives the best TTFT of the published formulas
//! (LMetric, arXiv 2603.15202, is its near twin), and it needs nothing from the engine.
//!
//! The request's own part counts half more (`uncached_weight`): what is computed where it was not cached the pool
//! computes twice, and it pushes another prefix out. Without that a conversation whose endpoint is just computing one
//! other prompt of its size would be moved at no gain: with four users on four endpoints 89 of 100 second turns
//! stayed; so all of them.
//!
//! The last term (`batch_weight`) is resident decode work. The sum alone would send every request with one long
//! shared prefix to the one endpoint that holds it, since each adds few uncached tokens, until its batch is far larger
//! than the others'. A batch of n slows each of its n members in proportion to n, hence the square: it is nothing at
//! light load (affinity holds), and outgrows any prefix when a batch runs full. 64 tokens make ten requests in
//! flight worth 6,400 queued tokens.

use super::number::Amount;
use super::{Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeastPrefill {
    /// What an uncached token of the request itself counts, against 1 for one that is queued.
    uncached_weight: Amount,
    /// Prefill tokens that one request in flight is worth, by the square of their number; 0 turns the term off.
    batch_weight: Amount,
}

impl Default for LeastPrefill {
    fn default() -> Self {
        Self { uncached_weight: Amount::of(1.5), batch_weight: Amount::of(64.0) }
    }
}

impl Score for LeastPrefill {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::fill(round, scores, |candidate| {
            let batch = f64::from(candidate.in_flight).powi(2) * self.batch_weight.get();
            let own = f64::from(candidate.uncached_tokens(round.demand)) * self.uncached_weight.get();
            candidate.queued_tokens as f64 + own + batch
        });
        scale::cheapest_first(scores);
    }
}
