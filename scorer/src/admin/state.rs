//! What the page is told: the book, the decisions since it last asked, and what is shared out of limits.

use crate::scorer::{Decision, PoolLoad, Scorer};
use serde::Serialize;
use weir::limit::Tally;
use weir::pool::Spec;

/// Keys of limits that are shown.
const MOST_KEYS: usize = 20;

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct State {
    version: &'static str,
    /// Milliseconds since the scorer started.
    up_ms: u64,
    pools: Vec<Pool>,
    /// Those after the one that was asked for, the oldest first.
    decisions: Vec<Decision>,
    /// The number to ask for next time.
    last: u64,
    shared: Shared,
}

#[derive(Debug, Serialize)]
struct Pool {
    models: Vec<String>,
    #[serde(flatten)]
    load: PoolLoad,
}

/// Limits that proxies share.
#[derive(Debug, Serialize)]
struct Shared {
    keys: usize,
    /// Whether the store answers; `null`: there is none.
    store_up: Option<bool>,
    /// The keys of which most is used.
    top: Vec<Key>,
}

/// One key. Both names are hashes: what clients sent is not known here.
#[derive(Debug, Serialize)]
struct Key {
    rule: String,
    key: String,
    proxies: usize,
    parts: Vec<weir::limit::TallyPart>,
}

impl From<Tally> for Key {
    fn from(tally: Tally) -> Self {
        let Tally { rule, key, proxies, parts } = tally;
        Self { rule: format!("{rule:016x}"), key: format!("{key:016x}"), proxies, parts }
    }
}

impl State {
    pub(super) fn of(scorer: &Scorer, specs: &[Spec], after: u64) -> Self {
        let decisions = scorer.decisions(after);
        let models = |name: &str| {
            specs.iter().find(|spec| spec.name == name).map(|spec| spec.models.clone()).unwrap_or_default()
        };
        let (keys, store_up, top) = scorer.shared(MOST_KEYS);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            up_ms: scorer.now().nanos() / 1_000_000,
            pools: scorer.loads().into_iter().map(|load| Pool { models: models(&load.name), load }).collect(),
            last: decisions.last().map_or(after, |last| last.number),
            decisions,
            shared: Shared { keys, store_up, top: top.into_iter().map(Key::from).collect() },
        }
    }
}
