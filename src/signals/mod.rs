//! What an engine says of itself: its metrics, or a header beside an answer.
//!
//! Engines name the same things differently, rename them, and leave them out (`engines.rs` has the table). Three rules:
//!
//! - What is absent is unknown, never zero: an engine whose metric was renamed must not look idle.
//! - Data-parallel ranks are one endpoint: waiting and running are sums, KV usage is that of the fullest rank, since a
//!   request may land there. Tensor- and pipeline-parallel ranks say the same thing again, so only the first of each
//!   data-parallel rank counts: SGLang numbers them through all of these, so that its second one begins at `tp_rank` 1.
//! - Of label sets that are history (vLLM's adapters) the newest row counts.
//!
//! The reader of the text format is ours: the crates there are build the whole exposition as maps of strings, and use
//! regular expressions, where a dozen lines of a thousand are wanted; and this one runs in a filter too, on text that
//! anybody may have written (`text.rs`). For each endpoint it is bounded by the length of the text.

mod engines;
mod models;
mod orca;
mod scrape;
mod text;

pub use models::read as models;
pub use orca::{HEADER as ORCA_HEADER, read as orca};
pub use scrape::{Config, Rhythm, Scraped};

use crate::instant::Instant;
use crate::policy::Signals;
use crate::pool::{Adapters, Report};
use crate::wire;
use engines::{ENGINES, Engine, Metric};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use text::Sample;

/// An engine's metrics, read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    /// What it is, by the names of its metrics: `vllm`, `sglang`, `trtllm`, `triton`, `llamacpp`.
    pub engine: Option<&'static str>,
    /// Requests queued in it.
    pub waiting: Option<f64>,
    /// Requests in its batch.
    pub running: Option<f64>,
    /// Part of its KV memory in use, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV memory holds.
    pub kv_tokens: Option<u64>,
    /// Its LoRA adapters, as its metrics have them.
    pub adapters: Option<Lora>,
    /// Those in its list of models, where that was asked for.
    #[serde(skip)]
    pub listed: Option<Vec<String>>,
    /// The same by data-parallel rank, where there are several.
    pub ranks: Option<BTreeMap<String, Rank>>,
    /// Counters that only grow while it lives, by the hash of what they count and of which rank.
    #[serde(skip)]
    totals: BTreeMap<u64, f64>,
    /// When its process started, in seconds since 1970.
    #[serde(skip)]
    started: Option<f64>,
}

/// LoRA adapters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lora {
    /// Those with requests in the batch.
    pub running: Vec<String>,
    /// Those that requests wait for.
    pub waiting: Vec<String>,
    /// How many it can have loaded.
    pub max: Option<usize>,
}

/// One data-parallel rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rank {
    /// Requests queued in it.
    pub waiting: Option<f64>,
    /// Requests in its batch.
    pub running: Option<f64>,
    /// Part of its KV memory in use.
    pub kv_usage: Option<f64>,
}

/// Reads metrics in Prometheus's text format or OpenMetrics.
pub fn read(text: &str) -> Reading {
    // Nothing that is read here can be negative, or so large: what is, is no word of the engine's.
    let is_one = |sample: &Sample<'_>| (0.0..1e18).contains(&sample.value);
    let all: Vec<Sample<'_>> = text::samples(text).collect();
    let samples: Vec<Sample<'_>> = all.iter().filter(|sample| is_one(sample)).copied().collect();
    let started = samples.iter().find(|sample| sample.name == "process_start_time_seconds");
    let started = started.map(|sample| sample.value);
    let is_its = |engine: &&Engine| samples.iter().any(|sample| engine.waits_or_runs(sample.name));
    let Some(engine) = ENGINES.iter().find(is_its) else {
        return Reading { started, ..Reading::default() };
    };
    let sum = |metric: &[Metric]| combined(&samples, metric, |a, b| a + b);
    let most = |metric: &[Metric]| combined(&samples, metric, f64::max);
    let kv_tokens = engine.kv_tokens.iter().find_map(|tokens| tokens(&samples));
    Reading {
        engine: Some(engine.name),
        waiting: sum(engine.waiting),
        running: sum(engine.running),
        kv_usage: most(engine.kv_usage),
        kv_tokens: kv_tokens.filter(|tokens| *tokens > 0.0).map(|tokens| tokens as u64),
        adapters: adapters(&samples, engine),
        listed: None,
        ranks: ranks(&samples, engine),
        totals: totals(&all, engine),
        started,
    }
}

/// All series of the first of these metrics that there is, made one. Ranks that repeat another are left out.
fn combined(samples: &[Sample<'_>], metrics: &[Metric], with: fn(f64, f64) -> f64) -> Option<f64> {
    metrics.iter().find_map(|metric| {
        let series: Vec<&Sample<'_>> = samples.iter().filter(|sample| metric.is_in(sample)).collect();
        let mut first: HashMap<Option<String>, [u32; 2]> = HashMap::new();
        for sample in &series {
            let within = within_rank(sample);
            first.entry(rank_of(sample)).and_modify(|least| *least = (*least).min(within)).or_insert(within);
        }
        let is_first = |sample: &&Sample<'_>| first.get(&rank_of(sample)) == Some(&within_rank(sample));
        series.into_iter().filter(is_first).map(|sample| sample.value).reduce(with)
    })
}

/// Which pipeline- and tensor-parallel rank of its data-parallel rank a series is of.
fn within_rank(sample: &Sample<'_>) -> [u32; 2] {
    ["pp_rank", "tp_rank"].map(|label| sample.label(label).and_then(|rank| rank.parse().ok()).unwrap_or(0))
}

/// What only grows while an engine lives, for each rank by itself: one that is missing for once is no restart.
fn totals(samples: &[Sample<'_>], engine: &Engine) -> BTreeMap<u64, f64> {
    let mut totals = BTreeMap::new();
    for sample in samples.iter().filter(|sample| engine.totals.iter().any(|metric| metric.is_in(sample))) {
        let rank = rank_of(sample).unwrap_or_default();
        let key = wire::name_hash(&format!("{} {rank} {:?}", sample.name, within_rank(sample)));
        *totals.entry(key).or_default() += sample.value;
    }
    // A number that is none makes its sum none.
    totals.retain(|_, total: &mut f64| (0.0..1e18).contains(total));
    totals
}

fn rank_of(sample: &Sample<'_>) -> Option<String> {
    ["engine", "dp_rank"].iter().find_map(|label| sample.label(label)).map(|rank| rank.into_owned())
}

fn ranks(samples: &[Sample<'_>], engine: &Engine) -> Option<BTreeMap<String, Rank>> {
    let metrics = engine.waiting.iter().chain(engine.running).chain(engine.kv_usage);
    let all: Vec<Metric> = metrics.copied().collect();
    // In one pass: anybody may have written this, with a rank per line.
    let mut by_rank: BTreeMap<String, Vec<Sample<'_>>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| all.iter().any(|metric| metric.is_in(sample))) {
        if let Some(rank) = rank_of(sample) {
            by_rank.entry(rank).or_default().push(*sample);
        }
    }
    if by_rank.len() < 2 {
        return None;
    }
    let rank = |own: &[Sample<'_>]| {
        let sum = |metric: &[Metric]| combined(own, metric, |a, b| a + b);
        let kv_usage = combined(own, engine.kv_usage, f64::max);
        Rank { waiting: sum(engine.waiting), running: sum(engine.running), kv_usage }
    };
    Some(by_rank.into_iter().map(|(name, own)| (name, rank(&own))).collect())
}

/// The newest row of each rank: the value is the time at which it was written.
fn adapters(samples: &[Sample<'_>], engine: &Engine) -> Option<Lora> {
    let rows = samples.iter().filter(|sample| Some(sample.name) == engine.lora);
    let mut newest: BTreeMap<Option<String>, &Sample<'_>> = BTreeMap::new();
    for row in rows {
        let held = newest.entry(rank_of(row)).or_insert(row);
        if row.value >= held.value {
            *held = row;
        }
    }
    let mut lora: Option<Lora> = None;
    let mut seen: [BTreeSet<String>; 2] = Default::default();
    for row in newest.values() {
        let lora = lora.get_or_insert_default();
        let lists =
            [(&mut lora.running, "running_lora_adapters"), (&mut lora.waiting, "waiting_lora_adapters")];
        for ((into, label), seen) in lists.into_iter().zip(&mut seen) {
            let listed = row.label(label).unwrap_or_default();
            let names = listed.split(',').map(str::trim).filter(|name| !name.is_empty());
            into.extend(names.filter(|name| seen.insert((*name).to_owned())).map(str::to_owned));
        }
        let max = row.label("max_lora").and_then(|max| max.parse().ok());
        lora.max = max.or(lora.max);
    }
    lora
}

impl Reading {
    /// What a pool is told of it; `at` is when the engine was asked.
    pub fn report(&self, at: Instant) -> Report {
        let whole = |number: Option<f64>| number.map(|n| n.clamp(0.0, f64::from(u32::MAX)) as u32);
        let hashes = |names: &[String]| names.iter().map(|name| wire::name_hash(name)).collect();
        Report {
            at,
            signals: Signals {
                waiting: whole(self.waiting),
                running: whole(self.running),
                kv_usage: self.kv_usage.map(|usage| usage.clamp(0.0, 1.0)),
                kv_tokens: self.kv_tokens,
                ..Signals::default()
            },
            adapters: (self.adapters.is_some() || self.listed.is_some()).then(|| {
                let lora = self.adapters.as_ref();
                Adapters {
                    running: lora.map(|lora| hashes(&lora.running)),
                    waiting: lora.map(|lora| hashes(&lora.waiting)).unwrap_or_default(),
                    most: lora.and_then(|lora| lora.max),
                    listed: self.listed.as_deref().map(hashes),
                }
            }),
            totals: self.totals.clone(),
            started: self.started,
        }
    }

    /// Whether it says anything of load.
    pub fn says_anything(&self) -> bool {
        self.waiting.is_some() || self.running.is_some() || self.kv_usage.is_some()
    }
}

#[cfg(test)]
mod tests;
