//! Fair shares of tokens: the virtual token counter (Sheng et al., *Fairness in Serving Large Language Models*, OSDI 2024).
//!
//! Each client has a counter of what it has got, in weighted tokens. The one with the least goes next. Input is charged when
//! a request is admitted, not when it is over, or one client could take all slots at once; output as it is
//! decoded, or when it is over. It is not charged ahead: whoever comes meanwhile would be lifted to a counter that falls when less
//! came of it, and wait for a debt that is not its own. Between two clients that both have something
//! waiting all the while, what they have got then differs over any stretch of time by at most
//!
//! ```text
//! 2 · max(w_in · L_in, w_out · M)
//! ```
//!
//! with the longest input `L_in`, and `M` tokens that can be in the running batch: no scheduler that keeps the engine busy
//! and interrupts nobody can promise less than half of it.
//!
//! **Lift.** A client that comes back from having nothing to do is raised to the least counter of those that wait. Otherwise it
//! would be owed all that it never asked for, and would keep the others out until it had it. It is never lowered: a debt
//! stays. Where nobody else waits it is raised to the counter of the client that last left.
//!
//! What need not be remembered is dropped: a counter that the lift would raise anyway says nothing.

use super::{MOST_CLIENTS, read_clients, write_clients};
use crate::varint::{read_number, write_number};
use std::collections::BTreeMap;

/// Counters by client, in thousandths of a weighted token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vtc {
    counters: BTreeMap<u64, i64>,
    /// The client that was last to have nothing waiting any more.
    last: Option<u64>,
}

impl Vtc {
    /// A client that had nothing waiting now has; `others` have, too.
    pub fn arrive(&mut self, client: u64, others: impl Iterator<Item = u64>) {
        let least = others.filter(|other| *other != client).map(|other| self.counter(other)).min();
        let level = least.or_else(|| Some(self.counter(self.last?))).unwrap_or(0);
        let counter = self.counters.entry(client).or_insert(level);
        *counter = level.max(*counter);
    }

    /// A client has nothing waiting any more.
    pub fn leave(&mut self, client: u64) {
        self.last = Some(client);
        if self.counters.len() > MOST_CLIENTS {
            let others = self.counters.iter().filter(|(other, _)| **other != client);
            // Who has got least is lifted most when it comes again: with it the least is lost.
            if let Some(least) = others.min_by_key(|(_, counter)| **counter).map(|(other, _)| *other) {
                self.counters.remove(&least);
            }
        }
    }

    /// A client got something, or gives some of it back.
    pub fn charge(&mut self, client: u64, cost: i64) {
        let level = self.last.map_or(0, |last| self.counter(last));
        let counter = self.counters.entry(client).or_insert(level);
        *counter = counter.saturating_add(cost).max(-i64::MAX);
    }

    /// The place of the first request of the client that has got least.
    pub fn next(&self, waiting: impl Iterator<Item = u64>) -> Option<usize> {
        let counters = waiting.map(|client| self.counter(client)).enumerate();
        counters.min_by_key(|(_, counter)| *counter).map(|(place, _)| place)
    }

    /// What a client has got.
    pub fn counter(&self, client: u64) -> i64 {
        self.counters.get(&client).copied().unwrap_or(0)
    }

    pub(super) fn write(&self, to: &mut Vec<u8>) {
        write_clients(&self.counters, to);
        write_number(to, u64::from(self.last.is_some()));
        to.extend(self.last.iter().flat_map(|last| last.to_le_bytes()));
    }

    pub(super) fn read(from: &mut &[u8]) -> Option<Self> {
        let counters = read_clients(from)?;
        let last = match read_number(from)? {
            0 => None,
            _ => {
                let (last, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(u64::from_le_bytes(*last))
            }
        };
        Some(Self { counters, last })
    }
}
