//! What one key has used of one limit.
//!
//! A request is charged its estimate when it is admitted, in the cell of that moment, and corrected once when it is over.
//! So there is no list of reservations to keep and to expire: one that nobody ever corrects, because its
//! worker died, stays a charge of its estimate and leaves with its window like any other. What turns out to be *less*
//! is given back in the cell of the admission, if that still counts; what is *more* is charged in the cell of the
//! settlement: a debt, which the window carries on for its whole length.
//!
//! Requests in flight are counted by when they were admitted. Those that are not over after `lease_ms` stop
//! counting: their worker is gone.

use super::rule::{Rule, Unit};
use super::window::Cells;
use crate::instant::Instant;
use std::time::Duration;

/// Charges of one key, window by window as its rule has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    windows: Vec<Cells>,
    in_flight: Cells,
}

/// Why a request must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The window that is full; `None`: too many requests in flight.
    pub(super) window: Option<usize>,
    /// When there would be room, if nothing else came.
    pub(super) wait: Duration,
}

/// What is left of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The limit, in tokens or requests.
    pub limit: u64,
    /// What is left of it, in whole tokens or requests.
    pub remaining: u64,
    /// When all of it is there again, if nothing else comes.
    pub reset: Duration,
}

/// A key must wait this long when it has too many requests in flight: when one of them ends is not known.
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);

impl Account {
    /// Nothing used.
    pub(super) fn new(rule: &Rule) -> Self {
        Self { windows: vec![Cells::default(); rule.windows.len()], in_flight: Cells::default() }
    }

    /// Drops what counts no longer.
    pub(super) fn forget(&mut self, rule: &Rule, now: Instant) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            cells.forget(window.span.oldest(now));
        }
        self.in_flight.forget(rule.lease.oldest(now));
    }

    /// What keeps a request of this cost out, the longest wait of all; `None`: nothing.
    pub(super) fn block(&self, rule: &Rule, cost: u64, now: Instant) -> Option<Block> {
        let crowded = rule.max_in_flight.is_some_and(|most| self.in_flight.sum() >= u64::from(most.get()));
        let crowded = crowded.then_some(Block { window: None, wait: IN_FLIGHT_WAIT });
        let windows = self.windows.iter().zip(&rule.windows).enumerate();
        let full = windows.filter_map(|(at, (cells, window))| {
            let most = window.limit.saturating_sub(window.unit.amount(cost));
            let cell = cells.falls_to(most)?;
            Some(Block { window: Some(at), wait: window.span.end(cell).since(now) })
        });
        full.chain(crowded).max_by_key(|block| block.wait)
    }

    /// Charges the estimate.
    pub(super) fn reserve(&mut self, rule: &Rule, cost: u64, now: Instant) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            cells.add(window.span.cell(now), window.unit.amount(cost));
        }
        if rule.max_in_flight.is_some() {
            self.in_flight.add(rule.lease.cell(now), 1);
        }
    }

    /// Takes a [`Account::reserve`] back whole, requests too: the request was not admitted after all.
    pub(super) fn cancel(&mut self, rule: &Rule, cost: u64, at: Instant) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            cells.take(window.span.cell(at), window.unit.amount(cost));
        }
        self.in_flight.take(rule.lease.cell(at), 1);
    }

    /// Corrects what was charged at `at` as `reserved` to what was used. Requests stay counted, whatever came of them.
    pub(super) fn settle(&mut self, rule: &Rule, at: Instant, reserved: u64, used: u64, now: Instant) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            if window.unit == Unit::Tokens {
                cells.take(window.span.cell(at), reserved.saturating_sub(used));
                cells.add(window.span.cell(now), used.saturating_sub(reserved));
            }
        }
        self.in_flight.take(rule.lease.cell(at), 1);
    }

    /// What is left of the window of a unit that would be full first.
    pub(super) fn standing(&self, rule: &Rule, unit: Unit, now: Instant) -> Option<Standing> {
        let windows = self.windows.iter().zip(&rule.windows).filter(|(_, window)| window.unit == unit);
        let standings = windows.map(|(cells, window)| Standing {
            limit: window.limit / unit.scale(),
            remaining: window.limit.saturating_sub(cells.sum()) / unit.scale(),
            reset: cells.newest().map_or(Duration::ZERO, |cell| window.span.end(cell).since(now)),
        });
        standings.min_by_key(|standing| (standing.remaining, std::cmp::Reverse(standing.reset)))
    }

    /// What is charged in a window.
    #[cfg(test)]
    pub(super) fn used(&self, window: usize) -> u64 {
        self.windows.get(window).map_or(0, Cells::sum)
    }

    /// Requests in flight.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.sum()
    }

    /// From when on nothing of it counts; `None` when nothing does now.
    pub(super) fn idle_at(&self, rule: &Rule) -> Option<Instant> {
        let windows = self.windows.iter().zip(&rule.windows);
        let ends = windows.filter_map(|(cells, window)| Some(window.span.end(cells.newest()?)));
        ends.chain(self.in_flight.newest().map(|cell| rule.lease.end(cell))).max()
    }

    /// How full its fullest window is, in 65,535ths.
    pub(super) fn fill(&self, rule: &Rule) -> u16 {
        let windows = self.windows.iter().zip(&rule.windows);
        let fills = windows.map(|(cells, window)| {
            let full = u128::from(window.limit.max(1));
            u16::try_from(u128::from(cells.sum()) * u128::from(u16::MAX) / full).unwrap_or(u16::MAX)
        });
        fills.max().unwrap_or(0)
    }

    /// Appends it as bytes.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        self.windows.iter().chain([&self.in_flight]).for_each(|cells| cells.write(to));
    }

    /// Reads what [`Account::write`] wrote under the same windows.
    pub(super) fn read(rule: &Rule, mut from: &[u8]) -> Option<Self> {
        let windows = rule.windows.iter().map(|_| Cells::read(&mut from)).collect::<Option<_>>()?;
        let in_flight = Cells::read(&mut from)?;
        from.is_empty().then_some(Self { windows, in_flight })
    }
}
