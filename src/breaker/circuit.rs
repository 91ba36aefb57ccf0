//! What is known of one endpoint's failures, and whether it may be sent to: a state machine with the time passed in.
//!
//! ```text
//!            a rule trips                 cooldown over          enough probes succeed
//!   closed ───────────────▶ cooling down ──────────────▶ probing ─────────────────────▶ ramp ──▶ closed
//!                               ▲                           │                            │
//!                               └──── twice as long ────────┴──── a probe fails ─────────┘ a rule trips
//! ```
//!
//! - Only a probe ends a trip, and only one that was sent after it: an answer to a request from before says how the
//!   endpoint was then.
//! - A cooldown never gets shorter. A late failure does not start it anew either, or requests that time out one after the other
//!   would keep it up for ever; a late `Retry-After` does lengthen it.
//! - A busy endpoint is held off until the time it names, in whatever state it is: that is no failure. One that is busy again then, and has
//!   served nothing since, is held off for `hold_off_ms` at the least: who names a time that is always too soon would have every request tried
//!   there first, and use up the retries that others share.
//! - Slots of probes are held by leases. A lease ends once, however its request ends, and its slot with it.

use super::Breaker;
use super::outcome::{Cause, Class, Outcome};
use super::window::Window;
use crate::instant::Instant;
use std::time::Duration;

/// A request that tries whether an endpoint serves again: after which trip it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    trips_ever: u64,
}

/// A change of state that others want to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The endpoint is out: it tripped, or a probe failed.
    Out,
    /// It serves again.
    Back,
}

/// What an endpoint may be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Access {
    /// Everything.
    All,
    /// A share of the requests, 0 to 1.
    Share(f64),
    /// A probe.
    Probe,
    /// Nothing.
    None,
}

/// How an endpoint stands, for a person or a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It serves.
    Closed,
    /// It is back, and gets a growing share.
    Ramp,
    /// It asked to be left alone.
    Held,
    /// It tripped.
    Cooldown,
    /// Its cooldown is over; a probe is out, or the next request is one.
    Probing,
}

impl Standing {
    /// As written in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Ramp => "ramp",
            Self::Held => "held",
            Self::Cooldown => "cooldown",
            Self::Probing => "probing",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    /// Tripped: cooling down until then, probing afterwards.
    Out { until: Instant, passed: u32 },
    /// Back since then.
    Ramp { since: Instant },
}

/// One endpoint's.
#[derive(Clone, Debug, Default)]
pub struct Circuit {
    state: State,
    /// By the place of the rule.
    windows: Vec<Window>,
    /// Left alone until then, as the endpoint asked with this status.
    held: Option<(Instant, u16)>,
    /// It has served nothing since it asked for that.
    refuses: bool,
    /// Trips in a row, without a whole ramp in between.
    trips: u32,
    /// The cooldown of the first of them.
    cooldown: Duration,
    trips_ever: u64,
    /// Probes out.
    probing: u32,
    /// Somebody else sends the next probe: until then none from here.
    declined: Option<Instant>,
}

impl Circuit {
    /// What it may be sent.
    pub(super) fn access(&mut self, breaker: &Breaker, now: Instant) -> Access {
        if self.held.is_some_and(|(until, _)| until > now) {
            return Access::None;
        }
        self.held = None;
        self.settle(breaker, now);
        match self.state {
            State::Closed => Access::All,
            State::Out { until, .. } if until > now => Access::None,
            State::Out { .. } if breaker.config.active_probe.is_none() && self.is_due(breaker, now) => {
                Access::Probe
            }
            State::Out { .. } => Access::None,
            State::Ramp { since } => {
                let passed = now.since(since).as_secs_f64() * 1e3 / breaker.config.ramp_ms as f64;
                // Not below this, or an endpoint of a small pool would wait for its first request.
                const LEAST: f64 = 0.1;
                Access::Share(passed.max(LEAST))
            }
        }
    }

    /// A ramp that is over has ended, whether or not anybody has looked since.
    fn settle(&mut self, breaker: &Breaker, now: Instant) {
        let ramp = Duration::from_millis(breaker.config.ramp_ms);
        if matches!(self.state, State::Ramp { since } if now >= since + ramp) {
            self.state = State::Closed;
            self.trips = 0;
        }
    }

    /// Whether it is to be tried now.
    pub fn is_due(&self, breaker: &Breaker, now: Instant) -> bool {
        let free = self.probing < breaker.config.probes.get();
        let ours = self.declined.is_none_or(|until| until <= now);
        let cool = matches!(self.state, State::Out { until, .. } if until <= now);
        cool && free && ours && self.held(now).is_none()
    }

    /// When it may be sent something again, if it may not now; a probe that is out may end at any time.
    pub fn free_at(&self) -> Instant {
        let held = self.held.map_or(Instant::default(), |(until, _)| until);
        match self.state {
            State::Out { until, .. } => until.max(held),
            _ => held,
        }
    }

    /// The status with which it asked to be left alone, where it does.
    pub(super) fn held(&self, now: Instant) -> Option<u16> {
        self.held.filter(|(until, _)| *until > now).map(|(_, status)| status)
    }

    /// Trips in a row.
    pub(super) fn trips(&self) -> u32 {
        self.trips
    }

    /// Whether it is in any way out of the ordinary: then its successes matter.
    pub fn is_watched(&self) -> bool {
        self.state != State::Closed || self.held.is_some() || self.refuses
    }

    /// Probes out.
    pub fn probing(&self) -> u32 {
        self.probing
    }

    /// How it stands.
    pub fn standing(&self, now: Instant) -> Standing {
        match self.state {
            State::Out { until, .. } if until > now => Standing::Cooldown,
            _ if self.held(now).is_some() => Standing::Held,
            State::Out { .. } => Standing::Probing,
            State::Ramp { .. } => Standing::Ramp,
            State::Closed => Standing::Closed,
        }
    }

    /// A probe goes out, and takes a slot.
    pub fn probe(&mut self) -> Probe {
        self.probing = self.probing.saturating_add(1);
        Probe { trips_ever: self.trips_ever }
    }

    /// A probe's slot comes back.
    pub fn release(&mut self) {
        self.probing = self.probing.saturating_sub(1);
    }

    /// Somebody else has the slot; he will be heard of before that time.
    pub fn decline(&mut self, until: Instant) {
        self.declined = Some(until);
    }

    /// Notes the outcome of an attempt; `probe`: it was one.
    pub fn note(
        &mut self,
        breaker: &Breaker,
        probe: Option<Probe>,
        outcome: &Outcome,
        now: Instant,
    ) -> Option<Moved> {
        match outcome.class() {
            Class::Busy => self.hold(breaker, outcome, now),
            Class::Success => self.refuses = false,
            Class::Neutral | Class::Failure => (),
        }
        self.settle(breaker, now);
        let probe = probe.filter(|probe| probe.trips_ever == self.trips_ever);
        match self.state {
            State::Out { until, passed } => {
                let fails = breaker.rules().find(|rule| rule.counts(outcome));
                let hint =
                    breaker.hint(outcome).filter(|_| fails.is_some_and(|rule| rule.accept_retry_after));
                let latest = hint.map_or(until, |hint| until.max(now + hint));
                self.state = State::Out { until: latest, passed };
                match (fails, probe) {
                    (Some(_), Some(_)) => {
                        self.trip(breaker, self.cooldown, latest, now);
                        Some(Moved::Out)
                    }
                    // A hint that came meanwhile goes before it.
                    (None, Some(_)) if outcome.class() == Class::Success && latest <= now => {
                        self.passed(breaker, now)
                    }
                    _ => None,
                }
            }
            State::Closed | State::Ramp { .. } => self.count(breaker, outcome, now),
        }
    }

    /// A probe has succeeded.
    fn passed(&mut self, breaker: &Breaker, now: Instant) -> Option<Moved> {
        let State::Out { until, passed } = self.state else { return None };
        let passed = passed.saturating_add(1);
        if passed < breaker.config.probes_to_recover.get() {
            self.state = State::Out { until, passed };
            return None;
        }
        self.windows.iter_mut().for_each(Window::clear);
        self.state = State::Ramp { since: now };
        Some(Moved::Back)
    }

    /// Counts it in every rule that it concerns.
    fn count(&mut self, breaker: &Breaker, outcome: &Outcome, now: Instant) -> Option<Moved> {
        let success = outcome.class() == Class::Success;
        self.windows.resize_with(breaker.config.rules.len(), Window::default);
        let mut cooldown: Option<Duration> = None;
        let mut until = Instant::default();
        for (rule, window) in breaker.rules().zip(&mut self.windows) {
            let fails = rule.counts(outcome);
            if !(fails || success && rule.failure_condition.percentage.is_some()) {
                continue;
            }
            let counts = window.add(fails, rule.interval(), now);
            if fails && rule.trips(counts) {
                cooldown = cooldown.max(Some(rule.trip_duration()));
                if let Some(hint) = breaker.hint(outcome).filter(|_| rule.accept_retry_after) {
                    until = until.max(now + hint);
                }
            }
        }
        self.trip(breaker, cooldown?, until, now);
        Some(Moved::Out)
    }

    /// Out it goes: for the cooldown, doubled with every trip in a row, and until `until` at the least.
    fn trip(&mut self, breaker: &Breaker, cooldown: Duration, until: Instant, now: Instant) {
        let most = Duration::from_millis(breaker.config.max_trip_duration_ms.get()).max(cooldown);
        let lasts = cooldown.saturating_mul(1_u32.checked_shl(self.trips).unwrap_or(u32::MAX)).min(most);
        self.windows.iter_mut().for_each(Window::clear);
        self.trips = self.trips.saturating_add(1);
        self.trips_ever = self.trips_ever.saturating_add(1);
        self.cooldown = cooldown;
        self.state = State::Out { until: until.max(now + lasts), passed: 0 };
    }

    /// Left alone for as long as it asks; the latest end counts.
    fn hold(&mut self, breaker: &Breaker, outcome: &Outcome, now: Instant) {
        let usual = Duration::from_millis(breaker.config.hold_off_ms);
        let again = self.refuses && self.held(now).is_none();
        let wait = breaker.hint(outcome).map_or(usual, |hint| if again { hint.max(usual) } else { hint });
        let until = now + wait;
        let later = self.held.is_none_or(|(own, _)| own < until);
        if let (Cause::Status(status), true, false) = (outcome.cause, later, wait.is_zero()) {
            self.held = Some((until, status));
            self.refuses = true;
        }
    }

    /// What another worker must know that has just come: when it may be sent something again, and why.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let out = match self.state {
            State::Out { until, .. } => Some(until),
            _ => None,
        };
        let known = out.is_some() || self.held.is_some();
        known.then_some(Snapshot { out, held: self.held, trips: self.trips, cooldown: self.cooldown })
    }

    /// Takes over what another worker knows, unless more is known here. For longer than it would be here nobody is out by another's
    /// word.
    pub fn adopt(&mut self, breaker: &Breaker, snapshot: &Snapshot, now: Instant) {
        let (longest, longest_held) = (breaker.longest(), breaker.longest_hold());
        if let (State::Closed, Some(until)) = (self.state, snapshot.out) {
            self.state = State::Out { until: until.min(now + longest.max(longest_held)), passed: 0 };
            self.trips = snapshot.trips;
            self.trips_ever = self.trips_ever.saturating_add(1);
            self.cooldown = snapshot.cooldown.min(longest);
        }
        let held = snapshot.held.map(|(until, status)| (until.min(now + longest_held), status));
        self.held = self.held.max(held);
    }
}

/// A circuit that is not closed, to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Tripped, and cooling down until then.
    pub out: Option<Instant>,
    /// Left alone until then, and the status with which the endpoint asked for it.
    pub held: Option<(Instant, u16)>,
    /// Trips in a row.
    pub trips: u32,
    /// The cooldown of the first.
    pub cooldown: Duration,
}

impl Snapshot {
    /// The same with its times counted from `now`, for who has another clock.
    pub fn from_now(self, now: Instant) -> Self {
        // A time that has passed is still one.
        let left = |time: Instant| Instant::default() + time.since(now).max(Duration::from_nanos(1));
        self.with_times(left)
    }

    /// What [`Snapshot::from_now`] made, as time is counted here.
    pub fn at(self, now: Instant) -> Self {
        self.with_times(|left| now + left.since(Instant::default()))
    }

    fn with_times(self, time: impl Fn(Instant) -> Instant) -> Self {
        let held = self.held.map(|(until, status)| (time(until), status));
        Self { out: self.out.map(time), held, ..self }
    }
}
