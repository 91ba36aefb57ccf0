//! What proxies that are long gone have used of a key: sums in place of names.
//!
//! A proxy whose lease has lapsed may come back, and says then what it has used; so its name is kept for a while. But proxies start anew
//! with every roll-out, and a budget of a year would sooner or later have a thousand names. The oldest are added up.
//! Of a sliding window uses are added up that end within a sixteenth of it, and count until the last of them ends: up to
//! a sixteenth of the window too long. Those of a period of the calendar, or of a budget without an end, all end at once.

use serde::{Deserialize, Serialize};

/// Sums by part of a key, and by when they end.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Gone(Vec<Sum>);

/// What some of them have used of one part.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Sum {
    part: usize,
    /// When the first of it would have ended, in nanoseconds.
    since: u64,
    /// When none of it counts any more, in nanoseconds.
    pub(super) until: u64,
    /// All that they could have used.
    pub(super) amount: u64,
    /// What they had said that they have.
    pub(super) used: u64,
}

/// Of what a window holds, so much is taken to end at the same time.
const GRAIN: u64 = 16;
/// Most sums of a part. Windows whose length never changes have fewer.
const MOST: usize = 2 * GRAIN as usize;

impl Gone {
    /// Adds what counts until `until` of a window of this length, both in nanoseconds.
    pub(super) fn add(&mut self, part: usize, [amount, used]: [u64; 2], until: u64, window: u64) {
        let sums = || self.0.iter().enumerate().filter(|(_, sum)| sum.part == part);
        let near = |sum: &Sum| sum.until.max(until).saturating_sub(sum.since.min(until)) <= window / GRAIN;
        let place = sums().find(|(_, sum)| near(sum)).map(|(place, _)| place);
        let last = || sums().max_by_key(|(_, sum)| sum.until).map(|(place, _)| place);
        let place = if sums().count() >= MOST { place.or_else(last) } else { place };
        match place.and_then(|place| self.0.get_mut(place)) {
            Some(sum) => {
                (sum.since, sum.until) = (sum.since.min(until), sum.until.max(until));
                sum.amount = sum.amount.saturating_add(amount);
                sum.used = sum.used.saturating_add(used);
            }
            None => self.0.push(Sum { part, since: until, until, amount, used }),
        }
    }

    /// Drops what counts no longer.
    pub(super) fn forget(&mut self, now: u64) {
        self.0.retain(|sum| sum.until > now);
    }

    /// The sums of a part.
    pub(super) fn of(&self, part: usize) -> impl Iterator<Item = &Sum> {
        self.0.iter().filter(move |sum| sum.part == part)
    }

    /// When nothing of it counts any more.
    pub(super) fn ends(&self) -> Option<u64> {
        self.0.iter().map(|sum| sum.until).max()
    }

    /// How many parts it may have something of.
    pub(super) fn parts(&self) -> usize {
        self.0.iter().map(|sum| sum.part.saturating_add(1)).max().unwrap_or(0)
    }

    /// Whether it has nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn sums_stay_few_lose_nothing_and_end_at_most_a_sixteenth_of_the_window_late() {
        const WINDOW: u64 = 16_000;
        let mut gone = Gone::default();
        for now in 0..100_000 {
            gone.forget(now);
            gone.add(0, [3, 2], now + WINDOW, WINDOW);
            gone.add(1, [1, 1], u64::MAX, u64::MAX);
            let [amount, used] =
                [|sum: &Sum| sum.amount, |sum: &Sum| sum.used].map(|of| gone.of(0).map(of).sum::<u64>());
            // Each of the last 16,000 counts, and none that is a thousand older.
            let counting = (now + 1).min(WINDOW);
            assert!(
                (3 * counting..=3 * (counting + WINDOW / GRAIN + 1)).contains(&amount),
                "{now}: {amount}"
            );
            assert_eq!(amount / 3 * 2, used);
            assert!(gone.0.len() <= GRAIN as usize + 3, "{}", gone.0.len());
        }
        assert_eq!(
            (gone.of(1).next().map(|sum| sum.amount), gone.ends(), gone.parts()),
            (Some(100_000), Some(u64::MAX), 2)
        );
    }

    #[test]
    fn odd_windows_are_bounded_too() {
        let mut gone = Gone::default();
        for at in 0..1_000 {
            gone.add(0, [1, 0], at * at, at % 7);
        }
        assert_eq!(gone.of(0).map(|sum| sum.amount).sum::<u64>(), 1_000);
        assert!(gone.0.len() <= MOST);
    }
}
