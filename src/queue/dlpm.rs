//! Fair shares that leave caches warm: deficit longest prefix match (Cao et al., *Locality-aware Fair Scheduling in LLM
//! Serving*, arXiv 2501.14312).
//!
//! [`super::Vtc`] takes turns strictly, and each turn may push out the prefix that the next request of the other client
//! needed. Here every client has a deficit, what it may still get before the others must have caught up:
//!
//! ```text
//! among clients whose deficit is positive: the request with the longest cached prefix
//! what it gets is taken off its client's deficit; where nobody who waits has any left, each gets the quantum again
//! ```
//!
//! So two clients that both wait differ by about `2 · (U + Q)`, with the most that one request takes, `U`, and the quantum `Q`:
//! a small quantum is as fair as counters, a large one is longest prefix match.
//!
//! Who has nothing waiting keeps its debts and no credit, as in deficit round robin: nobody saves up turns.

use super::{MOST_CLIENTS, read_clients, write_clients};
use std::collections::BTreeMap;

/// Deficits by client, in thousandths of a weighted token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dlpm {
    quantum: i64,
    deficits: BTreeMap<u64, i64>,
}

impl Dlpm {
    /// Each may get so much ahead.
    pub fn new(quantum: u64) -> Self {
        Self { quantum: i64::try_from(quantum).unwrap_or(i64::MAX).max(1), deficits: BTreeMap::new() }
    }

    /// A client that had nothing waiting now has.
    pub fn arrive(&mut self, client: u64) {
        let deficit = self.deficits.entry(client).or_insert(0);
        *deficit = (*deficit).min(0);
    }

    /// A client has nothing waiting any more.
    pub fn leave(&mut self, client: u64) {
        self.arrive(client);
        if self.deficits.len() > MOST_CLIENTS {
            // The smallest debt is the one that is missed least.
            let least = self.deficits.iter().max_by_key(|(_, deficit)| **deficit).map(|(client, _)| *client);
            least.map(|client| self.deficits.remove(&client));
        }
    }

    /// A client got something, or gives some of it back.
    pub fn charge(&mut self, client: u64, cost: i64) {
        let deficit = self.deficits.entry(client).or_insert(0);
        *deficit = deficit.saturating_sub(cost).max(-i64::MAX);
    }

    /// The place of the one of which most is cached, among clients that may go; of equals the first.
    pub fn next(&mut self, waiting: &[(u64, u32)]) -> Option<usize> {
        let best = waiting.iter().map(|(client, _)| self.deficit(*client)).max()?;
        if best <= 0 {
            // As many quanta as it takes until somebody may go.
            let quanta = best.unsigned_abs() / self.quantum.unsigned_abs().max(1) + 1;
            let more = self.quantum.saturating_mul(i64::try_from(quanta).unwrap_or(i64::MAX));
            let mut clients: Vec<u64> = waiting.iter().map(|(client, _)| *client).collect();
            clients.sort_unstable();
            clients.dedup();
            for client in clients {
                self.charge(client, more.saturating_neg());
            }
        }
        let may_go = waiting.iter().enumerate().filter(|(_, (client, _))| self.deficit(*client) > 0);
        may_go.min_by_key(|(_, (_, warm))| std::cmp::Reverse(*warm)).map(|(place, _)| place)
    }

    /// What a client may still get.
    pub fn deficit(&self, client: u64) -> i64 {
        self.deficits.get(&client).copied().unwrap_or(0)
    }

    pub(super) fn write(&self, to: &mut Vec<u8>) {
        write_clients(&self.deficits, to);
    }

    pub(super) fn read(self, from: &mut &[u8]) -> Option<Self> {
        Some(Self { deficits: read_clients(from)?, ..self })
    }
}
