//! LiteLLM's strategies for managed providers, which give no metrics: `simple_shuffle`, `usage_based`, `cost_based`.
//! (`latency_based` has a file of its own; `least-busy` is `least_requests`.)
//!
//! ```text
//! simple_shuffle   at random, in proportion to weight; without weights to rpm, else tpm, else even
//! usage_based      least tokens this minute, of those where tokens + prompt <= tpm and requests + 1 <= rpm
//! cost_based       least input price * prompt + output price * output, of those within their limits
//! ```
//!
//! Weights, limits and prices are the pool's `attributes`. What LiteLLM does and these do not: weigh by what the *first*
//! deployment happens to have; check a limit and count after the call (663 of 100 tokens got through), where here what
//! is booked counts from its booking; take the first of equals; refuse when all are over their limits, where here the least
//! used is taken: refusing is the business of `limit` and of the provider.
//! A stream that does not say how many tokens it wrote (no `include_usage`) counts what was delivered; other answers that do not
//! say it count their prompt alone. An unknown price is 1 per token.
//!
//! For providers behind one gateway. Engines of one's own say more: see `least_prefill`.

use super::{Attributes, Candidate, Demand, Each, Known, News, Round, Score, Wants, scale};
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{at, chosen, chosen_for, described, read, shares_at, shares_of};
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
