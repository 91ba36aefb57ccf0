//! `pick`: chooses the endpoint of an inference request.
//!
//! It acts on facts and block hashes that `extract` published; it is handed no body, and hands the one that `extract` left to a
//! scorer that reads prompts itself. The choice, an ordered list of
//! endpoints, goes into `x-gateway-destination-endpoint`, which the cluster's `override_host` load balancer
//! follows: the first for the first attempt, the others for retries. Whatever the client, or anybody else, put
//! there is removed, and nothing but an endpoint of the configured pool is ever set.
//!
//! Without a scorer the policy runs here, on state that all workers of this Envoy share (`peers.rs`). With one,
//! the scorer is asked, within a deadline, or keeps telling what happens elsewhere and the choice is made here (`push.rs`); when it is late, gone or talks nonsense another is (`scorers.rs`), or the choice is made
//! here after all, on what this Envoy itself has sent. Unless that is asked for, no request fails for the scorer's sake.
//!
//! Whether an endpoint may be chosen at all is the breaker's to say, which the pool asks; here it is told what came of
//! attempts (`attempts.rs`), and a request for which no endpoint is left is answered with the time to wait.
//!
//! A lease ends in the log callback and nowhere else: it comes to every stream, however it ended.

mod active;
mod attempts;
mod choose;
mod config;
mod deadline;
mod duty;
mod outcomes;
mod peers;
mod probes;
mod push;
mod scorer;
mod scorers;
mod scrape;
mod shared;
mod telemetry;

pub use config::{Config, Mode};

use active::Active;
use attempts::Attempts;
use peers::Peers;
use probes::Slot;
use push::Push;
use scorers::{Answer, Asked, Scorers};
use scrape::Scrape;
use std::time::Duration;
use telemetry::Telemetry;
use weir::breaker::{Outcome, Standing};
use weir::instant::Instant;
use weir::invalid::Invalid;
use weir::policy::Candidate;
use weir::pool::{Choice, LeaseId, Message, Pools};
use weir::random::Random;
use weir::request::{Dialect, Facts};
use weir::wire::{self, Event};
use weir_host::roll::BEAT;
use weir_host::{Body, Callback, Filter, Flow, Host, Kind, Metric, Of, Reply};

weir_host::serve!(Pick);

/// The filter.
#[derive(Debug)]
pub struct Pick {
    pools: Pools,
    peers: Peers,
    scorers: Option<Scorers>,
    /// Where the choice is made here by what the scorer tells.
    push: Option<Push>,
    scrape: Option<Scrape>,
    active: Active,
    /// How often a tick is wanted.
    every: Duration,
    random: Random,
    metrics: Metrics,
    deadline: config::Deadline,
    explain: bool,
}

#[derive(Debug)]
struct Metrics {
    by_scorer: Metric,
    local: Metric,
    push: Metric,
    fallback: Metric,
    unrouted: Metric,
    foreign: Metric,
    no_scorer: Metric,
    too_long: Metric,
    too_late: Metric,
    /// By the place of the pool.
    pools: Vec<PoolMetrics>,
}

#[derive(Debug)]
struct PoolMetrics {
    leases: Metric,
    trips: Metric,
    shut: Metric,
    retries: Metric,
    hedges: Metric,
    spillovers: Metric,
    split: Metric,
    out: Metric,
    probes: Metric,
    silent: Metric,
    queue_requests: Metric,
    queue_tokens: Metric,
    saturation: Metric,
    predicted_ttft: Metric,
}

impl PoolMetrics {
    fn define(host: &dyn Host, pool: &str) -> Self {
        let define = |kind, name: &str| host.define(kind, &format!("weir_{name};pool={pool}"));
        Self {
            leases: define(Kind::Gauge, "pick_leases"),
            trips: define(Kind::Counter, "breaker_trips_total"),
            shut: define(Kind::Counter, "breaker_shut_total"),
            retries: define(Kind::Counter, "breaker_retries_total"),
            hedges: define(Kind::Counter, "breaker_hedges_total"),
            spillovers: define(Kind::Counter, "pick_spillovers_total"),
            split: define(Kind::Counter, "pick_split_total"),
            out: define(Kind::Gauge, "breaker_out"),
            probes: define(Kind::Gauge, "breaker_probes"),
            silent: define(Kind::Gauge, "pick_silent"),
            queue_requests: define(Kind::Gauge, "pick_queue_requests"),
            queue_tokens: define(Kind::Gauge, "pick_queue_tokens"),
            saturation: define(Kind::Gauge, "pick_saturation_permille"),
            predicted_ttft: define(Kind::Gauge, "pick_predicted_ttft_ms"),
        }
    }
}

/// Most endpoints of a scorer's answer that are looked at.
const MOST_ENDPOINTS: usize = 16;

/// Another worker's probe is heard of well before.
const HEARD: Duration = Duration::from_millis(100);

/// One request.
#[derive(Debug, Default)]
pub struct Stream {
    lease: Option<Lease>,
    asking: Option<Asking>,
    first_token: bool,
    /// Where the answer comes from, once its first piece has come.
    served: Option<String>,
    attempts: Attempts,
    /// When its client has gone, by its own word.
    gone_at: Option<Instant>,
    /// Held while this request, which was sent by a choice made here, tries an endpoint.
    slot: Option<Slot>,
    /// What the scorer is to hear at its end.
    telemetry: Option<Box<Telemetry>>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    pool: usize,
    id: LeaseId,
    /// The scorer was asked, so it may hold the lease as well.
    asked: bool,
    dialect: Dialect,
    /// The client asked for a stream.
    stream: bool,
}

/// What is needed once the scorer has answered.
#[derive(Debug)]
struct Asking {
    lease: Lease,
    facts: Facts,
    blocks: Vec<u64>,
    /// For scorers that read prompts themselves; otherwise empty.
    body: Vec<u8>,
    asked: Option<Asked>,
    telemetry: Option<Box<Telemetry>>,
}

/// Who chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Scorer,
    Local,
    /// This proxy, by what the scorer tells.
    Push,
    Fallback,
}

impl Filter for Pick {
    const NAME: &'static str = "weir-pick";
    const CALLBACKS: &'static [Callback] = &[
        Callback::RequestHeaders,
        Callback::ResponseHeaders,
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
            for message in self.peers.kept_out(host) {
                self.hear(host, message);
            }
            host.tick_every(self.every);
        }
        Stream::default()
    }

    fn request_headers(&mut self, stream: &mut Stream, host: &dyn Host, _end: bool) -> Flow {
        let body = self.scorers.as_ref().map(|scorers| scorers.take_body(host)).unwrap_or_default();
        let known = host.property(&[wire::BLOCKS]).and_then(|bytes| wire::read_blocks(&bytes));
        // An adapter that no pool lists is served where its base is.
        let models = known.iter().flat_map(|(facts, _)| [&facts.model, &facts.base_model]).flatten();
        let pool = models.into_iter().find_map(|model| self.pools.of_model(model));
        let (Some((facts, blocks)), Some(pool)) = (known, pool) else {
            host.add(self.metrics.unrouted, 1);
            host.remove_header(Of::Request, wire::DESTINATION);
            return Flow::Continue;
        };
        let (dialect, as_stream) = (facts.dialect, facts.stream);
        let too_long = self.pools.get(pool).and_then(|(_, pool)| pool.too_long(&facts.ask(&blocks).demand));
        if let Some(most) = too_long {
            return self.refuse_long(host, &facts, most);
        }
        let left = self.deadline.left(host, facts.timeout_ms);
        if let Some(left) = left.filter(|left| left.time.is_zero()) {
            return self.refuse_late(host, &facts, left.of_ms);
        }
        let lease = Lease { pool, id: self.random.next(), asked: false, dialect, stream: as_stream };
        let telemetry = self.scorers.as_ref().filter(|scorers| scorers.telemetry());
        let telemetry = telemetry.map(|_| Box::new(Telemetry::begin(host, &facts)));
        let mut asking = Asking { lease, facts, blocks, body, asked: None, telemetry };
        if self.push.as_mut().is_some_and(|push| push.is_trusted(host.now())) {
            return self.choose_here(stream, host, &asking, Source::Push);
        }
        let order = self.scorers.as_ref().map(|scorers| scorers.order(pool));
        if order.is_some_and(|order| self.ask(host, &mut asking, &order)) {
            stream.asking = Some(asking);
            return Flow::Hold;
        }
        let source = if self.scorers.is_some() { Source::Fallback } else { Source::Local };
        self.choose_here(stream, host, &asking, source)
    }

    fn reply(&mut self, stream: &mut Stream, host: &dyn Host, reply: Reply) -> Flow {
        let Some(mut asking) = stream.asking.take() else { return Flow::Continue };
        let answer = match (self.scorers.as_mut(), asking.asked.take()) {
            (Some(scorers), Some(asked)) => scorers.answer(host, &reply, asked),
            _ => Answer::Nothing,
        };
        if let Answer::Silent(others) = &answer
            && self.ask(host, &mut asking, others)
        {
            stream.asking = Some(asking);
            return Flow::Hold;
        }
        stream.telemetry = asking.telemetry.take();
        let Answer::Reserved(mut reserved) = answer else {
            return self.choose_here(stream, host, &asking, Source::Fallback);
        };
        if let Some(shut) = reserved.shut.filter(|_| reserved.endpoints.is_empty()) {
            return self.refuse(host, &asking.lease, &shut.into());
        }
        let Asking { lease, ref facts, ref blocks, .. } = asking;
        let Some((name, pool)) = self.pools.get(lease.pool) else { return Flow::Continue };
        reserved.endpoints.truncate(MOST_ENDPOINTS);
        let named = reserved.endpoints.len();
        reserved.endpoints.retain(|endpoint| pool.contains(endpoint));
        if reserved.endpoints.len() < named {
            host.add(self.metrics.foreign, 1);
        }
        // The scorer does not know of a probe that was sent from here while it was late.
        if let Some(first) = reserved.endpoints.first().filter(|_| reserved.probe) {
            let (now, slots) = (host.now(), self.peers.slots(name, first));
            stream.slot = Slot::take(host, slots, lease.id, pool.most_probes(), now + pool.lease_period());
            if stream.slot.is_none() {
                reserved.endpoints.remove(0);
                reserved.probe = false;
            }
        }
        let Some(first) = reserved.endpoints.first() else {
            return self.choose_here(stream, host, &asking, Source::Fallback);
        };
        if let Some(why) = &reserved.why {
            host.set_property(wire::WHY, why.to_string().as_bytes());
        }
        let prefill = reserved.prefill.filter(|prefill| pool.contains(prefill));
        pool.book_split(lease.id, first, prefill.as_deref(), &facts.ask(blocks), host.now());
        if reserved.probe {
            pool.probe(lease.id);
        }
        let candidate = Candidate {
            in_flight: reserved.in_flight,
            queued_tokens: reserved.queued_tokens,
            cached_tokens: reserved.cached_tokens,
            ..Candidate::default()
        };
        let choice = Choice {
            order: reserved.endpoints,
            candidate,
            policy: wire::one_word(&reserved.policy).into(),
            probe: reserved.probe,
            prefill,
            spill: reserved.spill,
        };
        self.booked(stream, host, &asking, choice, Source::Scorer)
    }

    fn response_headers(&mut self, stream: &mut Stream, host: &dyn Host, _end: bool) {
        let Some(lease) = stream.lease else { return };
        stream.attempts.answered(host);
        let Some((_, pool)) = self.pools.get(lease.pool).filter(|(_, pool)| pool.spills()) else { return };
        // It was for Envoy.
        host.remove_header(Of::Response, wire::TOO_LONG);
        let Some(served) = attempts::served(host) else { return };
        let Some((from, to, reason)) = stream.attempts.spillover(host, pool, &served) else { return };
        if let Some(metrics) = self.metrics.pools.get(lease.pool) {
            host.add(metrics.spillovers, 1);
        }
        for (header, value) in wire::SPILLOVER.into_iter().zip([from.to_string(), to.to_string(), reason]) {
            host.set_header(Of::Response, header, &value);
        }
    }

    fn response_body(&mut self, stream: &mut Stream, host: &dyn Host, piece: Body) {
        if piece.len == 0 || std::mem::replace(&mut stream.first_token, true) {
            return;
        }
        let Some(lease) = stream.lease else { return };
        // An answer of Envoy's own comes from nowhere.
        let Some(served) = attempts::served(host) else { return };
        stream.served = Some(served.clone());
        self.failed_before(stream, host, lease, &served);
        // A probe need not wait for the end of its stream. What is no stream is nearly there.
        let probes =
            lease.stream && self.pools.get(lease.pool).is_some_and(|(_, pool)| pool.probes(lease.id));
        if probes && attempts::status(host) < 400 {
            self.attempted(stream, host, lease, &served, &Outcome::of_status(200, None));
        }
        let Some((name, pool)) = self.pools.get(lease.pool) else { return };
        pool.first_token(lease.id, Some(&served), host.now());
        if let Some(scorers) = self.scorers.as_mut().filter(|_| lease.asked) {
            let first = Event::FirstToken { pool: name.to_owned(), lease: lease.id, served: served.clone() };
            scorers.note(lease.pool, first);
        }
        self.tell(host, &Message::FirstToken { pool: lease.pool as u16, lease: lease.id, served });
    }

    fn log(&mut self, stream: &mut Stream, host: &dyn Host) {
        // A client that left while the scorer was asked may have a lease there, but none here; and what travelled with
        // its call was for others.
        let asked = stream.asking.take().map(|asking| {
            if let (Some(scorers), Some(asked)) = (&mut self.scorers, asking.asked) {
                scorers.tell_again(asked);
            }
            stream.telemetry = asking.telemetry;
            asking.lease
        });
        let answered = stream.lease.and_then(|lease| self.over(stream, host, lease));
        if let Some(slot) = stream.slot.take() {
            slot.give_back(host);
        }
        let Some(lease) = stream.lease.take().or(asked) else { return };
        let Some((name, pool)) = self.pools.get(lease.pool) else { return };
        if let Some(answered) = &answered {
            pool.answered(lease.id, answered, host.now());
        }
        let booked = pool.end(lease.id);
        if let Some(scorers) = self.scorers.as_mut().filter(|_| lease.asked) {
            if let Some(telemetry) = stream.telemetry.take() {
                scorers.note(lease.pool, telemetry.end(host, name, lease));
            }
            scorers.note(lease.pool, Event::End { pool: name.to_owned(), lease: lease.id, answered });
        }
        if booked {
            self.tell(host, &Message::End { pool: lease.pool as u16, lease: lease.id, answered });
        }
    }

    fn told(&mut self, host: &dyn Host, call: u32, reply: Reply) {
        if self.active.called(call) {
            self.probed(host, call, &reply);
        } else if let Some(scrape) = self.scrape.as_mut().filter(|scrape| scrape.called(call)) {
            if let Some((endpoint, report)) = scrape.told(host, call, &reply, &mut self.random) {
                let said = Message::Said { endpoint, report };
                self.peers.send(host, &said);
                self.hear(host, said);
            }
        } else if self.heard_news(host, call, &reply) {
            // It is all done there.
        } else if let Some(scorers) = &mut self.scorers {
            scorers.told(host, call, &reply);
        }
    }

    fn tick(&mut self, host: &dyn Host) {
        if !self.speak(host) {
            return;
        }
        let now = host.now();
        for ((_, pool), metrics) in self.pools.iter_mut().zip(&self.metrics.pools) {
            pool.expire(now);
            host.record(metrics.leases, pool.leases() as u64);
            let out = |standing| !matches!(standing, Standing::Closed | Standing::Ramp);
            host.record(
                metrics.out,
                pool.standings(now).filter(|(_, standing, _)| out(*standing)).count() as u64,
            );
            host.record(metrics.probes, u64::from(pool.probing()));
            if self.scrape.is_some() {
                host.record(metrics.silent, pool.silent(now) as u64);
            }
            // A scorer knows better.
            if self.scorers.is_none() {
                let pressure = pool.pressure(now);
                host.record(metrics.queue_requests, pressure.waiting);
                host.record(metrics.queue_tokens, pressure.queued_tokens);
                host.record(metrics.saturation, (pressure.saturation * 1e3).round() as u64);
                if let Some(ms) = pressure.ttft_ms {
                    host.record(metrics.predicted_ttft, ms.round() as u64);
                }
            }
        }
        self.probe_actively(host);
        self.peers.keep_up(host);
        if let (Some(scrape), Some(own)) = (&mut self.scrape, self.peers.own()) {
            scrape.ask(host, own, &mut self.random);
        }
        if let Some(scorers) = &mut self.scorers {
            scorers.report(host);
        }
    }

    fn message(&mut self, host: &dyn Host, queue: u32) {
        while let Some(bytes) = host.dequeue(queue) {
            if self.heard_passed_on(host, &bytes) {
                continue;
            }
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
        let count = |name| count(host, name);
        let peers = Peers::new(group(&config));
        let scrape = |signals| Scrape::new(signals, &config.pools, peers.group(), host);
        let scrape = config.signals.clone().map(scrape);
        let pushes = config.scorer.as_ref().filter(|scorer| scorer.mode == Mode::Push);
        let push = pushes.map(|scorer| Push::new(scorer, peers.group(), host));
        let report =
            config.scorer.as_ref().map_or(BEAT, |scorer| Duration::from_millis(scorer.report_ms.get()));
        Ok(Self {
            pools: config.pools(random.next())?,
            every: scrape.as_ref().map_or(BEAT, Scrape::every).min(report),
            scrape,
            push,
            active: Active::new(&config.pools),
            peers,
            explain: config.explain,
            deadline: config.deadline,
            scorers: config
                .scorer
                .map(|scorer| Scorers::new(scorer, config.pools.iter().map(|pool| pool.name.as_str()))),
            random,
            metrics: Metrics {
                by_scorer: count("weir_pick_scorer_total"),
                local: count("weir_pick_local_total"),
                push: count("weir_pick_push_total"),
                fallback: count("weir_pick_fallback_total"),
                unrouted: count("weir_pick_unrouted_total"),
                foreign: count("weir_pick_foreign_endpoint_total"),
                no_scorer: count("weir_pick_no_scorer_total"),
                too_long: count("weir_pick_too_long_total"),
                too_late: count("weir_pick_too_late_total"),
                pools: config.pools.iter().map(|spec| PoolMetrics::define(host, &spec.name)).collect(),
            },
        })
    }
}

/// Defines a counter.
fn count(host: &dyn Host, name: &str) -> Metric {
    host.define(Kind::Counter, name)
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
