//! `least_prefill`: the endpoint where the first token would come soonest, at the least harm to others.
//!
//! ```text
//! work = queued_tokens + 2.5 * uncached_tokens + 1500 if the adapter has to be loaded
//! cost = work * (1 + 0.2 * requests) + 0.1 * held_tokens + 60 * requests
//! ```
//!
//! A prompt waits for the prompts before it, then for its own part that is not cached; both are tokens to compute, so they
//! add up. The request's own part counts more (`uncached_weight`): what is computed where it was not cached the pool
//! computes twice, and it pushes another prefix out. Loading a LoRA adapter stops an engine for as long as 1,500 tokens
//! do (`adapter_tokens`); it counts where the engine says that the adapter is not loaded.
//!
//! *Requests* are those in flight (`batch_weight`): each computed token delays each of them by as much, so work is dearer
//! beside a full batch. LMetric (arXiv 2603.15202) is this product with a weight of 1, which spreads prefixes too soon.
//!
//! *Held tokens* are the prompts of all requests in flight (`held_weight`): each of their contexts is read at every step.
//! That keeps long contexts apart, and lets a prefix that is in demand spread to more endpoints; so does what a request
//! counts by itself (`request_tokens`), without which an endpoint that joins a warm pool would stay idle.
//!
//! The weights are the best of those tried on fourteen workloads near the knee and five far below it, on two engines and
//! with two seeds. On those fourteen (`weir lab compare --suite`; bench/RESULTS.md has the table) the 90th percentile of the
//! time to the first token is 2 % behind the best of eighteen policies in the mean and 6 % at worst; the next best, LMetric,
//! is 37 % behind in the mean. Goodput is at most 3 points behind, where long prompts come between short ones. Where one
//! prefix is all there is and the pool is nearly idle, spreading it sooner would give quicker answers.

use super::number::Amount;
use super::{Adapter, Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeastPrefill {
    /// What an uncached token of the request itself counts, against 1 for one that is queued.
    uncached_weight: Amount,
    /// The share by which each request in flight makes that work dearer.
    batch_weight: Amount,
    /// Tokens to compute that one token of a prompt in flight counts.
    held_weight: Amount,
    /// Tokens to compute that a request in flight counts by itself.
    request_tokens: Amount,
    /// Tokens to compute that loading an adapter counts.
    adapter_tokens: Amount,
}

impl Default for LeastPrefill {
    fn default() -> Self {
        Self {
            uncached_weight: Amount::of(2.5),
            batch_weight: Amount::of(0.2),
            held_weight: Amount::of(0.1),
            request_tokens: Amount::of(60.0),
            adapter_tokens: Amount::of(1_500.0),
        }
    }
}

impl Score for LeastPrefill {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::fill(round, scores, |candidate| {
            let own = f64::from(candidate.uncached_tokens(round.demand)) * self.uncached_weight.get();
            let load = match candidate.adapter {
                Adapter::Room | Adapter::Waiting | Adapter::Full | Adapter::Absent => {
                    self.adapter_tokens.get()
                }
                Adapter::Unknown | Adapter::Resident => 0.0,
            };
            let requests = f64::from(candidate.in_flight);
            let held = candidate.held_tokens as f64 * self.held_weight.get();
            (candidate.queued_tokens as f64 + own + load) * (1.0 + requests * self.batch_weight.get())
                + held
                + requests * self.request_tokens.get()
        });
        scale::cheapest_first(scores);
    }
}
