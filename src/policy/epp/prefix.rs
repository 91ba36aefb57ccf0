//! `prefix-cache-scorer`: how much of the prompt is cached.
//!
//! ```text
//! ratio = cached tokens / prompt tokens
//! score = (1 - w) * ratio + w * min(1, cached tokens / matchLengthScaleTokens)^2        w: matchLengthWeight
//! ```
//!
//! The ratio alone favours short prompts: one block of one outweighs a hundred of two hundred, though the latter saves a
//! hundred times as much. `matchLengthWeight` (0 in llm-d) mixes in the saving itself. A match is contiguous from the
//! prompt's beginning.

use crate::policy::number::{Amount, Ratio};
use crate::policy::{Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Prefix {
    match_length_weight: Ratio,
    match_length_scale_tokens: Amount,
}

impl Default for Prefix {
    fn default() -> Self {
        Self { match_length_weight: Ratio::of(0.0), match_length_scale_tokens: Amount::of(8192.0) }
    }
}

impl Score for Prefix {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let weight = self.match_length_weight.get();
        scale::fill(round, scores, |candidate| {
            let saved = f64::from(candidate.cached_tokens) / self.match_length_scale_tokens.get().max(1.0);
            (1.0 - weight) * candidate.hit(round.demand) + weight * saved.min(1.0).powi(2)
        });
    }
}
