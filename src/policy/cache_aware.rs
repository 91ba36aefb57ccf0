//! `cache_aware`: the endpoint with the longest prefix, unless it is far busier than the others.
//!
//! ```text
//! rate    = cached tokens / prompt tokens / (1 + overload_decay * x)
//! x       = queued tokens of the endpoint / prompt tokens
//! gated   = load > mean + balance_abs_threshold  and  load > balance_rel_threshold * mean       load: requests in flight
//! choice  = the highest rate above cache_threshold among those not gated; else the least load
//! ```
//!
//! SGLang's `cache_aware` in its later form. In the earlier one the gate was for the fleet: one busy endpoint took
//! everybody's affinity away. It had a fault more: without a match the *smallest tree* was taken, so that a slow
//! endpoint, whose tree stays small, was buried. Here cold requests go by load, and an endpoint that is down is in no
//! mean. `min_match_tokens` is ours: a match below it saves nothing worth the detour, as when all prompts share one
//! system line.
//!
//! SGLang ships two sets of defaults, by what it is started with: `"defaults": "gateway"` (its command line: 0.3, 64,
//! 1.5) and `"library"` (0.5, 32, 1.1). Single numbers go before either.
//!
//! For many sessions with long prefixes at moderate load. Near saturation `least_prefill` weighs the queue itself
//! against the prefix, where this has a gate.

use super::number::{Amount, Factor, Ratio};
use super::{Round, Score, scale};
use serde::{Deserialize, Serialize};

/// SGLang's sets of defaults.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Defaults {
    #[default]
    Gateway,
    Library,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, from = "Written")]
pub(super) struct CacheAware {
    cache_threshold: Ratio,
    balance_abs_threshold: Amount,
    balance_rel_threshold: Factor,
    min_match_tokens: u32,
    overload_decay: Amount,
}

/// The parameters as they are written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    defaults: Defaults,
    cache_threshold: Option<Ratio>,
    balance_abs_threshold: Option<Amount>,
    balance_rel_threshold: Option<Factor>,
    min_match_tokens: Option<u32>,
    overload_decay: Option<Amount>,
}

impl From<Written> for CacheAware {
    fn from(written: Written) -> Self {
        let (rate, abs, rel) = match written.defaults {
            Defaults::Gateway => (0.3, 64.0, 1.5),
            Defaults::Library => (0.5, 32.0, 1.1),
        };
        Self {
            cache_threshold: written.cache_threshold.unwrap_or(Ratio::of(rate)),
            balance_abs_threshold: written.balance_abs_threshold.unwrap_or(Amount::of(abs)),
            balance_rel_threshold: written.balance_rel_threshold.unwrap_or(Factor::of(rel)),
            min_match_tokens: written.min_match_tokens.unwrap_or(0),
            overload_decay: written.overload_decay.unwrap_or(Amount::of(0.0)),
        }
    }
}

impl Score for CacheAware {
    /// A match gives 0.5 and more, by its rate; everybody gets less than 0.5 by load, which also breaks ties of rates.
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let load = |in_flight: u32| f64::from(in_flight);
        let total: f64 = round.candidates.iter().map(|candidate| load(candidate.in_flight)).sum();
        let mean = total / round.candidates.len().max(1) as f64;
        let is_gated = |load: f64| {
            load > mean + self.balance_abs_threshold.get() && load > self.balance_rel_threshold.get() * mean
        };
        let prompt = f64::from(round.demand.prompt_tokens.max(1));
        scale::fill(round, scores, |candidate| {
            let busy = 1.0 / (1.0 + load(candidate.in_flight));
            let queued = self.overload_decay.get() * candidate.queued_tokens as f64 / prompt;
            let rate = candidate.hit(round.demand) / (1.0 + queued);
            let matches = candidate.cached_tokens > 0
                && candidate.cached_tokens >= self.min_match_tokens
                && rate > self.cache_threshold.get();
            match matches && !is_gated(load(candidate.in_flight)) {
                true => 0.5 + 0.499 * rate + 0.001 * busy,
                false => 0.499 * busy,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{busy, chosen, read, shares_of};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn both_sets_of_defaults_are_those_of_sglang() {
        // 400 of 1,000 tokens: above 0.3, below 0.5.
        let candidates = [busy(0, 0, 0, 0), busy(1, 5, 0, 400)];
        assert_eq!(chosen(&mut read(json!("cache_aware"), 2), &candidates), 1);
        let mut library = read(json!({"cache_aware": {"defaults": "library"}}), 2);
        assert_eq!(chosen(&mut library, &candidates), 0);
        // 40 in flight where the mean is 20: above 32 more, and above 1.1 times; the gateway's 64 is not reached.
        let loaded = [busy(0, 0, 0, 0), busy(1, 70, 0, 900), busy(2, 35, 0, 0)];
        assert_eq!(chosen(&mut read(json!("cache_aware"), 3), &loaded), 1);
        assert_eq!(chosen(&mut library, &loaded), 0);
        let mine = json!({"cache_aware": {"defaults": "library", "cache_threshold": 0.3}});
        assert_eq!(chosen(&mut read(mine, 2), &candidates), 1, "a number of one's own goes first");
    }

    #[test]
    fn one_busy_endpoint_takes_nobody_elses_affinity() {
        let mut policy = read(json!("cache_aware"), 8);
        for session in 1..8 {
            let mut all: Vec<_> = (0..8).map(|place| busy(place, 1, 0, 0)).collect();
            all[0] = busy(0, 500, 0, 0);
            all[session].cached_tokens = 900;
            assert_eq!(chosen(&mut policy, &all), session);
        }
        let mut all: Vec<_> = (0..8).map(|place| busy(place, 1, 0, 0)).collect();
        all[0] = busy(0, 500, 0, 900);
        assert_ne!(chosen(&mut policy, &all), 0, "the busy one loses its own");
    }

    #[test]
    fn cold_requests_go_by_load_and_a_short_match_is_none() {
        let mut policy = read(json!({"cache_aware": {"min_match_tokens": 500}}), 3);
        assert_eq!(chosen(&mut policy, &[busy(0, 3, 0, 0), busy(1, 1, 0, 0), busy(2, 2, 0, 450)]), 1);
        let even = shares_of(&mut policy, &[busy(0, 1, 0, 0), busy(1, 1, 0, 0)], 1_000);
        assert!(even.iter().all(|share| *share > 400), "{even:?}");
        let equal = [busy(0, 5, 0, 600), busy(1, 3, 0, 600), busy(2, 0, 0, 0)];
        assert_eq!(chosen(&mut policy, &equal), 1, "of equal matches the less busy");
    }

    #[test]
    fn decay_discounts_a_match_behind_a_queue() {
        let plain = json!("cache_aware");
        let decaying = json!({"cache_aware": {"overload_decay": 1}});
        // One prompt's worth queued halves the rate: 0.45, against 0.6 with nothing queued.
        let candidates = [busy(0, 1, 1_000, 900), busy(1, 1, 0, 600)];
        assert_eq!(chosen(&mut read(plain, 2), &candidates), 0);
        assert_eq!(chosen(&mut read(decaying, 2), &candidates), 1);
    }
}
