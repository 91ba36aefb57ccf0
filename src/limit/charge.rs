//! Checking and charging, in all limits that match a request or in none.

use super::account::{Reach, Standing};
use super::book::Book;
use super::cost::Spend;
use super::rule::{Rule, Unit};
use super::slots::Guest;
use super::verdict::{Denied, Hold, Reason, Softened};
use super::{Limits, Store, TRIES, open, place};
use crate::instant::Instant;

/// Why a request was not charged.
pub(super) enum Kept {
    Out(Box<Denied>),
    Short,
    /// By nothing but a want of slots; the priority that a budget has left it.
    Crowded {
        denied: Box<Denied>,
        demoted: Option<i32>,
    },
}

impl Kept {
    fn out(denied: Denied, demoted: Option<i32>) -> Self {
        let denied = Box::new(denied);
        if denied.reason == Reason::Crowded { Self::Crowded { denied, demoted } } else { Self::Out(denied) }
    }
}

/// What was charged in one limit.
#[derive(Clone, Debug)]
pub(super) struct Charged {
    pub(super) tokens: Option<Standing>,
    pub(super) requests: Option<Standing>,
    pub(super) softened: Option<Softened>,
    pub(super) evicted: bool,
}

impl Limits {
    /// Charges in all limits, or in none. All are looked at before the first is written, so a request that is refused
    /// usually writes nothing; if one fills up meanwhile, what was written is taken back. One alone need not be
    /// looked at twice.
    pub(super) fn charge_all(
        &self,
        store: &dyn Store,
        holds: &[Hold],
        guests: &[Guest],
        cost: Spend,
        reach: Reach,
        now: Instant,
    ) -> Result<Vec<Charged>, Kept> {
        let said = (cost, self.words());
        let mut found = Vec::with_capacity(holds.len());
        let mut denied: Option<Denied> = None;
        let mut short = false;
        let mut demoted = None;
        for (hold, guest) in holds.iter().zip(guests) {
            let Some(rule) = self.rules.get(hold.rule) else { continue };
            let name = place(rule, hold.key);
            let stored = store.get(&name);
            if holds.len() > 1 {
                let book = open(stored.as_ref(), hold.key, rule, now);
                let next = book.account.block(rule, cost, guest.waiter, reach, now);
                short |= next.is_some_and(|block| block.short);
                let next = next.filter(|block| !block.short);
                let next = next.map(|block| Denied::new(hold.rule, rule, &block, &book, said, now));
                // What only a slot can mend that it may wait for comes last.
                let waits = |at: usize| self.rules.get(at).is_some_and(|rule| rule.queue.is_some());
                let rank =
                    |denied: &Denied| (denied.reason != Reason::Crowded, !waits(denied.rule), denied.wait);
                denied = match (denied, next) {
                    (Some(denied), Some(next)) if rank(&denied) < rank(&next) => Some(next),
                    (denied, next) => denied.or(next),
                };
                if rule.softens() {
                    demoted = self.demoted(rule, &book, now).into_iter().chain(demoted).min();
                }
            }
            found.push((*hold, guest, rule, name, stored));
        }
        if let Some(denied) = denied {
            return Err(Kept::out(denied, demoted));
        }
        if short {
            return Err(Kept::Short);
        }
        let mut charged = Vec::with_capacity(found.len());
        for (hold, guest, rule, name, stored) in found {
            match self.charge(store, hold, guest, rule, &name, stored, cost, reach, now) {
                Ok(one) => charged.push(one),
                Err(kept) => {
                    for (hold, guest) in holds.iter().zip(guests).take(charged.len()) {
                        self.change(store, *hold, now, |rule, book| {
                            book.account.cancel(rule, cost, guest, now);
                        });
                    }
                    return Err(kept);
                }
            }
        }
        Ok(charged)
    }

    /// The priority that requests of a key have got by what it has used.
    fn demoted(&self, rule: &Rule, book: &Book<'_>, now: Instant) -> Option<i32> {
        let (_, window) = book.account.softened(rule, now)?;
        window.demote.as_deref().map(|objective| self.priority(Some(objective)))
    }

    /// Charges in one limit, beginning with what was found there.
    #[allow(clippy::too_many_arguments, reason = "all of them are what it is about")]
    fn charge(
        &self,
        store: &dyn Store,
        hold: Hold,
        guest: &Guest,
        rule: &Rule,
        name: &str,
        mut stored: Option<(Vec<u8>, u32)>,
        cost: Spend,
        reach: Reach,
        now: Instant,
    ) -> Result<Charged, Kept> {
        for _ in 0..TRIES {
            let mut book = open(stored.as_ref(), hold.key, rule, now);
            match book.account.block(rule, cost, guest.waiter, reach, now) {
                Some(block) if block.short => return Err(Kept::Short),
                Some(block) => {
                    let denied = Denied::new(hold.rule, rule, &block, &book, (cost, self.words()), now);
                    return Err(Kept::out(denied, self.demoted(rule, &book, now)));
                }
                None => {}
            }
            let softened = book.account.softened(rule, now).map(|(percent, window)| Softened {
                limit: rule.name.clone(),
                percent,
                demote: window.demote.clone(),
            });
            book.account.reserve(rule, cost, guest, now);
            let called = book.account.call(rule, now);
            let tokens = book.account.standing(rule, Unit::Tokens, now);
            let requests = book.account.standing(rule, Unit::Requests, now);
            let (bytes, evicted) = book.close(rule);
            if store.put(name, &bytes, stored.as_ref().map(|(_, version)| *version)) {
                called.into_iter().for_each(|waiter| store.wake(waiter));
                return Ok(Charged { tokens, requests, softened, evicted });
            }
            stored = store.get(name);
        }
        Err(Kept::Out(Box::new(Denied::contended(hold.rule, rule))))
    }
}
