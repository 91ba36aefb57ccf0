//! Sums over a sliding window, kept in cells.
//!
//! Time is cut into cells of a sixtieth of the window, rounded up to a nanosecond. What is charged at `t` goes into the
//! cell of `t`, and a cell counts until the window has passed its *end*:
//!
//! ```text
//! used(now) = sum of the cells from cell(now) - 60 to cell(now)
//! ```
//!
//! These are 61 cells, so all that was charged within the window before `now` is among them: no window of the stated
//! length, wherever it begins, holds more than was allowed. The price is on the other side: a charge counts for up to a
//! sixtieth of the window too long (a second of a minute, 24 minutes of a day).
//!
//! Why not something smaller? A fixed window lets twice the limit through around its edge; two fixed windows with
//! the older one weighted let up to as much through when traffic is not even; a leaky bucket (GCRA) that allows a
//! burst of the limit allows the burst and the refill within one window. A log of every request needs as much memory
//! as there are requests. Quotas that begin anew with the month are another thing (`calendar.rs`). Only cells that hold something are kept, so a key that is used now and then takes a few bytes.

use super::calendar::Calendar;
use crate::instant::Instant;
use crate::varint::{read_number, write_number};
use std::num::NonZeroU32;

/// Cells that make up the length of a window.
pub const CELLS: u64 = 60;

/// How a window cuts time, and for how long what falls into a cell counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// It slides: a cell is a sixtieth of it.
    Sliding {
        /// Length of a cell in nanoseconds, at least 1.
        cell_nanos: u64,
    },
    /// It begins and ends with the calendar: a cell is all of it.
    Calendar(Calendar),
}

impl Span {
    /// A window of so many seconds.
    pub fn of_secs(secs: NonZeroU32) -> Self {
        Self::of_nanos(u64::from(secs.get()).saturating_mul(1_000_000_000))
    }

    /// A window of so many nanoseconds, at least one per cell.
    pub fn of_nanos(nanos: u64) -> Self {
        Self::Sliding { cell_nanos: nanos.div_ceil(CELLS).max(1) }
    }

    /// Milliseconds for which what is used now counts at least, rounded up.
    pub fn millis(self, now: Instant) -> u64 {
        let nanos = match self {
            Self::Sliding { cell_nanos } => cell_nanos.saturating_mul(CELLS),
            Self::Calendar(calendar) => calendar.end(calendar.cell(now)).nanos().saturating_sub(now.nanos()),
        };
        nanos.div_ceil(1_000_000)
    }

    /// The cell that a point in time belongs to.
    pub fn cell(self, at: Instant) -> u64 {
        match self {
            Self::Sliding { cell_nanos } => at.nanos() / cell_nanos.max(1),
            Self::Calendar(calendar) => calendar.cell(at),
        }
    }

    /// The oldest cell that still counts.
    pub fn oldest(self, now: Instant) -> u64 {
        match self {
            Self::Sliding { .. } => self.cell(now).saturating_sub(CELLS),
            Self::Calendar(calendar) => calendar.cell(now),
        }
    }

    /// From when on a cell no longer counts.
    pub fn end(self, cell: u64) -> Instant {
        match self {
            Self::Sliding { cell_nanos } => {
                Instant::from_nanos(cell.saturating_add(CELLS + 1).saturating_mul(cell_nanos))
            }
            Self::Calendar(calendar) => calendar.end(cell),
        }
    }
}

/// Amounts by cell, oldest first; no cell is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cells(Vec<(u64, u64)>);

impl Cells {
    /// Drops what counts no longer.
    pub fn forget(&mut self, oldest: u64) {
        self.0.retain(|(cell, _)| *cell >= oldest);
    }

    /// Adds to a cell.
    pub fn add(&mut self, cell: u64, amount: u64) {
        if amount == 0 {
            return;
        }
        let at = self.0.partition_point(|(own, _)| *own < cell);
        match self.0.get_mut(at) {
            Some((own, sum)) if *own == cell => *sum = sum.saturating_add(amount),
            _ => self.0.insert(at, (cell, amount)),
        }
    }

    /// Takes back from a cell; from one that counts no longer there is nothing to take.
    pub fn take(&mut self, cell: u64, amount: u64) {
        let at = self.0.partition_point(|(own, _)| *own < cell);
        if let Some((own, sum)) = self.0.get_mut(at)
            && *own == cell
        {
            *sum = sum.saturating_sub(amount);
            if *sum == 0 {
                self.0.remove(at);
            }
        }
    }

    /// All that is kept.
    pub fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, (_, amount)| sum.saturating_add(*amount))
    }

    /// The youngest cell.
    pub fn newest(&self) -> Option<u64> {
        self.0.last().map(|(cell, _)| *cell)
    }

    /// The cell after whose end no more than `most` is left, when nothing is added meanwhile; `None` when that is so
    /// already.
    pub fn falls_to(&self, most: u64) -> Option<u64> {
        let mut left = self.sum();
        for (cell, amount) in &self.0 {
            if left <= most {
                return None;
            }
            left = left.saturating_sub(*amount);
            if left <= most {
                return Some(*cell);
            }
        }
        None
    }

    /// Appends the cells as bytes: their number, the youngest, then from young to old the distance and the amount.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.reserve(16 + 5 * self.0.len());
        write_number(to, self.0.len() as u64);
        let mut before = None;
        for (cell, amount) in self.0.iter().rev() {
            write_number(to, before.map_or(*cell, |before: u64| before.saturating_sub(*cell)));
            write_number(to, *amount);
            before = Some(*cell);
        }
    }

    /// Takes cells off the front of bytes. `None` when they are not what [`Cells::write`] writes.
    pub fn read(from: &mut &[u8]) -> Option<Self> {
        let number = read_number(from)?;
        // Each takes two bytes at least.
        let mut cells = Vec::with_capacity(usize::try_from(number).ok().filter(|n| *n <= from.len() / 2)?);
        let mut before = None;
        for _ in 0..number {
            let first = read_number(from)?;
            let cell = match before {
                None => first,
                Some(before) if first > 0 => u64::checked_sub(before, first)?,
                Some(_) => return None,
            };
            cells.push((cell, read_number(from)?));
            before = Some(cell);
        }
        cells.reverse();
        Some(Self(cells))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_was_charged_counts_for_the_window_and_at_most_a_cell_longer() {
        let mut random = Random::new(5);
        for secs in [1, 7, 60, 86_400] {
            let span = Span::of_secs(NonZeroU32::new(secs).unwrap());
            let window = u64::from(secs) * 1_000_000_000;
            for _ in 0..2_000 {
                let at = random.next() >> 8;
                let cell = span.cell(Instant::from_nanos(at));
                assert!(cell >= span.oldest(Instant::from_nanos(at + window)), "{secs} s, {at}");
                let end = span.end(cell);
                assert!(cell < span.oldest(end) && cell >= span.oldest(Instant::from_nanos(end.nanos() - 1)));
                assert!(end.nanos() <= at + window + window / CELLS + 61, "{secs} s, {at}");
            }
        }
    }

    #[test]
    fn cells_add_take_fall_and_survive_the_way() {
        let mut cells = Cells::default();
        for (cell, amount) in [(7, 3), (9, 1 << 40), (7, 2), (8, 0), (3, 6)] {
            cells.add(cell, amount);
        }
        assert_eq!((cells.sum(), cells.newest()), ((1 << 40) + 11, Some(9)));
        assert_eq!(cells.falls_to((1 << 40) + 11), None);
        assert_eq!(cells.falls_to((1 << 40) + 10), Some(3));
        assert_eq!(cells.falls_to(1 << 40), Some(7));
        assert_eq!(cells.falls_to(0), Some(9));
        let mut bytes = Vec::new();
        cells.write(&mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(Cells::read(&mut &bytes[..cut]), None);
        }
        assert_eq!(Cells::read(&mut &bytes[..]), Some(cells.clone()));
        cells.take(9, 1 << 41);
        cells.take(8, 1);
        cells.forget(4);
        assert_eq!(cells, Cells(vec![(7, 5)]));
    }
}
