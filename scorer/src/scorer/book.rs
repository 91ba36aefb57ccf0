//! The book: pools behind a lock, and what each call does to them.

use super::metrics::Metrics;
use super::{Config, Refused};
use crate::clock::Clock;
use serde::Serialize;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::instant::Instant;
use weir::pool::{Load, Pools};
use weir::wire::{Event, Reserve, Reserved};

/// A running scorer.
#[derive(Debug)]
pub struct Scorer {
    pools: Mutex<Pools>,
    metrics: Metrics,
    clock: Clock,
}

/// What is known of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolLoad {
    /// Its name.
    pub name: String,
    /// Leases out.
    pub leases: usize,
    /// Its endpoints, in the order of the configuration.
    pub endpoints: Vec<Load>,
}

impl Scorer {
    /// A scorer with nothing booked.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        // std seeds its hash maps from the system's entropy; the hash of nothing is such a seed.
        let seed = std::hash::RandomState::new().build_hasher().finish();
        let pools = config.pools(seed)?;
        let metrics = Metrics::new(pools.iter().map(|(name, _)| name))?;
        Ok(Self { pools: Mutex::new(pools), metrics, clock: Clock::start() })
    }

    /// A thread that died while it held the lock left the book whole: the core does not panic half way.
    fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what became of earlier leases, then chooses and books in one step.
    pub fn reserve(&self, ask: &Reserve) -> Result<Reserved, Refused> {
        let mut pools = self.pools();
        let now = self.clock.now();
        note(&mut pools, &ask.events, now);
        let place = pools.of_name(&ask.pool).ok_or_else(|| Refused::UnknownPool(ask.pool.clone()))?;
        let (name, pool) = pools.get(place).ok_or_else(|| Refused::UnknownPool(ask.pool.clone()))?;
        self.metrics.expired(name, pool.expire(now));
        let choice =
            pool.reserve(ask.lease, &ask.ask(), now).ok_or_else(|| Refused::NoEndpoint(ask.pool.clone()))?;
        self.metrics.reserved(name);
        Ok(Reserved {
            endpoints: choice.order,
            cached_tokens: choice.candidate.cached_tokens,
            queued_tokens: choice.candidate.queued_tokens,
            in_flight: choice.candidate.in_flight,
            policy: choice.policy.into(),
        })
    }

    /// Notes what became of leases.
    pub fn report(&self, events: &[Event]) {
        note(&mut self.pools(), events, self.clock.now());
    }

    /// Ends the leases whose time is up.
    pub fn expire(&self) {
        let now = self.clock.now();
        for (name, pool) in self.pools().iter_mut() {
            self.metrics.expired(name, pool.expire(now));
        }
    }

    /// Gives every pool the endpoints that a configuration, accepted as a whole, has for it.
    pub fn set_endpoints(&self, config: &Config) {
        for (name, pool) in self.pools().iter_mut() {
            let set = config.endpoints_of(name).map_or(Ok(()), |endpoints| pool.set_endpoints(endpoints));
            if let Err(invalid) = set {
                log::error!("pool {name:?} keeps its endpoints: {invalid}");
            }
        }
    }

    /// What is known of every pool.
    pub fn loads(&self) -> Vec<PoolLoad> {
        let load = |(name, pool): (&str, &weir::pool::Pool)| PoolLoad {
            name: name.to_owned(),
            leases: pool.leases(),
            endpoints: pool.loads(),
        };
        self.pools().iter().map(load).collect()
    }

    /// Everything counted, as Prometheus reads it.
    pub fn metrics(&self) -> anyhow::Result<String> {
        Ok(self.metrics.text(&self.loads())?)
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn refused(&self, refused: &Refused) {
        self.metrics.refused(refused);
    }

    pub(super) fn took(&self, time: Duration) {
        self.metrics.took(time);
    }
}

/// Events of pools and leases that are not known here are let go: they are from before a restart.
fn note(pools: &mut Pools, events: &[Event], now: Instant) {
    for event in events {
        let (Event::FirstToken { pool, .. } | Event::End { pool, .. }) = event;
        let Some((_, pool)) = pools.of_name(pool).and_then(|place| pools.get(place)) else { continue };
        match event {
            Event::FirstToken { lease, served, .. } => pool.first_token(*lease, Some(served), now),
            Event::End { lease, .. } => {
                pool.end(*lease);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::policy::Demand;
    use weir::pool::Ask;

    fn reserve(pool: &str) -> Reserve {
        let events = vec![Event::End { pool: "a".into(), lease: 1 }];
        let demand = Demand { prompt_tokens: 10, prompt_units: 1, stream: true, ..Demand::default() };
        Reserve { events, ..Reserve::of(pool, 2, &Ask { blocks: &[], demand }) }
    }

    #[test]
    fn a_pool_that_lost_its_endpoints_refuses_and_one_unknown_still_hears_the_events() {
        let config = Config::read(b"{pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}").unwrap();
        let scorer = Scorer::new(&config).unwrap();
        scorer.reserve(&Reserve { lease: 1, events: vec![], ..reserve("a") }).unwrap();
        assert_eq!(scorer.loads()[0].leases, 1);
        assert!(matches!(scorer.reserve(&reserve("b")), Err(Refused::UnknownPool(_))));
        assert_eq!(scorer.loads()[0].leases, 0);
        let emptied = Config {
            pools: vec![weir::pool::Spec { endpoints: vec![], ..config.pools[0].clone() }],
            ..config
        };
        scorer.set_endpoints(&emptied);
        assert!(matches!(scorer.reserve(&reserve("a")), Err(Refused::NoEndpoint(_))));
    }
}
