//! The book: pools behind a lock, what happens to leases in it, and who hears of that.
//!
//! What else is done with it stands beside it: `choose.rs`, `endpoints.rs`, `news.rs`, `loads.rs`.

use super::active::Due;
use super::decisions::Decisions;
use super::metrics::Metrics;
use super::replicas::Link;
use super::shares::Shares;
use super::{Config, Refused, Scraped, precise};
use crate::clock::{self, Clock};
use crate::otel::Telemetry;
use crate::picker;
use crate::tokens::Reader;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::breaker::Moved;
use weir::instant::Instant;
use weir::pool::{Ask, Message, Pools};
use weir::random::Random;
use weir::replicas::Listeners;
use weir::wire::Event;

/// A running scorer.
#[derive(Debug)]
pub struct Scorer {
    pools: Mutex<Pools>,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    pub(super) decisions: Decisions,
    pub(super) telemetry: Option<Arc<Telemetry>>,
    /// Limits that proxies share.
    pub(super) shares: Shares,
    /// Of pools whose engines say what they hold: what turns their requests into tokens.
    readers: BTreeMap<String, Reader>,
    /// To other scorers, where there are some.
    pub(super) link: Option<Arc<Link>>,
    /// Proxies that choose by themselves and hear what happens. Taken after the book, where both are.
    listeners: Mutex<Listeners>,
    /// Pools whose endpoints do not come from the configuration.
    pub(super) discovered: BTreeSet<String>,
}

impl Scorer {
    /// A scorer with nothing booked.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let pools = config.pools(clock::seed())?;
        let metrics = Metrics::new(pools.iter().map(|(name, _)| name))?;
        let clock = Clock::start();
        let shares = Shares::new(config.store.as_ref(), clock.now())?;
        let readers = precise::readers(config)?;
        config.precise.keys().for_each(|name| metrics.precise.know(name));
        let telemetry = config.otel.clone().map(|otel| Telemetry::new(otel, config));
        let link = Link::new(config, clock.now()).map_err(|invalid| invalid.within("store"))?;
        Ok(Self {
            telemetry,
            pools: Mutex::new(pools),
            metrics,
            clock,
            shares,
            decisions: Decisions::default(),
            readers,
            link: link.map(Arc::new),
            listeners: Mutex::new(Listeners::new(clock::seed() | 1)),
            discovered: config.discovery.keys().cloned().collect(),
        })
    }

    /// What leads to the other scorers.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.link.clone()
    }

    /// Whether it knows what the other scorers know.
    pub fn is_ready(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.is_ready(self.clock.now()))
    }

    /// Acts on the book, for the link to other scorers.
    pub(super) fn with_pools<T>(&self, act: impl FnOnce(&mut Pools, Instant) -> T) -> T {
        act(&mut self.pools(), self.clock.now())
    }

    /// A thread that died while it held the lock left the book whole: the core does not panic half way.
    pub(super) fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody is to hear of what happens here.
    pub(super) fn is_heard(&self) -> bool {
        self.link.is_some() || !self.listeners().is_empty()
    }

    /// Tells those who are to hear of it what happened here.
    pub(super) fn tell(&self, message: Message) {
        if let Some(link) = &self.link {
            link.tell(message.clone());
        }
        self.listeners().note(None, message);
    }

    /// What turns requests of the pool of that name into tokens, where its engines say what they hold.
    pub fn reader(&self, pool: &str) -> Option<&Reader> {
        self.readers.get(pool)
    }

    /// The longest body of a request that any pool wants.
    pub(super) fn longest_body(&self) -> usize {
        self.readers.values().map(Reader::most).max().unwrap_or(0)
    }

    /// Notes what became of leases.
    pub fn report(&self, events: &[Event]) {
        self.note(&mut self.pools(), events, self.clock.now());
    }

    /// Events of pools and leases that are not known here are let go: they are from before a restart.
    pub(super) fn note(&self, pools: &mut Pools, events: &[Event], now: Instant) {
        for event in events {
            let (Event::Booked { pool, .. }
            | Event::FirstToken { pool, .. }
            | Event::Attempted { pool, .. }
            | Event::Went { pool, .. }
            | Event::End { pool, .. }) = event;
            let Some(place) = pools.of_name(pool) else { continue };
            if let (Event::Went { lease, went, .. }, Some(telemetry)) = (event, &self.telemetry) {
                telemetry.went(pool, *lease, went);
            }
            let Some(message) = event.message(place as u16) else { continue };
            if let (Some(moved), Event::Attempted { pool, endpoint, outcome, .. }) =
                (pools.hear(&message, now), event)
            {
                self.moved(pool, endpoint, moved, &outcome.write());
            }
            self.tell(message);
        }
    }

    /// An endpoint went out, or is back.
    pub(super) fn moved(&self, pool: &str, endpoint: &str, moved: Moved, why: &str) {
        match moved {
            Moved::Out => {
                self.metrics.tripped(pool);
                log::warn!("pool {pool:?}: {endpoint} is out: {why}");
            }
            Moved::Back => log::info!("pool {pool:?}: {endpoint} is back"),
        }
    }

    /// Whether any pool tries endpoints that are out without a client's request.
    pub(super) fn probes_actively(&self) -> bool {
        self.pools().iter().any(|(_, pool)| pool.active_probe().is_some())
    }

    /// Books a probe of each endpoint that is due for one.
    pub(super) fn due(&self, random: &mut Random) -> Vec<Due> {
        let mut pools = self.pools();
        let now = self.clock.now();
        let mut due = Vec::new();
        for (place, (name, pool)) in pools.iter().enumerate() {
            let Some(probe) = pool.active_probe() else { continue };
            due.extend(pool.to_probe(now).map(|endpoint| {
                let (pool, endpoint, probe) = (name.to_owned(), endpoint.to_owned(), probe.clone());
                (place, Due { pool, endpoint, lease: random.next(), probe })
            }));
        }
        let booked = |(place, due): (usize, Due)| {
            let message = Message::booked(place as u16, due.lease, &due.endpoint, &Ask::default(), true);
            pools.hear(&message, now);
            self.tell(message);
            due
        };
        due.into_iter().map(booked).collect()
    }

    /// Ends the leases whose time is up, and forgets the proxies that have gone.
    pub fn expire(&self) {
        let now = self.clock.now();
        for (name, pool) in self.pools().iter_mut() {
            self.metrics.expired(name, pool.expire(now));
        }
        self.listeners().forget(now);
    }

    /// An endpoint was asked how it is.
    pub fn scraped(&self, scraped: Scraped) {
        self.metrics.scraped(scraped);
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn refused(&self, refused: &Refused) {
        self.metrics.refused(refused);
    }

    /// What is exported, where something is.
    pub fn telemetry(&self) -> Option<Arc<Telemetry>> {
        self.telemetry.clone()
    }

    /// What an endpoint picker counts.
    pub(crate) fn picker(&self) -> Arc<picker::Counters> {
        Arc::clone(&self.metrics.picker)
    }

    pub(crate) fn took(&self, time: Duration) {
        self.metrics.took(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::policy::Demand;
    use weir::wire::Reserve;

    fn reserve(pool: &str) -> Reserve {
        let events = vec![Event::End { pool: "a".into(), lease: 1, answered: None }];
        let demand = Demand { prompt_tokens: 10, prompt_units: 1, stream: true, ..Demand::default() };
        Reserve { events, ..Reserve::of(pool, 2, &Ask { blocks: &[], demand, prompt: None }) }
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
