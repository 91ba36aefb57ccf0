//! What one key has used of one limit.
//!
//! A request is charged its estimate when it is admitted, in the cell of that moment, and corrected once when it is over.
//! So there is no list of reservations to keep and to expire: one that nobody ever corrects, because its
//! worker died, stays a charge of its estimate and leaves with its window like any other. What turns out to be *less*
//! is given back in the cell of the admission, if that still counts; what is *more* is charged in the cell of the
//! settlement: a debt, which the window carries on for its whole length.
//!
//! Requests in flight, and those that wait to be, are in `slots.rs`.
//!
//! Where several proxies share the limits, an account also has what this proxy may use of them (`allowance.rs`).

use super::allowance::{Allowance, View};
use super::claim::{Claim, Grant, LONG_MS};
use super::cost::Spend;
use super::rule::{Rule, Unit, Window};
use super::slots::{Guest, Joined, Slots};
use super::window::{Cells, Span};
use crate::instant::Instant;
use crate::queue::{Line, Waiter};
use std::time::Duration;

/// Charges of one key, window by window as its rule has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    windows: Vec<Cells>,
    slots: Slots,
    /// Where limits are shared.
    allowance: Option<Allowance>,
}

/// Why a request must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The window that is full; `None`: too many requests in flight.
    pub(super) window: Option<usize>,
    /// When there would be room, if nothing else came.
    pub(super) wait: Duration,
    /// It is this proxy's allowance that does not suffice, and more may be had.
    pub(super) short: bool,
}

/// How a request may be admitted where several proxies share the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Within the allowance; more may be asked for.
    Ask,
    /// Within the allowance; asking has brought no more.
    Asked,
    /// Within the whole limit, as if there were no other proxy: nobody can be asked.
    Alone,
}

/// What a request needs of a window.
#[derive(Clone, Copy, Debug)]
struct Need {
    cost: Spend,
    requests: u64,
}

/// What is left of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The limit, in tokens or requests.
    pub limit: u64,
    /// What is left of it, in whole tokens or requests.
    pub remaining: u64,
    /// When all of it is there again, if nothing else comes.
    pub reset: Duration,
}

/// A key must wait this long when it has too many requests in flight: when one of them ends is not known. Where there is a
/// line it is known about, and no longer than this is believed.
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);
const MOST_IN_FLIGHT_WAIT: Duration = Duration::from_secs(60);
/// And this long when others hold what they have not used: they give it back when they are told.
const GIVE_BACK_WAIT: Duration = Duration::from_secs(1);

impl Account {
    /// Nothing used.
    pub(super) fn new(rule: &Rule) -> Self {
        Self {
            windows: vec![Cells::default(); rule.windows.len()],
            slots: Slots::new(rule),
            allowance: rule.shared.then(|| Allowance::new(rule.parts())),
        }
    }

    /// Drops what counts no longer.
    pub(super) fn forget(&mut self, rule: &Rule, now: Instant) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            cells.forget(window.span.oldest(now));
        }
        self.slots.forget(rule, now);
    }

    /// What keeps a request of this cost out, the longest wait of all; `None`: nothing. One that asking might remove
    /// comes last.
    pub(super) fn block(
        &self,
        rule: &Rule,
        cost: Spend,
        waiter: Option<u64>,
        reach: Reach,
        now: Instant,
    ) -> Option<Block> {
        let views = self.views(rule, Need { cost, requests: 1 }, waiter, now).into_iter().enumerate();
        let blocks = views.filter_map(|(part, view)| {
            let preceded = part >= rule.windows.len() && self.slots.is_preceded(waiter);
            self.block_of(rule, part, &view, preceded, reach, now)
        });
        // A window keeps out for longer than others' requests do, as far as can be known.
        blocks.max_by_key(|block| (!block.short, block.window.is_some(), block.wait))
    }

    fn block_of(
        &self,
        rule: &Rule,
        part: usize,
        view: &View,
        preceded: bool,
        reach: Reach,
        now: Instant,
    ) -> Option<Block> {
        let total = view.used.saturating_add(view.need);
        let allowance = self.allowance.as_ref().filter(|_| reach != Reach::Alone);
        let others = allowance.map_or(0, |allowance| allowance.others(part, now));
        let fits = total <= allowance.map_or(view.limit, |allowance| allowance.amount(part, now));
        if fits && !preceded {
            return None;
        }
        let short = !fits
            && allowance.is_some_and(|allowance| {
                reach == Reach::Ask && total <= view.limit && now >= allowance.vain_until
            });
        let Some((window, cells)) = rule.windows.get(part).zip(self.windows.get(part)) else {
            let wait = self.slots.line().and_then(Line::wait).unwrap_or_default();
            return Some(Block {
                window: None,
                wait: wait.clamp(IN_FLIGHT_WAIT, MOST_IN_FLIGHT_WAIT),
                short,
            });
        };
        let most = view.limit.saturating_sub(view.need);
        let end = |cell| window.span.end(cell).since(now);
        let wait = match most.checked_sub(others) {
            Some(most) if allowance.is_some() && view.used <= most => GIVE_BACK_WAIT,
            most => {
                let own = most.and_then(|most| cells.falls_to(most)).map(end);
                let room = allowance.and_then(|allowance| allowance.room_at(part)).map(|at| at.since(now));
                let soonest = own.into_iter().chain(room).min();
                // Neither alone makes room: all of the window must pass.
                soonest.unwrap_or_else(|| end(window.span.cell(now))).max(Duration::from_millis(1))
            }
        };
        Some(Block { window: Some(part), wait, short })
    }

    /// The windows, and then the requests in flight, if they are limited.
    fn views(&self, rule: &Rule, need: Need, waiter: Option<u64>, now: Instant) -> Vec<View> {
        let reset =
            |span: Span, newest: Option<u64>| newest.map_or(Duration::ZERO, |cell| span.end(cell).since(now));
        let windows = self.windows.iter().zip(&rule.windows).map(|(cells, window)| View {
            limit: window.limit,
            span: window.span,
            used: cells.sum(),
            reset: reset(window.span, cells.newest()),
            need: match window.unit {
                Unit::Tokens => need.cost.tokens,
                Unit::Money => need.cost.money,
                Unit::Requests => need.requests,
            },
            long: window.span.millis(now) > LONG_MS,
            lines: false,
        });
        let in_flight = rule.max_in_flight.map(|most| View {
            limit: u64::from(most.get()),
            span: rule.lease,
            used: self.slots.taken(waiter),
            reset: reset(rule.lease, self.slots.newest()),
            need: need.requests,
            long: rule.lease.millis(now) > LONG_MS,
            lines: rule.queue.is_some(),
        });
        windows.chain(in_flight).collect()
    }

    /// The same for claims: who stands in line needs a slot, and who was called uses none yet.
    fn wants(&self, rule: &Rule, need: Need, now: Instant) -> Vec<View> {
        let mut views = self.views(rule, need, None, now);
        if let Some(view) = views.get_mut(rule.windows.len()) {
            let called = view.used.saturating_sub(self.slots.in_flight());
            view.used = self.slots.in_flight();
            view.need = view.need.saturating_add(called).saturating_add(self.slots.waiting());
        }
        views
    }

    /// Whether it is time to claim without being asked to; `None`: there is nothing to claim.
    pub(super) fn due(&self, rule: &Rule, lease: Duration, now: Instant) -> Option<bool> {
        let views = self.wants(rule, Need { cost: Spend::default(), requests: 0 }, now);
        self.allowance.as_ref()?.due(&views, lease, now)
    }

    /// What it claims: for requests that wait and need so much, or, if none does, to give back what is not needed.
    pub(super) fn claim(
        &mut self,
        rule: &Rule,
        key: u64,
        waiting: Option<(Spend, u64)>,
        now: Instant,
    ) -> Option<Claim> {
        let (cost, requests) = waiting.unwrap_or_default();
        let views = self.wants(rule, Need { cost, requests }, now);
        let (turn, parts) = self.allowance.as_mut()?.claim(&views, waiting.is_none(), now);
        Some(Claim { rule: rule.shared_id, key, turn, parts })
    }

    /// Hears what was granted to a claim of `sent`.
    pub(super) fn hear(
        &mut self,
        grant: &Grant,
        sent: Instant,
        lease: Duration,
        vain: Duration,
        now: Instant,
    ) {
        if let Some(allowance) = &mut self.allowance {
            allowance.hear(grant, sent, lease, vain, now);
        }
    }

    /// Charges the estimate.
    pub(super) fn reserve(&mut self, rule: &Rule, cost: Spend, guest: &Guest, now: Instant) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            cells.add(window.span.cell(now), window.unit.amount(cost));
        }
        self.slots.take(rule, guest, now);
        if let Some(allowance) = &mut self.allowance {
            let windows = rule.windows.iter().map(|window| window.unit.amount(cost));
            windows.chain([1]).enumerate().for_each(|(part, amount)| allowance.admit(part, amount));
        }
    }

    /// Takes a [`Account::reserve`] back whole, requests too: the request was not admitted after all.
    pub(super) fn cancel(&mut self, rule: &Rule, cost: Spend, guest: &Guest, at: Instant) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            cells.take(window.span.cell(at), window.unit.amount(cost));
        }
        self.slots.give_back(rule, guest, 0, at, at);
    }

    /// Corrects what was charged at `at` as `reserved` to what was used. Requests stay counted, whatever came of them.
    pub(super) fn settle(
        &mut self,
        rule: &Rule,
        at: Instant,
        guest: &Guest,
        [reserved, used]: [Spend; 2],
        now: Instant,
    ) {
        for (cells, window) in self.windows.iter_mut().zip(&rule.windows) {
            if window.unit != Unit::Requests {
                let [reserved, used] = [reserved, used].map(|cost| window.unit.amount(cost));
                cells.take(window.span.cell(at), reserved.saturating_sub(used));
                cells.add(window.span.cell(now), used.saturating_sub(reserved));
            }
        }
        self.slots.give_back(rule, guest, used.tokens, at, now);
    }

    /// Stands in line.
    pub(super) fn join(&mut self, rule: &Rule, waiter: Waiter, now: Instant) -> Joined {
        self.slots.join(rule, waiter, now)
    }

    /// Goes away out of the line.
    pub(super) fn leave(&mut self, waiter: u64, now: Instant) {
        self.slots.leave(waiter, now);
    }

    /// Whether somebody who stands in line could be called.
    pub(super) fn may_call(&self, rule: &Rule, now: Instant) -> bool {
        self.slots.may_call(self.most_slots(rule, now))
    }

    /// Calls those whose turn it is.
    pub(super) fn call(&mut self, rule: &Rule, now: Instant) -> Vec<u64> {
        let slots = self.most_slots(rule, now);
        self.slots.call(slots, now)
    }

    /// Slots that those in line may be called to. Without an allowance that holds one is called after the other: each
    /// finds out whether it may have one.
    fn most_slots(&self, rule: &Rule, now: Instant) -> u64 {
        let all = rule.max_in_flight.map_or(0, |most| u64::from(most.get()));
        let slots = self.allowance.as_ref().map(|allowance| match allowance.holds(now) {
            true => allowance.callable(rule.windows.len(), now),
            false => self.slots.in_flight().saturating_add(1),
        });
        slots.map_or(all, |slots| slots.min(all))
    }

    /// Requests in flight and in line.
    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// How much of a window is used, in percent, where that is past its soft stage: the fullest one.
    pub(super) fn softened<'a>(&self, rule: &'a Rule, now: Instant) -> Option<(u8, &'a Window)> {
        let windows = self.windows.iter().zip(&rule.windows).enumerate();
        let softened = windows.filter_map(|(part, (cells, window))| {
            let others = self.allowance.as_ref().map_or(0, |allowance| allowance.others(part, now));
            let used = u128::from(cells.sum().saturating_add(others)) * 100;
            let percent = u8::try_from(used / u128::from(window.limit.max(1))).unwrap_or(u8::MAX);
            (percent >= window.soft_percent?).then_some((percent, window))
        });
        softened.max_by_key(|(percent, window)| (window.demote.is_some(), *percent))
    }

    /// What is left of the window of a unit that would be full first.
    pub(super) fn standing(&self, rule: &Rule, unit: Unit, now: Instant) -> Option<Standing> {
        let windows = self.windows.iter().zip(&rule.windows).enumerate();
        let windows = windows.filter(|(_, (_, window))| window.unit == unit);
        let used = |part: usize, cells: &Cells| {
            let others = self.allowance.as_ref().map_or(0, |allowance| allowance.others(part, now));
            cells.sum().saturating_add(others)
        };
        let standings = windows.map(|(part, (cells, window))| Standing {
            limit: window.limit / unit.scale(),
            remaining: window.limit.saturating_sub(used(part, cells)) / unit.scale(),
            reset: cells.newest().map_or(Duration::ZERO, |cell| window.span.end(cell).since(now)),
        });
        standings.min_by_key(|standing| (standing.remaining, std::cmp::Reverse(standing.reset)))
    }

    /// What is charged in a window.
    #[cfg(test)]
    pub(super) fn used(&self, window: usize) -> u64 {
        self.windows.get(window).map_or(0, Cells::sum)
    }

    /// Requests in flight.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> u64 {
        self.slots.taken(None)
    }

    /// From when on nothing of it counts; `None` when nothing does now.
    pub(super) fn idle_at(&self, rule: &Rule) -> Option<Instant> {
        let windows = self.windows.iter().zip(&rule.windows);
        let ends = windows.filter_map(|(cells, window)| Some(window.span.end(cells.newest()?)));
        let held = self.allowance.as_ref().and_then(Allowance::idle_at);
        ends.chain(self.slots.idle_at(rule)).chain(held).max()
    }

    /// How full its fullest window is, in 65,535ths.
    pub(super) fn fill(&self, rule: &Rule) -> u16 {
        let windows = self.windows.iter().zip(&rule.windows);
        let fills = windows.map(|(cells, window)| {
            let full = u128::from(window.limit.max(1));
            u16::try_from(u128::from(cells.sum()) * u128::from(u16::MAX) / full).unwrap_or(u16::MAX)
        });
        // Who waits here must find its place again.
        if self.slots.waiting() > 0 { u16::MAX } else { fills.max().unwrap_or(0) }
    }

    /// Appends it as bytes.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        self.windows.iter().for_each(|cells| cells.write(to));
        self.slots.write(to);
        if let Some(allowance) = &self.allowance {
            allowance.write(to);
        }
    }

    /// Reads what [`Account::write`] wrote under the same windows.
    pub(super) fn read(rule: &Rule, mut from: &[u8]) -> Option<Self> {
        let windows = rule.windows.iter().map(|_| Cells::read(&mut from)).collect::<Option<_>>()?;
        let slots = Slots::read(rule, &mut from)?;
        let allowance = match rule.shared {
            true => Some(Allowance::read(&mut from)?),
            false => None,
        };
        from.is_empty().then_some(Self { windows, slots, allowance })
    }
}
