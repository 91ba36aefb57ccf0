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
//! Clocks of different machines are not compared, only trusted to run equally fast. Who asks first is served first;
//! when somebody got too little the others are told, and give back what they do not use with their next claim.
//!
//! A ledger that has lost its memory grants nothing new for the length of a lease, and takes every proxy's word for what
//! it keeps. Those that live have claimed by then.

use super::claim::{Claim, Claims, Grant, Granted, Grants};
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Who may use how much of one key's limit.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Record {
    holders: Vec<Holder>,
}

/// One proxy's allowances.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
struct Holder {
    proxy: u64,
    turn: u64,
    /// When its lease ends, in nanoseconds.
    until: u64,
    /// Until when it counts as wanting more, in nanoseconds.
    wants_until: u64,
    parts: Vec<Held>,
}

/// Its allowance of one window, or of the requests in flight.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
struct Held {
    amount: u64,
    used: u64,
    window: u64,
    /// When none of what it has used counts any more, if it uses no more; in nanoseconds.
    reset: u64,
    /// It got less than it wanted.
    #[serde(default)]
    lacks: bool,
}

/// What is shared out of one key's limit, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// The hash of the limit.
    pub rule: u64,
    /// The hash of the key's values.
    pub key: u64,
    /// Proxies that hold or have used something.
    pub proxies: usize,
    /// Its windows, and then the requests in flight, if they are limited.
    pub parts: Vec<TallyPart>,
}

/// One window of a key, or its requests in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TallyPart {
    /// Milliseconds that use counts.
    pub window_ms: u64,
    /// What proxies may use, or have used, in the limit's own unit.
    pub granted: u64,
    /// What they have used.
    pub used: u64,
}

/// Most proxies that share a key.
const MOST_HOLDERS: usize = 1_024;
/// Longest lease: an hour.
const MOST_LEASE: Duration = Duration::from_secs(3_600);
/// For so long what was wanted in vain is kept free of what others do not need: the client tries again after a second.
const WANTS: Duration = Duration::from_millis(1_500);

impl Claims {
    /// How long what is granted holds.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms).min(MOST_LEASE)
    }
}

impl Record {
    /// Hears a claim and grants what is free. Nothing new is granted while `settling`.
    pub fn grant(
        &mut self,
        proxy: u64,
        lease: Duration,
        claim: &Claim,
        settling: bool,
        now: Instant,
    ) -> Grant {
        self.forget(now);
        let mut own = match self.holders.iter().position(|holder| holder.proxy == proxy) {
            Some(place) => self.holders.swap_remove(place),
            None if self.holders.len() >= MOST_HOLDERS => {
                return Grant { turn: claim.turn, lacks: true, ..Grant::default() };
            }
            None => Holder { proxy, ..Holder::default() },
        };
        let sought = self.holders.iter().any(|holder| holder.wants_until > now.nanos());
        let mut grant = Grant { turn: own.turn.max(claim.turn), lacks: false, sought, parts: Vec::new() };
        if claim.turn < own.turn {
            self.holders.push(own);
            return grant;
        }
        if claim.turn > own.turn {
            own.turn = claim.turn;
            own.parts.clear();
            own.parts.extend(claim.parts.iter().map(|part| Held { amount: part.keep, ..Held::default() }));
        }
        // Within a turn it only grows: what the proxy keeps was granted, even if it is not remembered.
        for (held, part) in own.parts.iter_mut().zip(&claim.parts) {
            held.amount = held.amount.max(part.keep);
        }
        own.until = (now + lease).nanos();
        for (at, (held, part)) in own.parts.iter_mut().zip(&claim.parts).enumerate() {
            let others: u64 = self.parts(at).fold(0, |sum, (_, held)| sum.saturating_add(held.holds()));
            if !settling {
                held.amount = held.amount.max(part.want.min(part.limit.saturating_sub(others)));
            }
            held.used = part.used;
            held.window = part.window_ms.saturating_mul(1_000_000);
            held.reset = now.nanos().saturating_add(part.reset_ms.saturating_mul(1_000_000));
            held.lacks = held.amount < part.want && !settling;
            grant.lacks |= held.amount < part.want;
            grant.parts.push(Granted {
                amount: held.amount,
                others: self
                    .parts(at)
                    .fold(0, |sum, (until, held)| sum.saturating_add(held.spent(until, now))),
                wait_ms: self.wait_ms(at, part.limit.checked_sub(part.want), now),
                fair: self.fair(at, part.limit, now),
            });
        }
        own.wants_until = if grant.lacks && !settling { (now + WANTS).nanos() } else { 0 };
        self.holders.push(own);
        grant
    }

    /// What each should keep of a part while one of these wants more of it: they, and the one that asks.
    fn fair(&self, at: usize, limit: u64, now: Instant) -> Option<u64> {
        let part = |holder: &Holder| holder.parts.get(at).copied().unwrap_or_default();
        let wants = |holder: &Holder| holder.wants_until > now.nanos() && part(holder).lacks;
        let shares = |holder: &&Holder| wants(holder) || part(holder).holds() > 0;
        let sharers = self.holders.iter().filter(shares).count() as u64 + 1;
        self.holders.iter().any(wants).then(|| limit.div_ceil(sharers))
    }

    /// Drops the proxies whose last possible use counts no more.
    fn forget(&mut self, now: Instant) {
        self.holders.retain(|holder| holder.ends() > now.nanos());
    }

    fn tally(&self, rule: u64, key: u64, now: Instant) -> Tally {
        let most = self.holders.iter().map(|holder| holder.parts.len()).max().unwrap_or(0);
        let part = |at: usize| {
            self.parts(at).fold(TallyPart::default(), |sum, (until, held)| TallyPart {
                window_ms: sum.window_ms.max(held.window / 1_000_000),
                granted: sum.granted.saturating_add(held.holds()),
                used: sum.used.saturating_add(held.spent(until, now)),
            })
        };
        Tally { rule, key, proxies: self.holders.len(), parts: (0..most).map(part).collect() }
    }

    /// When nothing of it counts any more; `None`: nothing does now.
    pub fn ends(&self) -> Option<Instant> {
        self.holders.iter().map(|holder| Instant::from_nanos(holder.ends())).max()
    }

    /// The same part of all holders, with the ends of their leases.
    fn parts(&self, at: usize) -> impl Iterator<Item = (u64, &Held)> {
        self.holders.iter().filter_map(move |holder| Some((holder.until, holder.parts.get(at)?)))
    }

    /// Milliseconds until all have used no more than `most`, if none of them uses more.
    fn wait_ms(&self, at: usize, most: Option<u64>, now: Instant) -> Option<u64> {
        let spent = |(until, held): (u64, &Held)| (held.spent_until(until, now), held.spent(until, now));
        let mut spent: Vec<(u64, u64)> = self.parts(at).map(spent).collect();
        spent.sort_unstable();
        let mut left = spent.iter().fold(0, |sum: u64, (_, used)| sum.saturating_add(*used));
        let mut wait = 0;
        for (until, used) in spent {
            if left <= most? {
                break;
            }
            left = left.saturating_sub(used);
            wait = until.saturating_sub(now.nanos()).div_ceil(1_000_000);
        }
        (left <= most?).then_some(wait)
    }
}

impl Holder {
    fn ends(&self) -> u64 {
        let counts = self.parts.iter().filter(|held| held.holds() > 0);
        counts.map(|held| self.until.saturating_add(held.window)).fold(self.until, u64::max)
    }
}

impl Held {
    /// What nobody else may be granted.
    fn holds(&self) -> u64 {
        self.amount.max(self.used)
    }

    /// What it has used, for all that is known: of a proxy that is gone that is all it could.
    fn spent(&self, until: u64, now: Instant) -> u64 {
        if until > now.nanos() { self.used } else { self.holds() }
    }

    fn spent_until(&self, until: u64, now: Instant) -> u64 {
        if until > now.nanos() { self.reset } else { until.saturating_add(self.window) }
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

    /// Now and then drops the keys of which nothing counts any more.
    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) >= Duration::from_secs(1) {
            self.swept = now;
            self.records.retain(|_, record| record.ends().is_some_and(|ends| ends > now));
        }
    }
}
