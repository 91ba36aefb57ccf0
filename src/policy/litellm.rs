//! LiteLLM's strategies for managed providers, which give no metrics: `simple_shuffle`, `usage_based`, `latency_based`,
//! `cost_based`. (`least-busy` is `least_requests`.)
//!
//! ```text
//! simple_shuffle   at random, in proportion to weight; without weights to rpm, else tpm, else even
//! usage_based      least tokens this minute, of those where tokens + prompt <= tpm and requests + 1 <= rpm
//! latency_based    at random of those whose mean seconds per output token is within buffer of the least
//! cost_based       least input price * prompt + output price * output, of those within their limits
//! ```
//!
//! Weights, limits and prices are the pool's `attributes`. What LiteLLM does and these do not: weigh by what the *first*
//! deployment happens to have; check a limit and count after the call (663 of 100 tokens got through), where here what
//! is booked counts from its booking; prefer a deployment of which no latency is known, where here it gets one request at a time;
//! keep the *oldest* samples; take the first of equals; refuse when all are over their limits, where here the least
//! used is taken: refusing is the business of `limit` and of the provider.
//! A stream that does not say how many tokens it wrote (no `include_usage`) counts what was delivered; other answers that do not
//! say it count their prompt alone, and `latency_based` learns nothing of them. An unknown price is 1 per token.
//!
//! For providers behind one gateway. Engines of one's own say more: see `least_prefill`.

use super::number::Amount;
use super::{Attributes, Candidate, Demand, Each, Known, News, Round, Score, Wants, scale};
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::num::NonZeroUsize;

/// What endpoints may be used for, and have been this minute.
#[derive(Debug, Default)]
pub(super) struct Minutes {
    attributes: Each<Attributes>,
    used: Each<Used>,
}

/// Tokens and requests of one minute.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    minute: u64,
    tokens: u64,
    requests: u64,
}

impl Used {
    fn of(self, minute: u64) -> Self {
        if self.minute == minute { self } else { Self { minute, ..Self::default() } }
    }
}

fn minute(now: Instant) -> u64 {
    const NANOS: u64 = 60_000_000_000;
    now.nanos() / NANOS
}

impl Minutes {
    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.attributes.meet(endpoints);
        self.used.meet(endpoints);
        for (place, known) in endpoints.iter().enumerate() {
            if let Some(attributes) = self.attributes.at_mut(place) {
                *attributes = known.attributes.clone();
            }
        }
    }

    fn learn(&mut self, news: &News, now: Instant) {
        let (place, tokens, requests) = match news {
            News::Booked { place, demand, .. } => (*place, demand.prompt_tokens, 1),
            News::Ended { place, output_tokens, .. } => (*place, output_tokens.unwrap_or(0), 0),
            _ => return,
        };
        if let Some(used) = self.used.at_mut(place) {
            *used = used.of(minute(now));
            used.tokens = used.tokens.saturating_add(u64::from(tokens));
            used.requests = used.requests.saturating_add(requests);
        }
    }

    fn used(&self, place: usize, now: Instant) -> Used {
        self.used.at(place).copied().unwrap_or_default().of(minute(now))
    }

    fn within_limits(&self, place: usize, demand: &Demand, now: Instant) -> bool {
        let used = self.used(place, now);
        let attributes = self.attributes.at(place);
        let tokens = used.tokens.saturating_add(u64::from(demand.prompt_tokens));
        let tpm = attributes.and_then(|attributes| attributes.tpm).is_none_or(|tpm| tokens <= tpm);
        tpm && attributes.and_then(|attributes| attributes.rpm).is_none_or(|rpm| used.requests < rpm)
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SimpleShuffle {
    #[serde(skip)]
    attributes: Each<Attributes>,
}

impl Score for SimpleShuffle {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let of = |candidate: &Candidate| self.attributes.at(candidate.place);
        let all = |number: fn(&Attributes) -> Option<u64>| {
            round.candidates.iter().all(|candidate| of(candidate).and_then(number).is_some())
        };
        let alike = round.candidates.iter().filter_map(of).all(|attributes| attributes.weight == 1.0);
        let limit: Option<fn(&Attributes) -> Option<u64>> = match alike {
            true if all(|attributes| attributes.rpm) => Some(|attributes| attributes.rpm),
            true if all(|attributes| attributes.tpm) => Some(|attributes| attributes.tpm),
            _ => None,
        };
        scale::fill(round, scores, |candidate| {
            let attributes = of(candidate);
            match limit {
                Some(limit) => attributes.and_then(limit).unwrap_or(0) as f64,
                None => attributes.map_or(1.0, |attributes| attributes.weight),
            }
        });
        scale::in_proportion(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.attributes.meet(endpoints);
        for (place, known) in endpoints.iter().enumerate() {
            if let Some(attributes) = self.attributes.at_mut(place) {
                *attributes = known.attributes.clone();
            }
        }
    }
}

/// What a request costs at an endpoint: the least is taken, of those within their limits.
pub(super) trait Cost: std::fmt::Debug + Default + Send {
    fn of(minutes: &Minutes, round: &Round<'_>, candidate: &Candidate) -> f64;
}

/// The cheapest of those within their limits, or of all if none is.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cheapest<C: Cost> {
    #[serde(skip)]
    minutes: Minutes,
    #[serde(skip)]
    cost: PhantomData<C>,
}

impl<C: Cost> Score for Cheapest<C> {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let within =
            |candidate: &Candidate| self.minutes.within_limits(candidate.place, round.demand, round.now);
        let none = !round.candidates.iter().any(within);
        scale::fill(round, scores, |candidate| match none || within(candidate) {
            true => C::of(&self.minutes, round, candidate),
            false => f64::INFINITY,
        });
        scale::cheapest_first(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.minutes.meet(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        self.minutes.learn(news, now);
    }

    fn wants(&self) -> Wants {
        Wants { answers: true, reports: false }
    }
}

/// Tokens used this minute.
#[derive(Debug, Default)]
pub(super) struct Tokens;

impl Cost for Tokens {
    fn of(minutes: &Minutes, round: &Round<'_>, candidate: &Candidate) -> f64 {
        minutes.used(candidate.place, round.now).tokens as f64
    }
}

pub(super) type UsageBased = Cheapest<Tokens>;

/// What the provider charges.
#[derive(Debug, Default)]
pub(super) struct Price;

impl Cost for Price {
    fn of(minutes: &Minutes, round: &Round<'_>, candidate: &Candidate) -> f64 {
        let attributes = minutes.attributes.at(candidate.place);
        let input = attributes.and_then(|attributes| attributes.input_cost_per_token);
        let output = attributes.and_then(|attributes| attributes.output_cost_per_token);
        let unknown = if input.or(output).is_none() { 1.0 } else { 0.0 };
        input.unwrap_or(unknown) * f64::from(round.demand.prompt_tokens)
            + output.unwrap_or(unknown) * f64::from(round.demand.output_tokens)
    }
}

pub(super) type CostBased = Cheapest<Price>;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LatencyBased {
    /// How many answers of an endpoint count, the latest.
    samples: NonZeroUsize,
    /// Milliseconds for which they count.
    ttl_ms: u64,
    /// How much slower than the quickest an endpoint may be and still be taken: 0.1 is a tenth.
    lowest_latency_buffer: Amount,
    #[serde(skip)]
    seen: Each<VecDeque<(Instant, f64)>>,
}

impl Default for LatencyBased {
    fn default() -> Self {
        const TEN: NonZeroUsize = NonZeroUsize::new(10).unwrap();
        Self {
            samples: TEN,
            ttl_ms: 3_600_000,
            lowest_latency_buffer: Amount::of(0.0),
            seen: Each::default(),
        }
    }
}

impl LatencyBased {
    /// Mean seconds per output token.
    fn mean(&self, place: usize, now: Instant) -> Option<f64> {
        let fresh = |at: &Instant| now.since(*at).as_millis() < u128::from(self.ttl_ms);
        let samples = self.seen.at(place)?.iter().filter(|(at, _)| fresh(at));
        let (sum, count) = samples.fold((0.0, 0.0), |(sum, count), (_, sample)| (sum + sample, count + 1.0));
        (count > 0.0).then(|| sum / count)
    }
}

impl Score for LatencyBased {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let mean = |candidate: &Candidate| self.mean(candidate.place, round.now);
        let quickest = round.candidates.iter().filter_map(mean).fold(f64::INFINITY, f64::min);
        // One of which nothing is known gets a request now and then, and no second one before the first is answered.
        let probe = |candidate: &Candidate| (candidate.in_flight == 0).then_some(quickest);
        scale::known_or_mean(round, scores, |candidate| {
            mean(candidate).or(probe(candidate)).filter(|mean| mean.is_finite())
        });
        let least = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let bound = least * (1.0 + self.lowest_latency_buffer.get());
        scores.iter_mut().for_each(|score| *score = if *score <= bound { least } else { *score });
        scale::cheapest_first(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.seen.meet(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        let News::Ended { place, after, output_tokens: Some(tokens), failed: false, .. } = *news else {
            return;
        };
        let samples = self.samples.get();
        if let Some(seen) = self.seen.at_mut(place) {
            seen.truncate(samples.saturating_sub(1));
            seen.push_front((now, after.as_secs_f64() / f64::from(tokens.max(1))));
        }
    }

    fn wants(&self) -> Wants {
        Wants { answers: true, reports: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::policy::tests::{at, busy, chosen, chosen_for, described, read, shares_at, shares_of};
    use serde_json::json;
    use std::time::Duration;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn booked(place: usize, prompt_tokens: u32) -> News {
        let demand = Demand { prompt_tokens, ..Demand::default() };
        News::Booked { place, demand, uncached_tokens: prompt_tokens }
    }

    fn ended(place: usize, ms: u64, tokens: u32) -> News {
        let after = Duration::from_millis(ms);
        News::Ended { place, after, decoding: None, output_tokens: Some(tokens), failed: false }
    }

    #[test]
    fn simple_shuffle_goes_by_weight_else_by_limits() {
        let weights = json!({"10.0.0.0:1": {"weight": 3, "rpm": 1}, "10.0.0.1:1": {"rpm": 9}});
        let counts = shares_of(&mut described(json!("simple-shuffle"), weights, 2), &[at(0), at(1)], 4_000);
        assert!((2_850..3_150).contains(&counts[0]), "{counts:?}");
        let limits = json!({"10.0.0.0:1": {"rpm": 100}, "10.0.0.1:1": {"rpm": 300}});
        let counts = shares_of(&mut described(json!("simple_shuffle"), limits, 2), &[at(0), at(1)], 4_000);
        assert!((850..1_150).contains(&counts[0]), "{counts:?}");
        let counts = shares_of(&mut read(json!("simple_shuffle"), 2), &[at(0), at(1)], 4_000);
        assert!((1_850..2_150).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn usage_counts_from_the_booking_on_and_for_its_minute() {
        let limits = json!({"10.0.0.0:1": {"tpm": 2_000}});
        let mut policy = described(json!("usage-based-routing-v2"), limits, 2);
        let all = [at(0), at(1)];
        policy.learn(&booked(1, 500), Instant::default());
        assert_eq!(chosen(&mut policy, &all), 0, "less used");
        policy.learn(&booked(0, 450), Instant::default());
        assert_eq!(chosen(&mut policy, &all), 0);
        policy.learn(&ended(0, 10, 49), Instant::default());
        assert_eq!(chosen(&mut policy, &all), 0, "499 against 500");
        policy.learn(&booked(1, 1_000), Instant::default());
        policy.learn(&booked(0, 600), Instant::default());
        assert_eq!(chosen(&mut policy, &all), 1, "another thousand would be above its limit");
        let next = shares_at(&mut policy, &all, 100, Instant::from_millis(60_000));
        assert!(next.iter().all(|count| *count > 20), "a new minute: {next:?}");
    }

    #[test]
    fn latency_is_per_token_of_the_latest_and_the_unknown_is_no_favourite() {
        let mut policy = read(json!("latency_based"), 3);
        let learn = |policy: &mut Policy, place, ms, tokens| {
            policy.learn(&ended(place, ms, tokens), Instant::default());
        };
        learn(&mut policy, 0, 1_000, 100);
        learn(&mut policy, 1, 1_000, 50);
        let asked = busy(2, 1, 0, 0);
        assert_eq!(shares_of(&mut policy, &[at(0), at(1), asked], 50), [50, 0, 0], "10 ms, 20 ms, unknown");
        let probed = shares_of(&mut policy, &[at(0), at(1), at(2)], 100);
        assert!(probed[1] == 0 && probed[2] > 20, "{probed:?}");
        (0..10).for_each(|_| learn(&mut policy, 0, 3_000, 100));
        assert_eq!(shares_of(&mut policy, &[at(0), at(1)], 50), [0, 50], "the latest ten count");
        let mut wide = read(json!({"latency_based": {"lowest_latency_buffer": 0.5}}), 2);
        learn(&mut wide, 0, 100, 10);
        learn(&mut wide, 1, 140, 10);
        assert!(shares_of(&mut wide, &[at(0), at(1)], 100).iter().all(|count| *count > 20));
    }

    #[test]
    fn the_cheapest_within_its_limits_serves() {
        let prices = json!({
            "10.0.0.0:1": {"input_cost_per_token": 1e-6, "output_cost_per_token": 9e-6},
            "10.0.0.1:1": {"input_cost_per_token": 2e-6, "output_cost_per_token": 2e-6, "rpm": 1},
        });
        let mut policy = described(json!("cost-based-routing"), prices, 3);
        let all = [at(0), at(1), at(2)];
        let of = |output_tokens| Demand { prompt_tokens: 1_000, output_tokens, ..Demand::default() };
        assert_eq!(chosen_for(&mut policy, &of(10), &[], &all), 0);
        assert_eq!(chosen_for(&mut policy, &of(1_000), &[], &all), 1);
        policy.learn(&booked(1, 10), Instant::default());
        assert_eq!(chosen_for(&mut policy, &of(1_000), &[], &all), 0, "its one request a minute is used");
    }
}
