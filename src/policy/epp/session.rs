//! `session-affinity-scorer` and `session-affinity-filter`: where the session was last.
//!
//! ```text
//! score = 1 for the endpoint that the session's last request went to, within evictionTtlSeconds; 0 for others
//! ```
//!
//! As a filter it keeps that endpoint alone, and all where it may not be chosen. The session is the one that `extract`
//! publishes. llm-d's default writes the endpoint's name to the client and believes it when it comes back; here nothing
//! leaves the gateway, and nothing that a client says names an endpoint. `consistent_hash` needs no memory at all.

use crate::instant::Instant;
use crate::policy::number::Amount;
use crate::policy::{Keep, Known, News, Round, Score, scale};
use crate::random::Random;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Sessions remembered.
const REMEMBERED: usize = 65_536;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Session {
    eviction_ttl_seconds: Amount,
    /// The endpoints' ids by their places.
    #[serde(skip)]
    ids: Vec<u64>,
    /// By session: the id of the endpoint, and since when.
    #[serde(skip)]
    bound: HashMap<u64, (u64, Instant)>,
    /// In the order in which they were bound.
    #[serde(skip)]
    order: VecDeque<(Instant, u64)>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            eviction_ttl_seconds: Amount::of(600.0),
            ids: Vec::new(),
            bound: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl Session {
    fn ttl(&self) -> Duration {
        const MOST: f64 = 1e9;
        Duration::from_secs_f64(self.eviction_ttl_seconds.get().min(MOST))
    }

    /// The place of the session's endpoint.
    fn place(&self, session: Option<u64>, now: Instant) -> Option<usize> {
        let (id, since) = self.bound.get(&session?)?;
        let known = now.since(*since) < self.ttl();
        self.ids.iter().position(|other| other == id).filter(|_| known)
    }

    fn met(&mut self, endpoints: &[Known<'_>]) {
        self.ids = endpoints.iter().map(|known| known.id).collect();
    }

    fn learned(&mut self, news: &News, now: Instant) {
        let News::Booked { place, demand, .. } = news else { return };
        let (Some(session), Some(id)) = (demand.session, self.ids.get(*place)) else { return };
        self.bound.insert(session, (*id, now));
        self.order.push_back((now, session));
        let ttl = self.ttl();
        let old = |(at, _): &&(Instant, u64)| now.since(*at) >= ttl;
        while self.order.len() > REMEMBERED || self.order.front().filter(old).is_some() {
            let Some((at, session)) = self.order.pop_front() else { return };
            // Bound anew since then, it stays.
            if self.bound.get(&session).is_some_and(|(_, since)| *since == at) {
                self.bound.remove(&session);
            }
        }
    }
}

impl Score for Session {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let place = self.place(round.demand.session, round.now);
        scale::fill(round, scores, |candidate| if place == Some(candidate.place) { 1.0 } else { 0.0 });
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.met(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        self.learned(news, now);
    }
}

impl Keep for Session {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        let place = self.place(round.demand.session, round.now);
        if round.candidates.iter().any(|candidate| place == Some(candidate.place)) {
            for (keep, candidate) in keep.iter_mut().zip(round.candidates) {
                *keep = place == Some(candidate.place);
            }
        }
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.met(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        self.learned(news, now);
    }
}
