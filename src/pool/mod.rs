//! The endpoints that serve a model: who is loaded with what, who holds which prefix, who gets the next request.
//!
//! Choosing and booking are one step ([`Pool::reserve`]), so that a burst of requests does not find the same
//! endpoint idle. What is booked is a *lease*: it counts as queued prefill until the first token, as in flight
//! until its end, and ends once, by itself at the latest when its time is up. Load is counted in work accepted and
//! not finished, and so is never stale; what engines say of themselves stands beside it ([`Report`]).
//!
//! Who may be chosen at all is the breaker's to say ([`crate::breaker`]): each endpoint has a circuit, [`Pool::attempted`] tells
//! it what came of an attempt, and a lease may be a probe.
//!
//! The same pool runs in each worker of a proxy and in the scorer. A pool that did not choose itself learns of
//! others' choices by [`Pool::book`].

mod choice;
mod circuits;
mod config;
mod ended;
mod groups;
mod index;
mod leases;
mod message;
mod pace;
mod pools;
mod precise;
mod pressure;
mod shared;
mod signals;
mod why;

pub use config::Config;
pub use groups::{Spill, Spilled};
pub use index::Index;
pub use leases::Outstanding;
pub use message::Message;
pub use pools::{Pools, Spec};
pub use precise::{NO_TOKENS, Precise};
pub use pressure::{FirstTokens, Pressure};
pub use signals::{Adapters, Answered, Report, Said};
pub use why::{Considered, Why};

use ended::Ended;
use leases::Lease;
use pace::Pace;
use pressure::{Sent, Usual};
use signals::Heard;

use crate::breaker::{Breaker, Budget, Circuit, Hedge, Outcome};
use crate::instant::Instant;
use crate::invalid::Invalid;
use crate::kv;
use crate::policy::{Attributes, Candidate, Demand, Known, Policy, SlowStart};
use crate::random::Random;
use crate::wire;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

/// What a request asks of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Chained hashes of the prompt's blocks.
    pub blocks: &'a [u64],
    /// Its size.
    pub demand: Demand,
    /// The prompt in tokens, where that is known.
    pub prompt: Option<&'a kv::Prompt>,
}

/// An endpoint chosen and booked.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The chosen address, then fallbacks in order.
    pub order: Vec<String>,
    /// What is known of the chosen one, from before this request was booked.
    pub candidate: Candidate,
    /// The policy that chose.
    pub policy: Cow<'static, str>,
    /// The first is tried whether it serves again.
    pub probe: bool,
    /// Where the prompt is to be computed, when that is another endpoint than the chosen one.
    pub prefill: Option<String>,
    /// The chosen endpoint is of a later group than the first.
    pub spill: Option<Spill>,
}

/// Which endpoints a request may go to, by their addresses; `None`: to any.
pub type Among<'a> = Option<&'a dyn Fn(&str) -> bool>;

/// A lease's name: unique in the pools that share it.
pub type LeaseId = u64;

/// Endpoints, leases, and the policy between them.
#[derive(Debug)]
pub struct Pool {
    endpoints: Vec<Endpoint>,
    places: HashMap<String, usize>,
    leases: HashMap<LeaseId, Lease>,
    /// Leases by the time at which they end by themselves.
    due: BTreeSet<(Instant, LeaseId)>,
    /// Leases whose first token nobody will see, by the time at which it should have come.
    unseen: BTreeSet<(Instant, LeaseId)>,
    pace: Pace,
    usual: Usual,
    saturated: Duration,
    first_tokens: FirstTokens,
    /// Those that ended before they began: messages can overtake each other.
    ended_early: Ended,
    /// All that ended.
    ended: Ended,
    policy: Policy,
    random: Random,
    lease: Duration,
    index_units: usize,
    block_tokens: u32,
    attempts: usize,
    slow_start: SlowStart,
    stale: Duration,
    /// What the configuration says of endpoints, by their addresses.
    attributes: BTreeMap<String, Attributes>,
    /// No endpoint has joined yet: those that are here were here from the start.
    is_first: bool,
    candidates: Vec<Candidate>,
    breaker: Breaker,
    budget: Budget,
    hedge: Hedge,
    /// The priorities of its endpoints, each once, the smallest first.
    groups: Vec<u32>,
    /// Attempts that came to something, newest first.
    attempts_noted: VecDeque<(LeaseId, usize, Outcome)>,
    /// The policy wanted none of those in the last choice: why.
    unfit: Option<Spilled>,
    /// The longest prompt that any endpoint takes, in tokens.
    longest: u32,
    /// How engines' own word of what they hold is kept, and the engines behind each endpoint.
    precise: Option<(kv::Config, u32)>,
    /// The last choice was made for a prompt in tokens.
    in_tokens: bool,
}

/// One endpoint and what is believed of it.
#[derive(Debug)]
struct Endpoint {
    address: String,
    /// Told apart from an endpoint that had the same address before.
    incarnation: u64,
    seed: u64,
    in_flight: u32,
    queued_tokens: u64,
    /// Prompt tokens of all that is in flight.
    held_tokens: u64,
    sent: Sent,
    index: Index,
    /// What its engines say that they hold.
    engine: Option<kv::Engine>,
    joined: Joined,
    heard: Heard,
    circuit: Circuit,
    /// The longest prompt that it takes, in tokens.
    longest: Option<u32>,
    /// The most requests in flight.
    most: Option<u32>,
    /// Its group.
    priority: u32,
}

/// Since when an endpoint is one.
#[derive(Clone, Copy, Debug)]
enum Joined {
    /// From the start.
    First,
    /// Since a choice that is still to come: nobody has told the time.
    Now,
    At(Instant),
}

/// What is known of one endpoint, for a person or a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Its address.
    pub address: String,
    /// Requests accepted and not finished.
    pub in_flight: u32,
    /// Uncached prompt tokens of requests whose first token has not come.
    pub queued_tokens: u64,
    /// Tokens of prefixes believed to be in its cache.
    pub index_tokens: u64,
    /// Prompt tokens sent there since it is an endpoint.
    pub prompt_tokens: u64,
    /// Of these, the ones that were believed to be in its cache.
    pub cached_tokens: u64,
}

impl Pool {
    /// A pool of `endpoints`, each `address:port`. `seed` fixes its random choices.
    pub fn new(config: &Config, endpoints: &[String], seed: u64) -> Result<Self, Invalid> {
        let mut pool = Self {
            endpoints: Vec::new(),
            places: HashMap::new(),
            leases: HashMap::new(),
            due: BTreeSet::new(),
            unseen: BTreeSet::new(),
            pace: Pace::new(config.prefill_tokens_per_s.get()),
            usual: Usual::default(),
            saturated: Duration::from_millis(config.saturated_ms.get()),
            first_tokens: FirstTokens::default(),
            ended_early: Ended::new(seed),
            ended: Ended::new(seed),
            policy: Policy::read(&config.policy).map_err(|invalid| invalid.within("policy"))?,
            random: Random::new(seed),
            lease: Duration::from_millis(config.lease_ms.get()),
            index_units: usize::try_from(config.index_tokens.get()).unwrap_or(usize::MAX)
                / config.block_tokens.get() as usize,
            block_tokens: config.block_tokens.get(),
            attempts: config.attempts.get() as usize,
            slow_start: SlowStart::over(config.slow_start_ms),
            stale: Duration::from_millis(config.stale_ms.get()),
            attributes: BTreeMap::new(),
            is_first: true,
            candidates: Vec::new(),
            breaker: Breaker::new(&config.breaker).map_err(|invalid| invalid.within("breaker"))?,
            budget: Budget::new(&config.breaker.retry_budget),
            hedge: Hedge::new(config.breaker.hedge.as_ref()),
            groups: Vec::new(),
            attempts_noted: VecDeque::new(),
            unfit: None,
            longest: u32::MAX,
            precise: None,
            in_tokens: false,
        };
        pool.set_endpoints(endpoints)?;
        pool.is_first = false;
        Ok(pool)
    }

    /// Checks what is said of endpoints, by their addresses, as far as the policy reads it.
    pub fn check(&self, attributes: &BTreeMap<String, Attributes>) -> Result<(), Invalid> {
        let within = |address: &str| format!("attributes[{address:?}]");
        attributes.iter().try_for_each(|(address, own)| {
            self.policy.check(own).map_err(|invalid| invalid.within(&within(address)))
        })
    }

    /// Takes what the configuration says of endpoints, by their addresses. It holds for those that join later too.
    pub fn describe(&mut self, attributes: BTreeMap<String, Attributes>) {
        self.attributes = attributes;
        self.introduce();
    }

    /// Tells the policy who is there.
    fn introduce(&mut self) {
        let none = Attributes::default();
        let attributes = &self.attributes;
        for endpoint in &mut self.endpoints {
            let own = attributes.get(&endpoint.address).unwrap_or(&none);
            endpoint.longest = own.max_input_tokens;
            endpoint.most = own.max_in_flight.map(NonZeroU32::get);
            endpoint.priority = own.priority;
        }
        self.groups = self.endpoints.iter().map(|endpoint| endpoint.priority).collect();
        self.groups.sort_unstable();
        self.groups.dedup();
        let longest = self.endpoints.iter().map(|endpoint| endpoint.longest.unwrap_or(u32::MAX)).max();
        self.longest = longest.unwrap_or(u32::MAX);
        let known = self.endpoints.iter().map(|Endpoint { address, incarnation, .. }| Known {
            id: *incarnation,
            address,
            attributes: attributes.get(address).unwrap_or(&none),
        });
        self.policy.meet(&known.collect::<Vec<_>>());
    }

    /// Makes `endpoints` the endpoints of the pool. One that stays keeps its load and its prefixes; one that goes
    /// takes them along, and if its address returns it starts with nothing.
    pub fn set_endpoints(&mut self, endpoints: &[String]) -> Result<(), Invalid> {
        if endpoints.len() > MOST_ENDPOINTS {
            let why = format!("{} endpoints; a pool has at most {MOST_ENDPOINTS}", endpoints.len());
            return Err(Invalid::new("endpoints", why));
        }
        let mut places = HashMap::with_capacity(endpoints.len());
        for (place, address) in endpoints.iter().enumerate() {
            check_address(address).map_err(|why| Invalid::new(format!("endpoints[{place}]"), why))?;
            if places.insert(address.clone(), place).is_some() {
                return Err(Invalid::new(
                    format!("endpoints[{place}]"),
                    format!("{address} is listed twice"),
                ));
            }
        }
        let mut old: HashMap<String, Endpoint> =
            self.endpoints.drain(..).map(|endpoint| (endpoint.address.clone(), endpoint)).collect();
        let engine = |random: &mut Random| {
            self.precise.as_ref().map(|(config, ranks)| kv::Engine::new(config, *ranks, random.next()))
        };
        let fresh = |address: &String, random: &mut Random| Endpoint {
            address: address.clone(),
            incarnation: random.next(),
            seed: wire::name_hash(address),
            in_flight: 0,
            queued_tokens: 0,
            held_tokens: 0,
            sent: Sent::default(),
            index: Index::new(self.index_units, random.next()),
            engine: engine(random),
            joined: if self.is_first { Joined::First } else { Joined::Now },
            heard: Heard::default(),
            circuit: Circuit::default(),
            longest: None,
            most: None,
            priority: 0,
        };
        let random = &mut self.random;
        self.endpoints =
            endpoints.iter().map(|a| old.remove(a).unwrap_or_else(|| fresh(a, random))).collect();
        // Leases know their endpoint by its place: follow those that moved, drop those whose endpoint went.
        let moved: HashMap<u64, usize> = self
            .endpoints
            .iter()
            .enumerate()
            .map(|(place, endpoint)| (endpoint.incarnation, place))
            .collect();
        let mut probed = Vec::new();
        self.leases.retain(|id, lease| match moved.get(&lease.incarnation) {
            Some(place) => {
                lease.place = *place;
                true
            }
            None => {
                self.due.remove(&(lease.expires, *id));
                if let Some(time) = lease.unseen {
                    self.unseen.remove(&(time, *id));
                }
                probed.extend(lease.probe.map(|(incarnation, _)| incarnation));
                false
            }
        });
        probed.into_iter().for_each(|incarnation| self.end_probe(incarnation));
        self.places = places;
        self.introduce();
        Ok(())
    }

    /// Whether `address` is an endpoint of the pool.
    pub fn contains(&self, address: &str) -> bool {
        self.places.contains_key(address)
    }

    /// `address` is known to hold a prefix.
    pub fn hold(&mut self, address: &str, blocks: &[u64]) {
        if let Some(endpoint) = self.places.get(address).and_then(|place| self.endpoints.get_mut(*place)) {
            endpoint.index.insert(blocks);
        }
    }

    /// Prefixes believed to be held, with their endpoint, to [`Pool::hold`] them elsewhere in this order. Per endpoint
    /// those used last, as many blocks as it has room for: what prefixes share comes with each of them.
    pub fn prefixes(&self) -> impl Iterator<Item = (&str, Vec<u64>)> {
        self.endpoints.iter().flat_map(|endpoint| {
            let chains = endpoint.index.chains(self.index_units);
            chains.into_iter().map(|chain| (endpoint.address.as_str(), chain))
        })
    }

    /// The addresses of its endpoints.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|endpoint| endpoint.address.as_str())
    }

    /// Prompt tokens sent to its endpoints since they are endpoints, and those of them that were believed to be cached there.
    pub fn sent(&self) -> (u64, u64) {
        self.endpoints.iter().fold((0, 0), |(prompt, cached), Endpoint { sent, .. }| {
            (prompt.saturating_add(sent.prompt_tokens), cached.saturating_add(sent.cached_tokens))
        })
    }

    /// What is known of each endpoint.
    pub fn loads(&self) -> Vec<Load> {
        let load = |endpoint: &Endpoint| Load {
            address: endpoint.address.clone(),
            in_flight: endpoint.in_flight,
            queued_tokens: endpoint.queued_tokens,
            index_tokens: (endpoint.index.len() as u64).saturating_mul(u64::from(self.block_tokens)),
            prompt_tokens: endpoint.sent.prompt_tokens,
            cached_tokens: endpoint.sent.cached_tokens,
        };
        self.endpoints.iter().map(load).collect()
    }
}

/// An endpoint is named as Envoy's `override_host` reads it: an IP address with its port.
/// Most endpoints of a pool. Each is looked at for each request: these take milliseconds.
pub const MOST_ENDPOINTS: usize = 4_096;

/// Why nobody can be reached at `address`, whatever runs there.
pub fn unreachable(address: std::net::SocketAddr) -> Option<&'static str> {
    let ip = address.ip();
    match () {
        () if address.port() == 0 => Some("port 0 is no port"),
        () if ip.is_unspecified() => Some("it is the address of nobody"),
        () if ip.is_multicast() => Some("it is a multicast address"),
        () if ip == std::net::Ipv4Addr::BROADCAST => Some("it is a broadcast address"),
        () => None,
    }
}

fn check_address(address: &str) -> Result<(), String> {
    match address.parse::<std::net::SocketAddr>() {
        Ok(parsed) if parsed.to_string() == address => match unreachable(parsed) {
            Some(why) => Err(format!("{address}: {why}")),
            None => Ok(()),
        },
        Ok(parsed) => Err(format!("write {address:?} as {parsed}")),
        Err(_) => {
            Err(format!("{address:?} is not an IP address with a port, as 10.0.0.1:8000 or [::1]:8000"))
        }
    }
}

#[cfg(test)]
mod tests;
