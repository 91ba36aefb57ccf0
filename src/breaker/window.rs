//! How often something happened within an interval that slides.
//!
//! The interval is cut in ten parts, each with its counts, in a ring: adding and counting look at ten numbers, whatever
//! the traffic. What is counted reaches back by between nine tenths of the interval and all of it.

use crate::instant::Instant;
use std::time::Duration;

const PARTS: usize = 10;

/// Failures, and all that was counted, in one part or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) failed: u32,
    pub(super) all: u32,
}

/// A sliding count.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    parts: [Counts; PARTS],
    /// The number of the newest part since the start of time.
    newest: u64,
}

impl Window {
    /// Counts one; gives the counts of the interval, it included.
    pub(super) fn add(&mut self, failed: bool, interval: Duration, now: Instant) -> Counts {
        let part = u64::try_from(interval.as_nanos() / PARTS as u128).unwrap_or(u64::MAX).max(1);
        let number = now.nanos() / part;
        // A clock that went back counts into the newest part.
        for _ in 0..number.saturating_sub(self.newest).min(PARTS as u64) {
            self.parts.rotate_right(1);
            if let Some(first) = self.parts.first_mut() {
                *first = Counts::default();
            }
        }
        self.newest = self.newest.max(number);
        if let Some(first) = self.parts.first_mut() {
            first.all = first.all.saturating_add(1);
            first.failed = first.failed.saturating_add(u32::from(failed));
        }
        self.parts.iter().fold(Counts::default(), |sum, part| Counts {
            failed: sum.failed.saturating_add(part.failed),
            all: sum.all.saturating_add(part.all),
        })
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.parts = [Counts::default(); PARTS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_is_older_than_the_interval_does_not_count() {
        let (mut window, interval) = (Window::default(), Duration::from_secs(10));
        let mut add = |failed, ms| window.add(failed, interval, Instant::from_millis(ms));
        assert_eq!(add(true, 100_000), Counts { failed: 1, all: 1 });
        assert_eq!(add(false, 104_000), Counts { failed: 1, all: 2 });
        assert_eq!(add(true, 108_900), Counts { failed: 2, all: 3 });
        assert_eq!(add(true, 110_500), Counts { failed: 2, all: 3 }, "the first has left");
        assert_eq!(add(true, 90_000), Counts { failed: 3, all: 4 }, "the clock went back");
        assert_eq!(add(true, 1_000_000), Counts { failed: 1, all: 1 });
    }
}
