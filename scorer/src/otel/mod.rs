//! OpenTelemetry: what requests came to, and decisions as spans of the requests' own traces.
//!
//! Filters in Envoy can define stats of whole numbers in buckets that all of Envoy's histograms share, without attributes.
//! So what the GenAI conventions ask for is made here, of what `pick` says of each request (`scorer.telemetry`): times that
//! `meter` took where the answer passed, not when word of them came here.
//!
//! Two spans per request, in the trace that it came with (W3C `traceparent`, sampled):
//!
//! ```text
//! client's span ── chat demo-small        the request, as long as it took behind the gateway; GenAI attributes
//!                   └─ weir.reserve        the choice: pool, policy, endpoint, tokens cached and queued
//! ```
//!
//! Both go by OTLP over HTTP, as JSON, in batches. Nothing waits for the collector: what does not fit into the queue is
//! dropped and counted.

mod export;
mod histogram;
mod semantic;
mod trace;

pub use export::{Counts, follow};

use crate::clock;
use crate::scorer::Config as Scorer;
use export::Queue;
use reqwest::Url;
use semantic::Meters;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trace::{Context, Span, SpanId};
use weir::invalid::Invalid;
use weir::wire::{Reserve, Reserved, Went};

/// Where it goes, and how often.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The collector's address for OTLP over HTTP, as `http://127.0.0.1:4318`.
    pub endpoint: String,
    /// Milliseconds between two exports of metrics.
    #[serde(default = "Config::interval_ms")]
    pub interval_ms: NonZeroU64,
    /// Milliseconds that the collector may take.
    #[serde(default = "Config::timeout_ms")]
    pub timeout_ms: NonZeroU64,
    /// What the scorer is called, as `service.name`.
    #[serde(default = "Config::service_name")]
    pub service_name: String,
}

impl Config {
    const fn interval_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(10_000).unwrap();
        DEFAULT
    }

    const fn timeout_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(5_000).unwrap();
        DEFAULT
    }

    fn service_name() -> String {
        "weir-scorer".to_owned()
    }

    /// Checks what types do not.
    pub fn check(&self) -> Result<(), Invalid> {
        self.url("v1/traces").map(|_| ())
    }

    /// Where one kind of signal goes.
    fn url(&self, path: &str) -> Result<Url, Invalid> {
        let wrong = |why: &str| Invalid::new("endpoint", format!("{:?} {why}", self.endpoint));
        let base = format!("{}/", self.endpoint.trim_end_matches('/'));
        let url = Url::parse(&base).map_err(|_| wrong("is no URL, as http://127.0.0.1:4318"))?;
        if url.scheme() != "http" || url.host_str().is_none() {
            return Err(wrong("is not http://HOST:PORT; a collector beside the scorer adds TLS and keys"));
        }
        url.join(path).map_err(|_| wrong("is no URL, as http://127.0.0.1:4318"))
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.get())
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.get())
    }
}

/// What is to be exported.
#[derive(Debug)]
pub struct Telemetry {
    config: Config,
    queue: Queue,
    meters: Mutex<Meters>,
}

impl Telemetry {
    /// Nothing has been seen yet.
    pub fn new(config: Config, scorer: &Scorer) -> Arc<Self> {
        let models = scorer.pools.iter().flat_map(|pool| pool.models.clone()).collect();
        let meters = Mutex::new(Meters::new(models, clock::unix_nanos()));
        Arc::new(Self { config, queue: Queue::default(), meters })
    }

    /// An endpoint was asked for, `took` ago.
    pub(crate) fn reserved(&self, ask: &Reserve, answer: &Reserved, took: Duration) {
        let Some(context) = ask.trace.as_deref().and_then(Context::read) else { return };
        let end = clock::unix_nanos();
        let mut span = Span::new(context.trace, SpanId::of(ask.lease, "weir.reserve"), "weir.reserve");
        span.parent = Some(SpanId::of(ask.lease, "request"));
        span.times(end.saturating_sub(nanos(took)), end);
        span.text("weir.pool", &ask.pool);
        span.number("weir.prompt_tokens", u64::from(ask.demand.prompt_tokens));
        match (&answer.shut, answer.endpoints.first()) {
            (Some(shut), _) => {
                span.number("weir.retry_after_ms", shut.retry_after_ms);
                span.failed(&shut.status.to_string(), "no endpoint may be sent to");
            }
            (None, endpoint) => {
                span.text("weir.policy", &answer.policy);
                span.text("weir.endpoint", endpoint.map_or("", String::as_str));
                span.number("weir.endpoints", answer.endpoints.len() as u64);
                span.number("weir.cached_tokens", u64::from(answer.cached_tokens));
                span.number("weir.queued_tokens", answer.queued_tokens);
                span.number("weir.in_flight", u64::from(answer.in_flight));
                span.flag("weir.probe", answer.probe);
            }
        }
        self.queue.put(span);
    }

    /// An answer is over.
    pub(crate) fn went(&self, pool: &str, lease: u64, went: &Went) {
        let call = semantic::Call::of(pool, went);
        self.meters.lock().unwrap_or_else(PoisonError::into_inner).note(&call);
        if let Some(context) = went.trace.as_deref().and_then(Context::read) {
            self.queue.put(call.span(context, SpanId::of(lease, "request"), clock::unix_nanos()));
        }
    }

    /// What became of it so far.
    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
