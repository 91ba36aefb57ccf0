//! The choice: who may be chosen, what is known of each, whom the policy takes.
//!
//! Four say who may be chosen. An endpoint whose context cannot hold the prompt, or that is full, is no candidate, nor is one
//! of a later group while an earlier one can serve (`groups.rs`). The breaker leaves out who fails. An endpoint that has joined
//! takes part in as many choices as it is old: at first in a tenth, whatever the policy, since to most policies an idle endpoint
//! is the best there is, and to some a cold one the worst. Then the policy itself may leave out whom it has no use for.

use super::groups::{Level, SOON, Spill, Spilled, Way};
use super::{Among, Ask, Choice, Joined, LeaseId, Pool};
use crate::breaker::{Gate, Shut};
use crate::instant::Instant;
use crate::policy::{Candidate, Demand, Prefill, Round};

/// What the policy made of some endpoints.
#[derive(Debug, Default)]
struct Chosen {
    /// Their places, the best first.
    order: Vec<usize>,
    best: Option<Candidate>,
    /// Who computes the prompt, if another does.
    prefill: Option<Candidate>,
    /// Nobody was chosen, since those who might have been have too much to do.
    full: bool,
}

/// How many attempts each level gets: the first as many as there are, but for one for each level behind it.
fn shares(levels: &[Level], attempts: usize) -> Vec<usize> {
    let mut left = attempts;
    let share = |(at, level): (usize, &Level)| {
        let behind = levels.len().saturating_sub(at + 1).min(left.saturating_sub(1));
        let share = (left - behind).min(level.places.len());
        left -= share;
        share
    };
    levels.iter().enumerate().map(share).collect()
}

impl Pool {
    /// Chooses an endpoint and books the request on it, as lease `id`. `None` when there is no endpoint, or none that may
    /// be sent to: [`Pool::shut`] knows.
    pub fn reserve(&mut self, id: LeaseId, ask: &Ask<'_>, now: Instant) -> Option<Choice> {
        self.reserve_among(id, ask, None, now)
    }

    /// The same, from among some endpoints only; of those too is the rest of the list.
    pub fn reserve_among(
        &mut self,
        id: LeaseId,
        ask: &Ask<'_>,
        among: Among<'_>,
        now: Instant,
    ) -> Option<Choice> {
        self.expire(now);
        self.in_tokens = ask.prompt.is_some();
        let Way { gate, mut levels, mut reason } = self.way(&ask.demand, among, now);
        let attempts = match gate {
            Gate::Open | Gate::Ramp | Gate::Probe(_) => self.attempts,
            Gate::LeastBad => 1,
            Gate::Shut(_) => return None,
        };
        if let (Gate::Probe(place), Some(Level { priority, .. })) = (gate, levels.first()) {
            levels.insert(0, Level { priority: *priority, places: vec![place] });
        }
        levels.retain(|level| !level.places.is_empty());
        // The first level last, so that what is known of the last choice is known of the one that counts.
        let mut chosen: Vec<Chosen> = Vec::with_capacity(levels.len());
        for (level, most) in levels.iter().zip(shares(&levels, attempts)).rev() {
            chosen.push(self.choose(&level.places, most, ask, now));
        }
        chosen.reverse();
        let nobody = !chosen.is_empty() && chosen.iter().all(|one| one.best.is_none());
        let why = if chosen.iter().any(|one| one.full) { Spilled::Full } else { Spilled::Unfit };
        self.unfit = nobody.then_some(why);
        let at = chosen.iter().position(|one| one.best.is_some())?;
        let (candidate, level) = (chosen.get(at)?.best?, levels.get(at)?);
        let prefill = chosen.get(at)?.prefill.filter(|prefill| prefill.place != candidate.place);
        if at > 0 && levels.first().is_some_and(|first| first.priority != level.priority) {
            reason = reason.or(Some(why));
        }
        let address = |place: usize| Some(self.endpoints.get(place)?.address.clone());
        let order = chosen.iter().flat_map(|one| &one.order).filter_map(|&place| address(place)).collect();
        let from = self.groups.first().copied().unwrap_or(0);
        let choice = Choice {
            order,
            prefill: prefill.and_then(|prefill| address(prefill.place)),
            candidate,
            policy: self.policy.name().to_owned().into(),
            probe: gate == Gate::Probe(candidate.place),
            spill: reason.map(|reason| Spill { from, to: level.priority, reason }),
        };
        let prefill = prefill.map(|prefill| (prefill.place, prefill.cached_tokens));
        self.book_both(id, candidate.place, candidate.cached_tokens, prefill, ask, now);
        if choice.probe {
            self.probe(id);
        }
        Some(choice)
    }

    /// Lets the policy order the endpoints at `places`.
    fn choose(&mut self, places: &[usize], most: usize, ask: &Ask<'_>, now: Instant) -> Chosen {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        for place in places {
            candidates.extend(self.candidate(*place, ask, now));
        }
        self.hold_back(&mut candidates);
        let round = Round { demand: &ask.demand, blocks: ask.blocks, candidates: &candidates, now };
        let order = self.policy.choose(&round, most, &mut self.random);
        let best = order.first().and_then(|&at| candidates.get(at).copied());
        let order: Vec<usize> = order.iter().filter_map(|at| Some(candidates.get(*at)?.place)).collect();
        let prefill =
            best.map_or(Prefill::There, |best| self.policy.prefill(&round, &best, &mut self.random));
        let chosen = match prefill {
            // Nobody computes the prompt, so nobody can go on from it.
            Prefill::Nowhere => Chosen::default(),
            Prefill::At(at) => Chosen { order, best, prefill: candidates.get(at).copied(), full: false },
            Prefill::There => {
                let full = best.is_none() && self.policy.was_for_load();
                Chosen { order, best, prefill: None, full }
            }
        };
        self.candidates = candidates;
        chosen
    }

    /// What is known of the endpoint at a place.
    fn candidate(&mut self, place: usize, ask: &Ask<'_>, now: Instant) -> Option<Candidate> {
        let stale = self.stale;
        let endpoint = self.endpoints.get_mut(place)?;
        if let Joined::Now = endpoint.joined {
            endpoint.joined = Joined::At(now);
        }
        let age = match endpoint.joined {
            Joined::At(since) => Some(now.since(since)),
            Joined::First | Joined::Now => None,
        };
        let heard = endpoint.heard.fresh(now, stale);
        Some(Candidate {
            place,
            seed: endpoint.seed,
            in_flight: endpoint.in_flight,
            queued_tokens: endpoint.queued_tokens,
            held_tokens: endpoint.held_tokens,
            cached_tokens: endpoint.cached(ask, now),
            age,
            engine: heard.map(|heard| heard.signals).unwrap_or_default(),
            unseen: heard.map_or(0, |heard| heard.unseen),
            unseen_tokens: heard.map_or(0, |heard| heard.unseen_tokens),
            adapter: heard.map(|heard| heard.adapter(ask.demand.adapter)).unwrap_or_default(),
        })
    }

    /// Lets a new endpoint into as many choices as it is old, so that not everything goes there at once because it is
    /// idle. If all are new, none is held back.
    fn hold_back(&mut self, candidates: &mut Vec<Candidate>) {
        let Self { slow_start, random, .. } = self;
        let factor = |candidate: &Candidate| slow_start.factor(candidate.age);
        let most = candidates.iter().map(factor).fold(0.0, f64::max);
        if candidates.iter().any(|candidate| factor(candidate) < most) {
            candidates.retain(|candidate| factor(candidate) >= most * random.unit());
        }
    }

    /// The longest prompt that any endpoint takes, in tokens, where this one is longer.
    pub fn too_long(&self, demand: &Demand) -> Option<u32> {
        Some(self.longest).filter(|longest| demand.prompt_tokens > *longest)
    }

    /// Why nothing can be chosen for this demand at the moment: every endpoint is out, or of those that are not the policy
    /// wanted none for the last request. `None` when that is not so.
    pub fn shut(&mut self, demand: &Demand, now: Instant) -> Option<Shut> {
        self.turned_away(demand, None, now).map(|(shut, _)| shut)
    }

    /// The same with the reason, for a request that may be confined to some endpoints.
    pub fn turned_away(
        &mut self,
        demand: &Demand,
        among: Among<'_>,
        now: Instant,
    ) -> Option<(Shut, Spilled)> {
        let Way { gate, reason, .. } = self.way(demand, among, now);
        match gate {
            Gate::Shut(shut) => Some((shut, reason.unwrap_or(Spilled::Out))),
            _ => self.unfit.map(|why| {
                let status = if why == Spilled::Full { 429 } else { 503 };
                (Shut { wait: SOON, status }, why)
            }),
        }
    }

    /// The name of the policy that chooses.
    pub fn policy(&self) -> &str {
        self.policy.name()
    }

    /// Whether prompts may be computed by another endpoint than the chosen one.
    pub fn splits(&self) -> bool {
        self.policy.splits()
    }
}
