//! The requests of one key that are in flight, and those that wait for their places.
//!
//! A request is counted by when it was admitted. One that is not over after `lease_ms` stops counting: its worker is
//! gone. Where the limit has a `queue`, what finds no slot stands in a [`Line`]; whoever changes the account calls as many as there are
//! slots, in the same step, so no slot is ever free while somebody waits, and no newcomer takes one that is
//! someone's turn.

use super::rule::Rule;
use super::window::Cells;
use crate::instant::Instant;
use crate::queue::{Line, Waiter};

/// Requests in flight, and in line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots {
    in_flight: Cells,
    /// Where there is a queue.
    line: Option<Line>,
}

/// A request that wants a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guest {
    /// Whose turn it takes.
    pub(super) client: u64,
    /// What its prompt costs, in thousandths of a token: that is charged when it gets its slot.
    pub(super) prompt: u64,
    /// By which name it stands in line.
    pub(super) waiter: Option<u64>,
}

/// What became of a request that was to stand in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// It does; another one may have had to give way.
    In { displaced: Option<u64> },
    /// The line is full.
    Full,
}

impl Slots {
    pub(super) fn new(rule: &Rule) -> Self {
        Self { in_flight: Cells::default(), line: rule.queue.as_ref().map(|queue| Line::new(queue.order)) }
    }

    /// Drops what counts no longer.
    pub(super) fn forget(&mut self, rule: &Rule, now: Instant) {
        self.in_flight.forget(rule.lease.oldest(now));
        if let Some(line) = &mut self.line {
            line.forget(now);
        }
    }

    /// Slots that are taken, as seen by one who was called: its own is not.
    pub(super) fn taken(&self, waiter: Option<u64>) -> u64 {
        let called = self.line.as_ref().map_or(0, Line::called) as u64;
        self.in_flight.sum().saturating_add(called).saturating_sub(u64::from(self.is_called(waiter)))
    }

    /// Requests in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.sum()
    }

    /// Whether others come first.
    pub(super) fn is_preceded(&self, waiter: Option<u64>) -> bool {
        self.waiting() > 0 && !self.is_called(waiter)
    }

    fn is_called(&self, waiter: Option<u64>) -> bool {
        waiter.and_then(|id| self.line.as_ref()?.is_called(id)) == Some(true)
    }

    /// How many wait and have not been called.
    pub(super) fn waiting(&self) -> u64 {
        self.line.as_ref().map_or(0, Line::waiting) as u64
    }

    /// The line, if there is one.
    pub(super) fn line(&self) -> Option<&Line> {
        self.line.as_ref()
    }

    /// The cell in which the youngest request was admitted.
    pub(super) fn newest(&self) -> Option<u64> {
        self.in_flight.newest()
    }

    /// Takes a slot.
    pub(super) fn take(&mut self, rule: &Rule, guest: &Guest, now: Instant) {
        if rule.max_in_flight.is_none() {
            return;
        }
        self.in_flight.add(rule.lease.cell(now), 1);
        let called = self.is_called(guest.waiter);
        match (&mut self.line, guest.waiter) {
            (Some(line), Some(id)) if called => line.come(id, now),
            (Some(line), _) => line.pass(guest.client, guest.prompt, now),
            (None, _) => {}
        }
    }

    /// Gives back a slot that was taken at `at`, for a request that used so much.
    pub(super) fn give_back(&mut self, rule: &Rule, guest: &Guest, used: u64, at: Instant, now: Instant) {
        self.in_flight.take(rule.lease.cell(at), 1);
        if let Some(line) = &mut self.line {
            // What came to nothing is not given back: it took its turn. If it were, a client could have others lifted to a
            // counter that then falls.
            if used > 0 {
                let signed = |cost: u64| i64::try_from(cost).unwrap_or(i64::MAX);
                line.correct(guest.client, signed(used).saturating_sub(signed(guest.prompt)));
            }
            line.freed(now);
        }
    }

    /// Stands in line.
    pub(super) fn join(&mut self, rule: &Rule, waiter: Waiter, now: Instant) -> Joined {
        let (Some(line), Some(queue)) = (&mut self.line, &rule.queue) else { return Joined::Full };
        let mut displaced = None;
        if line.waiting() >= queue.size {
            displaced = line.displace(waiter.client, waiter.priority);
            if displaced.is_none() {
                return Joined::Full;
            }
        }
        line.join(waiter, now);
        Joined::In { displaced }
    }

    /// Goes away out of the line.
    pub(super) fn leave(&mut self, waiter: u64, now: Instant) {
        if let Some(line) = &mut self.line {
            line.leave(waiter, now);
        }
    }

    /// Whether it is worth writing that somebody is called: there are so many slots.
    pub(super) fn may_call(&self, slots: u64) -> bool {
        self.waiting() > 0 && self.taken(None) < slots
    }

    /// Calls those whose turn it is.
    pub(super) fn call(&mut self, slots: u64, now: Instant) -> Vec<u64> {
        let free = slots.saturating_sub(self.taken(None));
        let Some(line) = &mut self.line else { return Vec::new() };
        (0..free).map_while(|_| line.call(now)).collect()
    }

    /// From when on nothing of it counts.
    pub(super) fn idle_at(&self, rule: &Rule) -> Option<Instant> {
        let in_flight = self.in_flight.newest().map(|cell| rule.lease.end(cell));
        in_flight.into_iter().chain(self.line.as_ref().and_then(Line::idle_at)).max()
    }

    /// Appends it as bytes.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        self.in_flight.write(to);
        if let Some(line) = &self.line {
            line.write(to);
        }
    }

    /// Takes it off the front of bytes.
    pub(super) fn read(rule: &Rule, from: &mut &[u8]) -> Option<Self> {
        let in_flight = Cells::read(from)?;
        let line = match &rule.queue {
            Some(queue) => Some(Line::read(queue.order, from)?),
            None => None,
        };
        Some(Self { in_flight, line })
    }
}
