//! What came of attempts: noted in the pool, told to those whom it concerns.

use crate::attempts;
use crate::{Lease, Pick, Stream};
use weir::breaker::{Cause, Class, Moved, Outcome, Reason};
use weir::pool::{Answered, LeaseId, Message};
use weir::wire::Event;
use weir_host::Host;

impl Pick {
    /// The attempts before the one at `address` have failed, or were slower.
    pub(crate) fn failed_before(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        lease: Lease,
        address: &str,
    ) {
        let passed = stream.attempts.before(host, address);
        if passed.retries == 0 {
            return;
        }
        if let Some(metrics) = self.metrics.pools.get(lease.pool) {
            for (metric, count) in [
                (metrics.retries, passed.retries.saturating_sub(passed.hedges)),
                (metrics.hedges, passed.hedges),
            ] {
                if count > 0 {
                    host.add(metric, count as u64);
                }
            }
        }
        if let Some((_, pool)) = self.pools.get(lease.pool) {
            // A request that some endpoint cannot hold is no failure: it takes nothing of what failures share.
            let too_long =
                passed.outcomes.iter().filter(|(_, outcome)| outcome.cause == Cause::TooLong).count();
            pool.budget().retried(passed.retries.saturating_sub(too_long));
        }
        for (endpoint, outcome) in passed.outcomes {
            self.attempted(stream, host, lease, &endpoint, &outcome);
        }
    }

    /// The stream is over: what its last attempt came to, and those before it that nobody has spoken of. Gives what the
    /// policy learns from it.
    pub(crate) fn over(&mut self, stream: &mut Stream, host: &dyn Host, lease: Lease) -> Option<Answered> {
        let served = stream.served.take().or_else(|| attempts::served(host))?;
        self.failed_before(stream, host, lease, &served);
        let mut outcome = attempts::last(host, lease.dialect, stream.first_token);
        // That a client is in a hurry is no fault of the endpoint's.
        let hurried = stream.gone_at.is_some_and(|at| host.now() >= at);
        if hurried && outcome.cause == Cause::Failed(Reason::Timeout) {
            outcome = Outcome::gone();
        }
        self.attempted(stream, host, lease, &served, &outcome);
        let wants = self.pools.get(lease.pool).map(|(_, pool)| pool.wants())?;
        // A client that left says nothing of the endpoint.
        let tells = wants.answers && matches!(outcome.class(), Class::Success | Class::Failure);
        tells.then(|| attempts::answered(host, &outcome, wants))
    }

    /// An attempt came to an outcome: it is noted here and told to those whom it concerns.
    pub(crate) fn attempted(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        lease: Lease,
        endpoint: &str,
        outcome: &Outcome,
    ) {
        let Some((name, pool)) = self.pools.get(lease.pool) else { return };
        if outcome.class() == Class::Success {
            pool.budget().succeeded();
        }
        let concerns = pool.probes(lease.id) || pool.concerns(endpoint, outcome);
        let moved = pool.attempted(lease.id, endpoint, outcome, host.now());
        let name = name.to_owned();
        if moved.is_some() || outcome.class() == Class::Busy {
            self.moved(host, lease.pool, endpoint, outcome, moved);
        }
        if concerns {
            let (pool, endpoint, outcome) = (name, endpoint.to_owned(), *outcome);
            let told = Message::Attempted {
                pool: lease.pool as u16,
                lease: lease.id,
                endpoint: endpoint.clone(),
                outcome,
            };
            self.tell(host, &told);
            // In mode `push` the scorer hears it with the rest.
            if let Some(scorers) = self.scorers.as_mut().filter(|_| self.push.is_none()) {
                scorers.note(lease.pool, Event::Attempted { pool, lease: lease.id, endpoint, outcome });
            }
        }
        if !self.pools.get(lease.pool).is_some_and(|(_, pool)| pool.probes(lease.id))
            && let Some(slot) = stream.slot.take()
        {
            slot.give_back(host);
        }
    }

    /// An endpoint is out, back, or held off: that is logged, counted, and kept where other workers find it.
    pub(crate) fn moved(
        &mut self,
        host: &dyn Host,
        place: usize,
        endpoint: &str,
        outcome: &Outcome,
        moved: Option<Moved>,
    ) {
        let name = self.pools.get(place).map_or("", |(name, _)| name);
        match moved {
            Some(Moved::Out) => {
                log::warn!("weir-pick: pool {name}: {endpoint} is out: {}", outcome.write());
                if let Some(metrics) = self.metrics.pools.get(place) {
                    host.add(metrics.trips, 1);
                }
            }
            Some(Moved::Back) => log::info!("weir-pick: pool {name}: {endpoint} is back"),
            None => {}
        }
        self.peers.keep_out(host, self.pools.out());
    }

    /// Another worker's request came to an outcome. Mostly the worker that brings an endpoint's last failure puts it out and says
    /// so; where failures of two workers pass each other, neither does, and who hears of the last one has to.
    pub(crate) fn heard_attempt(
        &mut self,
        host: &dyn Host,
        place: usize,
        lease: LeaseId,
        endpoint: &str,
        outcome: &Outcome,
    ) {
        let Some((_, pool)) = self.pools.get(place) else { return };
        let moved = pool.attempted(lease, endpoint, outcome, host.now());
        let is_known = |kept: &Message| matches!(kept, Message::Out { pool, endpoint: own, .. } if usize::from(*pool) == place && own == endpoint);
        if moved == Some(Moved::Out) && !self.peers.kept_out(host).iter().any(is_known) {
            self.moved(host, place, endpoint, outcome, moved);
        }
    }
}
