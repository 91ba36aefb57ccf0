//! What an endpoint's engine said of itself, and what was sent there since.
//!
//! A scrape is a photograph: what is sent after it was taken is in none of its numbers, and a burst between two scrapes
//! would all go where the last one looked idle. So requests booked since the engine answered are counted beside its
//! numbers, for as long as they are in flight: with scrapes five seconds apart that brings the 90th percentile of the
//! time to the first token from 7.2 s back to the 3.0 s of perfect knowledge (a replay of public traces).
//!
//! What is missing is unknown and what is old is forgotten. Neither is zero: an engine that does not answer must not look
//! idle.

use super::{Index, LeaseId, Pool};
use crate::instant::Instant;
use crate::policy::{Adapter, News, Signals, Wants};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Counters that are remembered of an engine that shows others each time.
const MOST_TOTALS: usize = 4_096;

/// An engine's answer, read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Report {
    /// When it was asked: what it says is no younger.
    pub at: Instant,
    /// What it says.
    pub signals: Signals,
    /// What it says of LoRA adapters.
    pub adapters: Option<Adapters>,
    /// Numbers that only grow while an engine lives, by what they count: if one has shrunk it is another.
    pub totals: BTreeMap<u64, f64>,
    /// When its process started, in seconds: another time is another engine.
    pub started: Option<f64>,
}

impl Report {
    /// The same with its time as an age, for who has another clock.
    #[must_use]
    pub fn aged(self, now: Instant) -> Self {
        Self { at: Instant::default() + now.since(self.at), ..self }
    }

    /// What [`Report::aged`] made, as time is counted here.
    #[must_use]
    pub fn heard(self, now: Instant) -> Self {
        Self { at: Instant::from_nanos(now.nanos().saturating_sub(self.at.nanos())), ..self }
    }
}

/// How an answer went, for policies that learn.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Answered {
    /// Tokens that it wrote, when that is known; an estimate where only what was delivered is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    /// The endpoint failed.
    pub failed: bool,
    /// What the endpoint said of itself beside it (ORCA): requests queued, in its batch, KV usage, utilisation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// Requests in its batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Part of its KV memory in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_usage: Option<f64>,
    /// Its utilisation as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
}

impl Answered {
    /// With what the endpoint said of itself.
    #[must_use]
    pub fn with(self, signals: &Signals) -> Self {
        let Signals { waiting, running, kv_usage, utilization, .. } = *signals;
        Self { waiting, running, kv_usage, utilization, ..self }
    }

    /// What the endpoint said of itself, if anything.
    pub(super) fn said(&self) -> Option<Signals> {
        let Self { waiting, running, kv_usage, utilization, .. } = *self;
        let signals = Signals { waiting, running, kv_usage, utilization, ..Signals::default() };
        (signals != Signals::default()).then_some(signals)
    }
}

/// LoRA adapters of an engine, by [`crate::wire::name_hash`] of their names.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Adapters {
    /// Those that are in its batch, by its metrics; `None` when these say nothing of adapters.
    pub running: Option<Vec<u64>>,
    /// Those that requests wait for.
    pub waiting: Vec<u64>,
    /// How many it can have in a batch.
    pub most: Option<usize>,
    /// Those in its list of models; `None` when it was not asked for that.
    pub listed: Option<Vec<u64>>,
}

/// What an engine said of itself, for a person or a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Said {
    /// The endpoint's address.
    pub address: String,
    /// Requests queued in it.
    pub waiting: Option<u32>,
    /// Requests in its batch.
    pub running: Option<u32>,
    /// Part of its KV memory in use.
    pub kv_usage: Option<f64>,
    /// Requests sent there since, and not ended.
    pub sent_since: u32,
    /// Milliseconds since it said so.
    pub age_ms: u64,
}

/// What was heard of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) signals: Signals,
    adapters: Option<Adapters>,
    totals: BTreeMap<u64, f64>,
    started: Option<f64>,
    /// It is asked, so that what it says beside answers is no news.
    pub(super) is_asked: bool,
    /// Requests sent since, and not ended, and their uncached tokens.
    pub(super) unseen: u32,
    pub(super) unseen_tokens: u64,
    /// All sent since, oldest first, with their tokens; kept only once it has said anything.
    sent: VecDeque<(Instant, LeaseId, u32)>,
}

impl Heard {
    /// What was heard, unless it is too old.
    pub(super) fn fresh(&self, now: Instant, stale: Duration) -> Option<&Self> {
        self.signals.at.filter(|at| now.since(*at) <= stale).map(|_| self)
    }

    /// Takes what the engine says. Says whether it is another engine than before, started anew. `is_alive` tells which
    /// leases are still out.
    pub(super) fn hear(&mut self, report: &Report, is_alive: impl Fn(&LeaseId) -> bool) -> bool {
        if self.signals.at.is_some_and(|last| report.at < last) {
            return false;
        }
        while let Some(&(booked, id, tokens)) = self.sent.front().filter(|(booked, ..)| *booked < report.at) {
            self.sent.pop_front();
            if is_alive(&id) {
                self.ended(tokens, booked);
            }
        }
        let shrank = |(what, before): (&u64, &f64)| report.totals.get(what).is_some_and(|now| now < before);
        let is_new = self.totals.iter().any(shrank)
            || self.started.zip(report.started).is_some_and(|(before, now)| now > before + 1.0);
        self.signals = Signals { at: Some(report.at), ..report.signals };
        self.adapters.clone_from(&report.adapters);
        // An engine that has just started may not show a counter before it has counted something: what was known is kept
        // until then, within bounds.
        if is_new || self.totals.len() > MOST_TOTALS {
            self.totals.clear();
        }
        self.totals.extend(&report.totals);
        self.started = report.started.or(self.started);
        is_new
    }

    /// A request was sent there.
    pub(super) fn booked(&mut self, id: LeaseId, uncached_tokens: u32, now: Instant) {
        if self.signals.at.is_some_and(|at| now >= at) {
            self.unseen = self.unseen.saturating_add(1);
            self.unseen_tokens = self.unseen_tokens.saturating_add(u64::from(uncached_tokens));
            self.sent.push_back((now, id, uncached_tokens));
        }
    }

    /// A request that was sent there at that time is over.
    pub(super) fn ended(&mut self, uncached_tokens: u32, booked: Instant) {
        if self.signals.at.is_some_and(|at| booked >= at) {
            self.unseen = self.unseen.saturating_sub(1);
            self.unseen_tokens = self.unseen_tokens.saturating_sub(u64::from(uncached_tokens));
        }
    }

    /// Where an adapter stands. What runs is loaded, whatever the list says; what an engine does not list it does not
    /// serve; and without metrics of adapters, what it lists is all that is known to be loaded.
    pub(super) fn adapter(&self, wanted: Option<u64>) -> Adapter {
        let (Some(wanted), Some(adapters)) = (wanted, &self.adapters) else { return Adapter::Unknown };
        let running = adapters.running.as_deref();
        if running.is_some_and(|running| running.contains(&wanted)) {
            return Adapter::Resident;
        }
        match (running, &adapters.listed) {
            (_, Some(listed)) if !listed.contains(&wanted) => return Adapter::Absent,
            (None, Some(_)) => return Adapter::Resident,
            _ => {}
        }
        let running = running.unwrap_or_default();
        let others = adapters.waiting.iter().filter(|adapter| !running.contains(adapter)).count();
        match adapters.most {
            Some(most) if running.len().saturating_add(others) >= most => {
                if adapters.waiting.contains(&wanted) { Adapter::Waiting } else { Adapter::Full }
            }
            _ => Adapter::Room,
        }
    }
}

impl Pool {
    /// What the policy learns of answers.
    pub fn wants(&self) -> Wants {
        self.policy.wants()
    }

    /// What an endpoint says of itself. What it said before is forgotten, also where it says nothing now; and if it has
    /// started anew since then, so is what it was believed to hold.
    pub fn hear(&mut self, address: &str, report: &Report) {
        let Some(&place) = self.places.get(address) else { return };
        if let Some(endpoint) = self.endpoints.get_mut(place) {
            endpoint.heard.is_asked = true;
        }
        self.take(place, report);
        let signals = Signals { at: Some(report.at), ..report.signals };
        self.policy.learn(&News::Reported { place, signals }, report.at);
    }

    pub(super) fn take(&mut self, place: usize, report: &Report) {
        let Some(endpoint) = self.endpoints.get_mut(place) else { return };
        let is_alive = |id: &LeaseId| self.leases.get(id).is_some_and(|lease| lease.place == place);
        if endpoint.heard.hear(report, is_alive) {
            endpoint.index = Index::new(self.index_units, self.random.next());
            if let Some(engine) = &mut endpoint.engine {
                engine.forget();
            }
        }
        // It cannot hold more than it has memory for, whatever was sent there.
        if let Some(tokens) = report.signals.kv_tokens {
            let units = usize::try_from(tokens / u64::from(self.block_tokens)).unwrap_or(usize::MAX);
            endpoint.index.bound(units.min(self.index_units));
        }
    }

    /// How many endpoints have said nothing of themselves that is not too old.
    pub fn silent(&self, now: Instant) -> usize {
        self.endpoints.iter().filter(|endpoint| endpoint.heard.fresh(now, self.stale).is_none()).count()
    }

    /// What engines said of themselves, of those endpoints whose word is not too old.
    pub fn said(&self, now: Instant) -> impl Iterator<Item = Said> {
        self.endpoints.iter().filter_map(move |endpoint| {
            let heard = endpoint.heard.fresh(now, self.stale)?;
            let Signals { waiting, running, kv_usage, at, .. } = heard.signals;
            let age = now.since(at?);
            let (address, sent_since) = (endpoint.address.clone(), heard.unseen);
            Some(Said { address, waiting, running, kv_usage, sent_since, age_ms: age.as_millis() as u64 })
        })
    }
}
