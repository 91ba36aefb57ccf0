//! When a second copy of a request is sent, because the first token is late.
//!
//! An engine that stalls (a preemption, a collective that hangs, a neighbour's long prompt) holds its requests for seconds while the
//! endpoint beside it is idle. A *hedge* is a copy sent elsewhere once a request has waited longer than most do; the first answer wins and
//! the other copy is reset (Dean and Barroso, "The Tail at Scale", 2013; gRPC's proposal A6). At the percentile `p` it costs about
//! `100 - p` per cent more requests, and it pays out of the budget of retries, so it ends where everybody is slow.
//!
//! ```text
//! delay = percentile(time to the first token of streams with about as many uncached prompt tokens), at least min_ms
//! ```
//!
//! *By the size of the prompt*, in steps of a factor of four: most of the time to a first token is computing the prompt, and one percentile
//! over all sizes would double the longest prompts, which cost the most, and never a short one that hangs.
//!
//! *Of streams only.* The first byte of another answer is its last as well, and says how much was written.
//!
//! Times are kept in buckets, eight per doubling, so a delay is right to within a tenth; old ones fade.
//! Cost: a look adds up 160 numbers.

use crate::invalid::Invalid;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// How requests are hedged.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The share of streams, in per cent from 50 to 99, whose first token comes before a copy would be sent.
    pub percentile: u32,
    /// Milliseconds before which none is sent.
    pub min_ms: NonZeroU64,
    /// Streams of about this size that must have been seen before one is hedged.
    pub min_requests: NonZeroU32,
}

impl Default for Config {
    fn default() -> Self {
        const MS: NonZeroU64 = NonZeroU64::new(50).unwrap();
        const REQUESTS: NonZeroU32 = NonZeroU32::new(100).unwrap();
        Self { percentile: 95, min_ms: MS, min_requests: REQUESTS }
    }
}

impl Config {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        match self.percentile {
            50..=99 => Ok(()),
            other => Err(Invalid::new("percentile", format!("{other} is not from 50 to 99"))),
        }
    }
}

/// Classes of prompts: below 256 uncached tokens, and by factors of four up to 65,536 and more.
const CLASSES: usize = 6;
const PER_DOUBLING: f64 = 8.0;
const BUCKETS: usize = 160;

/// How long first tokens take, and so when a copy is sent.
#[derive(Debug)]
pub struct Hedge {
    config: Option<Config>,
    classes: Vec<Times>,
}

impl Hedge {
    /// Nothing is known yet. Without a configuration nothing is learnt and nothing hedged.
    pub fn new(config: Option<&Config>) -> Self {
        let classes = config.map_or(0, |_| CLASSES);
        Self { config: config.cloned(), classes: vec![Times::default(); classes] }
    }

    /// A stream with so many uncached prompt tokens had its first token after so long.
    pub fn learn(&mut self, uncached_tokens: u32, time: Duration) {
        if let Some(times) = self.classes.get_mut(class(uncached_tokens)) {
            times.add(time);
        }
    }

    /// Of such a stream a copy was sooner: it would have taken longer than the delay, and nobody knows how long. It counts as the
    /// delay, so that the delay neither follows times that it has made itself nor sinks because they are left out.
    pub fn learn_late(&mut self, uncached_tokens: u32) {
        const WITHIN_ITS_BUCKET: f64 = 0.97;
        if let Some(delay) = self.after(uncached_tokens) {
            self.learn(uncached_tokens, delay.mul_f64(WITHIN_ITS_BUCKET));
        }
    }

    /// After how long a copy of a stream with so many is sent; `None`: never.
    pub fn after(&self, uncached_tokens: u32) -> Option<Duration> {
        let config = self.config.as_ref()?;
        let times = self.classes.get(class(uncached_tokens))?;
        let enough = times.seen >= config.min_requests.get();
        let least = Duration::from_millis(config.min_ms.get());
        enough.then(|| times.percentile(config.percentile).max(least))
    }
}

fn class(uncached_tokens: u32) -> usize {
    const SMALLEST: u32 = 4;
    let fours = uncached_tokens.checked_ilog2().unwrap_or(0) / 2;
    (fours.saturating_sub(SMALLEST - 1) as usize).min(CLASSES - 1)
}

/// A distribution that forgets.
#[derive(Clone, Debug)]
struct Times {
    seen: u32,
    weight: f32,
    buckets: Vec<f32>,
}

impl Default for Times {
    fn default() -> Self {
        Self { seen: 0, weight: 0.0, buckets: vec![0.0; BUCKETS] }
    }
}

impl Times {
    /// With so many in it all count half.
    const MOST: f32 = 1_000.0;

    fn add(&mut self, time: Duration) {
        let doublings = (time.as_secs_f64() * 1e3).max(1.0).log2();
        let place = ((doublings * PER_DOUBLING) as usize).min(BUCKETS - 1);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket += 1.0;
        }
        self.seen = self.seen.saturating_add(1);
        self.weight += 1.0;
        if self.weight >= Self::MOST {
            self.weight /= 2.0;
            self.buckets.iter_mut().for_each(|bucket| *bucket /= 2.0);
        }
    }

    /// The end of the bucket that holds it.
    fn percentile(&self, percent: u32) -> Duration {
        let beyond = self.weight * (100_u32.saturating_sub(percent)) as f32 / 100.0;
        let mut above = 0.0;
        let last = self.buckets.iter().rposition(|bucket| {
            above += bucket;
            above > beyond
        });
        let doublings = last.map_or(0, |place| place + 1) as f64 / PER_DOUBLING;
        Duration::from_secs_f64(doublings.exp2() / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn on(percentile: u32) -> Hedge {
        Hedge::new(Some(&Config { percentile, ..Config::default() }))
    }

    #[test]
    fn the_delay_is_the_percentile_to_within_a_tenth() {
        for (percentile, expected) in [(50, 550), (90, 910), (95, 955), (99, 991)] {
            let mut hedge = on(percentile);
            (100..1_000).for_each(|time| hedge.learn(1_000, ms(time)));
            let after = hedge.after(1_000).unwrap();
            assert!(after >= ms(expected * 95 / 100) && after <= ms(expected * 110 / 100), "{after:?}");
        }
    }

    #[test]
    fn nothing_is_hedged_before_enough_was_seen_and_nothing_without_a_configuration() {
        let mut hedge = on(95);
        (0..99).for_each(|_| hedge.learn(10, ms(200)));
        assert_eq!(hedge.after(10), None);
        hedge.learn(10, ms(200));
        assert!(hedge.after(10).is_some());
        let mut off = Hedge::new(None);
        (0..1_000).for_each(|_| off.learn(10, ms(200)));
        assert_eq!(off.after(10), None);
    }

    #[test]
    fn a_long_prompt_is_measured_by_long_prompts() {
        let mut hedge = on(95);
        (0..100).for_each(|_| hedge.learn(100, ms(80)));
        (0..100).for_each(|_| hedge.learn(30_000, ms(6_000)));
        assert!(hedge.after(200).unwrap() < ms(100));
        assert!(hedge.after(20_000).unwrap() >= ms(6_000));
        assert_eq!(hedge.after(2_000), None, "none of that size was seen");
    }

    #[test]
    fn the_delay_follows_when_times_change_and_never_goes_below_the_least() {
        let mut hedge = on(95);
        (0..10_000).for_each(|_| hedge.learn(10, ms(2_000)));
        (0..10_000).for_each(|_| hedge.learn(10, ms(3)));
        assert_eq!(hedge.after(10).unwrap(), ms(50));
    }

    #[test]
    fn an_endpoint_that_is_always_late_does_not_move_the_delay() {
        let mut hedge = on(95);
        (0..200).for_each(|_| hedge.learn(10, ms(100)));
        let delay = hedge.after(10).unwrap();
        for _ in 0..5_000 {
            hedge.learn(10, ms(100));
            hedge.learn_late(10);
        }
        assert_eq!(hedge.after(10).unwrap(), delay);
    }

    #[test]
    fn classes_are_factors_of_four() {
        let classes = [0, 255, 256, 1_023, 1_024, 4_096, 16_384, 65_536, u32::MAX].map(class);
        assert_eq!(classes, [0, 0, 1, 1, 2, 3, 4, 5, 5]);
    }
}
