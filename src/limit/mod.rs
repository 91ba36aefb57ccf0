//! Whether a request may be admitted, and what it is charged.
//!
//! A limit allows so many tokens, or requests, per key and window ([`Limit`]). A request is admitted when every limit that
//! matches it has room for what it may cost; then that is charged at once in all of them, and corrected once when it is over
//! ([`Limits::settle`]). Checking and charging are one step: however many requests come at the same moment, in
//! no window more is admitted than the limit (`window.rs` says how windows slide, `cost.rs` what a request costs,
//! `account.rs` how a charge is corrected).
//!
//! Where the counts are kept is the caller's: a [`Store`] of versioned bytes. All who share a store share the limits; a
//! change that meets another one is done over with what is there then, so none is lost. A request reads each of its
//! counts once and writes it once, and the same again when it is over; one that is refused writes nothing.
//!
//! Proxies that share no store share the limits by *allowances*, which a scorer grants: [`Ledger`] is its side, and
//! [`Limits::claim`] and [`Limits::hear`] are the proxy's. `ledger.rs` argues why no window holds too much then either.
//!
//! Requests that find no slot may stand in line for one (`waiting.rs`); who is next is [`crate::queue`]'s to say. A budget is a
//! window that counts money (`money.rs`).

mod account;
mod allowance;
mod answer;
mod book;
mod calendar;
mod charge;
mod claim;
mod config;
mod cost;
mod credential;
mod gone;
mod key;
mod ledger;
mod money;
mod record;
mod rule;
mod slots;
mod usual;
mod verdict;
mod waiting;
mod window;

pub use account::{Reach, Standing};
pub use answer::Answer;
pub use calendar::{Calendar, Per, Zone};
pub use claim::{Claim, Claimed, Claims, Grant, Granted, Grants};
pub use config::{Config, FailureMode, Limit, Quantity, Queue, Share, When};
pub use cost::{Config as CostConfig, Cost, Estimate, Expected, Outcome, Reserve, Spend, Weight, Weights};
pub use key::{Asked, Identity, Part};
pub use ledger::Ledger;
pub use money::{Money, PerMillion, Price, Prices};
pub use record::{Record, Tally, TallyPart};
pub use rule::Unit;
pub use verdict::{Admitted, Charge, Denied, Hold, Reason, Short, Softened, Ticket, Verdict, Wait, Waiting};
pub use waiting::Stands;
pub use window::{CELLS, Cells, Span};

use crate::instant::Instant;
use crate::invalid::Invalid;
use crate::request::word;
use book::Book;
use charge::Kept;
use rule::{Rule, Window};
use slots::Guest;
use std::collections::BTreeMap;
use std::time::Duration;
use verdict::Words;

/// Versioned bytes by name, shared by all who count together.
pub trait Store {
    /// A value and its version.
    fn get(&self, name: &str) -> Option<(Vec<u8>, u32)>;
    /// Writes a value if `version` is still its version; `None`: if there is none yet. Says whether it did.
    fn put(&self, name: &str, value: &[u8], version: Option<u32>) -> bool;
    /// Tells a request that stood in line under this name, wherever it is held, that it has been called or has lost its
    /// place. It is a hint: who gets none looks for itself now and then.
    fn wake(&self, _waiter: u64) {}
}

/// The limits of a configuration.
#[derive(Debug)]
pub struct Limits {
    rules: Vec<Rule>,
    cost: Cost,
    identity: Identity,
    objectives: BTreeMap<String, i32>,
    seed: u64,
}

/// How often a change is done over. Each time another one has succeeded; so many in a row do not happen.
const TRIES: u32 = 1_000;

impl Limits {
    /// Checks a configuration. `seed` is a secret that all who share a store have in common.
    pub fn new(config: &Config, seed: u64) -> Result<Self, Invalid> {
        let mut rules: Vec<Rule> = Vec::with_capacity(config.limits.len());
        for (at, limit) in config.limits.iter().enumerate() {
            let within = |invalid: Invalid| invalid.within(&format!("limits[{at}]"));
            let rule = Rule::new(limit, config.lease_ms, config.share.is_some()).map_err(within)?;
            if rules.iter().any(|other| other.name == rule.name) {
                return Err(within(Invalid::new(
                    "name",
                    format!("{} is the name of another limit", rule.name),
                )));
            }
            rule.check(config).map_err(within)?;
            rules.push(rule);
        }
        config.check_share()?;
        let named = |name: &&String| word(name).as_ref() != Some(*name);
        if let Some(name) = config.objectives.keys().find(named) {
            return Err(Invalid::new(
                format!("objectives.{name}"),
                "no name of an objective: letters, digits, `-`, `_` and `.`",
            ));
        }
        config.identity.check().map_err(|invalid| invalid.within("identity"))?;
        let cost = Cost::new(config.cost.clone()).map_err(|invalid| invalid.within("cost"))?;
        let (identity, objectives) = (config.identity.clone(), config.objectives.clone());
        Ok(Self { rules, cost, identity, objectives, seed })
    }

    /// Whether any limit looks at headers.
    pub fn needs_headers(&self) -> bool {
        self.rules.iter().any(Rule::needs_headers)
    }

    /// Whether any limit looks at the client's address.
    pub fn needs_address(&self) -> bool {
        self.rules.iter().any(|rule| rule.parts_of_keys().any(|part| *part == Part::Ip))
    }

    /// Whether a window goes by the calendar: then [`Limits::set_wall`] is to be told what time it is.
    pub fn needs_wall(&self) -> bool {
        self.windows().any(|window| matches!(window.span, Span::Calendar(_)))
    }

    /// Hears what time it is by the wall clock, since 1970, before requests are admitted or settled.
    pub fn set_wall(&mut self, wall: Duration, now: Instant) {
        let windows = self.rules.iter_mut().flat_map(|rule| &mut rule.windows);
        windows.for_each(|window| {
            if let Span::Calendar(calendar) = &mut window.span {
                calendar.set(wall, now);
            }
        });
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.rules.iter().flat_map(|rule| &rule.windows)
    }

    /// Whether requests may have to stand in line.
    pub fn has_queues(&self) -> bool {
        self.rules.iter().any(|rule| rule.queue.is_some())
    }

    /// Admits a request and charges what it may cost, in all limits or in none; it does not wait. `reach` matters only where
    /// limits are shared.
    pub fn admit(&self, store: &dyn Store, asked: &Asked<'_>, reach: Reach, now: Instant) -> Verdict {
        self.admit_or_wait(store, asked, reach, None, now)
    }

    /// The same for a request that can wait, and has perhaps waited already.
    pub fn admit_or_wait(
        &self,
        store: &dyn Store,
        asked: &Asked<'_>,
        reach: Reach,
        waiting: Option<Waiting>,
        now: Instant,
    ) -> Verdict {
        let hash = |key: &[Part]| key::hash(key, asked, &self.identity, self.seed);
        let waiter = waiting.map(|waiting| waiting.id);
        let matching = self.rules.iter().enumerate().filter(|(_, rule)| rule.matches(asked));
        let mut holds = Vec::new();
        let mut guests = Vec::new();
        for (at, rule) in matching {
            let client = rule.queue.as_ref().map_or(Ok(0), |queue| hash(&queue.fair_by));
            let (Ok(client), Ok(key)) = (client, hash(&rule.key)) else {
                return Verdict::Denied(Box::new(Denied::ambiguous(at, &rule.name)));
            };
            holds.push(Hold { rule: at, key });
            guests.push(Guest { client, prompt: 0, waiter });
        }
        if holds.is_empty() {
            return Verdict::Unlimited;
        }
        let mut estimate = self.cost.estimate(asked.facts, &self.teacher(&holds));
        guests.iter_mut().for_each(|guest| guest.prompt = estimate.prompt);
        for (unit, firm, cost) in [
            (Unit::Tokens, estimate.firm.tokens, &mut estimate.cost.tokens),
            (Unit::Money, estimate.firm.money, &mut estimate.cost.money),
        ] {
            let least = |hold: &Hold| {
                let (most, length) = self.rules.get(hold.rule)?.least(unit)?;
                Some((most, length, hold.rule))
            };
            let Some((most, length, at)) = holds.iter().filter_map(least).min_by_key(|(most, ..)| *most)
            else {
                continue;
            };
            if firm > most {
                let name = self.rules.get(at).map_or("", |rule| &rule.name);
                let (allows, firm) =
                    (self.words().window(unit, most, length), self.words().amount(unit, firm));
                return Verdict::Denied(Box::new(Denied::too_large(at, name, allows, firm)));
            }
            *cost = (*cost).min(most);
        }
        match self.charge_all(store, &holds, &guests, estimate.cost, reach, now) {
            Err(Kept::Out(denied)) => Verdict::Denied(denied),
            Err(Kept::Short) => Verdict::Short(Short { holds, cost: estimate.cost }),
            Err(Kept::Crowded { denied, demoted }) => {
                let guest = holds.iter().zip(&guests).find(|(hold, _)| hold.rule == denied.rule);
                match (guest, waiting) {
                    (Some((hold, guest)), Some(waiting)) => {
                        let priority = self.priority(asked.facts.objective.as_deref());
                        let priority = demoted.map_or(priority, |demoted| demoted.min(priority));
                        self.stand_in_line(store, *hold, guest, waiting, priority, denied, now)
                    }
                    _ => Verdict::Denied(denied),
                }
            }
            Ok(charged) => Verdict::Admitted(Admitted {
                tokens: first_to_end(charged.iter().filter_map(|charged| charged.tokens)),
                requests: first_to_end(charged.iter().filter_map(|charged| charged.requests)),
                evicted: charged.iter().map(|charged| u32::from(charged.evicted)).sum(),
                softened: charged
                    .into_iter()
                    .filter_map(|charged| charged.softened)
                    .max_by_key(|softened| (softened.demote.is_some(), softened.percent)),
                ticket: {
                    let unbounded = self.cost.unbounded(asked.facts);
                    Ticket::new(holds, guests, &estimate, asked.facts, unbounded, now)
                },
            }),
        }
    }

    /// Those of a request's counts by which its client is told from others.
    fn teacher(&self, holds: &[Hold]) -> Vec<Hold> {
        let tells = |hold: &&Hold| self.rules.get(hold.rule).is_some_and(Rule::tells_clients);
        holds.iter().filter(tells).copied().collect()
    }

    /// The priority of an objective.
    pub fn priority(&self, objective: Option<&str>) -> i32 {
        objective.and_then(|name| self.objectives.get(name)).copied().unwrap_or(0)
    }

    /// How amounts are said.
    fn words(&self) -> Words<'_> {
        Words { currency: self.cost.prices().map_or("", |prices| &prices.currency) }
    }

    /// A request is over: charges what it used in place of what was charged in advance.
    pub fn settle(&mut self, store: &dyn Store, ticket: Ticket, outcome: &Outcome, now: Instant) -> Charge {
        let Ticket { holds, guests, at, reserved, expected, model, unbounded } = ticket;
        let (cost, estimated) = self.cost.charge(model.as_deref(), expected, reserved, outcome);
        for (hold, guest) in holds.iter().zip(&guests) {
            let Some(rule) = self.rules.get(hold.rule) else { continue };
            if rule.max_in_flight.is_some() || cost != reserved && rule.counts_use() {
                self.change(store, *hold, now, |rule, book| {
                    book.account.settle(rule, at, guest, [reserved, cost], now);
                });
            }
        }
        if let (Outcome::Ended(usage), Some(model), Some(choices)) = (outcome, &model, unbounded) {
            let teacher = self.teacher(&holds);
            self.cost.learn(model, &teacher, usage, choices);
        }
        Charge { cost: cost.tokens, money: cost.money, estimated }
    }

    /// Claims more of a key, for requests that wait; so much they cost, and so many they are.
    pub fn claim(
        &self,
        store: &dyn Store,
        hold: Hold,
        cost: Spend,
        requests: u64,
        now: Instant,
    ) -> Option<Claim> {
        let waiting = Some((cost, requests));
        self.change(store, hold, now, |rule, book| book.account.claim(rule, hold.key, waiting, now))?
    }

    /// Claims again what is in use of a key, and gives back the rest, if it is time to: that is often when the key is
    /// busy, and at least three times per lease.
    pub fn renew(&self, store: &dyn Store, hold: Hold, lease: Duration, now: Instant) -> Renewal {
        let Some(rule) = self.rules.get(hold.rule) else { return Renewal::Idle };
        let stored = store.get(&place(rule, hold.key));
        match open(stored.as_ref(), hold.key, rule, now).account.due(rule, lease, now) {
            None => Renewal::Idle,
            Some(false) => Renewal::Early,
            Some(true) => {
                let claim = |rule: &Rule, book: &mut Book<'_>| book.account.claim(rule, hold.key, None, now);
                self.change(store, hold, now, claim).flatten().map_or(Renewal::Early, Renewal::Due)
            }
        }
    }

    /// Hears what was granted to a claim of `sent`. When it was too little, nothing more is claimed for `vain`.
    pub fn hear(&self, store: &dyn Store, hold: Hold, grant: &Grant, heard: Heard, now: Instant) {
        let Heard { sent, lease, vain } = heard;
        self.change(store, hold, now, |_, book| book.account.hear(grant, sent, lease, vain, now));
    }

    /// Changes one account, over again until no other change came between, and calls those whose turn it is then; `None` when
    /// there is no such limit, or others came between each time.
    fn change<T>(
        &self,
        store: &dyn Store,
        hold: Hold,
        now: Instant,
        change: impl Fn(&Rule, &mut Book<'_>) -> T,
    ) -> Option<T> {
        let rule = self.rules.get(hold.rule)?;
        let name = place(rule, hold.key);
        for _ in 0..TRIES {
            let stored = store.get(&name);
            let mut book = open(stored.as_ref(), hold.key, rule, now);
            let changed = change(rule, &mut book);
            let called = book.account.call(rule, now);
            let (bytes, _) = book.close(rule);
            if store.put(&name, &bytes, stored.map(|(_, version)| version)) {
                called.into_iter().for_each(|waiter| store.wake(waiter));
                return Some(changed);
            }
        }
        None
    }
}

/// Whether a key is to be claimed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Nothing of it is in use.
    Idle,
    /// Not yet.
    Early,
    /// Now, so.
    Due(Claim),
}

/// When and for how long something was granted.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// When it was claimed.
    pub sent: Instant,
    /// How long it holds from then on.
    pub lease: Duration,
    /// How long nothing more is claimed when it was too little.
    pub vain: Duration,
}

/// The name of the stored value that has a key's account.
fn place(rule: &Rule, key: u64) -> String {
    format!("weir.limit.{:016x}.{:x}", rule.id, key % rule.books.max(1))
}

fn open<'a>(stored: Option<&'a (Vec<u8>, u32)>, key: u64, rule: &Rule, now: Instant) -> Book<'a> {
    Book::open(stored.map_or(&[], |(bytes, _)| bytes), key, rule, now)
}

fn first_to_end(standings: impl Iterator<Item = Standing>) -> Option<Standing> {
    standings.min_by_key(|standing| (standing.remaining, std::cmp::Reverse(standing.reset)))
}

#[cfg(test)]
mod day;
#[cfg(test)]
mod in_line;
#[cfg(test)]
mod periods;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod tests;
