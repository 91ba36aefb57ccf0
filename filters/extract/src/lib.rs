//! `extract`: reads the body of an inference request once, for all filters behind it.
//!
//! It stands first in the chain, holds the headers until the body is complete, and then sets
//! `x-gateway-model-name`, so that routes can match on the model, and publishes facts and prefix-block hashes as
//! filter state. A model that is served by another is renamed in the body, and back in the answer (`rewrite.rs`).
//! What it cannot read for certain it answers itself. Whatever else passes is not held; but of
//! every request the headers are removed that steer the gateway and that only the gateway may set.
//!
//! A prompt's tokens are estimated by its bytes. By how many is learned from the usage that `meter` reads in answers;
//! each worker learns by itself, as what it is wrong by differs little and is corrected when requests are settled.
//!
//! Holding headers while the body is read needs `allow_on_headers_stop_iteration: true` in the plugin's Envoy
//! configuration. Without it Envoy keeps the body back as well and the request would hang. A filter cannot see
//! the field, but it can see its absence: bytes of the body have been received and no body callback came. That
//! is looked for until the first body callback; then it is known to be right and never looked for again.

mod rewrite;

use std::num::NonZeroU64;
use std::time::Duration;

use rewrite::Rewrite;
use serde::{Deserialize, Serialize};
use weir::invalid::{self, Invalid};
use weir::request::{self, Dialect, Head, Incoming, Plan, Ratios, Reading, Refusal, Size};
use weir::response::Status;
use weir::rewrite::{Restorer, Rules};
use weir::wire;
use weir_host::{Body, Callback, Filter, Flow, Headers, Host, Kind, Metric, Of};

weir_host::serve!(Extract);

/// Configuration of the plugin.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How bodies are read.
    pub request: request::Config,
    /// Which models are served by others.
    pub rewrite: weir::rewrite::Config,
    /// Whom it is explained why a request went where it did; without this nobody.
    pub explain: Option<Explain>,
    /// Bodies of up to so many bytes are left for `pick` to send to the scorer: as many as its
    /// `scorer.max_body_bytes`, which is all that `chain` needs. 0, none is. Where `pick` takes it, it is gone again.
    pub publish_body_bytes: usize,
    /// How soon a missing `allow_on_headers_stop_iteration` is found out.
    pub flag_check_ms: FlagCheck,
}

impl Config {
    /// Reads the configuration and checks all of it.
    pub fn read(json: &[u8]) -> Result<Self, Invalid> {
        let config: Self = invalid::read(json)?;
        config.rules()?;
        Ok(config)
    }

    /// The rules of rewriting; an error says what the types cannot.
    pub fn rules(&self) -> Result<Rules, Invalid> {
        Rules::new(&self.rewrite).map_err(|invalid| invalid.within("rewrite"))
    }
}

/// Who may ask for an explanation: those of whom a filter before this one says so in dynamic metadata, which no client can
/// write. Envoy's own RBAC filter does, by shadow rules on whatever it knows of a client: `envoy/explain.yaml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// The name under which the filter writes, as `envoy.filters.http.rbac`.
    pub metadata: String,
    /// The key.
    pub key: String,
    /// The text that is there for those who may.
    pub value: String,
}

impl Explain {
    fn is_asked(&self, host: &dyn Host, headers: &Headers) -> bool {
        // A property costs over a microsecond: few ask.
        headers.get(wire::EXPLAIN) == Some("1") && {
            let path = ["metadata", "filter_metadata", &self.metadata, &self.key];
            host.text(&path).is_some_and(|text| text == self.value)
        }
    }
}

/// Milliseconds between two looks for a missing flag.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct FlagCheck(NonZeroU64);

impl Default for FlagCheck {
    fn default() -> Self {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(250).unwrap();
        Self(DEFAULT)
    }
}

/// The filter.
#[derive(Debug)]
pub struct Extract {
    config: Config,
    flag: Flag,
    /// Requests held before the flag is known: their streams, the size of their headers, their dialects.
    held: Vec<(u32, i64, Dialect)>,
    rewrite: Rewrite,
    ratios: Ratios,
    metrics: Metrics,
}

/// What is known of `allow_on_headers_stop_iteration`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flag {
    Unknown,
    Set,
    Missing,
}

#[derive(Debug)]
struct Metrics {
    read: Metric,
    passed: Metric,
    refused: Metric,
    misconfigured: Metric,
}

/// One request.
#[derive(Debug, Default)]
pub struct Stream {
    phase: Phase,
    /// Who sent it is told why it went where it did.
    explain: bool,
    /// Its model, its client and the size of its prompt, if its answer is to be learned from.
    estimated: Option<(String, Option<u64>, Size)>,
}

/// What becomes of one request.
#[derive(Debug, Default)]
enum Phase {
    /// Nothing more to do.
    #[default]
    Done,
    /// Its body is awaited.
    Reading(Incoming),
    /// It went on for another model than the client named, with this name.
    Rewritten(String),
    /// Its answer is coming, and the client's name goes into it.
    Restoring(Box<Restorer>),
}

const MISSING: &str = "the filter extract needs `allow_on_headers_stop_iteration: true` in its Envoy plugin \
                       configuration (envoy.extensions.filters.http.wasm.v3.Wasm, field config); without it no \
                       request body can be read";

impl Filter for Extract {
    const NAME: &'static str = "weir-extract";
    const CALLBACKS: &'static [Callback] = &[
        Callback::RequestHeaders,
        Callback::RequestBody,
        Callback::RequestTrailers,
        Callback::ResponseHeaders,
        Callback::ResponseBody,
        Callback::Tick,
    ];
    type Stream = Stream;

    fn configure(config: &[u8], host: &dyn Host) -> Result<Self, Invalid> {
        Self::new(invalid::read(config)?, host)
    }

    fn open(&mut self, _: &dyn Host) -> Stream {
        Stream::default()
    }

    fn request_headers(&mut self, stream: &mut Stream, host: &dyn Host, end: bool) -> Flow {
        let headers = host.headers(Of::Request);
        stream.explain = self.config.explain.as_ref().is_some_and(|explain| explain.is_asked(host, &headers));
        remove_control_headers(host, &headers);
        let head = Head::new(headers.iter(), &self.config.request);
        match request::plan(&head, end, &self.config.request) {
            Plan::Pass => {
                host.add(self.metrics.passed, 1);
                Flow::Continue
            }
            Plan::Refuse(refusal) => self.refuse(host, &refusal),
            Plan::Read(incoming) if self.flag == Flag::Missing => self.misconfigured(host, incoming.dialect),
            Plan::Read(incoming) => {
                let dialect = incoming.dialect;
                stream.phase = Phase::Reading(incoming);
                if self.flag == Flag::Unknown {
                    if self.held.is_empty() {
                        host.tick_every(Duration::from_millis(self.config.flag_check_ms.0.get()));
                    }
                    self.held.push((host.stream(), received(host), dialect));
                }
                Flow::Hold
            }
        }
    }

    fn request_body(&mut self, stream: &mut Stream, host: &dyn Host, body: Body) -> Flow {
        let Phase::Reading(incoming) = &stream.phase else { return Flow::Continue };
        if self.flag == Flag::Unknown {
            self.flag = Flag::Set;
            self.held = Vec::new();
            host.tick_every(Duration::ZERO);
        }
        if body.len > self.config.request.max_body_bytes {
            let refusal = request::too_large(incoming.dialect, &self.config.request);
            stream.phase = Phase::Done;
            return self.refuse(host, &refusal);
        }
        if !body.end {
            return Flow::Hold;
        }
        self.read(stream, host, body.len)
    }

    fn request_trailers(&mut self, stream: &mut Stream, host: &dyn Host) -> Flow {
        self.read(stream, host, usize::MAX)
    }

    fn response_headers(&mut self, stream: &mut Stream, host: &dyn Host, end: bool) {
        if let Some(why) = stream.explain.then(|| host.text(&[wire::WHY])).flatten() {
            host.set_header(Of::Response, wire::EXPLANATION, &wire::explanation(&why));
        }
        if let Phase::Rewritten(name) = &stream.phase {
            stream.phase = match self.rewrite.restorer(host, name) {
                Some(restorer) if !end => Phase::Restoring(Box::new(restorer)),
                _ => Phase::Done,
            };
        }
    }

    fn response_body(&mut self, stream: &mut Stream, host: &dyn Host, piece: Body) {
        if piece.end {
            self.learn(stream, host);
        }
        let Phase::Restoring(restorer) = &mut stream.phase else { return };
        rewrite::restore(restorer, host, piece);
        if restorer.is_done() {
            stream.phase = Phase::Done;
        }
    }

    fn tick(&mut self, host: &dyn Host) {
        if self.flag != Flag::Unknown {
            return host.tick_every(Duration::ZERO);
        }
        let mut held = std::mem::take(&mut self.held);
        held.retain(|(stream, at_headers, _)| {
            let open = host.enter(*stream);
            if open && received(host) > *at_headers {
                self.flag = Flag::Missing;
            }
            open
        });
        if self.flag == Flag::Missing {
            log::error!("{}: {MISSING}", Self::NAME);
            for (stream, _, dialect) in held.drain(..) {
                if host.enter(stream) {
                    self.misconfigured(host, dialect);
                }
            }
        }
        host.leave();
        if held.is_empty() {
            host.tick_every(Duration::ZERO);
        }
        self.held = held;
    }
}

impl Extract {
    /// A filter of a configuration.
    pub fn new(config: Config, host: &dyn Host) -> Result<Self, Invalid> {
        let count = |name| host.define(Kind::Counter, name);
        Ok(Self {
            rewrite: Rewrite::new(config.rules()?, host),
            ratios: Ratios::new(config.request.bytes_per_token.get()),
            config,
            flag: Flag::Unknown,
            held: Vec::new(),
            metrics: Metrics {
                read: count("weir_extract_read_total"),
                passed: count("weir_extract_passed_total"),
                refused: count("weir_extract_refused_total"),
                misconfigured: count("weir_extract_misconfigured_total"),
            },
        })
    }

    /// The body is complete: publish what it says, and rename its model, or answer.
    fn read(&mut self, stream: &mut Stream, host: &dyn Host, len: usize) -> Flow {
        let incoming = match std::mem::take(&mut stream.phase) {
            Phase::Reading(incoming) => incoming,
            other => {
                stream.phase = other;
                return Flow::Continue;
            }
        };
        let mut body = host.body(Of::Request, 0, len);
        let decoded = match incoming.decode(&body, &self.config.request) {
            Ok(decoded) => decoded,
            Err(refusal) => return self.refuse(host, &refusal),
        };
        let rename = |model: &str, session| self.rewrite.target(host, model, session);
        let reading = match incoming.read_as(&decoded, &self.config.request, rename) {
            Ok(reading) => reading,
            Err(refusal) => return self.refuse(host, &refusal),
        };
        let Reading { mut facts, blocks, size, model_at, .. } = reading;
        if decoded.len() <= self.config.publish_body_bytes {
            host.set_property(wire::BODY, &decoded);
        }
        drop(decoded);
        if let (Some(asked), Some(target)) = (&facts.rewritten_from, &facts.model) {
            let len = body.len();
            if !weir::rewrite::replace(&mut body, model_at, asked, target) {
                return self.refuse(host, &rewrite::cannot(incoming.dialect, asked));
            }
            rewrite::send(host, len, &body);
            stream.phase = Phase::Rewritten(asked.clone());
        }
        // An adapter's tokens are its base's.
        let model = facts.base_model.as_ref().or(facts.model.as_ref());
        let client = incoming.client();
        let learned = size.tokens(self.ratios.of(model.map(String::as_str), client));
        let wanted = model.filter(|model| self.ratios.wants(model, client));
        stream.estimated = wanted.map(|model| (model.clone(), client, size));
        facts.estimate(learned);
        for (header, name) in [(wire::MODEL, &facts.model), (wire::BASE_MODEL, &facts.base_model)] {
            if let Some(name) = name {
                host.set_header(Of::Request, header, &wire::encode(name));
            }
        }
        facts.explain = stream.explain;
        let facts = wire::write_facts(&facts);
        host.set_property(wire::FACTS, facts.as_bytes());
        host.set_property(wire::BLOCKS, &wire::write_blocks(&facts, &blocks));
        host.add(self.metrics.read, 1);
        Flow::Continue
    }

    /// The answer has come to its end, and `meter`, which sees it first, has said what it used.
    fn learn(&mut self, stream: &mut Stream, host: &dyn Host) {
        let Some((model, client, size)) = stream.estimated.take() else { return };
        let report = host.text(&[wire::USAGE]).and_then(|line| wire::read_usage(&line));
        let counted =
            report.filter(|report| report.status == Status::Complete).and_then(|report| report.usage);
        if let Some(usage) = counted {
            self.ratios.learn(&model, client, size, usage.input);
        }
    }

    fn refuse(&self, host: &dyn Host, refusal: &Refusal) -> Flow {
        host.add(self.metrics.refused, 1);
        answer(host, refusal);
        Flow::Hold
    }

    fn misconfigured(&self, host: &dyn Host, dialect: Dialect) -> Flow {
        host.add(self.metrics.misconfigured, 1);
        answer(host, &Refusal::new(dialect, 500, MISSING));
        Flow::Hold
    }
}

fn answer(host: &dyn Host, refusal: &Refusal) {
    host.respond_json(refusal.status, &[], &refusal.body());
}

/// Removes every header that only the gateway may set.
fn remove_control_headers(host: &dyn Host, headers: &Headers) {
    for (name, _) in headers.iter() {
        if wire::CONTROL.contains(&name) || name.starts_with(wire::CONTROL_PREFIX) {
            host.remove_header(Of::Request, name);
        }
    }
}

/// Bytes of the request received so far, its headers included.
fn received(host: &dyn Host) -> i64 {
    let size = host.property(&["request", "total_size"]).and_then(|bytes| bytes.try_into().ok());
    size.map_or(0, i64::from_le_bytes)
}

#[cfg(test)]
mod tests;
