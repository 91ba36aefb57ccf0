//! How one limit is shared out to many proxies: the scorer's side.
//!
//! Each proxy gets an *allowance* and keeps its own use, in any window, within it. At all times
//!
//! ```text
//! sum over the proxies of max(allowance, used) ≤ limit, unless debts alone are more
//! ```
//!
//! so all of them together keep the limit, without a call per request. That holds however messages are lost, late or
//! told twice, by four rules:
//!
//! - Growth is written here before the proxy hears of it.
//! - A proxy lowers its own allowance before it says so, never below what it has used within the window, and begins a
//!   new *turn*. A claim of an older turn changes nothing here, and a grant of an older turn changes nothing there.
//! - A proxy counts its lease from when it asked, this side from when it heard, which is later: the proxy stops first.
//! - An allowance of which nothing was heard within its lease counts as used up at the lease's end: it stays for one more
//!   window, and is free then.
//!
//! By the last rule what a proxy that died held and did not use is lost to a window: to a budget of a year for the year, at
//! every roll-out. To free it would be to admit it twice if it was used, and nobody can tell. So little of a long
//! window is ever held unused: a proxy has hardly anything of it ahead of its requests (`allowance.rs`), and when a 32nd of the limit
//! is lost in this way, nothing any more: then the proxies are told that more is sought, all the time, and each request waits for
//! a call. The bound on what gets through beyond the limit stays zero.
//!
//! Clocks of different machines are not compared, only trusted to run equally fast. Who asks first is served first;
//! when somebody got too little the others are told, and give back what they do not use with their next claim.
//!
//! A ledger that has lost its memory grants nothing new for the length of a lease, and takes every proxy's word for what
//! it keeps. Those that live have claimed by then. The same goes for a single record that was lost: a proxy that is not in
//! it and keeps something shows that it was. What is granted before the first one says so is not bounded by it.

use super::claim::{Claim, Claims, Grant, Grants};
use super::record::{Record, Tally};
use crate::instant::Instant;
use std::time::Duration;

/// Longest lease: an hour.
const MOST_LEASE: Duration = Duration::from_secs(3_600);

impl Claims {
    /// How long what is granted holds.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms).min(MOST_LEASE)
    }
}

/// The records of all keys, in memory.
#[derive(Debug)]
pub struct Ledger {
    records: std::collections::HashMap<(u64, u64), Record>,
    /// From when on it has heard everything.
    since: Instant,
    swept: Instant,
}

/// Most keys in a ledger.
const MOST_KEYS: usize = 1 << 20;

impl Ledger {
    /// One that knows nothing, at `now`.
    pub fn new(now: Instant) -> Self {
        Self { records: Default::default(), since: now, swept: now }
    }

    /// Hears claims and grants what is free.
    pub fn grant(&mut self, claims: &Claims, now: Instant) -> Grants {
        let settling = (self.since + claims.lease()).since(now);
        self.sweep(now);
        let grant = |claim: &Claim| {
            let place = (claim.rule, claim.key);
            if !self.records.contains_key(&place) && self.records.len() >= MOST_KEYS {
                return Grant { turn: claim.turn, lacks: true, ..Grant::default() };
            }
            let record = self.records.entry(place).or_default();
            record.grant(claims.proxy, claims.lease(), claim, !settling.is_zero(), now)
        };
        let keys = claims.keys.iter().map(grant).collect();
        Grants { keys, settling_ms: settling.as_nanos().div_ceil(1_000_000) as u64 }
    }

    /// Takes over what another ledger has of a key at `now`.
    pub fn put(&mut self, claim: &Claim, record: Record, now: Instant) {
        self.sweep(now);
        if self.records.len() < MOST_KEYS {
            self.records.insert((claim.rule, claim.key), record);
        }
    }

    /// What is shared out, of the `most` keys of which most is used. Of a ledger with very many keys not all are looked at.
    pub fn tallies(&self, most: usize, now: Instant) -> Vec<Tally> {
        const LOOKED_AT: usize = 20_000;
        let tally = |(&(rule, key), record): (&(u64, u64), &Record)| record.tally(rule, key, now);
        let mut tallies: Vec<Tally> = self.records.iter().take(LOOKED_AT).map(tally).collect();
        tallies.sort_by_key(|tally| {
            let used = tally.parts.iter().map(|part| part.used).max();
            (std::cmp::Reverse(used), tally.rule, tally.key)
        });
        tallies.truncate(most);
        tallies
    }

    /// Keys in use.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Loses one record, as a store may.
    #[cfg(test)]
    pub(super) fn lose(&mut self, claim: &Claim) {
        self.records.remove(&(claim.rule, claim.key));
    }

    /// Now and then drops the keys of which nothing counts any more.
    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) >= Duration::from_secs(1) {
            self.swept = now;
            self.records.retain(|_, record| record.ends().is_some_and(|ends| ends > now));
        }
    }
}
