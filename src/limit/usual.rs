//! What is learned of each model: how long its answers come out.
//!
//! ```text
//! output = mean + 2 mean deviations
//! ```
//!
//! Moving averages with the gains of Jacobson's estimator of round-trip times (1988): an eighth for the mean, a quarter for
//! the deviation. In thousandths, in integers. Each worker learns by itself: what it is wrong by is corrected when
//! requests are settled.

use crate::response::Usage;
use std::collections::BTreeMap;

/// What is learned, by model.
#[derive(Debug, Default)]
pub(super) struct Usual(BTreeMap<String, Model>);

/// In thousandths: output tokens, and how far off they are.
#[derive(Clone, Copy, Debug)]
struct Model {
    output: u64,
    deviation: u64,
}

/// Most models that are learned: clients name them.
const MOST_MODELS: usize = 256;
/// More tokens than this no answer has.
const MOST_TOKENS: u64 = 1 << 32;

impl Usual {
    /// Tokens that an answer will hardly exceed.
    pub(super) fn output(&self, model: Option<&str>) -> Option<u64> {
        let model = self.0.get(model?)?;
        Some(model.output.saturating_add(2 * model.deviation).div_ceil(1_000))
    }

    /// Learns from an answer that came to its end.
    pub(super) fn learn(&mut self, model: &str, usage: &Usage) {
        let output = usage.output.min(MOST_TOKENS) * 1_000;
        let room = self.0.len() < MOST_MODELS;
        match self.0.get_mut(model) {
            Some(model) => {
                let off = output.abs_diff(model.output);
                model.output = toward(model.output, output, 8);
                model.deviation = toward(model.deviation, off, 4);
            }
            None if room => {
                self.0.insert(model.to_owned(), Model { output, deviation: output / 2 });
            }
            None => {}
        }
    }
}

/// A step of one `part`-th from an average to a sample.
fn toward(average: u64, sample: u64, part: u64) -> u64 {
    match sample > average {
        true => average + (sample - average).div_ceil(part),
        false => average - (average - sample) / part,
    }
}
