//! Leases: what is booked, and how it ends.
//!
//! A lease counts as queued prefill until its first token and as in flight until its end; it ends once. Where a prompt is
//! computed by another endpoint than the one that answers, that is a lease of its own there, until the first token.

use super::{Answered, Ask, Index, LeaseId, Pool, Report};
use crate::breaker::{Cause, Class, Outcome, Probe, Reason};
use crate::instant::Instant;
use crate::policy::{Demand, News};
use crate::random::Random;
use std::time::Duration;

/// A lease that is out, as those who join are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Its name.
    pub id: LeaseId,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Those of them that wait to be computed.
    pub queued_tokens: u32,
    /// After this it ends by itself.
    pub left: Duration,
    /// It tries whether its endpoint serves again.
    pub probe: bool,
    /// Who booked it, where that was another than who tells; not 0.
    pub owner: Option<u64>,
}

/// What one request holds of one endpoint.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) place: usize,
    pub(super) incarnation: u64,
    /// Uncached prompt tokens; zero from the first token on.
    pub(super) queued_tokens: u32,
    /// The same, from its booking to its end.
    pub(super) uncached_tokens: u32,
    pub(super) prompt_tokens: u32,
    pub(super) booked: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) expires: Instant,
    /// When it was booked, and what was queued then, itself included: until its first token has come.
    pub(super) queued: Option<(Instant, u64)>,
    /// Its place in `Pool::unseen`.
    pub(super) unseen: Option<Instant>,
    /// It tries the endpoint of this incarnation, and holds a slot there.
    pub(super) probe: Option<(u64, Probe)>,
    /// Who booked it, where that was not here.
    pub(super) owner: Option<u64>,
    /// What the attempt at the chosen endpoint came to, unless that served.
    pub(super) came_to: Option<Outcome>,
}

impl Lease {
    /// A copy elsewhere was sooner.
    fn was_slow(&self) -> bool {
        self.came_to.is_some_and(|outcome| outcome.cause == Cause::Failed(Reason::Slow))
    }
}

impl Pool {
    /// Books a request that somebody else sent to `address`. Unknown addresses are let go.
    pub fn book(&mut self, id: LeaseId, address: &str, ask: &Ask<'_>, now: Instant) {
        self.book_split(id, address, None, ask, now);
    }

    /// The same, with its prompt computed at `prefill`.
    pub fn book_split(
        &mut self,
        id: LeaseId,
        address: &str,
        prefill: Option<&str>,
        ask: &Ask<'_>,
        now: Instant,
    ) {
        self.expire(now);
        let known = |address: &str| {
            let place = *self.places.get(address)?;
            Some((place, self.endpoints.get(place)?.cached(ask, now)))
        };
        let Some((place, cached_tokens)) = known(address) else { return };
        self.book_both(id, place, cached_tokens, prefill.and_then(known), ask, now);
    }

    /// Where the prompt is computed elsewhere that is a lease of its own, until the first token: the endpoint that answers
    /// has nothing to compute then.
    pub(super) fn book_both(
        &mut self,
        id: LeaseId,
        place: usize,
        cached_tokens: u32,
        prefill: Option<(usize, u32)>,
        ask: &Ask<'_>,
        now: Instant,
    ) {
        let Some((at, cached_there)) = prefill else {
            return self.book_at(id, place, ask, cached_tokens, now);
        };
        if !self.ended_early.contains(id) {
            self.book_at(prefill_of(id), at, ask, cached_there, now);
            self.book_at(id, place, ask, ask.demand.prompt_tokens, now);
        }
    }

    fn book_at(&mut self, id: LeaseId, place: usize, ask: &Ask<'_>, cached_tokens: u32, now: Instant) {
        if self.ended_early.contains(id) {
            return;
        }
        // A lease that comes twice (a repeated message) is the same lease.
        self.release(id);
        let Some(endpoint) = self.endpoints.get_mut(place) else { return };
        let prompt_tokens = ask.demand.prompt_tokens;
        let queued_tokens = prompt_tokens.saturating_sub(cached_tokens);
        endpoint.in_flight = endpoint.in_flight.saturating_add(1);
        endpoint.held_tokens = endpoint.held_tokens.saturating_add(u64::from(prompt_tokens));
        endpoint.heard.booked(id, queued_tokens, now);
        endpoint.queued_tokens = endpoint.queued_tokens.saturating_add(u64::from(queued_tokens));
        // Of a prompt that another endpoint computes nothing waits here.
        if queued_tokens > 0 {
            endpoint.sent.count(prompt_tokens, cached_tokens);
            self.usual.learn(queued_tokens);
        }
        endpoint.index.insert(ask.blocks);
        if let (Some(engine), Some(prompt)) = (&mut endpoint.engine, ask.prompt) {
            engine.expect(prompt, now);
        }
        let ahead = endpoint.queued_tokens;
        let expires = now + self.lease;
        self.due.insert((expires, id));
        let unseen = (!ask.demand.stream).then(|| now + self.pace.time_for(ahead));
        self.unseen.extend(unseen.map(|time| (time, id)));
        let incarnation = endpoint.incarnation;
        self.leases.insert(
            id,
            Lease {
                place,
                incarnation,
                queued_tokens,
                uncached_tokens: queued_tokens,
                prompt_tokens,
                booked: now,
                first_token: None,
                expires,
                queued: Some((now, ahead)),
                unseen,
                probe: None,
                owner: None,
                came_to: None,
            },
        );
        let news = News::Booked { place, demand: ask.demand, uncached_tokens: queued_tokens };
        self.policy.learn(&news, now);
    }

    /// The first token of lease `id` has come: its prompt is computed. `served` is the endpoint that it came from.
    ///
    /// After a retry that is another than the chosen one. Then the lease moves there, and of the chosen one nothing
    /// is believed any more, unless it was only busy or slower: it failed, and if it comes back it may come back empty.
    pub fn first_token(&mut self, id: LeaseId, served: Option<&str>, now: Instant) {
        self.computed(id);
        if self.splits() {
            self.release(prefill_of(id));
        }
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.first_token = lease.first_token.or(Some(now));
        let server = served.and_then(|address| self.places.get(address)).copied().unwrap_or(lease.place);
        if let Some((booked, tokens)) = lease.queued.take().filter(|_| lease.unseen.is_none()) {
            self.pace.learn(tokens, now.since(booked));
            self.first_tokens.count(now.since(booked) > self.saturated);
            // Of another than the chosen one it is not known what it had to compute, nor since when.
            if server == lease.place {
                let (place, uncached_tokens) = (lease.place, lease.uncached_tokens);
                let after = now.since(booked);
                self.hedge.learn(uncached_tokens, after);
                let news = News::FirstToken { place, after, uncached_tokens, queued_tokens: tokens };
                self.policy.learn(&news, now);
            } else if lease.was_slow() {
                self.hedge.learn_late(lease.uncached_tokens);
            }
        }
        self.due.remove(&(lease.expires, id));
        lease.expires = now + self.lease;
        self.due.insert((lease.expires, id));
        if server == lease.place {
            return;
        }
        let prompt_tokens = u64::from(lease.prompt_tokens);
        if let Some(failed) = self.endpoints.get_mut(lease.place) {
            failed.in_flight = failed.in_flight.saturating_sub(1);
            failed.held_tokens = failed.held_tokens.saturating_sub(prompt_tokens);
            failed.heard.ended(lease.uncached_tokens, lease.booked);
            if !(lease.was_slow() || lease.came_to.is_some_and(|outcome| outcome.class() == Class::Busy)) {
                failed.index = Index::new(self.index_units, self.random.next());
            }
            // What its engine said stays true; what was sent there may never have come.
            if let Some(engine) = &mut failed.engine {
                engine.expect_nothing();
            }
        }
        if let Some(endpoint) = self.endpoints.get_mut(server) {
            endpoint.in_flight = endpoint.in_flight.saturating_add(1);
            endpoint.held_tokens = endpoint.held_tokens.saturating_add(prompt_tokens);
            endpoint.heard.booked(id, lease.uncached_tokens, lease.booked);
            lease.place = server;
            lease.incarnation = endpoint.incarnation;
        }
    }

    /// How the answer of lease `id` went. Said before [`Pool::end`], which need not know.
    pub fn answered(&mut self, id: LeaseId, answered: &Answered, now: Instant) {
        let Some(lease) = self.leases.get(&id) else { return };
        let place = lease.place;
        let news = News::Ended {
            place,
            after: now.since(lease.booked),
            decoding: lease.first_token.map(|first| now.since(first)),
            output_tokens: answered.output_tokens,
            failed: answered.failed,
        };
        self.policy.learn(&news, now);
        let Some(signals) = answered.said() else { return };
        self.policy.learn(&News::Reported { place, signals }, now);
        if self.endpoints.get(place).is_some_and(|endpoint| !endpoint.heard.is_asked) {
            self.take(place, &Report { at: now, signals, ..Report::default() });
        }
    }

    /// The prompt of lease `id` waits no longer.
    pub(super) fn computed(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        if let Some(endpoint) = self.endpoints.get_mut(lease.place) {
            endpoint.queued_tokens = endpoint.queued_tokens.saturating_sub(u64::from(lease.queued_tokens));
        }
        lease.queued_tokens = 0;
        if let Some(time) = lease.unseen {
            self.unseen.remove(&(time, id));
        }
    }

    /// The request of lease `id` is over, however it ended. Says whether there was such a lease. If not, its booking
    /// may still be on its way, and will not count when it comes.
    pub fn end(&mut self, id: LeaseId) -> bool {
        if self.splits() {
            self.release(prefill_of(id));
        }
        self.ended.note(id);
        let known = self.release(id);
        if !known {
            self.ended_early.note(id);
        }
        known
    }

    /// Lease `id` is out no more, as far as is known: if it is booked after all, it counts.
    pub fn let_go(&mut self, id: LeaseId) {
        if self.splits() {
            self.release(prefill_of(id));
        }
        self.release(id);
    }

    /// Whether lease `id` is known to have ended, of those that did of late.
    pub fn has_ended(&self, id: LeaseId) -> bool {
        self.ended.contains(id)
    }

    pub(super) fn release(&mut self, id: LeaseId) -> bool {
        self.computed(id);
        let Some(lease) = self.leases.remove(&id) else { return false };
        self.due.remove(&(lease.expires, id));
        if let Some(endpoint) = self.endpoints.get_mut(lease.place) {
            endpoint.in_flight = endpoint.in_flight.saturating_sub(1);
            endpoint.held_tokens = endpoint.held_tokens.saturating_sub(u64::from(lease.prompt_tokens));
            endpoint.heard.ended(lease.uncached_tokens, lease.booked);
        }
        if let Some((probed, _)) = lease.probe {
            self.end_probe(probed);
        }
        true
    }

    /// Ends the leases whose time is up, and says how many.
    pub fn expire(&mut self, now: Instant) -> usize {
        while let Some(&(_, id)) = self.unseen.first().filter(|(time, _)| *time <= now) {
            self.unseen.pop_first();
            self.computed(id);
        }
        let mut expired = 0;
        while let Some(&(_, id)) = self.due.first().filter(|(expires, _)| *expires <= now) {
            self.due.pop_first();
            expired += usize::from(self.release(id));
        }
        expired
    }

    /// All leases with their endpoint, to [`Pool::book_outstanding`] them elsewhere.
    pub fn outstanding(&self, now: Instant) -> impl Iterator<Item = (&str, Outstanding)> {
        self.leases.iter().filter_map(move |(id, lease)| {
            let Lease { prompt_tokens, queued_tokens, expires, probe, owner, .. } = lease;
            let address = self.endpoints.get(lease.place)?.address.as_str();
            let (prompt_tokens, queued_tokens, owner) = (*prompt_tokens, *queued_tokens, *owner);
            let (left, probe) = (expires.since(now), probe.is_some());
            Some((address, Outstanding { id: *id, prompt_tokens, queued_tokens, left, probe, owner }))
        })
    }

    /// Lease `id` was booked by another.
    pub fn owned(&mut self, id: LeaseId, owner: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.owner = Some(owner);
        }
    }

    /// Books a lease that is out from before. One that is known here, or known to have ended, stays as it is.
    pub fn book_outstanding(&mut self, address: &str, lease: &Outstanding, now: Instant) {
        let Some(place) = self
            .places
            .get(address)
            .copied()
            .filter(|_| !self.leases.contains_key(&lease.id) && !self.ended.contains(lease.id))
        else {
            return;
        };
        let prompt_tokens = lease.prompt_tokens;
        let demand = Demand { prompt_tokens, stream: true, ..Demand::default() };
        let cached = prompt_tokens.saturating_sub(lease.queued_tokens);
        self.book_at(lease.id, place, &Ask { blocks: &[], demand, prompt: None }, cached, now);
        if lease.probe {
            self.probe(lease.id);
        }
        let Some(booked) = self.leases.get_mut(&lease.id) else { return };
        booked.owner = lease.owner;
        // Its first token may have come already: nothing is to be learnt from it.
        booked.queued = None;
        self.due.remove(&(booked.expires, lease.id));
        booked.expires = now + lease.left.min(self.lease);
        self.due.insert((booked.expires, lease.id));
    }

    /// Whether lease `id` is out.
    pub fn is_out(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// After this a lease of which nothing more is heard ends by itself.
    pub fn lease_period(&self) -> Duration {
        self.lease
    }

    /// Leases out.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }
}

/// The lease of the prompt, where it is computed elsewhere.
fn prefill_of(id: LeaseId) -> LeaseId {
    const PREFILL: u64 = 0x7072_6566_696c_6c00;
    Random::new(id ^ PREFILL).next()
}
