//! The way to the collector: a queue with a bound, and one task that empties it.
//!
//! A collector that is slow, gone or refuses costs what did not fit, which is counted, and nothing else. After a failure it is
//! left alone for a while, so that a dead one is not knocked at a thousand times a second.

use super::trace::{Span, text};
use super::{Config, Telemetry};
use crate::clock;
use reqwest::Client;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most spans that wait.
const MOST: usize = 2_048;
/// Most spans of one message.
const BATCH: usize = 512;
/// How soon a span is on its way.
const SOON: Duration = Duration::from_millis(500);
/// For so long a collector that failed is left alone.
const PAUSE: Duration = Duration::from_secs(5);

/// What became of spans and of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans that were taken by the collector.
    pub sent: u64,
    /// Spans that were not: the queue was full, or the collector failed.
    pub dropped: u64,
    /// Messages that failed, of metrics too.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    spans: Mutex<VecDeque<Span>>,
    sent: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Queue {
    pub(super) fn put(&self, span: Span) {
        let mut spans = self.spans();
        match spans.len() < MOST {
            true => spans.push_back(span),
            false => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn take(&self) -> Vec<Span> {
        let mut spans = self.spans();
        let batch = spans.len().min(BATCH);
        spans.drain(..batch).collect()
    }

    pub(super) fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts { sent: of(&self.sent), dropped: of(&self.dropped), failed: of(&self.failed) }
    }

    fn spans(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exports for as long as it is polled.
pub async fn follow(telemetry: Arc<Telemetry>) -> anyhow::Result<()> {
    let config = &telemetry.config;
    let client = Client::builder().no_proxy().timeout(config.timeout()).build()?;
    let (traces, metrics) = (config.url("v1/traces")?, config.url("v1/metrics")?);
    let mut every = tokio::time::interval(SOON.min(config.interval()));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut metrics_due = tokio::time::Instant::now() + config.interval();
    let mut up = true;
    loop {
        every.tick().await;
        let mut fine = true;
        while fine {
            let spans = telemetry.queue.take();
            if spans.is_empty() {
                break;
            }
            let body = of_spans(config, &spans);
            fine = send(&telemetry, &client, traces.clone(), &body, &mut up).await;
            let count = if fine { &telemetry.queue.sent } else { &telemetry.queue.dropped };
            count.fetch_add(spans.len() as u64, Ordering::Relaxed);
        }
        if fine && tokio::time::Instant::now() >= metrics_due {
            metrics_due = tokio::time::Instant::now() + config.interval();
            let meters =
                telemetry.meters.lock().unwrap_or_else(PoisonError::into_inner).json(clock::unix_nanos());
            if !meters.is_empty() {
                let body = of_metrics(config, &meters);
                fine = send(&telemetry, &client, metrics.clone(), &body, &mut up).await;
            }
        }
        if !fine {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn send(telemetry: &Telemetry, client: &Client, to: reqwest::Url, body: &Value, up: &mut bool) -> bool {
    let sent = client.post(to).json(body).send().await.and_then(reqwest::Response::error_for_status);
    match &sent {
        Ok(_) if !*up => log::info!("the collector of telemetry answers again"),
        Err(error) => {
            telemetry.queue.failed.fetch_add(1, Ordering::Relaxed);
            if *up {
                log::warn!("telemetry is dropped, the collector fails: {error}");
            }
        }
        Ok(_) => {}
    }
    *up = sent.is_ok();
    *up
}

fn resource(config: &Config) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({"attributes": [text("service.name", &config.service_name), text("service.version", version)]})
}

fn scope() -> Value {
    json!({"name": "weir", "version": env!("CARGO_PKG_VERSION")})
}

fn of_spans(config: &Config, spans: &[Span]) -> Value {
    let spans: Vec<Value> = spans.iter().map(Span::json).collect();
    json!({"resourceSpans": [{"resource": resource(config), "scopeSpans": [{"scope": scope(), "spans": spans}]}]})
}

fn of_metrics(config: &Config, metrics: &[Value]) -> Value {
    json!({"resourceMetrics": [{"resource": resource(config),
        "scopeMetrics": [{"scope": scope(), "metrics": metrics}]}]})
}
