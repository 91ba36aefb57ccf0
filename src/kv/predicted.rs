//! Blocks that an engine will hold soon: prompts that were sent there and of which it has said nothing yet.
//!
//! An engine tells of a block once it is full and computed, seconds after the request was sent; those who share its
//! beginning often come within these. So what was sent counts as held until the engine tells, or a time has passed.

use crate::instant::Instant;
use crate::seeded::Seeded;
use std::collections::{HashMap, VecDeque};

/// Blocks expected of one endpoint.
#[derive(Debug)]
pub(super) struct Predicted {
    until: HashMap<u64, Instant, Seeded>,
    /// In the order of their ends. Those that were confirmed, or expected anew, are still here and count no more.
    due: VecDeque<(Instant, u64)>,
    most: usize,
}

impl Predicted {
    pub(super) fn new(most: usize, seed: u64) -> Self {
        Self { until: HashMap::with_hasher(Seeded(seed)), due: VecDeque::new(), most }
    }

    /// Expects a block until then.
    pub(super) fn expect(&mut self, own: u64, until: Instant) {
        if self.until.insert(own, until) != Some(until) {
            self.due.push_back((until, own));
        }
        while self.due.len() > self.most {
            self.pop();
        }
    }

    /// Whether the block is expected.
    pub(super) fn holds(&self, own: u64, now: Instant) -> bool {
        self.until.get(&own).is_some_and(|until| *until > now)
    }

    /// The engine told of it.
    pub(super) fn confirm(&mut self, own: u64) {
        self.until.remove(&own);
    }

    /// Nothing is expected.
    pub(super) fn clear(&mut self) {
        self.until = HashMap::with_hasher(*self.until.hasher());
        self.due = VecDeque::new();
    }

    /// What was expected for too long is not any more.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.due.front().is_some_and(|(until, _)| *until <= now) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((until, own)) = self.due.pop_front()
            && self.until.get(&own) == Some(&until)
        {
            self.until.remove(&own);
        }
    }

    /// Blocks expected.
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }
}
