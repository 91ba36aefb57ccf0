//! What `limit` says of a request: admitted, with a ticket to settle later; or denied, with a reason and a wait.

use super::account::{Block, Standing};
use super::book::Book;
use super::cost::{Estimate, Expected, Spend};
use super::money::words;
use super::rule::{Length, Rule, Unit};
use super::slots::Guest;
use crate::instant::Instant;
use crate::request::Facts;
use std::num::NonZeroU32;
use std::time::Duration;

/// What becomes of a request.
#[derive(Debug)]
pub enum Verdict {
    /// No limit is for it.
    Unlimited,
    /// It goes on.
    Admitted(Admitted),
    /// It does not.
    Denied(Box<Denied>),
    /// What this proxy may use of the limits does not suffice, and more may be had: claim it, then admit again.
    Short(Short),
    /// It stands in line, until it is called.
    Waits(Wait),
}

/// A place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub(super) hold: Hold,
    pub(super) id: u64,
    pub(super) until: Instant,
}

impl Hold {
    /// The limit, by its place in the configuration.
    pub fn rule(&self) -> usize {
        self.rule
    }
}

impl Wait {
    /// The key in whose line it is.
    pub fn hold(&self) -> Hold {
        self.hold
    }

    /// Until when.
    pub fn until(&self) -> Instant {
        self.until
    }
}

/// A request that can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The name under which it is called, by [`super::Store::wake`].
    pub id: u64,
    /// Tokens of its prompt that are likely to be cached.
    pub warm: u32,
    /// Where it has been waiting.
    pub at: Option<Wait>,
}

/// A request that more must be claimed for.
#[derive(Clone, Debug)]
pub struct Short {
    pub(super) holds: Vec<Hold>,
    pub(super) cost: Spend,
}

impl Short {
    /// The keys that it needs more of.
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// What it may cost.
    pub fn cost(&self) -> Spend {
        self.cost
    }
}

/// A request that was admitted.
#[derive(Debug)]
pub struct Admitted {
    /// To be settled when the request is over.
    pub ticket: Ticket,
    /// What is left of the tokens that will be used up first.
    pub tokens: Option<Standing>,
    /// What is left of the requests that will be used up first.
    pub requests: Option<Standing>,
    /// A window that is past its soft stage.
    pub softened: Option<Softened>,
    /// Keys in use that had to be forgotten.
    pub evicted: u32,
}

/// A window that is past its soft stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Softened {
    /// The limit's name.
    pub limit: String,
    /// How much of it is used, in percent.
    pub percent: u8,
    /// The objective that its requests have from then on.
    pub demote: Option<String>,
}

/// What was charged in advance. It is settled once, by being given away.
#[derive(Debug)]
#[must_use = "what is never settled stays charged"]
pub struct Ticket {
    pub(super) holds: Vec<Hold>,
    /// Whose turn it took, key by key.
    pub(super) guests: Vec<Guest>,
    pub(super) at: Instant,
    pub(super) reserved: Spend,
    pub(super) expected: Expected,
    pub(super) model: Option<String>,
    /// How many answers the model may make as long as it likes, if it may.
    pub(super) unbounded: Option<u32>,
}

impl Ticket {
    pub(super) fn new(
        holds: Vec<Hold>,
        guests: Vec<Guest>,
        estimate: &Estimate,
        facts: &Facts,
        unbounded: Option<u32>,
        at: Instant,
    ) -> Self {
        let Estimate { cost: reserved, expected, .. } = *estimate;
        Self { holds, guests, at, reserved, expected, model: facts.model.clone(), unbounded }
    }

    /// The limits that hold it, by their places in the configuration.
    pub fn limits(&self) -> impl Iterator<Item = usize> {
        self.holds.iter().map(|hold| hold.rule)
    }

    /// The keys that hold it.
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// What was charged in advance, in thousandths of a token.
    pub fn reserved(&self) -> u64 {
        self.reserved.tokens
    }
}

/// A key's account of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    /// The limit, by its place in the configuration.
    pub(super) rule: usize,
    /// The hash of the key's values.
    pub(super) key: u64,
}

/// A request that was not admitted.
#[derive(Clone, Debug)]
pub struct Denied {
    /// The limit that keeps it out longest, by its place in the configuration.
    pub rule: usize,
    /// Its name.
    pub limit: String,
    /// Why.
    pub reason: Reason,
    /// When to try again.
    pub wait: Duration,
    /// What the limit allows, in words.
    pub(super) allows: String,
    /// What the request may cost, in words.
    pub(super) cost: String,
    pub(super) tokens: Option<Standing>,
    pub(super) requests: Option<Standing>,
}

/// Why a request was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It would never be.
    TooLarge,
    /// It has more than one credential, and so nobody knows whose it is.
    Ambiguous,
    /// A window is full.
    Full {
        /// What it counts.
        unit: Unit,
    },
    /// A quota is used up.
    Quota {
        /// What it counts.
        unit: Unit,
    },
    /// The key has too many requests in flight.
    Crowded,
    /// And too many that wait; or it had to give way to one of a client that has fewer.
    LineFull,
    /// And its priority is below zero.
    Shed,
    /// It has waited for as long as it may.
    Expired,
    /// Others wrote the count each time that this one was about to.
    Contended,
}

/// What a request was charged in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Thousandths of a token.
    pub cost: u64,
    /// Billionths of a unit of money.
    pub money: u64,
    /// It is an estimate: the engine did not say.
    pub estimated: bool,
}

/// What a limit or a request comes to, in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    pub(super) currency: &'a str,
}

impl Words<'_> {
    /// `1000 tokens`, `50 USD`.
    pub(super) fn amount(self, unit: Unit, amount: u64) -> String {
        match unit {
            Unit::Money => words(amount, self.currency),
            _ => format!("{} {}", amount.div_ceil(unit.scale()), unit.name()),
        }
    }

    /// What a window allows: `1000 tokens in 60 s`.
    pub(super) fn window(self, unit: Unit, limit: u64, length: Length) -> String {
        format!("{} {length}", self.amount(unit, limit))
    }
}

impl Denied {
    /// Kept out by what a key has used.
    pub(super) fn new(
        at: usize,
        rule: &Rule,
        block: &Block,
        book: &Book<'_>,
        (cost, words): (Spend, Words<'_>),
        now: Instant,
    ) -> Self {
        let window = block.window.and_then(|window| rule.windows.get(window));
        let (reason, allows, unit) = match window {
            Some(window) => {
                let unit = window.unit;
                let allows = words.window(unit, window.limit, window.length);
                (if window.quota { Reason::Quota { unit } } else { Reason::Full { unit } }, allows, unit)
            }
            None => (Reason::Crowded, at_once(rule), Unit::Tokens),
        };
        let unit = if unit == Unit::Money { Unit::Money } else { Unit::Tokens };
        Self {
            wait: block.wait,
            allows,
            tokens: book.account.standing(rule, Unit::Tokens, now),
            requests: book.account.standing(rule, Unit::Requests, now),
            cost: words.amount(unit, unit.amount(cost)),
            ..Self::bare(at, &rule.name, reason)
        }
    }

    /// A window of `most` has no room for it even when it is empty.
    pub(super) fn too_large(at: usize, name: &str, allows: String, cost: String) -> Self {
        Self { allows, cost, ..Self::bare(at, name, Reason::TooLarge) }
    }

    /// Its credentials do not say whose it is.
    pub(super) fn ambiguous(at: usize, name: &str) -> Self {
        Self::bare(at, name, Reason::Ambiguous)
    }

    /// The count could not be written.
    pub(super) fn contended(at: usize, rule: &Rule) -> Self {
        Self { wait: Duration::from_secs(1), ..Self::bare(at, &rule.name, Reason::Contended) }
    }

    /// There is no place for it in line, or none any more.
    pub(super) fn turned_away(at: usize, rule: &Rule, reason: Reason, wait: Duration) -> Self {
        Self { wait, allows: at_once(rule), ..Self::bare(at, &rule.name, reason) }
    }

    /// A limit that is no more.
    pub(super) fn none(at: usize, reason: Reason) -> Self {
        Self { wait: Duration::from_secs(1), ..Self::bare(at, "", reason) }
    }

    fn bare(at: usize, name: &str, reason: Reason) -> Self {
        Self {
            rule: at,
            limit: name.to_owned(),
            reason,
            wait: Duration::ZERO,
            allows: String::new(),
            cost: String::new(),
            tokens: None,
            requests: None,
        }
    }
}

fn at_once(rule: &Rule) -> String {
    format!("{} requests at once", rule.max_in_flight.map_or(0, NonZeroU32::get))
}
