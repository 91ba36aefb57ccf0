//! The endpoints that serve a model: who is loaded with what, who holds which prefix, who gets the next request.
//!
//! Choosing and booking are one step ([`Pool::reserve`]), so that a burst of requests does not find the same
//! endpoint idle. What is booked is a *lease*: it counts as queued prefill until the first token, as in flight
//! until its end, and ends once, by itself at the latest when its time is up. All load is counted in work
//! accepted and not finished; the engine is not asked, so nothing here is ever stale.
//!
//! Who may be chosen at all is the breaker's to say ([`crate::breaker`]): each endpoint has a circuit, [`Pool::attempted`] tells
//! it what came of an attempt, and a lease may be a probe.
//!
//! The same pool runs in each worker of a proxy and in the scorer. A pool that did not choose itself learns of
//! others' choices by [`Pool::book`].

mod index;
mod pace;
mod pools;
mod seeded;
mod signals;

pub use index::Index;
pub use pools::{Pools, Spec};
pub use signals::{Adapters, Answered, Report};

use pace::Pace;
use signals::Heard;

use crate::block;
use crate::breaker::{
    self, Breaker, Budget, Circuit, Class, Gate, Moved, Outcome, Probe, Shut, Snapshot, Standing,
};
use crate::instant::Instant;
use crate::invalid::Invalid;
use crate::policy::{
    Attributes, Candidate, Demand, Explained, Known, News, Policy, Prefill, Round, Signals, SlowStart, Wants,
};
use crate::random::Random;
use crate::wire;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// How a pool counts and chooses; the same in filters and scorer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The policy: a name, a name with parameters, or llm-d's `EndpointPickerConfig`. See [`crate::policy`]. Written
    /// again, it has all defaults filled in.
    #[serde(serialize_with = "effective")]
    pub policy: Value,
    /// Milliseconds after which a lease of which nothing more was heard ends by itself; a first token starts
    /// them anew. Longer than any answer takes.
    pub lease_ms: NonZeroU64,
    /// Tokens of prefixes remembered per endpoint: the size of its cache, when that is known.
    pub index_tokens: NonZeroU64,
    /// Tokens of the smallest prefix block, as `extract` cuts them (`block_tokens` there).
    pub block_tokens: NonZeroU32,
    /// Endpoints named per request: the chosen one and fallbacks for retries.
    pub attempts: NonZeroU32,
    /// Prompt tokens that an endpoint computes per second, until streams have shown it. Only for requests that are
    /// not streamed, whose first token nobody sees.
    pub prefill_tokens_per_s: NonZeroU32,
    /// Milliseconds over which an endpoint that has joined takes its full part: at first a tenth of the requests may go
    /// there, whatever the policy. 0 turns this off. Endpoints that were there from the start are not held back.
    pub slow_start_ms: u64,
    /// Milliseconds after which what an engine said of itself is forgotten: its endpoint is judged by what was sent there.
    pub stale_ms: NonZeroU64,
    /// When endpoints are out.
    pub breaker: breaker::Config,
}

/// The policy with its defaults filled in; one that is wrong stays as it is.
fn effective<S: Serializer>(policy: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    match Policy::read(policy) {
        Ok(read) => read.effective().serialize(serializer),
        Err(_) => policy.serialize(serializer),
    }
}

impl Default for Config {
    fn default() -> Self {
        const LEASE: NonZeroU64 = NonZeroU64::new(600_000).unwrap();
        const TOKENS: NonZeroU64 = NonZeroU64::new(1 << 20).unwrap();
        const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
        const THREE: NonZeroU32 = NonZeroU32::new(3).unwrap();
        const PACE: NonZeroU32 = NonZeroU32::new(5_000).unwrap();
        const STALE: NonZeroU64 = NonZeroU64::new(10_000).unwrap();
        let policy = Value::String("least_prefill".into());
        Self {
            prefill_tokens_per_s: PACE,
            policy,
            lease_ms: LEASE,
            index_tokens: TOKENS,
            block_tokens: SIXTEEN,
            attempts: THREE,
            slow_start_ms: 30_000,
            stale_ms: STALE,
            breaker: breaker::Config::default(),
        }
    }
}

/// What a request asks of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Chained hashes of the prompt's blocks.
    pub blocks: &'a [u64],
    /// Its size.
    pub demand: Demand,
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
}

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
    /// Leases that ended before they began, newest first: messages can overtake each other.
    ended_early: VecDeque<LeaseId>,
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
    /// Places of the endpoints that may be chosen, of the last choice.
    open: Vec<usize>,
    /// Attempts that came to something, newest first.
    attempts_noted: VecDeque<(LeaseId, usize, Outcome)>,
    /// Of those the policy wanted none in the last choice.
    unfit: bool,
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
    index: Index,
    joined: Joined,
    heard: Heard,
    circuit: Circuit,
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

/// What one request holds of one endpoint.
#[derive(Debug)]
struct Lease {
    place: usize,
    incarnation: u64,
    /// Uncached prompt tokens; zero from the first token on.
    queued_tokens: u32,
    /// The same, from its booking to its end.
    uncached_tokens: u32,
    prompt_tokens: u32,
    booked: Instant,
    first_token: Option<Instant>,
    expires: Instant,
    /// When it was booked, and what was queued then, itself included: until its first token has come.
    queued: Option<(Instant, u64)>,
    /// Its place in `Pool::unseen`.
    unseen: Option<Instant>,
    /// It tries the endpoint of this incarnation, and holds a slot there.
    probe: Option<(u64, Probe)>,
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
}

/// Why the last choice was made, as far as one candidate goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Why {
    /// Its address.
    pub endpoint: String,
    /// Requests in flight there.
    pub in_flight: u32,
    /// Uncached prompt tokens queued there.
    pub queued_tokens: u64,
    /// Tokens of the prompt that it holds.
    pub cached_tokens: u32,
    /// Requests queued in its engine, with what was sent since it said so.
    pub waiting: Option<f64>,
    /// Requests in its engine's batch, likewise.
    pub running: Option<f64>,
    /// Part of its KV memory in use, likewise.
    pub kv_usage: Option<f64>,
    /// What the policy made of it.
    #[serde(flatten)]
    pub explained: Explained,
}

/// What an engine said of itself, for a person or a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Said {
    /// The endpoint's address.
    pub address: String,
    /// Requests queued in it.
    pub waiting: Option<u32>,
    /// Requests in its batch.
    pub running: Option<u32>,
    /// Part of its KV memory in use.
    pub kv_usage: Option<f64>,
    /// Requests sent there since, and not ended.
    pub sent_since: u32,
    /// Milliseconds since it said so.
    pub age_ms: u64,
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
            ended_early: VecDeque::new(),
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
            open: Vec::new(),
            attempts_noted: VecDeque::new(),
            unfit: false,
        };
        pool.set_endpoints(endpoints)?;
        pool.is_first = false;
        Ok(pool)
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
        let fresh = |address: &String, random: &mut Random| Endpoint {
            address: address.clone(),
            incarnation: random.next(),
            seed: wire::name_hash(address),
            in_flight: 0,
            queued_tokens: 0,
            held_tokens: 0,
            index: Index::new(self.index_units, random.next()),
            joined: if self.is_first { Joined::First } else { Joined::Now },
            heard: Heard::default(),
            circuit: Circuit::default(),
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

    /// Leases out.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Chooses an endpoint and books the request on it, as lease `id`. `None` when there is no endpoint, or none that may
    /// be sent to: [`Pool::shut`] knows.
    pub fn reserve(&mut self, id: LeaseId, ask: &Ask<'_>, now: Instant) -> Option<Choice> {
        self.expire(now);
        let gate = self.gate(now);
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

    /// Why the last choice was made: every endpoint that might have been chosen, what was known of it, and what each score
    /// gave it. Where the choice was a probe, of its fallbacks.
    pub fn why(&self) -> Vec<Why> {
        let one = |(candidate, explained): (&Candidate, Explained)| {
            Some(Why {
                endpoint: self.endpoints.get(candidate.place)?.address.clone(),
                in_flight: candidate.in_flight,
                queued_tokens: candidate.queued_tokens,
                cached_tokens: candidate.cached_tokens,
                waiting: candidate.waiting(),
                running: candidate.running(),
                kv_usage: candidate.kv_usage(),
                explained,
            })
        };
        self.candidates.iter().zip(self.policy.explain()).filter_map(one).collect()
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

    /// Who may be sent to; fills `open`.
    fn gate(&mut self, now: Instant) -> Gate {
        let circuits = self.endpoints.iter_mut().map(|endpoint| &mut endpoint.circuit);
        self.breaker.gate(circuits, now, &mut self.random, &mut self.open)
    }

    /// Why nothing can be chosen at the moment: every endpoint is out, or of those that are not the policy wanted none for
    /// the last request. `None` when that is not so.
    pub fn shut(&mut self, now: Instant) -> Option<Shut> {
        const UNAVAILABLE: u16 = 503;
        match self.gate(now) {
            Gate::Shut(shut) => Some(shut),
            _ if self.unfit => Some(Shut { wait: Duration::from_secs(1), status: UNAVAILABLE }),
            _ => None,
        }
    }

    /// Whether prompts may be computed by another endpoint than the chosen one.
    pub fn splits(&self) -> bool {
        self.policy.splits()
    }

    /// Lease `id` is a probe of its endpoint: known of one's own, told of another's.
    pub fn probe(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.probe.is_none()) else { return };
        if let Some(endpoint) = self.endpoints.get_mut(lease.place) {
            lease.probe = Some((endpoint.incarnation, endpoint.circuit.probe()));
        }
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
        let lease = self.leases.get_mut(&id);
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
    pub fn adopt(&mut self, address: &str, snapshot: &Snapshot) {
        if let Some(endpoint) = self.places.get(address).and_then(|place| self.endpoints.get_mut(*place)) {
            endpoint.circuit.adopt(snapshot);
        }
    }

    /// Probes that an endpoint gets at a time.
    pub fn most_probes(&self) -> usize {
        self.breaker.most_probes()
    }

    /// After this a lease of which nothing more is heard ends by itself.
    pub fn lease_period(&self) -> Duration {
        self.lease
    }

    /// Whether lease `id` is a probe.
    pub fn probes(&self, id: LeaseId) -> bool {
        self.leases.get(&id).is_some_and(|lease| lease.probe.is_some())
    }

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
            Some((place, cached(&self.endpoints.get(place)?.index, ask)))
        };
        let Some((place, cached_tokens)) = known(address) else { return };
        self.book_both(id, place, cached_tokens, prefill.and_then(known), ask, now);
    }

    /// Where the prompt is computed elsewhere that is a lease of its own, until the first token: the endpoint that answers
    /// has nothing to compute then.
    fn book_both(
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
        if !self.ended_early.contains(&id) {
            self.book_at(prefill_of(id), at, ask, cached_there, now);
            self.book_at(id, place, ask, ask.demand.prompt_tokens, now);
        }
    }

    fn book_at(&mut self, id: LeaseId, place: usize, ask: &Ask<'_>, cached_tokens: u32, now: Instant) {
        if self.ended_early.contains(&id) {
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
        endpoint.index.insert(ask.blocks);
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
            },
        );
        let news = News::Booked { place, demand: ask.demand, uncached_tokens: queued_tokens };
        self.policy.learn(&news, now);
    }

    /// The first token of lease `id` has come: its prompt is computed. `served` is the endpoint that it came from.
    ///
    /// After a retry that is another than the chosen one. Then the lease moves there, and of the chosen one nothing
    /// is believed any more: it failed, and if it comes back it may come back empty.
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
            // Of another than the chosen one it is not known what it had to compute, nor since when.
            if server == lease.place {
                let (place, uncached_tokens) = (lease.place, lease.uncached_tokens);
                let after = now.since(booked);
                let news = News::FirstToken { place, after, uncached_tokens, queued_tokens: tokens };
                self.policy.learn(&news, now);
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
            failed.index = Index::new(self.index_units, self.random.next());
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

    /// What the policy learns of answers.
    pub fn wants(&self) -> Wants {
        self.policy.wants()
    }

    /// What an endpoint says of itself. What it said before is forgotten, also where it says nothing now; and if it has
    /// started anew since then, so is what it was believed to hold.
    pub fn hear(&mut self, address: &str, report: &Report) {
        let Some(&place) = self.places.get(address) else { return };
        if let Some(endpoint) = self.endpoints.get_mut(place) {
            endpoint.heard.is_asked = true;
        }
        self.take(place, report);
        let signals = Signals { at: Some(report.at), ..report.signals };
        self.policy.learn(&News::Reported { place, signals }, report.at);
    }

    fn take(&mut self, place: usize, report: &Report) {
        let Some(endpoint) = self.endpoints.get_mut(place) else { return };
        let is_alive = |id: &LeaseId| self.leases.get(id).is_some_and(|lease| lease.place == place);
        if endpoint.heard.hear(report, is_alive) {
            endpoint.index = Index::new(self.index_units, self.random.next());
        }
    }

    /// The prompt of lease `id` waits no longer.
    fn computed(&mut self, id: LeaseId) {
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
        const REMEMBERED: usize = 256;
        if self.splits() {
            self.release(prefill_of(id));
        }
        let known = self.release(id);
        if !known {
            self.ended_early.truncate(REMEMBERED - 1);
            self.ended_early.push_front(id);
        }
        known
    }

    fn release(&mut self, id: LeaseId) -> bool {
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

    /// A slot of the endpoint of this incarnation comes back. Not of its lease's: that may have moved to who served.
    fn end_probe(&mut self, incarnation: u64) {
        let probed = self.endpoints.iter_mut().find(|endpoint| endpoint.incarnation == incarnation);
        probed.into_iter().for_each(|endpoint| endpoint.circuit.release());
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

    /// All leases, with their endpoint and the prompt tokens that wait there, to [`Pool::book`] them elsewhere.
    pub fn booked(&self) -> impl Iterator<Item = (LeaseId, &str, u32)> {
        self.leases.iter().filter_map(|(id, lease)| {
            Some((*id, self.endpoints.get(lease.place)?.address.as_str(), lease.queued_tokens))
        })
    }

    /// The addresses of its endpoints.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|endpoint| endpoint.address.as_str())
    }

    /// What engines said of themselves, of those endpoints whose word is not too old.
    pub fn said(&self, now: Instant) -> impl Iterator<Item = Said> {
        self.endpoints.iter().filter_map(move |endpoint| {
            let heard = endpoint.heard.fresh(now, self.stale)?;
            let Signals { waiting, running, kv_usage, at, .. } = heard.signals;
            let age = now.since(at?);
            let (address, sent_since) = (endpoint.address.clone(), heard.unseen);
            Some(Said { address, waiting, running, kv_usage, sent_since, age_ms: age.as_millis() as u64 })
        })
    }

    /// What is known of each endpoint.
    pub fn loads(&self) -> Vec<Load> {
        let load = |endpoint: &Endpoint| Load {
            address: endpoint.address.clone(),
            in_flight: endpoint.in_flight,
            queued_tokens: endpoint.queued_tokens,
            index_tokens: (endpoint.index.len() as u64).saturating_mul(u64::from(self.block_tokens)),
        };
        self.endpoints.iter().map(load).collect()
    }
}

/// The lease of the prompt, where it is computed elsewhere.
fn prefill_of(id: LeaseId) -> LeaseId {
    const PREFILL: u64 = 0x7072_6566_696c_6c00;
    Random::new(id ^ PREFILL).next()
}

/// Tokens of the prompt that are believed to be in the endpoint's cache: as large a share of its tokens as the units
/// matched are of its units. One token is always computed.
fn cached(index: &Index, ask: &Ask<'_>) -> u32 {
    let Demand { prompt_tokens, prompt_units, .. } = ask.demand;
    let units = block::units(index.matched(ask.blocks)) as u64;
    let tokens = units.saturating_mul(u64::from(prompt_tokens)).checked_div(u64::from(prompt_units));
    let tokens = tokens.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(0);
    tokens.min(prompt_tokens.saturating_sub(1))
}

/// An endpoint is named as Envoy's `override_host` reads it: an IP address with its port.
fn check_address(address: &str) -> Result<(), String> {
    match address.parse::<std::net::SocketAddr>() {
        Ok(parsed) if parsed.to_string() == address => Ok(()),
        Ok(parsed) => Err(format!("write {address:?} as {parsed}")),
        Err(_) => {
            Err(format!("{address:?} is not an IP address with a port, as 10.0.0.1:8000 or [::1]:8000"))
        }
    }
}

#[cfg(test)]
mod tests;
