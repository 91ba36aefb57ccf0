//! `latency_based`: the provider that has written its tokens quickest of late.
//!
//! ```text
//! mean    = mean of the last samples answers' seconds per output token, those within ttl_ms
//! choice  = at random of those whose mean is within lowest_latency_buffer of the least
//! ```
//!
//! LiteLLM's `latency-based-routing`. What it does and this does not: prefer a deployment of which no latency is known;
//! keep the *oldest* samples; take the first of equals; leave one that was slow once alone for an hour; go by the time to
//! the first token of streams; add a penalty for failures, which are the breaker's. Here one with fewer than `samples`
//! answers, or with none within `retry_ms`, gets one request at a time, as if it were the quickest: a first answer is
//! often the slowest there will be. A stream that does not say how many tokens it wrote counts what was delivered; of
//! another answer that does not say it nothing is learned.
//!
//! For providers behind one gateway, which say nothing of themselves.

use super::number::{Excess, Millis};
use super::{Each, Known, News, Round, Score, Wants, scale};
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LatencyBased {
    /// How many answers of an endpoint count, the latest.
    samples: NonZeroUsize,
    /// Milliseconds for which they count.
    ttl_ms: Millis,
    /// Milliseconds after its latest answer at which an endpoint that others were preferred to is tried once more.
    retry_ms: Millis,
    /// How much slower than the quickest an endpoint may be and still be taken: 0.1 is a tenth.
    lowest_latency_buffer: Excess,
    #[serde(skip)]
    seen: Each<Seen>,
}

/// Seconds per output token of the latest answers, the latest first. Their mean is kept beside them: a choice among a
/// thousand endpoints would else go over ten thousand samples.
#[derive(Debug, Default)]
struct Seen {
    samples: VecDeque<(Instant, f64)>,
    mean: Option<f64>,
    /// Until then all of them count.
    until: Instant,
}

impl Default for LatencyBased {
    fn default() -> Self {
        const TEN: NonZeroUsize = NonZeroUsize::new(10).unwrap();
        Self {
            samples: TEN,
            ttl_ms: Millis::of(3_600_000),
            retry_ms: Millis::of(10_000),
            lowest_latency_buffer: Excess::of(0.0),
            seen: Each::default(),
        }
    }
}

impl Seen {
    fn learn(&mut self, sample: f64, most: NonZeroUsize, ttl: Duration, now: Instant) {
        self.samples.truncate(most.get().saturating_sub(1));
        self.samples.push_front((now, sample));
        self.settle(ttl, now);
    }

    /// Seconds per output token.
    fn mean(&mut self, ttl: Duration, now: Instant) -> Option<f64> {
        if self.mean.is_some() && now >= self.until {
            self.settle(ttl, now);
        }
        self.mean
    }

    /// Whether too little is known, or nothing of late.
    fn is_vague(&self, samples: NonZeroUsize, retry: Duration, now: Instant) -> bool {
        let is_old = |(at, _): &(Instant, f64)| now.since(*at) >= retry;
        self.samples.len() < samples.get() || self.samples.front().is_none_or(is_old)
    }

    /// Drops what is too old, and takes the mean of the others.
    fn settle(&mut self, ttl: Duration, now: Instant) {
        self.samples.retain(|(at, _)| now.since(*at) < ttl);
        let sum: f64 = self.samples.iter().map(|(_, sample)| sample).sum();
        self.mean = (!self.samples.is_empty()).then(|| sum / self.samples.len() as f64);
        let oldest = self.samples.iter().map(|(at, _)| *at).min();
        self.until = oldest.map_or(now, |oldest| oldest + ttl);
    }
}

impl LatencyBased {
    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.get())
    }
}

impl Score for LatencyBased {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let (ttl, retry) = (self.ttl(), Duration::from_millis(self.retry_ms.get()));
        let mut quickest = f64::INFINITY;
        for (score, candidate) in scores.iter_mut().zip(round.candidates) {
            let mean = self.seen.at_mut(candidate.place).and_then(|seen| seen.mean(ttl, round.now));
            *score = mean.unwrap_or(f64::NAN);
            quickest = quickest.min(*score);
        }
        if quickest.is_infinite() {
            return scores.fill(1.0);
        }
        // One of which little is known is tried, but not with a second request before the first is answered.
        let (mut sum, mut count) = (0.0, 0.0);
        for (score, candidate) in scores.iter_mut().zip(round.candidates) {
            let seen = self.seen.at(candidate.place);
            let is_vague = seen.is_none_or(|seen| seen.is_vague(self.samples, retry, round.now));
            if is_vague && candidate.in_flight == 0 {
                *score = quickest;
            }
            if !score.is_nan() {
                (sum, count) = (sum + *score, count + 1.0);
            }
        }
        let bound = quickest * (1.0 + self.lowest_latency_buffer.get());
        for score in scores.iter_mut() {
            let known = if score.is_nan() { sum / count } else { *score };
            *score = if known <= bound { quickest } else { known };
        }
        scale::cheapest_first(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.seen.meet(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        let News::Ended { place, after, output_tokens: Some(tokens), failed: false, .. } = *news else {
            return;
        };
        let ttl = self.ttl();
        if let Some(seen) = self.seen.at_mut(place) {
            seen.learn(after.as_secs_f64() / f64::from(tokens.max(1)), self.samples, ttl, now);
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
    use crate::policy::tests::{at, busy, read, shares_at, shares_of};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn learn_at(policy: &mut Policy, place: usize, ms: u64, tokens: u32, now: Instant) {
        let (after, output_tokens) = (Duration::from_millis(ms), Some(tokens));
        policy.learn(&News::Ended { place, after, decoding: None, output_tokens, failed: false }, now);
    }

    fn learn(policy: &mut Policy, place: usize, ms: u64, tokens: u32) {
        learn_at(policy, place, ms, tokens, Instant::default());
    }

    #[test]
    fn latency_is_per_token_of_the_latest_and_the_unknown_is_no_favourite() {
        let mut policy = read(json!("latency_based"), 3);
        learn(&mut policy, 0, 1_000, 100);
        learn(&mut policy, 1, 1_000, 50);
        (1..10).for_each(|_| learn(&mut policy, 0, 1_000, 100));
        (1..10).for_each(|_| learn(&mut policy, 1, 1_000, 50));
        let asked = busy(2, 1, 0, 0);
        assert_eq!(shares_of(&mut policy, &[at(0), at(1), asked], 50), [50, 0, 0], "10 ms, 20 ms, unknown");
        let probed = shares_of(&mut policy, &[at(0), at(1), at(2)], 100);
        assert!(probed[1] == 0 && probed[2] > 20, "{probed:?}");
        (0..10).for_each(|_| learn(&mut policy, 0, 3_000, 100));
        assert_eq!(shares_of(&mut policy, &[at(0), at(1)], 50), [0, 50], "the latest ten count");
        let mut wide = read(json!({"latency_based": {"lowest_latency_buffer": 0.5}}), 2);
        (0..10).for_each(|_| learn(&mut wide, 0, 100, 10));
        (0..10).for_each(|_| learn(&mut wide, 1, 140, 10));
        assert!(shares_of(&mut wide, &[at(0), at(1)], 100).iter().all(|count| *count > 20));
    }

    #[test]
    fn a_sample_counts_for_its_time_and_no_longer() {
        let mut policy = read(json!({"latency_based": {"ttl_ms": 1_000, "samples": 2}}), 2);
        let second = Instant::from_millis;
        learn_at(&mut policy, 0, 900, 10, second(0));
        learn_at(&mut policy, 0, 100, 10, second(600));
        (0..2).for_each(|_| learn_at(&mut policy, 1, 200, 10, second(600)));
        let both = [at(0), at(1)];
        assert_eq!(shares_at(&mut policy, &both, 20, second(700)), [0, 20], "50 ms a token, and 20");
        assert_eq!(shares_at(&mut policy, &both, 20, second(1_000)), [20, 0], "10 ms a token, and 20");
        let even = shares_at(&mut policy, &both, 100, second(1_700));
        assert!(even.iter().all(|count| *count > 20), "nothing is known any more: {even:?}");
    }

    #[test]
    fn one_slow_answer_does_not_shut_an_endpoint_out() {
        let mut policy = read(json!("latency_based"), 2);
        let at_ms = Instant::from_millis;
        (0..10).for_each(|_| learn_at(&mut policy, 0, 100, 10, at_ms(0)));
        learn_at(&mut policy, 1, 9_000, 10, at_ms(0));
        let both = [at(0), at(1)];
        let busy = [at(0), busy(1, 1, 0, 0)];
        for _ in 0..9 {
            assert!(shares_at(&mut policy, &both, 100, at_ms(1))[1] > 20, "little is known of it");
            assert_eq!(shares_at(&mut policy, &busy, 20, at_ms(1)), [20, 0], "one at a time");
            learn_at(&mut policy, 1, 100, 10, at_ms(1));
        }
        assert_eq!(shares_at(&mut policy, &both, 20, at_ms(2)), [20, 0], "the slow one of ten counts");
        assert!(shares_at(&mut policy, &both, 100, at_ms(10_001))[1] > 20, "it is tried again");
        learn_at(&mut policy, 1, 100, 10, at_ms(10_002));
        assert!(shares_at(&mut policy, &both, 100, at_ms(10_003))[1] > 20, "and is as quick as the other");
    }
}
