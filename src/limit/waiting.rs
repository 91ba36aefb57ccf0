//! Standing in line for a slot.
//!
//! A request that nothing but a want of slots keeps out takes a place in the line of the limit that is full, in the same
//! stored value as the slots. From then on one of three things happens to it, and its edge learns of each by
//! [`Store::wake`] or by looking ([`Limits::stands`]):
//!
//! - It is **called**: a slot is kept for it, and it is to be admitted again, by all limits. If another limit keeps it out
//!   then, it goes to the end of that one's line, or is refused, and the slot goes to the next.
//! - It **lost its place** to one that has more of a right to it: it is refused.
//! - Its **deadline** has passed: it is refused. Its edge has the timer; nothing else depends on it.
//!
//! Who goes away says so ([`Limits::leave`]). A worker that dies cannot: who is called and does not come loses the slot within
//! [`crate::queue::Line::COMES_WITHIN`].

use super::slots::{Guest, Joined};
use super::verdict::{Denied, Hold, Reason, Verdict, Wait, Waiting};
use super::{Limits, Store, open, place};
use crate::instant::Instant;
use crate::queue::{Line, Waiter};
use std::time::Duration;

/// What is said to who was turned away while it is not known how long it takes.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);
const MOST_WAIT: Duration = Duration::from_secs(60);

/// How a request stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// It waits.
    Waiting,
    /// It was called: it is to be admitted again.
    Called,
    /// It has lost its place.
    Gone,
}

impl Limits {
    /// Takes a place, if there is one for it; `crowded` is the answer where there is no line.
    #[allow(clippy::too_many_arguments, reason = "all of them are what it is about")]
    pub(super) fn stand_in_line(
        &self,
        store: &dyn Store,
        hold: Hold,
        guest: &Guest,
        waiting: Waiting,
        priority: i32,
        crowded: Box<Denied>,
        now: Instant,
    ) -> Verdict {
        if let Some(wait) = waiting.at.filter(|wait| wait.hold == hold)
            && self.stands(store, &wait, now) == Stands::Waiting
        {
            return Verdict::Waits(wait);
        }
        if let Some(wait) = &waiting.at {
            self.leave(store, wait, now);
        }
        let Some(rule) = self.rules.get(hold.rule) else { return Verdict::Denied(crowded) };
        let Some(queue) = &rule.queue else { return Verdict::Denied(crowded) };
        if priority < 0 {
            return Verdict::Denied(Box::new(self.turned_away(store, hold, Reason::Shed, now)));
        }
        // Who changes lines keeps its deadline.
        let until = waiting.at.map_or(now + queue.timeout, |wait| wait.until);
        let Guest { client, prompt, .. } = *guest;
        let waiter = Waiter { id: waiting.id, client, priority, cost: prompt, warm: waiting.warm, until };
        match self.change(store, hold, now, |rule, book| book.account.join(rule, waiter, now)) {
            Some(Joined::In { displaced }) => {
                displaced.into_iter().for_each(|waiter| store.wake(waiter));
                Verdict::Waits(Wait { hold, id: waiting.id, until })
            }
            Some(Joined::Full) => {
                Verdict::Denied(Box::new(self.turned_away(store, hold, Reason::LineFull, now)))
            }
            None => Verdict::Denied(Box::new(Denied::contended(hold.rule, rule))),
        }
    }

    /// How a request stands.
    pub fn stands(&self, store: &dyn Store, wait: &Wait, now: Instant) -> Stands {
        let Some(rule) = self.rules.get(wait.hold.rule) else { return Stands::Gone };
        let stored = store.get(&place(rule, wait.hold.key));
        let book = open(stored.as_ref(), wait.hold.key, rule, now);
        match book.account.slots().line().and_then(|line| line.is_called(wait.id)) {
            Some(true) => Stands::Called,
            Some(false) => Stands::Waiting,
            None => Stands::Gone,
        }
    }

    /// Calls those whose turn it has become by nothing but the passing of time.
    pub fn look(&self, store: &dyn Store, hold: Hold, now: Instant) {
        let Some(rule) = self.rules.get(hold.rule) else { return };
        let stored = store.get(&place(rule, hold.key));
        if open(stored.as_ref(), hold.key, rule, now).account.may_call(rule, now) {
            self.change(store, hold, now, |_, _| ());
        }
    }

    /// A request waits no longer.
    pub fn leave(&self, store: &dyn Store, wait: &Wait, now: Instant) {
        self.change(store, wait.hold, now, |_, book| book.account.leave(wait.id, now));
    }

    /// The answer to a request that has lost its place, or has waited for too long ([`Reason::Expired`]).
    pub fn turned_away(&self, store: &dyn Store, hold: Hold, reason: Reason, now: Instant) -> Denied {
        let Some(rule) = self.rules.get(hold.rule) else { return Denied::none(hold.rule, reason) };
        let stored = store.get(&place(rule, hold.key));
        let book = open(stored.as_ref(), hold.key, rule, now);
        let wait = book.account.slots().line().and_then(Line::wait).unwrap_or_default();
        Denied::turned_away(hold.rule, rule, reason, wait.clamp(UNKNOWN_WAIT, MOST_WAIT))
    }
}
