//! One key's part of the ledger: who may use how much of it, and has.
//!
//! `ledger.rs` has the rules that it keeps.

use super::claim::{Claim, Grant, Granted, LONG_MS};
use super::gone::Gone;
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Who may use how much of one key's limit.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Record {
    holders: Vec<Holder>,
    /// What those had who are too long gone to come back.
    #[serde(default, skip_serializing_if = "Gone::is_empty")]
    gone: Gone,
    /// It was lost: until then it only hears what proxies hold, in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    settles_until: u64,
}

/// One proxy's allowances.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
struct Holder {
    proxy: u64,
    turn: u64,
    /// When its lease ends, in nanoseconds.
    until: u64,
    /// Until when it counts as wanting more, in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    wants_until: u64,
    parts: Vec<Held>,
}

/// Its allowance of one window, or of the requests in flight.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
struct Held {
    #[serde(skip_serializing_if = "is_zero")]
    amount: u64,
    #[serde(skip_serializing_if = "is_zero")]
    used: u64,
    window: u64,
    /// When none of what it has used counts any more, if it uses no more; in nanoseconds.
    #[serde(skip_serializing_if = "is_zero")]
    reset: u64,
    /// It got less than it wanted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lacks: bool,
}

/// What a holder, or some that are gone, have of a part.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// What nobody else may be granted.
    holds: u64,
    /// What is used, for all that is known: of a proxy that is gone that is all it could.
    spent: u64,
    /// When that counts no more, if no more is used; in nanoseconds.
    until: u64,
    /// What of it is not known to be used, and cannot be given back.
    doubt: u64,
}

/// What is shared out of one key's limit, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// The hash of the limit.
    pub rule: u64,
    /// The hash of the key's values.
    pub key: u64,
    /// Proxies that hold or have used something, without those long gone.
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
/// So many proxies whose lease has lapsed are known by name; more of them only while they may come back.
const MOST_LAPSED: usize = 128;
/// After so long it is hardly the network that kept a proxy away.
const COMES_BACK: Duration = Duration::from_secs(3_600);
/// For so long what was wanted in vain is kept free of what others do not need: the client tries again after a second.
const WANTS: Duration = Duration::from_millis(1_500);
/// When so much of a long window, one part in this, is lost to proxies that are gone, nothing more is granted ahead.
const DOUBT: u64 = 32;

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
        let known = self.holders.iter().position(|holder| holder.proxy == proxy);
        if known.is_none() && self.holders.len() >= MOST_HOLDERS && !self.bury(now) {
            return Grant { turn: claim.turn, lacks: true, ..Grant::default() };
        }
        let mut own = match known {
            Some(place) => self.holders.swap_remove(place),
            None => Holder { proxy, ..Holder::default() },
        };
        // What it keeps it was granted: this record is not the one in which that was written.
        if known.is_none() && !settling && claim.parts.iter().any(|part| part.keep > 0) {
            self.settles_until = (now + lease).nanos();
        }
        let settling = settling || self.settles_until > now.nanos();
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
            let sum = |of: fn(&Share) -> u64| {
                self.shares(at, now).fold(0, |sum: u64, share| sum.saturating_add(of(&share)))
            };
            if !settling {
                let others = sum(|share| share.holds);
                held.amount = held.amount.max(part.want.min(part.limit.saturating_sub(others)));
            }
            held.used = part.used;
            held.window = part.window_ms.saturating_mul(1_000_000);
            held.reset = now.nanos().saturating_add(part.reset_ms.saturating_mul(1_000_000));
            held.lacks = held.amount < part.want && !settling;
            grant.lacks |= held.amount < part.want;
            grant.sought |= part.window_ms > LONG_MS && sum(|share| share.doubt) > part.limit / DOUBT;
            grant.parts.push(Granted {
                amount: held.amount,
                others: sum(|share| share.spent),
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

    /// Drops what counts no more, and the names of those that do not come back.
    fn forget(&mut self, now: Instant) {
        self.gone.forget(now.nanos());
        self.holders.retain_mut(|holder| {
            holder.forget(now.nanos());
            holder.until > now.nanos() || holder.parts.iter().any(|held| held.holds() > 0)
        });
        let lapsed = self.holders.iter().filter(|holder| holder.until <= now.nanos()).count();
        let away = |holder: &&Holder| Instant::from_nanos(holder.until) + COMES_BACK <= now;
        let away = self.holders.iter().filter(away).count();
        (0..lapsed.saturating_sub(MOST_LAPSED).min(away)).for_each(|_| {
            self.bury(now);
        });
    }

    /// Adds what the one has that has lapsed for longest to what others had; `false`: none has lapsed.
    fn bury(&mut self, now: Instant) -> bool {
        let lapsed = self.holders.iter().enumerate().filter(|(_, holder)| holder.until <= now.nanos());
        let Some((place, _)) = lapsed.min_by_key(|(_, holder)| holder.until) else { return false };
        let holder = self.holders.swap_remove(place);
        for (at, held) in holder.parts.iter().enumerate().filter(|(_, held)| held.holds() > 0) {
            let until = holder.until.saturating_add(held.window);
            self.gone.add(at, [held.holds(), held.used], until, held.window);
        }
        true
    }

    pub(super) fn tally(&self, rule: u64, key: u64, now: Instant) -> Tally {
        let parts = self.holders.iter().map(|holder| holder.parts.len());
        let most = parts.chain([self.gone.parts()]).max().unwrap_or(0);
        let window =
            |at: usize| self.holders.iter().filter_map(move |holder| Some(holder.parts.get(at)?.window));
        let part = |at: usize| TallyPart {
            window_ms: window(at).max().unwrap_or(0) / 1_000_000,
            granted: self.shares(at, now).fold(0, |sum, share| sum.saturating_add(share.holds)),
            used: self.shares(at, now).fold(0, |sum, share| sum.saturating_add(share.spent)),
        };
        Tally { rule, key, proxies: self.holders.len(), parts: (0..most).map(part).collect() }
    }

    /// When nothing of it counts any more; `None`: nothing does now.
    pub fn ends(&self) -> Option<Instant> {
        let ends = self.holders.iter().map(Holder::ends).chain(self.gone.ends());
        ends.max().map(Instant::from_nanos)
    }

    /// The same part of all.
    fn shares(&self, at: usize, now: Instant) -> impl Iterator<Item = Share> {
        let holders = self
            .holders
            .iter()
            .filter_map(move |holder| Some(holder.parts.get(at)?.share(holder.until, now)));
        let gone = self.gone.of(at).map(|sum| Share {
            holds: sum.amount,
            spent: sum.amount,
            until: sum.until,
            doubt: sum.amount.saturating_sub(sum.used),
        });
        holders.chain(gone)
    }

    /// Milliseconds until all have used no more than `most`, if none of them uses more.
    fn wait_ms(&self, at: usize, most: Option<u64>, now: Instant) -> Option<u64> {
        let mut spent: Vec<(u64, u64)> =
            self.shares(at, now).map(|share| (share.until, share.spent)).collect();
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

    /// When its lease has lapsed, drops what counts no more, part by part: a budget of a year keeps no second of a minute's limit.
    fn forget(&mut self, now: u64) {
        if self.until > now {
            return;
        }
        if self.wants_until <= now {
            self.wants_until = 0;
        }
        for held in &mut self.parts {
            held.reset = 0;
            if self.until.saturating_add(held.window) <= now {
                (held.amount, held.used) = (0, 0);
            }
        }
    }
}

impl Held {
    /// What nobody else may be granted.
    fn holds(&self) -> u64 {
        self.amount.max(self.used)
    }

    fn share(&self, until: u64, now: Instant) -> Share {
        let holds = self.holds();
        match until > now.nanos() {
            true => Share { holds, spent: self.used, until: self.reset, doubt: 0 },
            false => Share {
                holds,
                spent: holds,
                until: until.saturating_add(self.window),
                doubt: holds.saturating_sub(self.used),
            },
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
