//! `limit`: admits an inference request if every limit that matches it has room for it, and answers it if not.
//!
//! It stands behind `extract`, whose facts it acts on, and before `pick`: what is refused takes no endpoint's place. What
//! a request may cost is charged when it is admitted and corrected when it is over, by the usage that `meter`
//! reads from the answer. `weir::limit` decides; the counts are in Envoy's shared data, so all workers have the same ones and
//! none of them can let through what another one has not seen.
//!
//! A request is settled once, when its stream is over, however it ended. When the answer came to its end `meter` has
//! published its usage by then. When it broke off `meter` does so in its own log callback, which comes after this
//! filter's: such a request is settled in the callback after that, `done`, too late for the access log.
//!
//! With `share` other proxies have the same limits: then a request that does not fit into what this one may use waits for
//! a call to the scorer, at most `timeout_ms` (`share.rs`).
//!
//! Where a limit has a queue, a request that finds no slot is parked until it is called (`line.rs`). A request that goes away while it
//! waits leaves its place in the log callback, as it gives back what it holds.
//!
//! What is no inference request passes.

mod admission;
mod line;
mod parts;
mod share;

use line::{Waiters, Warm};
use parts::Parts;
use share::{Asked as Call, Sharing};
use std::time::Duration;
use weir::instant::Instant;
use weir::invalid::{self, Invalid};
use weir::limit::{
    Admitted, Answer, Charge, Limits, Outcome, Reach, Reason, Short, Softened, Stands, Store, Verdict, Wait,
};
use weir::request::{Dialect, Facts};
use weir::wire;
use weir_host::roll::BEAT;
use weir_host::{Callback, Filter, Flow, Host, Kind, Metric, Of, Reply};

pub use weir::limit::Config;

weir_host::serve!(Limit);

/// Reads a configuration and checks all of it.
pub fn read(json: &[u8]) -> Result<Config, Invalid> {
    let config = invalid::read(json)?;
    check(&config)?;
    Ok(config)
}

/// Checks what the types of a configuration cannot say.
pub fn check(config: &Config) -> Result<(), Invalid> {
    Limits::new(config, 0).map(drop)
}

/// The filter.
#[derive(Debug)]
pub struct Limit {
    limits: Limits,
    sharing: Option<Sharing>,
    waiters: Waiters,
    warm: Warm,
    headers: bool,
    /// Whether there are prices.
    priced: bool,
    /// Whether a window goes by the calendar.
    needs_wall: bool,
    /// By the place of the limit.
    metrics: Vec<Metrics>,
    parts: Parts,
    evicted: Metric,
}

#[derive(Debug)]
struct Metrics {
    admitted: Metric,
    limited: Metric,
    too_large: Metric,
    ambiguous: Metric,
    estimated: Metric,
    charged: Metric,
    money: Metric,
    queued: Metric,
    expired: Metric,
    waited: Metric,
}

impl Metrics {
    fn define(host: &dyn Host, limit: &str) -> Self {
        let define = |kind, name: &str| host.define(kind, &format!("weir_limit_{name};limit={limit}"));
        Self {
            admitted: define(Kind::Counter, "admitted_total"),
            limited: define(Kind::Counter, "limited_total"),
            too_large: define(Kind::Counter, "too_large_total"),
            ambiguous: define(Kind::Counter, "ambiguous_total"),
            estimated: define(Kind::Counter, "estimated_total"),
            charged: define(Kind::Counter, "charged_tokens_total"),
            money: define(Kind::Counter, "charged_micros_total"),
            queued: define(Kind::Counter, "queued_total"),
            expired: define(Kind::Counter, "expired_total"),
            waited: define(Kind::Histogram, "waited_ms"),
        }
    }
}

/// One request.
#[derive(Debug, Default)]
pub struct Stream {
    held: Option<Held>,
    waits: Option<Waits>,
    line: Option<InLine>,
    /// The headers of an answer have come.
    answered: bool,
}

/// A request that was admitted and is not over.
#[derive(Debug)]
struct Held {
    admitted: Admitted,
    dialect: Dialect,
    /// How long it has stood in line.
    waited_ms: Option<u64>,
}

/// A request that stands in line, or was called and has not got its slot yet.
#[derive(Debug)]
struct InLine {
    facts: Facts,
    wait: Wait,
    since: Instant,
}

/// A request that waits until the scorer has said what may be used.
#[derive(Debug)]
struct Waits {
    facts: Facts,
    short: Short,
    call: Call,
    /// How often it has asked.
    times: u32,
}

/// So often a request asks: others may be quicker to use what it was granted.
const MOST_TIMES: u32 = 3;

/// Envoy's shared data.
struct Shared<'a>(&'a dyn Host);

impl Store for Shared<'_> {
    fn get(&self, name: &str) -> Option<(Vec<u8>, u32)> {
        self.0.shared(name)
    }

    fn put(&self, name: &str, value: &[u8], version: Option<u32>) -> bool {
        match version {
            Some(_) => self.0.set_shared(name, value, version),
            None => self.0.create_shared(name, value),
        }
    }

    fn wake(&self, waiter: u64) {
        Waiters::wake(self.0, waiter);
    }
}

impl Filter for Limit {
    const NAME: &'static str = "weir-limit";
    const CALLBACKS: &'static [Callback] = &[
        Callback::RequestHeaders,
        Callback::ResponseHeaders,
        Callback::Reply,
        Callback::Log,
        Callback::Done,
        Callback::Tick,
        Callback::Message,
    ];
    type Stream = Stream;

    fn configure(json: &[u8], host: &dyn Host) -> Result<Self, Invalid> {
        Self::new(&read(json)?, host)
    }

    fn open(&mut self, host: &dyn Host) -> Stream {
        if self.parts.join(host) {
            match &self.sharing {
                Some(sharing) => sharing.resume_ticks(host),
                None => host.tick_every(BEAT),
            }
        }
        Stream::default()
    }

    fn request_headers(&mut self, stream: &mut Stream, host: &dyn Host, _end: bool) -> Flow {
        let facts = host.text(&[wire::FACTS]).and_then(|line| wire::read_facts(&line));
        let Some(facts) = facts else { return Flow::Continue };
        match self.admit(stream, host, &facts, Reach::Ask) {
            Verdict::Short(short) => self.ask(stream, host, facts, short, 1),
            verdict => self.decide(stream, host, &facts, verdict),
        }
    }

    fn woken(&mut self, stream: &mut Stream, host: &dyn Host) -> Flow {
        let Some(InLine { facts, wait, .. }) = &stream.line else { return Flow::Continue };
        let (facts, wait) = (facts.clone(), *wait);
        let stands = self.limits.stands(&Shared(host), &wait, host.now());
        let turned_away = match stands {
            Stands::Waiting if host.now() < wait.until() => return Flow::Hold,
            Stands::Waiting => Reason::Expired,
            Stands::Gone => Reason::LineFull,
            Stands::Called => {
                return match self.admit(stream, host, &facts, Reach::Ask) {
                    Verdict::Short(short) => self.ask(stream, host, facts, short, 1),
                    verdict => self.decide(stream, host, &facts, verdict),
                };
            }
        };
        let denied = self.limits.turned_away(&Shared(host), wait.hold(), turned_away, host.now());
        self.decide(stream, host, &facts, Verdict::Denied(Box::new(denied)))
    }

    fn message(&mut self, host: &dyn Host, queue: u32) {
        self.waiters.hear(host, queue);
    }

    fn reply(&mut self, stream: &mut Stream, host: &dyn Host, reply: Reply) -> Flow {
        let (Some(waits), Some(sharing)) = (stream.waits.take(), &mut self.sharing) else {
            return Flow::Continue;
        };
        let Waits { facts, short, call, times } = waits;
        sharing.done(&short);
        let settling = sharing.hear(host, &self.limits, &Shared(host), &call, &reply);
        let reach = if times < MOST_TIMES { Reach::Ask } else { Reach::Asked };
        match (self.admit(stream, host, &facts, reach), settling) {
            (Verdict::Short(short), Some(Duration::ZERO)) => self.ask(stream, host, facts, short, times + 1),
            (Verdict::Short(_), settling) => self.without(stream, host, &facts, settling),
            (verdict, _) => self.decide(stream, host, &facts, verdict),
        }
    }

    fn told(&mut self, host: &dyn Host, call: u32, reply: Reply) {
        if let Some(sharing) = self.sharing.as_mut().filter(|sharing| sharing.called(call)) {
            sharing.told(host, &self.limits, &Shared(host), &reply);
        }
    }

    fn tick(&mut self, host: &dyn Host) {
        if let Some(sharing) = &mut self.sharing {
            sharing.renew(host, &self.limits, &Shared(host));
        }
        if self.waiters.look(host, &self.limits, &Shared(host)) {
            match &self.sharing {
                Some(sharing) => sharing.resume_ticks(host),
                None => host.tick_every(BEAT),
            }
        }
        self.parts.keep_up(host);
    }

    fn response_headers(&mut self, stream: &mut Stream, host: &dyn Host, _end: bool) {
        stream.answered = true;
        if let Some(held) = stream.held.as_ref().filter(|_| self.headers) {
            for (name, value) in held.admitted.headers(held.dialect, || host.wall()) {
                host.set_header(Of::Response, name, &value);
            }
        }
        if let Some(softened) = stream.held.as_ref().and_then(|held| held.admitted.softened.as_ref()) {
            host.set_header(Of::Response, wire::BUDGET, &budget(softened));
        }
    }

    fn log(&mut self, stream: &mut Stream, host: &dyn Host) {
        if let (Some(waits), Some(sharing)) = (stream.waits.take(), &mut self.sharing) {
            // The client left meanwhile.
            sharing.done(&waits.short);
        }
        if self.step_out(stream, host, true).is_some() {
            host.set_property(wire::LIMIT, b"verdict=left_line");
        }
        let Some(held) = stream.held.take() else { return };
        let mut line = format!("verdict=admitted reserved={}", tokens(held.admitted.ticket.reserved()));
        if let Some(standing) = held.admitted.tokens {
            line += &format!(" remaining={}", standing.remaining);
        }
        if let Some(waited) = held.waited_ms {
            line += &format!(" waited_ms={waited}");
        }
        let priced = self.priced;
        match reported(host).or_else(|| (!stream.answered).then_some(Outcome::Nothing)) {
            Some(outcome) => {
                let Charge { cost, money, estimated } = self.settle(host, held, &outcome);
                line += &format!(" charged={} estimated={}", tokens(cost), u8::from(estimated));
                if priced {
                    line += &format!(" charged_nanos={money}");
                }
            }
            None => stream.held = Some(held),
        }
        host.set_property(wire::LIMIT, line.as_bytes());
    }

    fn done(&mut self, stream: &mut Stream, host: &dyn Host) {
        let Some(held) = stream.held.take() else { return };
        // Without `meter` all that is known of an answer is its status.
        let outcome = reported(host).unwrap_or_else(|| match status(host) {
            400.. => Outcome::Nothing,
            _ => Outcome::Unknown,
        });
        self.settle(host, held, &outcome);
    }
}

impl Limit {
    /// A filter of a configuration.
    pub fn new(config: &Config, host: &dyn Host) -> Result<Self, Invalid> {
        let shared_seed = config.share.as_ref().map(|share| share.id_seed);
        let limits = Limits::new(config, shared_seed.unwrap_or_else(|| drawn(host, "weir.limit.seed")))?;
        let mut filter = Self {
            needs_wall: limits.needs_wall(),
            limits,
            sharing: config.share.clone().map(|share| Sharing::new(share, host)),
            waiters: Waiters::default(),
            warm: Warm::default(),
            headers: config.headers,
            priced: config.cost.prices.is_some(),
            metrics: config.limits.iter().map(|limit| Metrics::define(host, &limit.name)).collect(),
            parts: Parts::new(host, config.limits.iter().map(|limit| limit.name.as_str())),
            evicted: host.define(Kind::Counter, "weir_limit_evicted_total"),
        };
        filter.look_at_the_wall(host);
        Ok(filter)
    }

    /// Some windows go by the calendar.
    pub(crate) fn look_at_the_wall(&mut self, host: &dyn Host) {
        if self.needs_wall {
            self.limits.set_wall(host.wall(), host.now());
        }
    }

    /// Whether this queue wakes it.
    pub fn owns(&self, queue: u32) -> bool {
        self.waiters.owns(queue)
    }

    /// Whether this is the number of a call outside of streams that has not been answered.
    pub fn called(&self, call: u32) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.called(call))
    }

    fn settle(&mut self, host: &dyn Host, held: Held, outcome: &Outcome) -> Charge {
        let ticket = held.admitted.ticket;
        let reserved = signed(ticket.reserved());
        let limits: Vec<usize> = ticket.limits().collect();
        if let Some(sharing) = &mut self.sharing {
            sharing.touch(ticket.holds(), host.now());
        }
        self.look_at_the_wall(host);
        let charge = self.limits.settle(&Shared(host), ticket, outcome, host.now());
        for limit in limits {
            self.parts.shift(host, limit, [-1, -reserved, 0]);
            let Some(metrics) = self.metrics.get(limit) else { continue };
            if charge.cost > 0 {
                host.add(metrics.charged, tokens(charge.cost));
            }
            if charge.money > 0 {
                host.add(metrics.money, charge.money.saturating_add(500) / 1_000);
            }
            if charge.estimated {
                host.add(metrics.estimated, 1);
            }
        }
        self.parts.write(host);
        charge
    }
}

/// What a budget that is past its soft stage says of itself.
fn budget(softened: &Softened) -> String {
    format!("{}; used={}%", softened.limit, softened.percent)
}

/// What came of a request by `meter`'s report, if there is one by now.
fn reported(host: &dyn Host) -> Option<Outcome> {
    let report = wire::read_usage(&host.text(&[wire::USAGE])?)?;
    Some(Outcome::of(&report, status(host)))
}

/// The status of the answer; 0 when there is none.
fn status(host: &dyn Host) -> u16 {
    let code = host.property(&["response", "code"]).and_then(|bytes| bytes.try_into().ok());
    code.and_then(|bytes| u16::try_from(i64::from_le_bytes(bytes)).ok()).unwrap_or(0)
}

fn respond(host: &dyn Host, answer: &Answer) {
    host.respond_json(answer.status, &answer.headers, &answer.body);
}

/// A random number that all workers have in common: who comes first draws it.
fn drawn(host: &dyn Host, name: &str) -> u64 {
    let own = host.random();
    host.create_shared(name, &own.to_le_bytes());
    let shared = host.shared(name).and_then(|(bytes, _)| bytes.try_into().ok());
    shared.map_or(own, u64::from_le_bytes)
}

/// Thousandths of a token as tokens, rounded to the nearest.
fn tokens(cost: u64) -> u64 {
    cost.saturating_add(500) / 1_000
}

fn signed(cost: u64) -> i64 {
    i64::try_from(tokens(cost)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
