//! How one limit is shared out to many proxies: the proxy's side.
//!
//! What a proxy may use of a key, as last granted; `ledger.rs` has the rules that make it safe. Here is how little of
//! it lies idle:
//!
//! ```text
//! wanted = used + what waiting requests cost + spare,   spare = min(admitted since the last two askings, limit / 16)
//! ```
//!
//! of a window longer than an hour `limit / 512`: what a proxy that dies has spare is lost to the window.
//!
//! A key that is busy far below its limit is granted ahead of its requests, and none of them waits for a call. A key that
//! is idle, whose limit is small beside what a request costs, or of which another proxy wants more, has no spare:
//! then a request that does not fit waits for one call, and all that is left of the limit can be used by whoever asks.
//!
//! Where requests stand in line for slots, each proxy has a line of its own, and whoever frees a slot calls the next in the same
//! step. So none would ever be free for another proxy; while that one wants more, a proxy calls no further than to
//! its fair part, and gives back what is freed beyond.

use super::claim::{Claimed, Grant};
use super::window::Span;
use crate::instant::Instant;
use crate::varint::{read_number, write_number};
use std::time::Duration;

/// What a proxy may use of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Allowance {
    turn: u64,
    /// What it was granted holds until then.
    until: Instant,
    /// When it last asked.
    asked: Instant,
    /// There was less than it wanted: until then asking is of no use.
    pub(super) vain_until: Instant,
    /// Another proxy wants more.
    sought: bool,
    /// The windows, and then the requests in flight.
    parts: Vec<Part>,
}

/// An answer that comes later than this is of no use.
const AWAITED: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    amount: u64,
    /// What the others had used, as last heard.
    others: u64,
    /// When they would have used little enough, as last heard; zero: not known.
    room_at: Instant,
    /// Another proxy wants more, and each should keep so much; zero: none does.
    fair: u64,
    /// Admitted since the last asking, and between that one and the one before.
    admitted: [u64; 2],
}

/// A window of an account, or its requests in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) limit: u64,
    pub(super) span: Span,
    pub(super) used: u64,
    /// From when on none of it counts.
    pub(super) reset: Duration,
    /// What waits to be admitted.
    pub(super) need: u64,
    /// What counts in it counts for longer than an hour.
    pub(super) long: bool,
    /// Those who wait for it stand in line. So what is given back goes to others, and not to the next one here.
    pub(super) lines: bool,
}

impl View {
    /// The most that is held ahead of requests.
    fn most_spare(&self) -> u64 {
        self.limit / if self.long { 512 } else { 16 }
    }
}

impl Part {
    fn want(&self, view: &View, sought: bool) -> u64 {
        let [last, before] = self.admitted;
        let spare = if sought { 0 } else { last.saturating_add(before).min(view.most_spare()) };
        let want = view.used.saturating_add(view.need).saturating_add(spare).min(view.limit);
        if view.lines && self.fair > 0 { want.min(self.fair.max(view.used)) } else { want }
    }
}

impl Allowance {
    /// None, of so many parts.
    pub(super) fn new(parts: usize) -> Self {
        Self { parts: vec![Part::default(); parts], ..Self::default() }
    }

    /// What may be used of a part now.
    pub(super) fn amount(&self, part: usize, now: Instant) -> u64 {
        self.parts.get(part).filter(|_| now < self.until).map_or(0, |part| part.amount)
    }

    /// For how much of a part those who stand in line may be called: no more than is fair, when others want it, too.
    pub(super) fn callable(&self, part: usize, now: Instant) -> u64 {
        let fair = self.parts.get(part).map(|part| part.fair).filter(|fair| *fair > 0);
        self.amount(part, now).min(fair.unwrap_or(u64::MAX))
    }

    /// Whether what was granted holds.
    pub(super) fn holds(&self, now: Instant) -> bool {
        now < self.until
    }

    /// What others have used of a part, as last heard; zero when that is too long ago.
    pub(super) fn others(&self, part: usize, now: Instant) -> u64 {
        self.parts.get(part).filter(|_| now < self.until).map_or(0, |part| part.others)
    }

    /// When there is room as far as the others are concerned.
    pub(super) fn room_at(&self, part: usize) -> Option<Instant> {
        self.parts.get(part).map(|part| part.room_at).filter(|at| *at > Instant::default())
    }

    /// Notes what is admitted of a part.
    pub(super) fn admit(&mut self, part: usize, amount: u64) {
        if let Some(Part { admitted: [last, _], .. }) = self.parts.get_mut(part) {
            *last = last.saturating_add(amount);
        }
    }

    /// Until when it is worth keeping; `None`: it never was.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        let asked = Some(self.asked).filter(|asked| *asked > Instant::default())?;
        Some(self.until.max(asked + AWAITED))
    }

    /// Whether it is time to renew it, without a request that needs it; `None`: there is nothing to renew.
    pub(super) fn due(&self, views: &[View], lease: Duration, now: Instant) -> Option<bool> {
        let parts = || {
            let amounts = (0..).map(|part| self.amount(part, now));
            self.parts.iter().zip(amounts).zip(views).map(|((part, amount), view)| (part, amount, view))
        };
        if parts().all(|(_, amount, view)| amount == 0 && view.used == 0 && view.need == 0) {
            return None;
        }
        let low = parts().any(|(part, amount, view)| amount < part.want(view, self.sought));
        let idle = parts().any(|(part, amount, view)| {
            let slack = if self.sought { 0 } else { view.most_spare() / 2 };
            amount > part.want(view, self.sought).max(view.used).saturating_add(slack)
        });
        Some(idle || low && now >= self.vain_until || now.since(self.asked) >= lease / 3)
    }

    /// What it claims now: its turn, and its parts. `gives`: what is not needed goes back, in a new turn.
    pub(super) fn claim(&mut self, views: &[View], gives: bool, now: Instant) -> (u64, Vec<Claimed>) {
        let lapsed = now >= self.until;
        // What has lapsed is given up once: were it said with every claim, then on a busy key each answer would be to a turn
        // before the last.
        let mut turns = lapsed && (self.turn == 0 || self.parts.iter().any(|part| part.amount > 0));
        let mut claimed = Vec::with_capacity(views.len());
        for (part, view) in self.parts.iter_mut().zip(views) {
            let want = part.want(view, self.sought);
            let amount = if lapsed { 0 } else { part.amount };
            part.amount = if gives { amount.min(want.max(view.used)) } else { amount };
            turns |= part.amount < amount;
            if gives {
                let [last, before] = &mut part.admitted;
                (*before, *last) = (*last, 0);
            }
            claimed.push(Claimed {
                limit: view.limit,
                window_ms: view.span.millis(now),
                keep: part.amount,
                used: view.used,
                reset_ms: millis(view.reset),
                want,
            });
        }
        if turns {
            // Later than any turn of a state that was lost: turns are much rarer than microseconds.
            self.turn = self.turn.saturating_add(1).max(now.nanos() / 1_000);
        }
        self.asked = now;
        (self.turn, claimed)
    }

    /// Hears what was granted to a claim of `sent`. When it was too little, asking again is in vain for so long.
    pub(super) fn hear(
        &mut self,
        grant: &Grant,
        sent: Instant,
        lease: Duration,
        vain: Duration,
        now: Instant,
    ) {
        self.sought = grant.sought;
        for (part, granted) in self.parts.iter_mut().zip(&grant.parts) {
            part.others = granted.others;
            part.fair = granted.fair.unwrap_or(0);
            part.room_at =
                granted.wait_ms.map_or(Instant::default(), |wait| now + Duration::from_millis(wait));
        }
        if grant.turn > self.turn {
            // The other side knows a later state of this key than this one: begin behind it, with nothing.
            (self.turn, self.until) = (grant.turn, Instant::default());
            return;
        }
        if grant.turn < self.turn || grant.parts.len() != self.parts.len() {
            return;
        }
        let holds = now < self.until;
        for (part, granted) in self.parts.iter_mut().zip(&grant.parts) {
            part.amount = if holds { part.amount.max(granted.amount) } else { granted.amount };
        }
        self.until = self.until.max(sent + lease);
        self.vain_until = if grant.lacks { now + vain } else { Instant::default() };
    }

    /// Appends it as bytes.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let numbers = [self.turn, self.until.nanos(), self.asked.nanos(), self.vain_until.nanos()];
        let parts = self.parts.iter().flat_map(|part| {
            let [last, before] = part.admitted;
            [part.amount, part.others, part.room_at.nanos(), part.fair, last, before]
        });
        let sought = [u64::from(self.sought), self.parts.len() as u64];
        numbers.into_iter().chain(sought).chain(parts).for_each(|number| write_number(to, number));
    }

    /// Takes it off the front of bytes.
    pub(super) fn read(from: &mut &[u8]) -> Option<Self> {
        let mut number = || read_number(from);
        let (turn, until, asked, vain_until) = (number()?, number()?, number()?, number()?);
        let (sought, length) = (number()? != 0, number()?);
        let part = |_| {
            let (amount, others, room_at) = (number()?, number()?, Instant::from_nanos(number()?));
            Some(Part { amount, others, room_at, fair: number()?, admitted: [number()?, number()?] })
        };
        let parts = (0..length).map(part).collect::<Option<_>>()?;
        let [until, asked, vain_until] = [until, asked, vain_until].map(Instant::from_nanos);
        Some(Self { turn, until, asked, vain_until, sought, parts })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
