//! `least_kv`: the engine with the most free KV memory.
//!
//! ```text
//! cost = KV usage that the engine reported + uncached tokens sent since / KV tokens
//! ```
//!
//! AIBrix's least-kv-cache, with the correction without which a burst between two scrapes all goes one way. Who says
//! nothing is taken to be like the others for what was sent there; if nobody does, requests in flight decide. For long answers that fill memory; blind
//! to prefixes and to queues, so the EPP's mix of scores is mostly the better choice.

use super::{Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeastKv {}

impl Score for LeastKv {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        if round.candidates.iter().all(|candidate| candidate.kv_usage().is_none()) {
            scale::fill(round, scores, |candidate| f64::from(candidate.in_flight));
        } else {
            scale::known_or_alike(round, scores, |candidate| candidate.kv_usage());
        }
        scale::cheapest_first(scores);
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{at, busy, chosen, read, said, shares};
    use crate::policy::{Candidate, Signals};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn used(place: usize, usage: f64) -> Candidate {
        said(place, Signals { kv_usage: Some(usage), kv_tokens: Some(10_000), ..Signals::default() })
    }

    #[test]
    fn the_emptiest_memory_wins_with_what_was_sent_since() {
        let mut policy = read(json!("least_kv"), 3);
        assert_eq!(chosen(&mut policy, &[used(0, 0.5), used(1, 0.2), used(2, 0.9)]), 1);
        let sent = Candidate { unseen: 2, unseen_tokens: 4_000, ..used(1, 0.2) };
        assert_eq!(chosen(&mut policy, &[used(0, 0.5), sent, used(2, 0.9)]), 0);
    }

    #[test]
    fn who_says_nothing_is_neither_empty_nor_full() {
        assert_eq!(shares(json!("least_kv"), &[used(0, 0.5), at(1), used(2, 0.9)], 20), [20, 0, 0]);
        let mut policy = read(json!("least_kv"), 3);
        assert_eq!(chosen(&mut policy, &[busy(0, 2, 0, 0), busy(1, 1, 0, 0)]), 1, "nobody says anything");
    }
}
