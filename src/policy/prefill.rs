//! `least_prefill`: the endpoint where the first token would come soonest, at the least harm to others.
//!
//! ```text
//! work  = queued_tokens + 2.5 * uncached_tokens + 1500 if the adapter has to be loaded
//! batch = requests / (1 + requests / 80)
//! cost  = work * (1 + 0.2 * batch) + 0.1 * held_tokens + 60 * requests
//! ```
//!
//! A prompt waits for the prompts before it, then for its own part that is not cached; both are tokens to compute, so they
//! add up. The request's own part counts more (`uncached_weight`): what is computed where it was not cached the pool
//! computes twice, and it pushes another prefix out. More than that would hold a prefix that everybody has to a few endpoints while
//! requests wait for a place in their batches. Loading a LoRA adapter stops an engine for as long as 1,500 tokens
//! do (`adapter_tokens`); it counts where the engine says that the adapter is not loaded.
//!
//! *Requests* are those in flight (`batch_weight`): each computed token delays each of them by as much, so work is dearer
//! beside a full batch. LMetric (arXiv 2603.15202) is this product with a weight of 1, which spreads prefixes too soon. But by
//! the time that a prompt is computed behind others, many of those that it would have delayed are over: a batch counts the
//! less by its size the larger it is, half at `full_batch`. Without that, long prompts queue behind each other at the endpoint that
//! has the fewest requests, and too late for a goal of two seconds.
//!
//! *Held tokens* are the prompts of all requests in flight (`held_weight`): each of their contexts is read at every step.
//! That keeps long contexts apart, and lets a prefix that is in demand spread to more endpoints; so does what a request
//! counts by itself (`request_tokens`), without which an endpoint that joins a warm pool would stay idle.
//!
//! Endpoints whose cost is within a twentieth of the least (`alike`) are alike, and take turns. The least by a hair is mostly the one
//! that has just finished something, and has begun its next step a moment ago: whoever is sent there waits for all of that.
//!
//! `weir lab compare --suite` is where the weights are from; bench/RESULTS.md has the table, what was tried, and how it does on
//! traffic that they were not sought on.

use super::number::{Amount, Ratio};
use super::{Adapter, Round, Score, scale};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeastPrefill {
    /// What an uncached token of the request itself counts, against 1 for one that is queued.
    uncached_weight: Amount,
    /// The share by which each request in flight makes work dearer.
    batch_weight: Amount,
    /// Requests in flight of which each counts half of that.
    full_batch: NonZeroU32,
    /// Tokens to compute that one token of a prompt in flight counts.
    held_weight: Amount,
    /// Tokens to compute that a request in flight counts by itself.
    request_tokens: Amount,
    /// Tokens to compute that loading an adapter counts.
    adapter_tokens: Amount,
    /// The share of the least cost within which others are as good.
    alike: Ratio,
}

impl Default for LeastPrefill {
    fn default() -> Self {
        const EIGHTY: NonZeroU32 = NonZeroU32::new(80).unwrap();
        Self {
            uncached_weight: Amount::of(2.5),
            batch_weight: Amount::of(0.2),
            full_batch: EIGHTY,
            held_weight: Amount::of(0.1),
            request_tokens: Amount::of(60.0),
            adapter_tokens: Amount::of(1_500.0),
            alike: Ratio::of(0.05),
        }
    }
}

impl Score for LeastPrefill {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let half = f64::from(self.full_batch.get());
        scale::fill(round, scores, |candidate| {
            let uncached = f64::from(candidate.uncached_tokens(round.demand));
            let load = match candidate.adapter {
                Adapter::Room | Adapter::Waiting | Adapter::Full | Adapter::Absent => {
                    self.adapter_tokens.get()
                }
                Adapter::Unknown | Adapter::Resident => 0.0,
            };
            let requests = f64::from(candidate.in_flight);
            let batch = requests / (1.0 + requests / half);
            let work = candidate.queued_tokens as f64 + uncached * self.uncached_weight.get() + load;
            work * (1.0 + batch * self.batch_weight.get())
                + candidate.held_tokens as f64 * self.held_weight.get()
                + requests * self.request_tokens.get()
        });
        scale::alike(scores, self.alike.get());
        scale::cheapest_first(scores);
    }
}
