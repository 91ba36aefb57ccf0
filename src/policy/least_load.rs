//! `least_load`: how long the queue takes, and how full the memory is.
//!
//! ```text
//! cost = queued uncached tokens / throughput + kv_weight * k / (1 - k)        k = KV usage
//! ```
//!
//! SGLang's `least_load`. There *queued* is what the engine said at the last poll plus what was sent since, which is set
//! to zero at each poll, so work in the engine's queue is lost between; here it is all that was accepted and not yet
//! computed. Unknown memory is taken to be like the others'. Throughput is in tokens per second; the sum is in seconds.
//! For cold prompts of mixed length; blind to prefixes.

use super::number::{Amount, Ratio};
use super::{Round, Score, scale};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeastLoad {
    /// Prompt tokens that an endpoint computes per second.
    tokens_per_s: NonZeroU32,
    /// Seconds that half-full memory counts.
    kv_weight: Amount,
}

impl Default for LeastLoad {
    fn default() -> Self {
        const TOKENS: NonZeroU32 = NonZeroU32::new(2_000).unwrap();
        Self { tokens_per_s: TOKENS, kv_weight: Amount::of(0.15) }
    }
}

impl Score for LeastLoad {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        const FULL: Ratio = Ratio::of(0.99);
        scale::known_or_alike(round, scores, |candidate| {
            let usage = candidate.kv_usage()?.clamp(0.0, FULL.get());
            Some(self.kv_weight.get() * usage / (1.0 - usage))
        });
        for (score, candidate) in scores.iter_mut().zip(round.candidates) {
            *score += candidate.queued_tokens as f64 / f64::from(self.tokens_per_s.get());
        }
        scale::cheapest_first(scores);
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{busy, chosen, read};
    use crate::policy::{Candidate, Signals};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn seconds_of_queue_against_full_memory() {
        let mut policy = read(json!("least_load"), 2);
        let full = |kv_usage| Signals { kv_usage: Some(kv_usage), ..Signals::default() };
        // 0.15 * 0.9 / 0.1 = 1.35 s; 2,000 tokens are 1 s, 3,000 are 1.5 s.
        let memory = Candidate { engine: full(0.9), ..busy(0, 1, 0, 0) };
        let queue = |tokens| Candidate { engine: full(0.0), ..busy(1, 1, tokens, 0) };
        assert_eq!(chosen(&mut policy, &[memory, queue(2_000)]), 1);
        assert_eq!(chosen(&mut policy, &[memory, queue(3_000)]), 0);
    }
}
