//! `least_prefill`: the endpoint where the first token would come soonest, at the least harm to others.
//!
//! ```text
//! own   = 2.25 * tokens that no endpoint holds + max(5 / k, 1) * tokens that k others hold, for each k
//! work  = queued_tokens + own + 1500 if the adapter has to be loaded
//! batch = requests / (1 + requests / 80)
//! cost  = work * (1 + 0.2 * batch) + 0.1 * held_tokens + 60 * requests
//! ```
//!
//! A prompt waits for the prompts before it, then for its own part that is not cached; both are tokens to compute, so they
//! add up. The request's own part counts more (`uncached_weight`): it is computed beside all that are there.
//!
//! A token that another endpoint holds counts more still (`copy_weight`): computed here, the pool computes it twice, and the
//! copy pushes another prefix out. But the more endpoints hold it already, the less that matters: what one alone holds is
//! mostly somebody's conversation, and a copy of it is never asked for again; what many hold is in demand, and wants room in
//! their batches more than it wants to be computed once less. So the weight is shared by those who hold it. And where the
//! one that holds the most is far busier than the others, that is why: its prefix is in demand before anybody has a copy, and
//! counts as if two held it. With one weight for all, either conversations move too soon, or a prefix that everybody has is held
//! to a few endpoints, where requests wait for a place.
//!
//! Loading a LoRA adapter stops an engine for as long as 1,500 tokens do (`adapter_tokens`); it counts where the engine says
//! that the adapter is not loaded.
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
    /// What a token of the request itself counts that no endpoint holds, against 1 for one that is queued.
    uncached_weight: Amount,
    /// The same for a token that another endpoint holds alone; the more hold it the less, down to 1.
    copy_weight: Amount,
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
            uncached_weight: Amount::of(2.25),
            copy_weight: Amount::of(5.0),
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
        let held = Held::by(round);
        let nowhere =
            f64::from(round.demand.prompt_tokens.saturating_sub(held.most())) * self.uncached_weight.get();
        scale::fill(round, scores, |candidate| {
            let own = nowhere + held.copies(candidate.cached_tokens, self.copy_weight.get());
            let load = match candidate.adapter {
                Adapter::Room | Adapter::Waiting | Adapter::Full | Adapter::Absent => {
                    self.adapter_tokens.get()
                }
                Adapter::Unknown | Adapter::Resident => 0.0,
            };
            let requests = f64::from(candidate.in_flight);
            let batch = requests / (1.0 + requests / half);
            let work = candidate.queued_tokens as f64 + own + load;
            work * (1.0 + batch * self.batch_weight.get())
                + candidate.held_tokens as f64 * self.held_weight.get()
                + requests * self.request_tokens.get()
        });
        scale::alike(scores, self.alike.get());
        scale::cheapest_first(scores);
    }
}

/// Who holds how much of the prompt.
struct Held {
    /// Tokens of those that hold the most, most first. What more hold counts as if so many did.
    tokens: [u32; 8],
    /// The first of them is in demand.
    is_sought: bool,
}

impl Held {
    fn by(round: &Round<'_>) -> Self {
        let (mut tokens, mut first, mut requests) = ([0; 8], 0, 0_u64);
        for candidate in round.candidates {
            requests += u64::from(candidate.in_flight);
            let mut own = candidate.cached_tokens.min(round.demand.prompt_tokens);
            let at = tokens.partition_point(|held| *held >= own);
            if at == 0 {
                first = candidate.in_flight;
            }
            for place in tokens.iter_mut().skip(at) {
                std::mem::swap(place, &mut own);
            }
        }
        // More than twice the mean, and one.
        let is_sought = u64::from(first.saturating_sub(1)) * round.candidates.len() as u64 > 2 * requests;
        Self { tokens, is_sought }
    }

    fn most(&self) -> u32 {
        self.tokens.first().copied().unwrap_or(0)
    }

    /// What the tokens count that others hold and an endpoint that has the first `cached` has not: prefixes are nested, so those
    /// between one holder's end and the next one's are held by all before it.
    fn copies(&self, cached: u32, weight: f64) -> f64 {
        let least = if self.is_sought { 2_u32 } else { 1 };
        let ends = self.tokens.iter().skip(1).copied().chain(std::iter::once(0));
        let between = self.tokens.iter().zip(ends).zip(1_u32..);
        between
            .take_while(|((end, _), _)| **end > cached)
            .map(|((end, next), holders)| {
                let tokens = end - next.max(cached);
                f64::from(tokens) * (weight / f64::from(holders.max(least))).max(1.0)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Candidate;
    use crate::policy::tests::{DEMAND, at, busy, chosen, read, shares};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn held_by(candidates: &[Candidate]) -> Held {
        Held::by(&Round { demand: &DEMAND, blocks: &[], candidates, now: Default::default() })
    }

    fn held(cached: &[u32]) -> Held {
        let one = |tokens: &u32| Candidate { cached_tokens: *tokens, ..at(0) };
        held_by(&cached.iter().map(one).collect::<Vec<_>>())
    }

    #[test]
    fn a_copy_counts_the_less_the_more_hold_it() {
        let one = held(&[0, 800, 0]);
        assert_eq!((one.most(), one.copies(800, 5.0), one.copies(0, 5.0)), (800, 0.0, 4_000.0));
        // Of 800 tokens three hold 300, two 500, one all.
        let nested = held(&[500, 300, 800]);
        assert_eq!(nested.copies(500, 5.0), 300.0 * 5.0);
        assert_eq!(nested.copies(300, 5.0), 300.0 * 5.0 + 200.0 * 2.5);
        assert_eq!(nested.copies(0, 6.0), 300.0 * 6.0 + 200.0 * 3.0 + 300.0 * 2.0);
        for holders in [5, 8, 9, 40] {
            assert_eq!(held(&vec![800; holders]).copies(0, 5.0), 800.0, "{holders}");
        }
        assert_eq!(held(&[5_000]).copies(0, 1.0), 1_000.0, "more is not held than the prompt has");
        assert_eq!(held(&[]).copies(0, 5.0), 0.0);
    }

    #[test]
    fn what_one_alone_holds_counts_as_two_have_it_while_it_is_far_busier_than_the_mean() {
        let sought = |holder: u32, other: u32| {
            held_by(&[busy(0, holder, 0, 800), busy(1, other, 0, 0), busy(2, other, 0, 0)]).copies(0, 5.0)
        };
        assert_eq!([sought(3, 0), sought(4, 0)], [4_000.0, 2_000.0]);
        assert_eq!([sought(43, 10), sought(44, 10)], [4_000.0, 2_000.0]);
    }

    #[test]
    fn what_one_alone_holds_stays_where_what_two_hold_spreads() {
        let mut policy = read(json!("least_prefill"), 3);
        let alone = [busy(0, 40, 0, 900), busy(1, 2, 0, 0), busy(2, 45, 0, 0)];
        assert_eq!(chosen(&mut policy, &alone), 0);
        let both = [busy(0, 40, 0, 900), busy(1, 2, 0, 0), busy(2, 45, 0, 900)];
        assert_eq!(chosen(&mut policy, &both), 1);
    }

    #[test]
    fn least_prefill_goes_to_the_prefix_until_its_queue_is_dearer() {
        let spread = |one, other| shares(json!("least_prefill"), &[one, other], 10);
        assert_eq!(spread(busy(0, 0, 0, 0), busy(1, 1, 300, 900)), [0, 10]);
        assert_eq!(spread(busy(0, 0, 0, 0), busy(1, 1, 4_000, 900)), [10, 0]);
        assert_eq!(
            spread(busy(0, 0, 0, 0), busy(1, 60, 0, 900)),
            [10, 0],
            "beside a full batch work is dearer"
        );
        let full = |held_tokens| Candidate { held_tokens, ..busy(1, 3, 0, 1_000) };
        assert_eq!(spread(busy(0, 0, 0, 0), full(20_000)), [0, 10]);
        assert_eq!(
            spread(busy(0, 0, 0, 0), full(60_000)),
            [10, 0],
            "a prefix spreads when what is held grows"
        );
    }

    #[test]
    fn least_prefill_takes_turns_among_those_that_are_alike() {
        // 2,250 * 1.2 + 60, and up to 5 % more; in turn: each gets as many.
        let alike = [busy(0, 1, 0, 0), busy(1, 1, 50, 0), busy(2, 1, 110, 0), busy(3, 1, 150, 0)];
        assert_eq!(shares(json!("least_prefill"), &alike, 300), [100, 100, 100, 0]);
        let exact = json!({"least_prefill": {"alike": 0}});
        assert_eq!(shares(exact, &alike, 300), [300, 0, 0, 0]);
    }

    #[test]
    fn a_batch_makes_work_dearer_for_least_prefill_the_less_the_larger_it_is() {
        // The work of 2,250 tokens beside 80 requests counts 1 + 0.2 * 40 times, not 1 + 0.2 * 80; each counts 60 by itself.
        let beside = |requests, queued| busy(1, requests, queued, 0);
        let spread = |one, other| shares(json!("least_prefill"), &[one, other], 10);
        let costs = 2_250 * 9 + 60 * 80;
        let idle = |queued| busy(0, 0, queued, 0);
        assert_eq!(spread(idle(costs - 2_250 - 2_000), beside(80, 0)), [10, 0]);
        assert_eq!(spread(idle(costs - 2_250 + 2_000), beside(80, 0)), [0, 10]);
    }

    #[test]
    fn least_prefill_goes_where_the_adapter_is_loaded_until_its_queue_is_dearer() {
        let spread = |one, other| shares(json!("least_prefill"), &[one, other], 10);
        let with = |adapter, candidate| Candidate { adapter, ..candidate };
        let away = with(Adapter::Room, busy(0, 0, 0, 0));
        assert_eq!(spread(away, with(Adapter::Resident, busy(1, 1, 500, 0))), [0, 10]);
        assert_eq!(spread(away, with(Adapter::Resident, busy(1, 1, 1_500, 0))), [10, 0]);
        let unknown = [with(Adapter::Unknown, busy(0, 0, 0, 0)), with(Adapter::Unknown, busy(1, 1, 500, 0))];
        assert_eq!(
            spread(unknown[0], unknown[1]),
            [10, 0],
            "who says nothing of adapters is not judged by them"
        );
    }
}
