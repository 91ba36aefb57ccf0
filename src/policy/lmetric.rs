//! `lmetric`: prefill work times the batch it would join.
//!
//! ```text
//! cost = (queued tokens + own uncached tokens) * (requests + 1)
//! ```
//!
//! LMetric (arXiv 2603.15202): nothing to tune. The product does what weights do elsewhere: prefill work hurts in
//! proportion to how many it delays. Requests are those in flight or what the engine says, whichever is more. A prompt
//! that is cached whole still costs one token, or a full batch would be free.
//!
//! For one model on equal engines; close to `least_prefill`, which multiplies by less and so holds affinity
//! longer at light load.

use super::{Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LMetric {}

impl Score for LMetric {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::fill(round, scores, |candidate| {
            let own = u64::from(candidate.uncached_tokens(round.demand).max(1));
            candidate.queued_tokens.saturating_add(own) as f64 * (candidate.requests() + 1.0)
        });
        scale::cheapest_first(scores);
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{busy, chosen, read};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_prefix_is_worth_its_tokens_times_the_batch() {
        let mut policy = read(json!("lmetric"), 2);
        // 1,000 * 2 against 100 * (n + 1): even at nineteen in flight.
        assert_eq!(chosen(&mut policy, &[busy(0, 1, 0, 0), busy(1, 18, 0, 900)]), 1);
        assert_eq!(chosen(&mut policy, &[busy(0, 1, 0, 0), busy(1, 20, 0, 900)]), 0);
    }
}
