//! Pools whose engines say what they hold: their configuration, and what becomes of a request's tokens.

use super::{Config, PoolLoad, Scorer};
use crate::kv_events::{self, Events};
use prometheus::{IntGaugeVec, Opts, Registry};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use weir::invalid::Invalid;
use weir::kv::{self, Standing};

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
        let at = format!("precise[{name:?}]");
        if config.endpoints_of(name).is_none() {
            return Err(Invalid::new(at, "no pool has that name"));
        }
        precise.check().map_err(|invalid| invalid.within(&at))?;
    }
    Ok(())
}

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
