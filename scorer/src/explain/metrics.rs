//! What the scorer would make of an engine's metrics.

use serde::Serialize;
use std::collections::BTreeMap;
use weir::signals::{self, Lora, Rank};

/// What is known of an engine; nothing where it says nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metrics {
    /// What it is, by the names of its metrics.
    pub engine: Option<&'static str>,
    /// Requests queued in it.
    pub waiting: Option<u64>,
    /// Requests in its batch.
    pub running: Option<u64>,
    /// Part of its KV memory in use, of the fullest rank.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV memory holds.
    pub kv_tokens: Option<u64>,
    /// Its LoRA adapters.
    pub adapters: Option<Lora>,
    /// Data-parallel ranks, where there are several.
    pub ranks: Option<BTreeMap<String, Rank>>,
    /// It says something of load.
    pub usable: bool,
}

/// Explains metrics in the text format.
pub fn metrics(text: &str) -> Metrics {
    let reading = signals::read(text);
    let whole = |number: Option<f64>| number.map(|number| number.max(0.0) as u64);
    let usable = reading.says_anything();
    let signals::Reading { engine, waiting, running, kv_usage, kv_tokens, adapters, ranks, .. } = reading;
    Metrics {
        engine,
        waiting: whole(waiting),
        running: whole(running),
        kv_usage,
        kv_tokens,
        adapters,
        ranks,
        usable,
    }
}
