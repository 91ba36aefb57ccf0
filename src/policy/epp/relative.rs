//! `queue-scorer` and `running-requests-size-scorer`: fewer requests in the engine, by comparison.
//!
//! ```text
//! score = (most - n) / (most - least)        n: waiting, or running; all alike get 1
//! ```
//!
//! By comparison alone 1 against 0 is as far apart as 500 against 0: with `minRange` (0 in llm-d) the divisor is at least
//! that. What was sent since the engine spoke counts; whose engine is silent is taken to be like the others for what was sent
//! there; if all are, requests in
//! flight here are compared.

use crate::policy::number::Amount;
use crate::policy::{Candidate, Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Waiting {
    min_range: Amount,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Running {
    min_range: Amount,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { min_range: Amount::of(0.0) }
    }
}

impl Default for Running {
    fn default() -> Self {
        Self { min_range: Amount::of(0.0) }
    }
}

fn compare(round: &Round<'_>, scores: &mut [f64], min_range: Amount, of: fn(&Candidate) -> Option<f64>) {
    scale::known_or_in_flight(round, scores, of);
    let (low, high) =
        scores.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), n| (low.min(*n), high.max(*n)));
    let range = (high - low).max(min_range.get());
    for score in scores {
        *score = if range > 0.0 { 1.0 - (*score - low) / range } else { 1.0 };
    }
}

impl Score for Waiting {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        compare(round, scores, self.min_range, Candidate::waiting);
    }
}

impl Score for Running {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        compare(round, scores, self.min_range, Candidate::running);
    }
}
