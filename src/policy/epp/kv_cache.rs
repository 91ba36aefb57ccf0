//! `kv-cache-utilization-scorer`: free KV memory.
//!
//! ```text
//! score = 1 - KV usage
//! ```
//!
//! In llm-d an engine that says nothing has usage 0, and the best score. Here it is taken to be like the others for what
//! was sent there.

use crate::policy::{Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Free {}

impl Score for Free {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::known_or_alike(round, scores, |candidate| candidate.kv_usage());
        scores.iter_mut().for_each(|score| *score = (1.0 - *score).clamp(0.0, 1.0));
    }
}
