//! Pools whose engines say what they hold: their configuration, and what becomes of a request's tokens.

use super::{Config, PoolLoad, Scorer};
use crate::kv_events::{self, Events};
use crate::tokens::{self, Reader, Unread};
use anyhow::Context;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir::invalid::Invalid;
use weir::kv::{self, Standing};
use weir::pool::NO_TOKENS;

/// One pool whose engines are listened to.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Precise {
    /// How their events are come by.
    #[serde(default)]
    pub events: Events,
    /// What is remembered of them.
    #[serde(default)]
    pub index: kv::Config,
    /// How requests become tokens. Without it the engines are listened to and their word is of no use to a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<tokens::Config>,
}

impl Precise {
    /// Checks what its types leave open.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.events.check().map_err(|invalid| invalid.within("events"))?;
        self.index.check().map_err(|invalid| invalid.within("index"))
    }
}

/// Checks all of them: each is of a pool that there is.
pub(super) fn check(config: &Config) -> Result<(), Invalid> {
    for (name, precise) in &config.precise {
        let at = format!("precise.{name}");
        if config.endpoints_of(name).is_none() {
            return Err(Invalid::new(at, "no pool has that name"));
        }
        precise.check().map_err(|invalid| invalid.within(&at))?;
    }
    Ok(())
}

/// The readers of all pools that have one, with their files read.
pub(super) fn readers(config: &Config) -> anyhow::Result<BTreeMap<String, Reader>> {
    let mut readers = BTreeMap::new();
    for (name, precise) in &config.precise {
        if let Some(tokens) = &precise.tokens {
            let reader = Reader::new(tokens).with_context(|| format!("precise.{name}.tokens"))?;
            readers.insert(name.clone(), reader);
        }
    }
    Ok(readers)
}

/// By whose word choices were made, and what became of bodies.
#[derive(Debug)]
pub(super) struct Counters {
    index: IntCounterVec,
    tokens: IntCounterVec,
}

impl Counters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let count = |name: &str, help: &str, label: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), &["pool", label])?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Self {
            index: count(
                "weir_scorer_index_total",
                "Choices by whose word of the chosen endpoint's cache: whole or part of what its engine said; or by what \
                 was sent there, as that was stale or silent, or there were no_tokens.",
                "index",
            )?,
            tokens: count(
                "weir_scorer_tokens_total",
                "Requests turned into tokens: read, or why not.",
                "outcome",
            )?,
        })
    }

    /// So that what never happened reads 0.
    pub(super) fn know(&self, pool: &str) {
        for index in Standing::NAMES.iter().chain(&[NO_TOKENS]) {
            self.index.with_label_values(&[pool, index]);
        }
        for outcome in Unread::NAMES.iter().chain(&[READ]) {
            self.tokens.with_label_values(&[pool, outcome]);
        }
    }

    pub(super) fn chosen(&self, pool: &str, index: Option<&str>) {
        if let Some(index) = index {
            self.index.with_label_values(&[pool, index]).inc();
        }
    }

    pub(super) fn read(&self, pool: &str, read: &Result<kv::Tokens, Unread>) {
        let outcome = read.as_ref().map_or_else(|unread| unread.name(), |_| READ);
        self.tokens.with_label_values(&[pool, outcome]).inc();
    }
}

/// The outcome of a request that became tokens.
const READ: &str = "read";

/// Listens to the engines of all pools that have it, on a thread of its own, until the program ends.
pub(super) fn listen(scorer: &Arc<Scorer>, config: &Config) -> std::io::Result<()> {
    if config.precise.is_empty() {
        return Ok(());
    }
    let (scorer, all) = (Arc::clone(scorer), config.precise.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for (pool, precise) in all {
                tasks.spawn(kv_events::listen(Arc::clone(&scorer), pool, precise.events));
            }
            tasks.join_all().await
        })
    };
    std::thread::Builder::new().name("kv-events".into()).spawn(run).map(drop)
}

/// What engines said, as gauges.
pub(super) fn gauges(book: &Registry, loads: &[PoolLoad]) -> prometheus::Result<()> {
    let gauge = |name: &str, help: &str, more: &[&str]| {
        let labels = [&["pool", "endpoint"], more].concat();
        let gauge = IntGaugeVec::new(Opts::new(name, help), &labels)?;
        book.register(Box::new(gauge.clone()))?;
        Ok::<_, prometheus::Error>(gauge)
    };
    if loads.iter().all(|pool| pool.precise.is_empty()) {
        return Ok(());
    }
    let standing = gauge(
        "weir_scorer_kv_standing",
        "1 at how far the endpoint's word of its cache is trusted: whole, part, stale, silent.",
        &["standing"],
    )?;
    let blocks = gauge("weir_scorer_kv_blocks", "Blocks that the endpoint said it holds.", &[])?;
    let predicted =
        gauge("weir_scorer_kv_predicted", "Blocks sent to the endpoint of which it has not told yet.", &[])?;
    let events =
        gauge("weir_scorer_kv_events", "What came of the endpoint's events since it joined.", &["outcome"])?;
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for pool in loads {
        for endpoint in &pool.precise {
            let (labels, known) = ([pool.name.as_str(), endpoint.address.as_str()], &endpoint.known);
            for name in Standing::NAMES {
                let is_so = i64::from(name == known.standing.name());
                standing.with_label_values(&[labels.as_slice(), &[name]].concat()).set(is_so);
            }
            blocks.with_label_values(&labels).set(number(known.blocks));
            predicted.with_label_values(&labels).set(number(known.predicted));
            let kv::Counts { stored, removed, cleared, unknown_parent, odd } = known.counts;
            for (outcome, count) in [
                ("stored", stored),
                ("removed", removed),
                ("cleared", cleared),
                ("unknown_parent", unknown_parent),
                ("odd", odd),
            ] {
                events.with_label_values(&[labels.as_slice(), &[outcome]].concat()).set(number(count));
            }
        }
    }
    Ok(())
}
