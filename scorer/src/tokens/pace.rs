//! How fast prompts become tokens lately, to leave out at once what cannot be done in time.
//!
//! A tokenizer that runs cannot be stopped, so a body that takes too long costs its thread all the same; and how long one
//! takes depends on what is in it: without a space, a hundred times as long. So time is foretold:
//! `length × Σ time ÷ Σ bytes`, over what was read before, each read counting 7/8 at the next. The sums make it an average by
//! time, in which one slow body outweighs many quick ones, and many quick ones after it outweigh it again. Where nothing else
//! tells that it has become faster, a long one is tried now and then.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::instant::Instant;

/// Bodies of so many bytes are always read.
pub(super) const SHORT: usize = 16 << 10;
/// From so many bytes on the time is the tokenizer's, and is learned from.
const TELLING: usize = 4 << 10;
/// What remains of what was learned, at the next body.
const FADING: f64 = 7.0 / 8.0;
/// How often one that would not fit is tried all the same.
const TRY: Duration = Duration::from_secs(10);

/// What was learned.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    bytes: f64,
    secs: f64,
    /// When a body that is not short was last read or let in.
    long: Instant,
}

impl Pace {
    /// Whether a body of so many bytes is likely to be done in time.
    pub(super) fn fits(&self, length: usize, limit: Duration, now: Instant) -> bool {
        if length <= SHORT {
            return true;
        }
        let mut seen = self.seen();
        let fits =
            length as f64 * seen.secs <= limit.as_secs_f64() * seen.bytes || now.since(seen.long) > TRY;
        if fits {
            seen.long = now;
        }
        fits
    }

    /// One of so many bytes took so long, until now.
    pub(super) fn learn(&self, length: usize, took: Duration, now: Instant) {
        if length < TELLING {
            return;
        }
        let mut seen = self.seen();
        seen.bytes = seen.bytes * FADING + length as f64;
        seen.secs = seen.secs * FADING + took.as_secs_f64();
        if length > SHORT {
            seen.long = now;
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(30);

    fn at(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    #[test]
    fn what_took_too_long_is_not_done_again_and_quick_ones_bring_it_back() {
        let pace = Pace::default();
        let long = 1 << 20;
        assert!(pace.fits(long, LIMIT, at(100)), "nothing is known yet");
        pace.learn(long, Duration::from_secs(1), at(101));
        assert!(!pace.fits(long, LIMIT, at(102)));
        assert!(pace.fits(SHORT, LIMIT, at(102)), "a short one always is");
        // At a byte in 10 ns, 1 MiB takes 10 ms.
        let mut reads = 0;
        while !pace.fits(long, LIMIT, at(103)) {
            pace.learn(10_000, Duration::from_micros(100), at(103));
            reads += 1;
        }
        assert!((10..100).contains(&reads), "{reads}");
    }

    #[test]
    fn where_nobody_tells_one_is_tried_now_and_then() {
        let pace = Pace::default();
        pace.learn(1 << 20, Duration::from_secs(1), at(100));
        let tried = (100..160).filter(|secs| pace.fits(1 << 20, LIMIT, at(*secs))).count();
        assert_eq!(tried, 5);
    }
}
