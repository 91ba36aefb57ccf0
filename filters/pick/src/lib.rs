//! `pick`: chooses the endpoint of an inference request.
//!
//! It acts on facts and block hashes that `extract` published; it is handed no body. The choice, an ordered list of
//! endpoints, goes into `x-gateway-destination-endpoint`, which the cluster's `override_host` load balancer
//! follows: the first for the first attempt, the others for retries. Whatever the client, or anybody else, put
//! there is removed, and nothing but an endpoint of the configured pool is ever set.
//!
//! Without a scorer the policy runs here, on state that all workers of this Envoy share (`peers.rs`). With one,
//! the scorer is asked, within a deadline; when it is late, gone or talks nonsense the choice is made here after
//! all, on what this Envoy itself has sent. A request never fails for the scorer's sake.
//!
//! A lease ends in the log callback and nowhere else: it comes to every stream, however it ended.

mod config;
mod peers;
mod scorer;

pub use config::Config;

use peers::{BEAT, Message, Peers};
use scorer::Scorer;
use weir::invalid::Invalid;
use weir::policy::{Candidate, Demand};
use weir::pool::{Ask, Choice, LeaseId, Pools};
use weir::random::Random;
use weir::request::Facts;
use weir::wire::{self, Event, Reserve};
use weir_host::{Body, Callback, Filter, Flow, Host, Kind, Metric, Of, Reply};

weir_host::serve!(Pick);

/// The filter.
#[derive(Debug)]
pub struct Pick {
    pools: Pools,
    peers: Peers,
    scorer: Option<Scorer>,
    random: Random,
    metrics: Metrics,
}

#[derive(Debug)]
struct Metrics {
    by_scorer: Metric,
    local: Metric,
    fallback: Metric,
    unrouted: Metric,
    foreign: Metric,
    /// Leases out, by the place of the pool.
    leases: Vec<Metric>,
}

/// Most endpoints of a scorer's answer that are looked at.
const MOST_ENDPOINTS: usize = 16;

/// One request.
#[derive(Debug, Default)]
pub struct Stream {
    lease: Option<Lease>,
    asking: Option<Asking>,
    first_token: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    pool: usize,
    id: LeaseId,
    /// The scorer was asked, so it may hold the lease as well.
    asked: bool,
}

/// What is needed once the scorer has answered.
#[derive(Debug)]
struct Asking {
    lease: Lease,
    facts: Facts,
    blocks: Vec<u64>,
    told: Vec<Event>,
}

/// Who chose.
#[derive(Clone, Copy, Debug)]
enum Source {
    Scorer,
    Local,
    Fallback,
}

impl Filter for Pick {
    const NAME: &'static str = "weir-pick";
    const CALLBACKS: &'static [Callback] = &[
        Callback::RequestHeaders,
        Callback::ResponseBody,
        Callback::Reply,
        Callback::Log,
        Callback::Tick,
        Callback::Message,
    ];
    type Stream = Stream;

    fn configure(json: &[u8], host: &dyn Host) -> Result<Self, Invalid> {
        Self::new(Config::read(json)?, host)
    }

    fn open(&mut self, host: &dyn Host) -> Stream {
        if !self.peers.joined() {
            self.peers.join(host);
            host.tick_every(self.scorer.as_ref().map_or(BEAT, Scorer::report_every));
        }
        Stream::default()
    }

    fn request_headers(&mut self, stream: &mut Stream, host: &dyn Host, _end: bool) -> Flow {
        let known = host.property(&[wire::BLOCKS]).and_then(|bytes| wire::read_blocks(&bytes));
        // An adapter that no pool lists is served where its base is.
        let models = known.iter().flat_map(|(facts, _)| [&facts.model, &facts.base_model]).flatten();
        let pool = models.into_iter().find_map(|model| self.pools.of_model(model));
        let (Some((facts, blocks)), Some(pool)) = (known, pool) else {
            host.add(self.metrics.unrouted, 1);
            host.remove_header(Of::Request, wire::DESTINATION);
            return Flow::Continue;
        };
        let lease = Lease { pool, id: self.random.next(), asked: false };
        let mut asking = Asking { lease, facts, blocks, told: Vec::new() };
        if self.ask(host, &mut asking) {
            stream.asking = Some(asking);
            return Flow::Hold;
        }
        let source = if self.scorer.is_some() { Source::Fallback } else { Source::Local };
        self.choose_here(stream, host, &asking, source)
    }

    fn reply(&mut self, stream: &mut Stream, host: &dyn Host, reply: Reply) -> Flow {
        let Some(mut asking) = stream.asking.take() else { return Flow::Continue };
        let told = std::mem::take(&mut asking.told);
        let answer = self.scorer.as_mut().and_then(|scorer| scorer.answer(host, &reply, told));
        let Some(mut reserved) = answer else {
            return self.choose_here(stream, host, &asking, Source::Fallback);
        };
        let Asking { lease, ref facts, ref blocks, .. } = asking;
        let Some((_, pool)) = self.pools.get(lease.pool) else { return Flow::Continue };
        reserved.endpoints.truncate(MOST_ENDPOINTS);
        let named = reserved.endpoints.len();
        reserved.endpoints.retain(|endpoint| pool.contains(endpoint));
        if reserved.endpoints.len() < named {
            host.add(self.metrics.foreign, 1);
        }
        let Some(first) = reserved.endpoints.first() else {
            return self.choose_here(stream, host, &asking, Source::Fallback);
        };
        pool.book(lease.id, first, &facts.ask(blocks), host.now());
        let candidate = Candidate {
            in_flight: reserved.in_flight,
            queued_tokens: reserved.queued_tokens,
            cached_tokens: reserved.cached_tokens,
            ..Candidate::default()
        };
        let choice =
            Choice { order: reserved.endpoints, candidate, policy: wire::one_word(&reserved.policy).into() };
        self.booked(stream, host, &asking, &choice, Source::Scorer)
    }

    fn response_body(&mut self, stream: &mut Stream, host: &dyn Host, piece: Body) {
        if piece.len == 0 || std::mem::replace(&mut stream.first_token, true) {
            return;
        }
        let Some(lease) = stream.lease else { return };
        // An answer of Envoy's own comes from nowhere.
        let Some(served) = host.property(&["upstream", "address"]) else { return };
        let served = String::from_utf8_lossy(&served).into_owned();
        let Some((name, pool)) = self.pools.get(lease.pool) else { return };
        pool.first_token(lease.id, Some(&served), host.now());
        if let Some(scorer) = self.scorer.as_mut().filter(|_| lease.asked) {
            scorer.note(Event::FirstToken { pool: name.to_owned(), lease: lease.id, served: served.clone() });
        }
        self.peers.send(host, &Message::FirstToken { pool: lease.pool as u16, lease: lease.id, served });
    }

    fn log(&mut self, stream: &mut Stream, host: &dyn Host) {
        // A client that left while the scorer was asked may have a lease there, but none here; and what travelled with
        // its call was for others.
        let asked = stream.asking.take().map(|asking| {
            if let Some(scorer) = &mut self.scorer {
                scorer.tell_again(asking.told);
            }
            asking.lease
        });
        let Some(lease) = stream.lease.take().or(asked) else { return };
        let Some((name, pool)) = self.pools.get(lease.pool) else { return };
        let booked = pool.end(lease.id);
        if let Some(scorer) = self.scorer.as_mut().filter(|_| lease.asked) {
            scorer.note(Event::End { pool: name.to_owned(), lease: lease.id });
        }
        if booked {
            self.peers.send(host, &Message::End { pool: lease.pool as u16, lease: lease.id });
        }
    }

    fn told(&mut self, host: &dyn Host, reply: Reply) {
        if let Some(scorer) = &mut self.scorer {
            scorer.told(host, &reply);
        }
    }

    fn tick(&mut self, host: &dyn Host) {
        let now = host.now();
        for ((_, pool), metric) in self.pools.iter_mut().zip(&self.metrics.leases) {
            pool.expire(now);
            host.record(*metric, pool.leases() as u64);
        }
        self.peers.keep_up(host);
        if let Some(scorer) = &mut self.scorer {
            scorer.report(host);
        }
    }

    fn message(&mut self, host: &dyn Host, queue: u32) {
        while let Some(bytes) = host.dequeue(queue) {
            match Message::decode(&bytes) {
                Some(message) => self.hear(host, message),
                None => log::warn!("{}: a message of another worker makes no sense", Self::NAME),
            }
        }
    }
}

impl Pick {
    /// A filter of a configuration.
    pub fn new(config: Config, host: &dyn Host) -> Result<Self, Invalid> {
        let mut random = Random::new(host.random());
        let count = |name| host.define(Kind::Counter, name);
        let leases = |name: &str| host.define(Kind::Gauge, &format!("weir_pick_leases;pool={name}"));
        Ok(Self {
            pools: config.pools(random.next())?,
            peers: Peers::new(group(&config)),
            scorer: config.scorer.map(Scorer::new),
            random,
            metrics: Metrics {
                by_scorer: count("weir_pick_scorer_total"),
                local: count("weir_pick_local_total"),
                fallback: count("weir_pick_fallback_total"),
                unrouted: count("weir_pick_unrouted_total"),
                foreign: count("weir_pick_foreign_endpoint_total"),
                leases: config.pools.iter().map(|spec| leases(&spec.name)).collect(),
            },
        })
    }

    /// Asks the scorer, if there is one worth asking.
    fn ask(&mut self, host: &dyn Host, asking: &mut Asking) -> bool {
        let Some(scorer) = &mut self.scorer else { return false };
        let Some((name, _)) = self.pools.get(asking.lease.pool) else { return false };
        let request = Reserve::of(name, asking.lease.id, &asking.facts.ask(&asking.blocks));
        let Some(told) = scorer.ask(host, request) else { return false };
        asking.lease.asked = true;
        asking.told = told;
        true
    }

    fn choose_here(&mut self, stream: &mut Stream, host: &dyn Host, asking: &Asking, source: Source) -> Flow {
        let ask = asking.facts.ask(&asking.blocks);
        let pool = self.pools.get(asking.lease.pool);
        match pool.and_then(|(_, pool)| pool.reserve(asking.lease.id, &ask, host.now())) {
            Some(choice) => self.booked(stream, host, asking, &choice, source),
            None => {
                // No configuration makes a pool without endpoints. Envoy's own balancing is the way out.
                host.remove_header(Of::Request, wire::DESTINATION);
                Flow::Continue
            }
        }
    }

    /// An endpoint has been chosen and booked: say so to Envoy, to the log and to the other workers.
    fn booked(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        asking: &Asking,
        choice: &Choice,
        source: Source,
    ) -> Flow {
        let (source, metric) = match source {
            Source::Scorer => ("scorer", self.metrics.by_scorer),
            Source::Local => ("local", self.metrics.local),
            Source::Fallback => ("fallback", self.metrics.fallback),
        };
        host.add(metric, 1);
        host.set_header(Of::Request, wire::DESTINATION, &choice.order.join(","));
        let endpoint = choice.order.first().map_or("", String::as_str);
        let Choice { candidate, policy, .. } = choice;
        let line = format!(
            "endpoint={endpoint} by={source} policy={policy} prompt_tokens={} cached_tokens={} queued_tokens={} in_flight={}",
            asking.facts.prompt_tokens, candidate.cached_tokens, candidate.queued_tokens, candidate.in_flight
        );
        host.set_property(wire::PICK, line.as_bytes());
        let lease = asking.lease;
        if self.peers.any() {
            let ask = asking.facts.ask(&asking.blocks);
            self.peers.send(host, &Message::booked(lease.pool as u16, lease.id, endpoint, &ask));
        }
        stream.lease = Some(lease);
        Flow::Continue
    }

    /// Tells a worker that has just joined all that this one knows.
    fn tell_all(&self, host: &dyn Host, queue: u32) {
        for (at, (_, pool)) in self.pools.iter().enumerate() {
            for (endpoint, blocks) in pool.prefixes() {
                let message = Message::Held { pool: at as u16, endpoint: endpoint.to_owned(), blocks };
                Peers::tell(host, queue, &message);
            }
            for (lease, endpoint, queued_tokens) in pool.booked() {
                let demand = Demand { prompt_tokens: queued_tokens, stream: true, ..Demand::default() };
                let message = Message::booked(at as u16, lease, endpoint, &Ask { blocks: &[], demand });
                Peers::tell(host, queue, &message);
            }
        }
    }

    /// What another worker did.
    fn hear(&mut self, host: &dyn Host, message: Message) {
        let now = host.now();
        match message {
            Message::Hello { queue } => {
                self.peers.read_list(host);
                if self.peers.answers(queue) {
                    self.tell_all(host, queue);
                }
            }
            Message::Held { pool, endpoint, blocks } => {
                if let Some((_, pool)) = self.pools.get(usize::from(pool)) {
                    pool.hold(&endpoint, &blocks);
                }
            }
            Message::Booked { pool, lease, endpoint, demand, blocks } => {
                if let Some((_, pool)) = self.pools.get(usize::from(pool)) {
                    pool.book(lease, &endpoint, &Ask { blocks: &blocks, demand }, now);
                }
            }
            Message::FirstToken { pool, lease, served } => {
                if let Some((_, pool)) = self.pools.get(usize::from(pool)) {
                    pool.first_token(lease, Some(&served), now);
                }
            }
            Message::End { pool, lease } => {
                if let Some((_, pool)) = self.pools.get(usize::from(pool)) {
                    pool.end(lease);
                }
            }
        }
    }
}

/// Workers with the same configuration share one state; another configuration starts another.
fn group(config: &Config) -> u64 {
    let text = serde_json::to_vec(config).unwrap_or_default();
    let mut blocks = weir::block::Blocks::new(&text, 1, 1);
    blocks.feed(b"g");
    blocks.finish().0.first().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
