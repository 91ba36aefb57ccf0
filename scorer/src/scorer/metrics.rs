//! What the scorer counts, for Prometheus.
//!
//! Label values come from the configuration alone, never from a caller, so their number is bounded. What can go
//! away again, the endpoints, is not kept here: each reading makes those gauges anew from the book, and an
//! endpoint that left is simply not among them.

use super::replicas::Gauges;
use super::{PoolLoad, Refused, Scraped, gauges, precise};
use crate::{otel, picker};
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    core::Collector,
};
use std::sync::Arc;
use std::time::Duration;
use weir::pool::Spilled;

/// Seconds: a choice takes microseconds; beyond a tenth of a second every gateway has stopped waiting.
const BUCKETS: [f64; 12] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1];

/// The time of a choice.
pub(super) const RESERVE_SECONDS: &str = "weir_scorer_reserve_seconds";
/// Why a pool that has no endpoint turns requests away.
pub(super) const NO_ENDPOINT: &str = "no_endpoint";

/// The counters.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    reservations: IntCounterVec,
    refused: IntCounterVec,
    expired: IntCounterVec,
    trips: IntCounterVec,
    shut: IntCounterVec,
    turned_away: IntCounterVec,
    turned_away_tokens: IntCounterVec,
    prompt_tokens: IntCounterVec,
    cached_tokens: IntCounterVec,
    first_tokens: IntCounterVec,
    reserve_seconds: Histogram,
    scrapes: IntCounterVec,
    shared_keys: IntGauge,
    store_up: IntGauge,
    listeners: IntGauge,
    pub(super) precise: precise::Counters,
    pub(super) replicas: Gauges,
    pub(super) picker: Arc<picker::Counters>,
    exported: IntCounterVec,
}

impl Metrics {
    pub(super) fn new<'a>(pools: impl Iterator<Item = &'a str>) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let count = |name: &str, help: &str, labels: &[&str]| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let reservations =
            count("weir_scorer_reservations_total", "Requests given an endpoint and booked.", &["pool"])?;
        let refused =
            count("weir_scorer_refused_total", "Calls that were refused, by their reason.", &["reason"])?;
        let expired = count(
            "weir_scorer_leases_expired_total",
            "Leases whose end nobody reported; more than a few mean that a gateway died.",
            &["pool"],
        )?;
        let trips = count("weir_scorer_trips_total", "Times that an endpoint went out.", &["pool"])?;
        let shut = count(
            "weir_scorer_shut_total",
            "Requests that got no endpoint, because all were out.",
            &["pool"],
        )?;
        let turned_away = count(
            "weir_scorer_turned_away_total",
            "Requests that got no endpoint, by the reason.",
            &["pool", "reason"],
        )?;
        let turned_away_tokens = count(
            "weir_scorer_turned_away_tokens_total",
            "Prompt tokens of requests that got no endpoint.",
            &["pool"],
        )?;
        let prompt_tokens =
            count("weir_scorer_prompt_tokens_total", "Prompt tokens of requests that got one.", &["pool"])?;
        let cached_tokens = count(
            "weir_scorer_cached_tokens_total",
            "Of these, the ones that were believed to be in its cache.",
            &["pool"],
        )?;
        let first_tokens = count(
            "weir_scorer_first_tokens_total",
            "First tokens of streams, by whether they came within choose.saturated_ms: in_time, late.",
            &["pool", "outcome"],
        )?;
        let seconds = HistogramOpts::new(
            RESERVE_SECONDS,
            "Time from a complete reserve call to its answer, in seconds.",
        );
        let reserve_seconds =
            registered(&registry, Histogram::with_opts(seconds.buckets(BUCKETS.to_vec()))?)?;
        let scrapes = count(
            "weir_scorer_scrapes_total",
            "Endpoints asked how they are, by what came of it: good, unknown, failed.",
            &["outcome"],
        )?;
        for outcome in Scraped::OUTCOMES {
            scrapes.with_label_values(&[outcome]);
        }
        let shared_keys = IntGauge::new("weir_scorer_shared_keys", "Keys of shared limits in memory.")?;
        let store_up = IntGauge::new(
            "weir_scorer_store_up",
            "1 while the store of shared limits answers, or there is none.",
        )?;
        let (shared_keys, store_up) = (registered(&registry, shared_keys)?, registered(&registry, store_up)?);
        let listeners = IntGauge::new(
            "weir_scorer_listeners",
            "Proxies that choose by themselves and hear of all that happens.",
        )?;
        let listeners = registered(&registry, listeners)?;
        let replicas = Gauges::new(&registry)?;
        let exported = count(
            "weir_scorer_otel_total",
            "Spans that a collector took (sent) or did not (dropped), and messages that failed.",
            &["outcome"],
        )?;
        for pool in pools {
            reservations.with_label_values(&[pool]);
            for reason in Spilled::ALL.map(Spilled::name).into_iter().chain([NO_ENDPOINT]) {
                turned_away.with_label_values(&[pool, reason]);
            }
            for counter in [&expired, &trips, &shut, &turned_away_tokens, &prompt_tokens, &cached_tokens] {
                counter.with_label_values(&[pool]);
            }
        }
        for reason in Refused::REASONS {
            refused.with_label_values(&[reason]);
        }
        Ok(Self {
            precise: precise::Counters::new(&registry)?,
            picker: Arc::new(picker::Counters::new(&registry)?),
            registry,
            reservations,
            refused,
            expired,
            trips,
            shut,
            turned_away,
            turned_away_tokens,
            prompt_tokens,
            cached_tokens,
            first_tokens,
            reserve_seconds,
            scrapes,
            shared_keys,
            store_up,
            listeners,
            replicas,
            exported,
        })
    }

    /// The keys of shared limits, and whether their store answers; `None`: there is none.
    pub(super) fn shares(&self, keys: usize, up: Option<bool>) {
        self.shared_keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        self.store_up.set(i64::from(up.unwrap_or(true)));
    }

    /// What became of telemetry.
    pub(super) fn exported(&self, counts: otel::Counts) {
        for (outcome, count) in
            [("sent", counts.sent), ("dropped", counts.dropped), ("failed", counts.failed)]
        {
            let counter = self.exported.with_label_values(&[outcome]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// A request was booked, with so many tokens, of which so many are believed to be cached.
    pub(super) fn reserved(&self, pool: &str, prompt_tokens: u32, cached_tokens: u32) {
        self.booked(pool, 1, prompt_tokens.into(), cached_tokens.into());
    }

    /// The same of so many requests.
    pub(super) fn booked(&self, pool: &str, requests: u64, prompt_tokens: u64, cached_tokens: u64) {
        if requests > 0 {
            self.reservations.with_label_values(&[pool]).inc_by(requests);
            self.prompt_tokens.with_label_values(&[pool]).inc_by(prompt_tokens);
            self.cached_tokens.with_label_values(&[pool]).inc_by(cached_tokens);
        }
    }

    /// So many proxies listen.
    pub(super) fn listening(&self, proxies: usize) {
        self.listeners.set(i64::try_from(proxies).unwrap_or(i64::MAX));
    }

    /// A request of so many tokens got no endpoint.
    pub(super) fn turned_away(&self, pool: &str, reason: &str, prompt_tokens: u32) {
        self.turned_away.with_label_values(&[pool, reason]).inc();
        self.turned_away_tokens.with_label_values(&[pool]).inc_by(u64::from(prompt_tokens));
    }

    /// Requests of a pool that were booked since the start, and those that got no endpoint.
    pub(super) fn requests(&self, pool: &str) -> (u64, u64) {
        let reasons = Spilled::ALL.map(Spilled::name).into_iter().chain([NO_ENDPOINT]);
        let away = reasons.map(|reason| self.turned_away.with_label_values(&[pool, reason]).get()).sum();
        (self.reservations.with_label_values(&[pool]).get(), away)
    }

    pub(super) fn tripped(&self, pool: &str) {
        self.trips.with_label_values(&[pool]).inc();
    }

    pub(super) fn shut(&self, pool: &str) {
        self.shut.with_label_values(&[pool]).inc();
    }

    pub(super) fn refused(&self, refused: &Refused) {
        self.refused.with_label_values(&[refused.reason()]).inc();
    }

    pub(super) fn expired(&self, pool: &str, leases: usize) {
        if leases > 0 {
            self.expired.with_label_values(&[pool]).inc_by(leases as u64);
        }
    }

    pub(super) fn scraped(&self, scraped: Scraped) {
        self.scrapes.with_label_values(&[scraped.name()]).inc();
    }

    pub(super) fn took(&self, time: Duration) {
        self.reserve_seconds.observe(time.as_secs_f64());
    }

    /// Everything as text; `loads` is the book at this moment.
    pub(super) fn text(&self, loads: &[PoolLoad]) -> prometheus::Result<String> {
        let book = Registry::new();
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            registered(&book, IntGaugeVec::new(Opts::new(name, help), labels)?)
        };
        let of_endpoint = ["pool", "endpoint"];
        let leases = gauge("weir_scorer_leases", "Leases out.", &["pool"])?;
        let in_flight = gauge(
            "weir_scorer_endpoint_in_flight",
            "Requests accepted and not finished, over all gateways.",
            &of_endpoint,
        )?;
        let queued = gauge(
            "weir_scorer_endpoint_queued_tokens",
            "Uncached prompt tokens of requests whose first token has not come.",
            &of_endpoint,
        )?;
        let cached = gauge(
            "weir_scorer_endpoint_index_tokens",
            "Tokens of prefixes believed to be in the endpoint's cache.",
            &of_endpoint,
        )?;
        let real =
            |name: &str, help: &str| registered(&book, GaugeVec::new(Opts::new(name, help), &of_endpoint)?);
        let waiting = real("weir_scorer_engine_waiting", "Requests queued in the engine, as it last said.")?;
        let running = real("weir_scorer_engine_running", "Requests in the engine's batch, as it last said.")?;
        let kv_usage = real(
            "weir_scorer_engine_kv_usage",
            "Part of the engine's KV memory in use, from 0 to 1, as it last said.",
        )?;
        let sent_since = real(
            "weir_scorer_engine_sent_since",
            "Requests sent to the engine since it said so, and not ended.",
        )?;
        let age = real(
            "weir_scorer_engine_age_seconds",
            "Since the engine said so; one that is silent, or said so too long ago, is not here.",
        )?;
        let out = gauge(
            "weir_scorer_endpoint_out",
            "1 where an endpoint gets nothing, or probes only.",
            &of_endpoint,
        )?;
        let probes = gauge("weir_scorer_probes", "Probes out.", &["pool"])?;
        for pool in loads {
            for (outcome, came) in [("in_time", pool.first_tokens.in_time), ("late", pool.first_tokens.late)]
            {
                let counter = self.first_tokens.with_label_values(&[&pool.name, outcome]);
                counter.inc_by(came.saturating_sub(counter.get()));
            }
            for said in &pool.engines {
                let labels = [&pool.name, &said.address];
                let numbers = [
                    (&waiting, said.waiting.map(f64::from)),
                    (&running, said.running.map(f64::from)),
                    (&kv_usage, said.kv_usage),
                    (&sent_since, Some(f64::from(said.sent_since))),
                    (&age, Some(said.age_ms as f64 / 1000.0)),
                ];
                for (gauge, number) in numbers {
                    if let Some(number) = number {
                        gauge.with_label_values(&labels).set(number);
                    }
                }
            }
            let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            leases.with_label_values(&[&pool.name]).set(number(pool.leases as u64));
            probes.with_label_values(&[&pool.name]).set(i64::from(pool.probes));
            for endpoint in &pool.endpoints {
                let labels = [&pool.name, &endpoint.address];
                let is_out = pool.out.iter().any(|out| out.address == endpoint.address);
                out.with_label_values(&labels).set(i64::from(is_out));
                in_flight.with_label_values(&labels).set(i64::from(endpoint.in_flight));
                queued.with_label_values(&labels).set(number(endpoint.queued_tokens));
                cached.with_label_values(&labels).set(number(endpoint.index_tokens));
            }
        }
        precise::gauges(&book, loads)?;
        let mut families = self.registry.gather();
        families.extend(gauges::renamed(&families));
        families.extend(book.gather());
        families.extend(gauges::gather(loads)?);
        TextEncoder::new().encode_to_string(&families)
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
