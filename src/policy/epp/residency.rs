//! `lora-residency-filter` and `served-model-filter`: endpoints by where the request's LoRA adapter stands with them.
//!
//! ```text
//! home       the adapter is loaded there, by the engine's word or by what was sent there within memory_ms
//! full       waiting > queueThreshold, or KV usage > kvCacheThreshold                          0 turns either off
//! residency  the homes, if there are any;
//!            but those that are not full and no homes, where all homes are full, fewer than maxReplicas, and there are such
//! served     without those that list their models and not this adapter; and without those that list none, where another
//!            lists it, or with onMissing: Fail
//! ```
//!
//! The first holds an adapter to few endpoints, so that popular ones do not push the others out of every engine; where a
//! new copy goes the scorers say. Engines do not say what they hold in host memory, so a copy there is no home and no
//! better than none. What an engine does not say of its load does not make it full. The second is for pools of which not
//! every endpoint has every adapter; that a base model is served is the pool's to say (`models`).

use super::utilization::leave_out;
use crate::instant::Instant;
use crate::policy::lora::{MEMORY, Sent};
use crate::policy::number::{Amount, MillisOrOff, Ratio};
use crate::policy::{Adapter, Candidate, Keep, Known, News, Round};
use crate::random::Random;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Homes {
    /// The most endpoints that may have a copy; 0 for no bound.
    max_replicas: u32,
    queue_threshold: Amount,
    kv_cache_threshold: Ratio,
    /// Ours, as `lora-affinity-scorer` has it.
    #[serde(rename = "memory_ms")]
    memory_ms: MillisOrOff,
    #[serde(skip)]
    sent: Sent,
}

impl Default for Homes {
    fn default() -> Self {
        Self {
            max_replicas: 0,
            queue_threshold: Amount::of(8.0),
            kv_cache_threshold: Ratio::of(0.8),
            memory_ms: MEMORY,
            sent: Sent::default(),
        }
    }
}

impl Homes {
    fn is_full(&self, candidate: &Candidate) -> bool {
        let above = |said: Option<f64>, most: f64| most > 0.0 && said.is_some_and(|said| said > most);
        above(candidate.waiting(), self.queue_threshold.get())
            || above(candidate.kv_usage(), self.kv_cache_threshold.get())
    }
}

impl Keep for Homes {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        if round.demand.adapter.is_none() {
            return;
        }
        let is_home =
            |candidate: &Candidate| self.sent.is_loaded(round.demand, candidate, round.now, self.memory_ms);
        let may_load = |candidate: &Candidate| {
            !is_home(candidate) && candidate.adapter != Adapter::Absent && !self.is_full(candidate)
        };
        let homes = || round.candidates.iter().filter(|candidate| is_home(candidate));
        if homes().next().is_none() {
            return;
        }
        let bounded = self.max_replicas > 0 && homes().count() >= self.max_replicas as usize;
        let spreads = !bounded
            && homes().all(|candidate| self.is_full(candidate))
            && round.candidates.iter().any(may_load);
        for (keep, candidate) in keep.iter_mut().zip(round.candidates) {
            *keep = if spreads { may_load(candidate) } else { is_home(candidate) };
        }
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.sent.meet(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        self.sent.learn(news, now);
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Served {
    on_missing: OnMissing,
    fallback_on_empty: bool,
}

/// What becomes of endpoints that list no models.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
enum OnMissing {
    #[default]
    Pass,
    Fail,
}

impl Keep for Served {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        if round.demand.adapter.is_none() {
            return;
        }
        let lists = |candidate: &Candidate| !matches!(candidate.adapter, Adapter::Unknown | Adapter::Absent);
        let needs_list = self.on_missing == OnMissing::Fail || round.candidates.iter().any(lists);
        let serves = |candidate: &Candidate| match candidate.adapter {
            Adapter::Absent => false,
            Adapter::Unknown => !needs_list,
            _ => true,
        };
        leave_out(round, keep, self.fallback_on_empty, serves);
    }
}
