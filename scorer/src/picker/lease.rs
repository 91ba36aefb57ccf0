//! What a request holds, and how it is given back: the end of a lease is the end of this value.

use crate::scorer::Scorer;
use std::sync::Arc;
use weir::breaker::{Class, Outcome, Reason};
use weir::pool::{Answered, LeaseId};
use weir::wire::Event;

/// A booked endpoint, and what has come of it so far.
pub(super) struct Lease {
    scorer: Arc<Scorer>,
    pool: Arc<str>,
    id: LeaseId,
    /// The chosen endpoint, then the fallbacks.
    order: Vec<String>,
    /// The one that serves; the chosen one until something else is known.
    server: usize,
    answered: Option<Answered>,
    begun: bool,
}

impl Lease {
    pub(super) fn new(scorer: Arc<Scorer>, pool: Arc<str>, id: LeaseId, order: Vec<String>) -> Self {
        Self { scorer, pool, id, order, server: 0, answered: None, begun: false }
    }

    /// The gateway says who serves it. Those before that one in the list were tried, and have failed.
    pub(super) fn served(&mut self, address: &str) {
        let Some(place) = self.order.iter().position(|own| own == address) else { return };
        let failed = self.order.iter().take(place).skip(self.server);
        let events: Vec<Event> =
            failed.map(|own| self.attempt(own, Outcome::failed(Reason::Reset))).collect();
        self.server = self.server.max(place);
        self.scorer.report(&events);
    }

    /// The first token has come; said once.
    pub(super) fn first_token(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let served = self.order.get(self.server).cloned().unwrap_or_default();
        self.scorer.report(&[Event::FirstToken { pool: self.pool.to_string(), lease: self.id, served }]);
    }

    /// The attempt that gave the answer came to this.
    pub(super) fn came_to(&mut self, outcome: Outcome, output_tokens: Option<u32>) {
        let event = self.order.get(self.server).map(|own| self.attempt(own, outcome));
        self.scorer.report(event.as_slice());
        if matches!(outcome.class(), Class::Success | Class::Failure) {
            let failed = outcome.class() == Class::Failure;
            self.answered = Some(Answered { output_tokens, failed, ..Answered::default() });
        }
    }

    fn attempt(&self, endpoint: &str, outcome: Outcome) -> Event {
        let (pool, endpoint) = (self.pool.to_string(), endpoint.to_owned());
        Event::Attempted { pool, lease: self.id, endpoint, outcome }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (pool, answered) = (self.pool.to_string(), self.answered.take());
        self.scorer.report(&[Event::End { pool, lease: self.id, answered }]);
    }
}
