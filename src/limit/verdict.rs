//! What `limit` says of a request: admitted, with a ticket to settle later; or denied, with a reason and a wait.

use super::account::{Block, Standing};
use super::book::Book;
use super::cost::{Estimate, TOKEN};
use super::rule::{Rule, Unit};
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
}

/// A request that more must be claimed for.
#[derive(Clone, Debug)]
pub struct Short {
    pub(super) holds: Vec<Hold>,
    /// What it may cost, in thousandths of a token.
    pub(super) cost: u64,
}

impl Short {
    /// The keys that it needs more of.
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// What it may cost, in thousandths of a token.
    pub fn cost(&self) -> u64 {
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
    /// Keys in use that had to be forgotten.
    pub evicted: u32,
}

/// What was charged in advance. It is settled once, by being given away.
#[derive(Debug)]
#[must_use = "what is never settled stays charged"]
pub struct Ticket {
    pub(super) holds: Vec<Hold>,
    pub(super) at: Instant,
    /// Thousandths of a token.
    pub(super) reserved: u64,
    /// Prompt tokens, as estimated.
    pub(super) input: u64,
    pub(super) model: Option<String>,
}

impl Ticket {
    pub(super) fn new(holds: Vec<Hold>, estimate: &Estimate, facts: &Facts, at: Instant) -> Self {
        Self { holds, at, reserved: estimate.cost, input: estimate.input, model: facts.model.clone() }
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
        self.reserved
    }
}

/// A key's account of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// What the request may cost, in thousandths of a token.
    pub(super) cost: u64,
    pub(super) tokens: Option<Standing>,
    pub(super) requests: Option<Standing>,
}

/// Why a request was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It would never be.
    TooLarge,
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
    /// Others wrote the count each time that this one was about to.
    Contended,
}

/// What a request was charged in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Thousandths of a token.
    pub cost: u64,
    /// It is an estimate: the engine did not say.
    pub estimated: bool,
}

impl Denied {
    /// Kept out by what a key has used.
    pub(super) fn new(
        at: usize,
        rule: &Rule,
        block: &Block,
        book: &Book<'_>,
        cost: u64,
        now: Instant,
    ) -> Self {
        let window = block.window.and_then(|window| rule.windows.get(window));
        let (reason, allows) = match window {
            Some(window) => {
                let unit = window.unit;
                let allows = format!("{} {} in {} s", window.limit / unit.scale(), unit.name(), window.secs);
                (if window.quota { Reason::Quota { unit } } else { Reason::Full { unit } }, allows)
            }
            None => {
                let most = rule.max_in_flight.map_or(0, NonZeroU32::get);
                (Reason::Crowded, format!("{most} requests at once"))
            }
        };
        Self {
            wait: block.wait,
            allows,
            tokens: book.account.standing(rule, Unit::Tokens, now),
            requests: book.account.standing(rule, Unit::Requests, now),
            ..Self::bare(at, &rule.name, reason, cost)
        }
    }

    /// A window of `most` thousandths of a token has no room for it even when it is empty.
    pub(super) fn too_large(at: usize, name: &str, most: u64, secs: u32, cost: u64) -> Self {
        let allows = format!("{} tokens in {secs} s", most / TOKEN);
        Self { allows, ..Self::bare(at, name, Reason::TooLarge, cost) }
    }

    /// The count could not be written.
    pub(super) fn contended(at: usize, rule: &Rule, cost: u64) -> Self {
        Self { wait: Duration::from_secs(1), ..Self::bare(at, &rule.name, Reason::Contended, cost) }
    }

    fn bare(at: usize, name: &str, reason: Reason, cost: u64) -> Self {
        Self {
            rule: at,
            limit: name.to_owned(),
            reason,
            wait: Duration::ZERO,
            allows: String::new(),
            cost,
            tokens: None,
            requests: None,
        }
    }
}
