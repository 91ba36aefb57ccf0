//! `peak_ewma`: the endpoint that has been quick of late, of two at random.
//!
//! ```text
//! sample = time to the first token / max(own uncached tokens, min_tokens)
//! ewma   = sample                                    when it is above: peaks count at once
//!          sample + (ewma - sample) * e^(-dt/tau)    otherwise
//! cost   = ewma * e^(-idle/tau) * max(own uncached tokens, min_tokens) * (requests in flight + 1)
//! ```
//!
//! Finagle's and Linkerd's peak EWMA, on the time to the first token per token to compute: whole latency would only
//! measure how long answers are. What is not asked fades, so that one that was slow is tried again. Of whom nothing is
//! known costs nothing while it is idle, and cannot be had while its first request is out: one probe, no flood.
//!
//! For endpoints that differ in speed, or change, and do not say so. Without prefix caches the order is that of
//! classic peak EWMA. Answers that are not streamed bring no sample.

use super::number::Millis;
use super::{Each, Known, News, Round, Score, scale};
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PeakEwma {
    /// Milliseconds after which a sample counts a third.
    tau_ms: Millis,
    /// Prompts are taken to have so many tokens to compute at least: below that, time is overhead.
    min_tokens: NonZeroU32,
    #[serde(skip)]
    seen: Each<Option<Seen>>,
}

/// Seconds per token, and when that was learned.
#[derive(Clone, Copy, Debug)]
struct Seen {
    pace: f64,
    at: Instant,
}

impl Default for PeakEwma {
    fn default() -> Self {
        const TOKENS: NonZeroU32 = NonZeroU32::new(64).unwrap();
        Self { tau_ms: Millis::of(10_000), min_tokens: TOKENS, seen: Each::default() }
    }
}

impl PeakEwma {
    fn fade(&self, from: Instant, to: Instant) -> f64 {
        (-to.since(from).as_secs_f64() * 1000.0 / self.tau_ms.get() as f64).exp()
    }
}

impl Score for PeakEwma {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::fill(round, scores, |candidate| {
            let tokens = candidate.uncached_tokens(round.demand).max(self.min_tokens.get());
            let outstanding = f64::from(candidate.in_flight);
            match self.seen.at(candidate.place).copied().flatten() {
                Some(seen) => {
                    seen.pace * self.fade(seen.at, round.now) * f64::from(tokens) * (outstanding + 1.0)
                }
                None if candidate.in_flight == 0 => 0.0,
                None => f64::INFINITY,
            }
        });
        scale::cheapest_first(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.seen.meet(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        let News::FirstToken { place, after, uncached_tokens, .. } = *news else { return };
        let sample = after.as_secs_f64() / f64::from(uncached_tokens.max(self.min_tokens.get()));
        let before = self.seen.at(place).copied().flatten();
        let pace = match before {
            Some(seen) if sample < seen.pace => sample + (seen.pace - sample) * self.fade(seen.at, now),
            _ => sample,
        };
        if let Some(seen) = self.seen.at_mut(place) {
            *seen = Some(Seen { pace, at: now });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{at, busy, read, shares_of};
    use serde_json::json;
    use std::time::Duration;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_peak_counts_at_once_and_recovery_takes_its_time() {
        let mut policy = PeakEwma::default();
        let address = ["10.0.0.1:1".to_owned()];
        crate::policy::tests::meet(&address, |known| policy.meet(known));
        let learn = |policy: &mut PeakEwma, second: u64, ms| {
            let after = Duration::from_millis(ms);
            let news = News::FirstToken { place: 0, after, uncached_tokens: 1_000, queued_tokens: 1_000 };
            policy.learn(&news, Instant::from_millis(second * 1_000));
            policy.seen.at(0).copied().flatten().map(|seen| (seen.pace * 1e6).round())
        };
        assert_eq!(learn(&mut policy, 0, 100), Some(100.0), "microseconds per token");
        assert_eq!(learn(&mut policy, 1, 900), Some(900.0), "the peak");
        assert_eq!(learn(&mut policy, 11, 100), Some(394.0), "100 + 800/e, after tau");
    }

    #[test]
    fn who_is_slow_is_spared_and_who_is_unknown_gets_one_probe() {
        let mut policy = read(json!("peak_ewma"), 3);
        for (place, ms) in [(0, 100), (1, 1_000)] {
            let after = Duration::from_millis(ms);
            let news = News::FirstToken { place, after, uncached_tokens: 1_000, queued_tokens: 1_000 };
            policy.learn(&news, Instant::default());
        }
        assert_eq!(shares_of(&mut policy, &[at(0), at(1)], 100), [100, 0]);
        let idle = shares_of(&mut policy, &[at(0), at(1), at(2)], 300);
        assert!(idle[2] > 150 && idle[1] == 0, "{idle:?}");
        let probing = shares_of(&mut policy, &[at(0), at(1), busy(2, 1, 0, 0)], 300);
        assert_eq!(probing[2], 0, "no second one before the first has answered");
    }
}
