//! How a new endpoint's share grows.
//!
//! ```text
//! factor = max(min_weight_percent / 100, (age / window)^(1 / aggression))      1 once the window has passed
//! ```
//!
//! Envoy's curve (`slow_start_config`), with its one fault left out: endpoints that were there from the start have no
//! age and are never held back, so that a whole pool that starts does not crawl.

use super::number::{Amount, MillisOrOff, Percent};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a new endpoint's share grows; off while its window is 0.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlowStart {
    /// Milliseconds until it has its whole share; 0 turns this off.
    window_ms: MillisOrOff,
    /// Percent of its share at first.
    min_weight_percent: Percent,
    /// Above 1 it grows quickly at first, below 1 slowly; 1 is a straight line.
    aggression: Amount,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            window_ms: MillisOrOff::of(0),
            min_weight_percent: Percent::of(10),
            aggression: Amount::of(1.0),
        }
    }
}

impl SlowStart {
    /// The same curve over another window, in milliseconds.
    pub fn over(window_ms: u64) -> Self {
        Self { window_ms: MillisOrOff::of(window_ms), ..Self::default() }
    }

    /// The part of its share that an endpoint of that age gets.
    pub fn factor(&self, age: Option<Duration>) -> f64 {
        let window = Duration::from_millis(self.window_ms.get());
        let Some(age) = age.filter(|age| *age < window) else { return 1.0 };
        let passed = age.as_secs_f64() / window.as_secs_f64();
        let grown = passed.powf(1.0 / self.aggression.get().max(0.01));
        grown.max(f64::from(self.min_weight_percent.get()) / 100.0).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_share_grows_as_envoys_does() {
        let factor = |aggression, seconds| {
            let curve = SlowStart { aggression: Amount::of(aggression), ..SlowStart::over(60_000) };
            (curve.factor(Some(Duration::from_secs(seconds))) * 1000.0).round() / 1000.0
        };
        assert_eq!([0, 3, 6, 30, 59, 60, 99].map(|s| factor(1.0, s)), [0.1, 0.1, 0.1, 0.5, 0.983, 1.0, 1.0]);
        assert_eq!([15, 30].map(|s| factor(2.0, s)), [0.5, 0.707]);
        assert_eq!([15, 30].map(|s| factor(0.5, s)), [0.1, 0.25]);
        assert_eq!(SlowStart::over(60_000).factor(None), 1.0, "there from the start");
        assert_eq!(SlowStart::default().factor(Some(Duration::ZERO)), 1.0, "off");
    }
}
