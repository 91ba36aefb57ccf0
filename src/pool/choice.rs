//! The choice: who may be chosen, what is known of each, whom the policy takes.
//!
//! Four say who may be chosen. An endpoint whose context cannot hold the prompt (`max_input_tokens`) is no candidate. The
//! breaker leaves out who fails. An endpoint that has joined takes part in as many choices as
//! it is old: at first in a tenth, whatever the policy, since to most policies an idle endpoint is the best there is, and
//! to some a cold one the worst. Then the policy itself may leave out whom it has no use for.

use super::leases::cached;
use super::{Ask, Choice, Endpoint, Joined, LeaseId, Pool};
use crate::breaker::{Gate, Shut};
use crate::instant::Instant;
use crate::policy::{Candidate, Demand, Prefill, Round};
use std::time::Duration;

impl Pool {
    /// Chooses an endpoint and books the request on it, as lease `id`. `None` when there is no endpoint, or none that may
    /// be sent to: [`Pool::shut`] knows.
    pub fn reserve(&mut self, id: LeaseId, ask: &Ask<'_>, now: Instant) -> Option<Choice> {
        self.expire(now);
        let gate = self.gate(&ask.demand, now);
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut choose = |pool: &mut Self, places: &[usize], most: usize| {
            candidates.clear();
            for place in places {
                candidates.extend(pool.candidate(*place, ask, now));
            }
            pool.hold_back(&mut candidates);
            let Ask { blocks, demand } = ask;
            let round = Round { demand, blocks, candidates: &candidates, now };
            let order = pool.policy.choose(&round, most, &mut pool.random);
            let first = order.first().and_then(|&at| candidates.get(at).copied());
            let place = |at: &usize| Some(candidates.get(*at)?.place);
            let order: Vec<usize> = order.iter().filter_map(place).collect();
            let prefill =
                first.map_or(Prefill::There, |first| pool.policy.prefill(&round, &first, &mut pool.random));
            pool.unfit = order.is_empty() && !places.is_empty() || prefill == Prefill::Nowhere;
            let prefill = match prefill {
                Prefill::At(at) => candidates.get(at).copied(),
                Prefill::There | Prefill::Nowhere => None,
            };
            (order, first.filter(|_| !pool.unfit), prefill)
        };
        let open = std::mem::take(&mut self.open);
        let (order, candidate, prefill) = match gate {
            Gate::Open => choose(self, &open, self.attempts),
            Gate::LeastBad => choose(self, &open, 1),
            Gate::Probe(place) => {
                let (mut order, candidate, prefill) = choose(self, &[place], 1);
                order.extend(choose(self, &open, self.attempts.saturating_sub(1)).0);
                (order, candidate, prefill)
            }
            Gate::Shut(_) => (Vec::new(), None, None),
        };
        (self.open, self.candidates) = (open, candidates);
        let (place, candidate) = (*order.first()?, candidate?);
        let address = |place: usize| Some(self.endpoints.get(place)?.address.clone());
        let prefill = prefill.filter(|prefill| prefill.place != place);
        let choice = Choice {
            order: order.iter().filter_map(|&place| address(place)).collect(),
            prefill: prefill.and_then(|prefill| address(prefill.place)),
            candidate,
            policy: self.policy.name().to_owned().into(),
            probe: matches!(gate, Gate::Probe(_)),
        };
        self.book_both(
            id,
            place,
            candidate.cached_tokens,
            prefill.map(|p| (p.place, p.cached_tokens)),
            ask,
            now,
        );
        if choice.probe {
            self.probe(id);
        }
        Some(choice)
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
            cached_tokens: cached(&endpoint.index, ask),
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

    /// Who of those that can hold the prompt may be sent to; fills `open`.
    fn gate(&mut self, demand: &Demand, now: Instant) -> Gate {
        let holds = |endpoint: &Endpoint| endpoint.longest.is_none_or(|most| demand.prompt_tokens <= most);
        let able = self.endpoints.iter_mut().enumerate().filter(|(_, endpoint)| holds(endpoint));
        let circuits = able.map(|(place, endpoint)| (place, &mut endpoint.circuit));
        self.breaker.gate(circuits, now, &mut self.random, &mut self.open)
    }

    /// The longest prompt that any endpoint takes, in tokens, where this one is longer.
    pub fn too_long(&self, demand: &Demand) -> Option<u32> {
        Some(self.longest).filter(|longest| demand.prompt_tokens > *longest)
    }

    /// Why nothing can be chosen for this demand at the moment: every endpoint is out, or of those that are not the policy
    /// wanted none for the last request. `None` when that is not so.
    pub fn shut(&mut self, demand: &Demand, now: Instant) -> Option<Shut> {
        const UNAVAILABLE: u16 = 503;
        match self.gate(demand, now) {
            Gate::Shut(shut) => Some(shut),
            _ if self.unfit => Some(Shut { wait: Duration::from_secs(1), status: UNAVAILABLE }),
            _ => None,
        }
    }

    /// Whether prompts may be computed by another endpoint than the chosen one.
    pub fn splits(&self) -> bool {
        self.policy.splits()
    }
}
