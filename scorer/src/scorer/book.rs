//! The book: pools behind a lock, and what each call does to them.

use super::active::Due;
use super::decisions::{Decision, Decisions};
use super::metrics::{Metrics, NO_ENDPOINT};
use super::replicas::Link;
use super::shares::Shares;
use super::{Config, Refused, Scraped, precise};
use crate::clock::{self, Clock};
use crate::otel::Telemetry;
use crate::tokens::{Reader, Unread};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::breaker::{Moved, Standing};
use weir::instant::Instant;
use weir::invalid::Invalid;
use weir::kv::{self, News};
use weir::limit::Tally;
use weir::policy::{Attributes, Demand};
use weir::pool::{Among, Ask, Load, Message, Pools, Precise, Pressure, Report, Said};
use weir::random::Random;
use weir::replicas::Listeners;
use weir::wire::{Event, Reserve, Reserved};

/// A running scorer.
#[derive(Debug)]
pub struct Scorer {
    pools: Mutex<Pools>,
    pub(super) metrics: Metrics,
    clock: Clock,
    decisions: Decisions,
    telemetry: Option<Arc<Telemetry>>,
    /// Limits that proxies share.
    pub(super) shares: Shares,
    /// Of pools whose engines say what they hold: what turns their requests into tokens.
    readers: BTreeMap<String, Reader>,
    /// To other scorers, where there are some.
    link: Option<Arc<Link>>,
    /// Proxies that choose by themselves and hear what happens. Taken after the book, where both are.
    listeners: Mutex<Listeners>,
    /// Pools whose endpoints do not come from the configuration.
    discovered: BTreeSet<String>,
}

/// What is known of one pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolLoad {
    /// Its name.
    pub name: String,
    /// Leases out.
    pub leases: usize,
    /// Probes out.
    pub probes: u32,
    /// Endpoints that get nothing, or probes only.
    pub out: Vec<Out>,
    /// Its endpoints, in the order of the configuration.
    pub endpoints: Vec<Load>,
    /// What their engines said of themselves, of those that did.
    pub engines: Vec<Said>,
    /// What they said of their caches, where they are listened to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub precise: Vec<Precise>,
    /// How hard it is pressed.
    pub pressure: Pressure,
    /// The policy that chooses.
    pub policy: String,
    /// Requests that were booked since the scorer started.
    pub booked: u64,
    /// Requests that got no endpoint since then.
    pub turned_away: u64,
}

/// An endpoint that gets nothing, or probes only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Out {
    /// Its address.
    pub address: String,
    /// `held`, `cooldown` or `probing`.
    pub standing: &'static str,
    /// Milliseconds until that ends.
    pub wait_ms: u64,
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
    fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody is to hear of what happens here.
    fn is_heard(&self) -> bool {
        self.link.is_some() || !self.listeners().is_empty()
    }

    /// Tells those who are to hear of it what happened here.
    fn tell(&self, message: Message) {
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

    /// Notes what became of earlier leases, then chooses and books in one step.
    pub fn reserve(&self, ask: &Reserve) -> Result<Reserved, Refused> {
        self.reserve_for(ask, None, None)
    }

    /// The same from among some endpoints only, for a request that was turned into tokens, or was not: [`Scorer::reader`].
    pub fn reserve_for(
        &self,
        ask: &Reserve,
        read: Option<&Result<kv::Tokens, Unread>>,
        among: Among<'_>,
    ) -> Result<Reserved, Refused> {
        if let Some(read) = read {
            self.metrics.precise.read(&ask.pool, read);
        }
        let mut pools = self.pools();
        let now = self.clock.now();
        self.note(&mut pools, &ask.events, now);
        let place = pools.of_name(&ask.pool).ok_or_else(|| Refused::UnknownPool(ask.pool.clone()))?;
        let (name, pool) = pools.get(place).ok_or_else(|| Refused::UnknownPool(ask.pool.clone()))?;
        self.metrics.expired(name, pool.expire(now));
        let prompt = read.and_then(|read| read.as_ref().ok()).map(|tokens| pool.cut(tokens));
        let mut wanted = Ask { prompt: prompt.as_ref(), ..ask.ask() };
        if let Some(prompt) = &prompt {
            // The prompt's own number, whatever it was estimated at.
            wanted.demand.prompt_tokens = prompt.tokens;
        }
        let prompt_tokens = wanted.demand.prompt_tokens;
        let Some(choice) = pool.reserve_among(ask.lease, &wanted, among, now) else {
            let shut = pool.turned_away(&wanted.demand, among, now);
            let reason = shut.map_or(NO_ENDPOINT, |(_, reason)| reason.name());
            self.metrics.turned_away(name, reason, prompt_tokens);
            if self.decisions.wants(now) {
                self.decisions.keep(name, ask, Err(reason), now);
            }
            let (shut, _) = shut.ok_or_else(|| Refused::NoEndpoint(ask.pool.clone()))?;
            self.metrics.shut(name);
            return Ok(Reserved { shut: Some(shut.into()), ..Reserved::default() });
        };
        if let Some(first) = choice.order.first().filter(|_| self.is_heard()) {
            let mut booked = Message::booked(place as u16, ask.lease, first, &ask.ask(), choice.probe);
            if let Message::Booked { prefill, .. } = &mut booked {
                prefill.clone_from(&choice.prefill);
            }
            self.tell(booked);
        }
        let is_watched = self.decisions.wants(now);
        let why = (ask.explain || is_watched).then(|| pool.why(&choice, now));
        self.metrics.reserved(name, prompt_tokens, choice.candidate.cached_tokens);
        self.metrics.precise.chosen(name, choice.order.first().and_then(|chosen| pool.word_of(chosen, now)));
        let told = why.as_ref().filter(|_| ask.explain);
        let told = told.map(|why| serde_json::to_value(why).unwrap_or_default());
        if let Some(why) = why.filter(|_| is_watched) {
            self.decisions.keep(name, ask, Ok(why), now);
        }
        Ok(Reserved {
            endpoints: choice.order,
            prefill: choice.prefill,
            why: told,
            cached_tokens: choice.candidate.cached_tokens,
            queued_tokens: choice.candidate.queued_tokens,
            in_flight: choice.candidate.in_flight,
            policy: choice.policy.into(),
            probe: choice.probe,
            spill: choice.spill,
            shut: None,
        })
    }

    /// The longest prompt that any endpoint of a pool takes, in tokens, where this one is longer.
    pub(crate) fn too_long(&self, pool: &str, demand: &Demand) -> Option<u32> {
        let mut pools = self.pools();
        let place = pools.of_name(pool)?;
        pools.get(place)?.1.too_long(demand)
    }

    /// Notes what became of leases.
    pub fn report(&self, events: &[Event]) {
        self.note(&mut self.pools(), events, self.clock.now());
    }

    /// Events of pools and leases that are not known here are let go: they are from before a restart.
    fn note(&self, pools: &mut Pools, events: &[Event], now: Instant) {
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

    /// Gives every pool the endpoints that a configuration, accepted as a whole, has for it.
    pub fn set_endpoints(&self, config: &Config) {
        let is_found = |name: &str| self.discovered.contains(name) || config.discovery.contains_key(name);
        for (name, pool) in self.pools().iter_mut().filter(|(name, _)| !is_found(name)) {
            let set = config.endpoints_of(name).map_or(Ok(()), |endpoints| pool.set_endpoints(endpoints));
            if let Err(invalid) = set {
                log::error!("pool {name:?} keeps its endpoints: {invalid}");
            }
        }
    }

    /// Gives one pool the endpoints that were found for it, and, where that was found too, what is known of them. Says how
    /// many it had.
    pub(crate) fn set_pool(
        &self,
        name: &str,
        endpoints: &[String],
        attributes: Option<BTreeMap<String, Attributes>>,
    ) -> Result<usize, Invalid> {
        let mut pools = self.pools();
        let place = pools.of_name(name);
        let Some((_, pool)) = place.and_then(|place| pools.get(place)) else { return Ok(0) };
        let before = pool.addresses().count();
        attributes.as_ref().map_or(Ok(()), |attributes| pool.check(attributes))?;
        pool.set_endpoints(endpoints)?;
        if let Some(attributes) = attributes {
            pool.describe(attributes);
        }
        Ok(before)
    }

    /// The addresses of all endpoints, each once.
    pub fn addresses(&self) -> BTreeSet<String> {
        self.pools().iter().flat_map(|(_, pool)| pool.addresses()).map(str::to_owned).collect()
    }

    /// The addresses of the endpoints of the pool of that name.
    pub fn addresses_of(&self, pool: &str) -> BTreeSet<String> {
        let pools = self.pools();
        let own = pools.iter().filter(|(name, _)| *name == pool);
        own.flat_map(|(_, pool)| pool.addresses()).map(str::to_owned).collect()
    }

    /// Something was heard of what an engine holds: of the one of that rank behind an endpoint of a pool.
    pub fn told(&self, pool: &str, endpoint: &str, rank: u32, news: &News) {
        let mut pools = self.pools();
        if let Some((_, pool)) = pools.of_name(pool).and_then(|place| pools.get(place)) {
            pool.told(endpoint, rank, news);
        }
    }

    /// An endpoint said how it is.
    pub fn hear(&self, address: &str, report: &Report) {
        let said = Message::Said { endpoint: address.to_owned(), report: report.clone() };
        let mut pools = self.pools();
        pools.hear(&said, self.clock.now());
        self.listeners().note(None, said);
    }

    /// An endpoint was asked how it is.
    pub fn scraped(&self, scraped: Scraped) {
        self.metrics.scraped(scraped);
    }

    /// What is known of every pool.
    pub fn loads(&self) -> Vec<PoolLoad> {
        let now = self.clock.now();
        let load = |(name, pool): (&str, &weir::pool::Pool)| {
            let (booked, turned_away) = self.metrics.requests(name);
            PoolLoad {
                name: name.to_owned(),
                pressure: pool.pressure(now),
                policy: pool.policy().to_owned(),
                booked,
                turned_away,
                leases: pool.leases(),
                probes: pool.probing(),
                out: pool
                    .standings(now)
                    .filter(|(_, standing, _)| !matches!(standing, Standing::Closed | Standing::Ramp))
                    .map(|(address, standing, wait)| Out {
                        address: address.to_owned(),
                        standing: standing.name(),
                        wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                    })
                    .collect(),
                endpoints: pool.loads(),
                engines: pool.said(now).collect(),
                precise: pool.precise(now).collect(),
            }
        };
        self.pools().iter().map(load).collect()
    }

    /// The decisions after a number; for a while more will be kept.
    pub(crate) fn decisions(&self, after: u64) -> Vec<Decision> {
        self.decisions.look(after, self.clock.now())
    }

    /// Keys of shared limits, whether their store answers (`None`: there is none), and those of which most is used.
    pub(crate) fn shared(&self, most: usize) -> (usize, Option<bool>, Vec<Tally>) {
        let tallies = self.shares.tallies(most, self.clock.now());
        (self.shares.keys(), self.shares.store_up(), tallies)
    }

    /// Everything counted, as Prometheus reads it.
    pub fn metrics(&self) -> anyhow::Result<String> {
        if let Some(telemetry) = &self.telemetry {
            self.metrics.exported(telemetry.counts());
        }
        self.metrics.shares(self.shares.keys(), self.shares.store_up());
        self.metrics.listening(self.listeners().len());
        if let Some(link) = &self.link {
            link.count(&self.metrics.replicas, self.clock.now());
        }
        Ok(self.metrics.text(&self.loads())?)
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

    pub(crate) fn took(&self, time: Duration) {
        self.metrics.took(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
