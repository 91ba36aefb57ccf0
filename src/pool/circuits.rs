//! What became of attempts, for the breaker: each endpoint has a circuit, and a lease may be a probe of one.

use super::{Endpoint, Index, LeaseId, Pool};
use crate::breaker::{ActiveProbe, Budget, Class, Moved, Outcome, Snapshot, Standing};
use crate::instant::Instant;
use std::time::Duration;

impl Pool {
    /// Lease `id` is a probe of its endpoint: known of one's own, told of another's.
    pub fn probe(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.probe.is_none()) else { return };
        if let Some(endpoint) = self.endpoints.get_mut(lease.place) {
            lease.probe = Some((endpoint.incarnation, endpoint.circuit.probe()));
        }
    }

    /// How its endpoints that are out are tried, where no client's request does it.
    pub fn active_probe(&self) -> Option<&ActiveProbe> {
        self.breaker.active_probe()
    }

    /// Endpoints that are to be tried now, where no client's request does it. Whoever tries one books that as a probe.
    pub fn to_probe(&self, now: Instant) -> impl Iterator<Item = &str> {
        let due = move |endpoint: &&Endpoint| {
            self.active_probe().is_some() && endpoint.circuit.is_due(&self.breaker, now)
        };
        self.endpoints.iter().filter(due).map(|endpoint| endpoint.address.as_str())
    }

    /// Somebody else already probes the endpoint of lease `id`: the lease ends, and until `until`, before which that will
    /// be heard of, nobody is sent there.
    pub fn decline(&mut self, id: LeaseId, until: Instant) {
        if let Some(endpoint) = self.leases.get(&id).and_then(|lease| self.endpoints.get_mut(lease.place)) {
            endpoint.circuit.decline(until);
        }
        self.release(id);
    }

    /// An attempt of lease `id`, which may have ended, came to `outcome` at `address`.
    pub fn attempted(
        &mut self,
        id: LeaseId,
        address: &str,
        outcome: &Outcome,
        now: Instant,
    ) -> Option<Moved> {
        const REMEMBERED: usize = 256;
        let place = *self.places.get(address)?;
        // A message that comes twice counts once.
        if outcome.class() != Class::Success {
            let attempt = (id, place, *outcome);
            if self.attempts_noted.contains(&attempt) {
                return None;
            }
            self.attempts_noted.truncate(REMEMBERED - 1);
            self.attempts_noted.push_front(attempt);
        }
        let endpoint = self.endpoints.get_mut(place)?;
        let mut lease = self.leases.get_mut(&id);
        if let Some(lease) = lease.as_mut().filter(|lease| lease.place == place) {
            lease.came_to = Some(*outcome);
        }
        let probe = lease.and_then(|lease| lease.probe.take_if(|(at, _)| *at == endpoint.incarnation));
        if probe.is_some() {
            endpoint.circuit.release();
        }
        let moved = endpoint.circuit.note(&self.breaker, probe.map(|(_, probe)| probe), outcome, now);
        if moved == Some(Moved::Out) {
            // If it comes back it may come back empty.
            endpoint.index = Index::new(self.index_units, self.random.next());
        }
        moved
    }

    /// Whether anything follows from `outcome` at `address`, here or elsewhere; else it need not be told.
    pub fn concerns(&self, address: &str, outcome: &Outcome) -> bool {
        let endpoint = self.places.get(address).and_then(|place| self.endpoints.get(*place));
        endpoint.is_some_and(|endpoint| self.breaker.concerns(&endpoint.circuit, outcome))
    }

    /// Retries that there may be.
    pub fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// After how long a copy of lease `id`'s request, which is a stream, goes to the second of `order`; `None`: never. Never to
    /// another group either: nobody is sent there for being served sooner.
    pub fn hedge_after(&self, id: LeaseId, order: &[String]) -> Option<Duration> {
        let lease = self.leases.get(&id).filter(|lease| lease.unseen.is_none() && order.len() > 1)?;
        let after = self.hedge.after(lease.uncached_tokens)?;
        let mut groups = order.iter().map(|address| self.priority(address));
        let first = groups.next()?;
        groups.all(|group| group == first).then_some(after)
    }

    /// How each endpoint stands, and for how long it gets nothing.
    pub fn standings(&self, now: Instant) -> impl Iterator<Item = (&str, Standing, Duration)> {
        self.endpoints.iter().map(move |endpoint| {
            let Endpoint { address, circuit, .. } = endpoint;
            (address.as_str(), circuit.standing(now), circuit.free_at().since(now))
        })
    }

    /// Probes out.
    pub fn probing(&self) -> u32 {
        self.endpoints.iter().map(|endpoint| endpoint.circuit.probing()).sum()
    }

    /// The circuits that are not closed, to [`Pool::adopt`] them elsewhere.
    pub fn snapshots(&self) -> impl Iterator<Item = (&str, Snapshot)> {
        self.endpoints
            .iter()
            .filter_map(|endpoint| Some((endpoint.address.as_str(), endpoint.circuit.snapshot()?)))
    }

    /// Takes over what is known elsewhere of the circuit of `address`.
    pub fn adopt(&mut self, address: &str, snapshot: &Snapshot, now: Instant) {
        if let Some(endpoint) = self.places.get(address).and_then(|place| self.endpoints.get_mut(*place)) {
            endpoint.circuit.adopt(&self.breaker, snapshot, now);
        }
    }

    /// Probes that an endpoint gets at a time.
    pub fn most_probes(&self) -> usize {
        self.breaker.most_probes()
    }

    /// Whether lease `id` is a probe.
    pub fn probes(&self, id: LeaseId) -> bool {
        self.leases.get(&id).is_some_and(|lease| lease.probe.is_some())
    }

    /// A slot of the endpoint of this incarnation comes back. Not of its lease's: that may have moved to who served.
    pub(super) fn end_probe(&mut self, incarnation: u64) {
        let probed = self.endpoints.iter_mut().find(|endpoint| endpoint.incarnation == incarnation);
        probed.into_iter().for_each(|endpoint| endpoint.circuit.release());
    }
}
