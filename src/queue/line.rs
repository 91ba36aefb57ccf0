//! Those who wait, and in which order they are called.

use super::{Fairness, Order};
use crate::instant::Instant;
use crate::varint::{read_number, write_number};
use std::cmp::Reverse;
use std::time::Duration;

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Who is to be told when it is called.
    pub id: u64,
    /// Whose it is.
    pub client: u64,
    /// Higher goes first.
    pub priority: i32,
    /// What it is charged when it is called, in thousandths of a token.
    pub cost: u64,
    /// Tokens of its prompt that are likely to be cached.
    pub warm: u32,
    /// Until when it waits.
    pub until: Instant,
}

/// A request in line; times in nanoseconds, 0: not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    waiter: Waiter,
    /// When it was called; until it comes the slot is kept for it.
    called: u64,
}

/// Requests that wait for slots, in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    fairness: Fairness,
    standing: Vec<Standing>,
    /// Calls in a row that passed over a lower band.
    passed_over: u64,
    /// When a slot was freed last, and how long it takes from one to the next on average.
    freed: Instant,
    pace: Duration,
    /// When anything last happened.
    touched: Instant,
}

impl Line {
    /// So many calls in a row may pass over lower bands.
    pub const IN_A_ROW: u64 = 8;
    /// Who does not come for so long after it was called has gone.
    pub const COMES_WITHIN: Duration = Duration::from_secs(2);
    /// For so long what clients have got is remembered when nobody comes.
    pub const REMEMBERS: Duration = Duration::from_secs(60);

    /// Nobody waits, nobody has got anything.
    pub fn new(order: Order) -> Self {
        Self {
            fairness: Fairness::new(order),
            standing: Vec::new(),
            passed_over: 0,
            freed: Instant::default(),
            pace: Duration::ZERO,
            touched: Instant::default(),
        }
    }

    /// How many wait and have not been called.
    pub fn waiting(&self) -> usize {
        self.standing.iter().filter(|standing| standing.called == 0).count()
    }

    /// How many have been called and have not come: each of them has a slot.
    pub fn called(&self) -> usize {
        self.standing.len() - self.waiting()
    }

    /// Whether this one has been called; `None`: it is not in line.
    pub fn is_called(&self, id: u64) -> Option<bool> {
        self.standing.iter().find(|standing| standing.waiter.id == id).map(|standing| standing.called > 0)
    }

    /// Takes a place at the end.
    pub fn join(&mut self, waiter: Waiter, now: Instant) {
        if !self.clients().any(|client| client == waiter.client) {
            let waiting = self.standing.iter().filter(|standing| standing.called == 0);
            self.fairness.arrive(waiter.client, waiting.map(|standing| standing.waiter.client));
        }
        self.standing.push(Standing { waiter, called: 0 });
        self.touched = now;
    }

    /// Makes room in a full line for a newcomer: who had the place, if there is one that must give way.
    pub fn displace(&mut self, client: u64, priority: i32) -> Option<u64> {
        let waiting = || self.standing.iter().enumerate().filter(|(_, standing)| standing.called == 0);
        let count = |client: u64| self.clients().filter(|other| *other == client).count();
        let last_of_lower = waiting()
            .filter(|(_, standing)| standing.waiter.priority < priority)
            .min_by_key(|(place, standing)| (standing.waiter.priority, Reverse(*place)));
        let last_of_most = || {
            let mine = count(client) + 1;
            let of_band = waiting().filter(|(_, standing)| standing.waiter.priority == priority);
            of_band
                .map(|(place, standing)| (count(standing.waiter.client), place, standing))
                .filter(|(theirs, ..)| *theirs > mine)
                .max_by_key(|(theirs, place, _)| (*theirs, *place))
                .map(|(_, place, standing)| (place, standing))
        };
        let id = last_of_lower.or_else(last_of_most).map(|(_, standing)| standing.waiter.id)?;
        self.remove(id);
        Some(id)
    }

    /// Calls the next one, for which there is a slot: it is charged, and its slot is kept until it comes.
    pub fn call(&mut self, now: Instant) -> Option<u64> {
        let band = self.band()?;
        let of_band = |standing: &&Standing| standing.called == 0 && standing.waiter.priority == band;
        let waiting: Vec<(u64, u32)> = self
            .standing
            .iter()
            .filter(of_band)
            .map(|standing| (standing.waiter.client, standing.waiter.warm))
            .collect();
        let place = self.fairness.next(&waiting)?;
        let of_band = |standing: &&mut Standing| standing.called == 0 && standing.waiter.priority == band;
        let next = self.standing.iter_mut().filter(of_band).nth(place)?;
        next.called = now.nanos().max(1);
        let Waiter { id, client, cost, .. } = next.waiter;
        self.fairness.charge(client, signed(cost));
        if !self.clients().any(|other| other == client) {
            self.fairness.leave(client);
        }
        Some(id)
    }

    /// The band whose turn it is.
    fn band(&mut self) -> Option<i32> {
        let bands = || {
            let waiting = self.standing.iter().filter(|standing| standing.called == 0);
            waiting.map(|standing| standing.waiter.priority)
        };
        let highest = bands().max()?;
        let longest_lower = bands().find(|band| *band < highest);
        let (band, passed_over) = match longest_lower {
            None => (highest, 0),
            Some(lower) if self.passed_over >= Self::IN_A_ROW => (lower, 0),
            Some(_) => (highest, self.passed_over + 1),
        };
        self.passed_over = passed_over;
        Some(band)
    }

    /// One that was called has come for its slot: what it was charged stands.
    pub fn come(&mut self, id: u64, now: Instant) {
        self.standing.retain(|standing| standing.waiter.id != id || standing.called == 0);
        self.touched = now;
    }

    /// One goes away, called or not; what it was charged is given back. Says whether it was there.
    pub fn leave(&mut self, id: u64, now: Instant) -> bool {
        self.touched = now;
        self.remove(id)
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(place) = self.standing.iter().position(|standing| standing.waiter.id == id) else {
            return false;
        };
        let Standing { waiter, called } = self.standing.remove(place);
        if called > 0 {
            self.fairness.charge(waiter.client, -signed(waiter.cost));
        } else if !self.clients().any(|client| client == waiter.client) {
            self.fairness.leave(waiter.client);
        }
        true
    }

    /// One needs no place, since there was a slot.
    pub fn pass(&mut self, client: u64, cost: u64, now: Instant) {
        if !self.clients().any(|other| other == client) {
            self.fairness.arrive(client, std::iter::empty());
            self.fairness.leave(client);
        }
        self.fairness.charge(client, signed(cost));
        self.touched = now;
    }

    /// A client got more than it was charged, or less.
    pub fn correct(&mut self, client: u64, by: i64) {
        self.fairness.charge(client, by);
    }

    /// A slot was given back.
    pub fn freed(&mut self, now: Instant) {
        if self.freed > Instant::default() {
            let took = now.since(self.freed).min(Duration::from_secs(60));
            self.pace = if self.pace.is_zero() { took } else { (self.pace * 7 + took) / 8 };
        }
        (self.freed, self.touched) = (now, now);
    }

    /// When those who wait now will have been called, as slots were freed lately; `None`: not known yet.
    pub fn wait(&self) -> Option<Duration> {
        let ahead = u32::try_from(self.waiting()).unwrap_or(u32::MAX).saturating_add(1);
        Some(self.pace.saturating_mul(ahead)).filter(|wait| !wait.is_zero())
    }

    /// Drops those whose deadline has passed, and those that were called and did not come.
    pub fn forget(&mut self, now: Instant) {
        let late = |standing: &&Standing| match standing.called {
            // Its own worker is to tell it; here it is dropped only if that is gone.
            0 => now > standing.waiter.until + Self::COMES_WITHIN,
            called => now.since(Instant::from_nanos(called)) > Self::COMES_WITHIN,
        };
        let late: Vec<u64> = self.standing.iter().filter(late).map(|standing| standing.waiter.id).collect();
        for id in late {
            self.remove(id);
        }
    }

    /// From when on there is nothing to remember.
    pub fn idle_at(&self) -> Option<Instant> {
        let untouched = Some(self.touched).filter(|at| *at > Instant::default())? + Self::REMEMBERS;
        let untils = self.standing.iter().map(|standing| standing.waiter.until + Self::COMES_WITHIN);
        untils.chain([untouched]).max()
    }

    /// Clients of those that wait.
    fn clients(&self) -> impl Iterator<Item = u64> {
        self.standing.iter().filter(|standing| standing.called == 0).map(|standing| standing.waiter.client)
    }

    /// Appends it as bytes.
    pub fn write(&self, to: &mut Vec<u8>) {
        self.fairness.write(to);
        let pace = u64::try_from(self.pace.as_nanos()).unwrap_or(u64::MAX);
        [self.passed_over, self.freed.nanos(), pace, self.touched.nanos(), self.standing.len() as u64]
            .into_iter()
            .for_each(|number| write_number(to, number));
        for Standing { waiter, called } in &self.standing {
            to.extend_from_slice(&waiter.id.to_le_bytes());
            to.extend_from_slice(&waiter.client.to_le_bytes());
            to.extend_from_slice(&waiter.priority.to_le_bytes());
            [waiter.cost, u64::from(waiter.warm), waiter.until.nanos(), *called]
                .into_iter()
                .for_each(|number| write_number(to, number));
        }
    }

    /// Takes it off the front of bytes that were written under the same order.
    pub fn read(order: Order, from: &mut &[u8]) -> Option<Self> {
        let fairness = Fairness::read(order, from)?;
        let [passed_over, freed, pace, touched] =
            [read_number(from)?, read_number(from)?, read_number(from)?, read_number(from)?];
        let standing = (0..read_number(from)?).map(|_| Standing::read(from)).collect::<Option<_>>()?;
        let [freed, touched] = [freed, touched].map(Instant::from_nanos);
        Some(Self { fairness, standing, passed_over, freed, pace: Duration::from_nanos(pace), touched })
    }
}

impl Standing {
    fn read(from: &mut &[u8]) -> Option<Self> {
        let (id, rest) = from.split_first_chunk()?;
        let (client, rest) = rest.split_first_chunk()?;
        let (priority, rest) = rest.split_first_chunk()?;
        *from = rest;
        let waiter = Waiter {
            id: u64::from_le_bytes(*id),
            client: u64::from_le_bytes(*client),
            priority: i32::from_le_bytes(*priority),
            cost: read_number(from)?,
            warm: u32::try_from(read_number(from)?).ok()?,
            until: Instant::from_nanos(read_number(from)?),
        };
        Some(Self { waiter, called: read_number(from)? })
    }
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}
