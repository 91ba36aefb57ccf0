//! `context-length-aware`: prompts to endpoints that are meant for their length.
//!
//! ```text
//! in range      1 - 0.7 * min(1, width / 131072)          never below 0.3: tight ranges first
//! out of range  0.3 / (1 + distance / 1024)               below 0.3: the nearest first
//! no label      0.5
//! ```
//!
//! The range is the label `llm-d.ai/context-length-range`, `min-max`, both included. llm-d gives the bounds 0.3 and the
//! order, which are the same; the curves between are ours. With `enableFiltering` those out of range are left out.

use super::table::Scored;
use crate::invalid::{Invalid, read_value};
use crate::policy::{Candidate, Each, Keep, Known, Round, Score, scale};
use crate::random::Random;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ContextLength {
    label: String,
    enable_filtering: bool,
}

impl Default for ContextLength {
    fn default() -> Self {
        Self { label: "llm-d.ai/context-length-range".to_owned(), enable_filtering: false }
    }
}

/// The ranges of endpoints, as their labels have them.
#[derive(Debug)]
struct Ranges {
    label: String,
    of: Each<Option<(u32, u32)>>,
}

/// A scorer, and a filter if so configured.
pub(super) fn make(parameters: Value) -> Result<Scored, Invalid> {
    let config: ContextLength = read_value(parameters)?;
    let ranges = || Ranges { label: config.label.clone(), of: Each::default() };
    let keeper: Option<Box<dyn Keep>> = if config.enable_filtering { Some(Box::new(ranges())) } else { None };
    Ok((Box::new(ranges()), keeper))
}

impl Ranges {
    fn met(&mut self, endpoints: &[Known<'_>]) {
        self.of.meet(endpoints);
        for (place, known) in endpoints.iter().enumerate() {
            let read = |text: &String| {
                let (low, high) = text.split_once('-')?;
                Some((low.trim().parse().ok()?, high.trim().parse().ok()?))
            };
            if let Some(range) = self.of.at_mut(place) {
                *range = known.attributes.labels.get(&self.label).and_then(read);
            }
        }
    }

    fn range(&self, candidate: &Candidate) -> Option<(u32, u32)> {
        self.of.at(candidate.place).copied().flatten()
    }
}

impl Score for Ranges {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        const WIDE: f64 = 131_072.0;
        const FAR: f64 = 1_024.0;
        let tokens = round.demand.prompt_tokens;
        scale::fill(round, scores, |candidate| match self.range(candidate) {
            None => 0.5,
            Some((low, high)) if (low..=high).contains(&tokens) => {
                1.0 - 0.69 * (f64::from(high - low) / WIDE).min(1.0)
            }
            Some((low, high)) => {
                let distance = low.saturating_sub(tokens).max(tokens.saturating_sub(high));
                0.29 / (1.0 + f64::from(distance) / FAR)
            }
        });
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.met(endpoints);
    }
}

impl Keep for Ranges {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        for (keep, candidate) in keep.iter_mut().zip(round.candidates) {
            let range = self.range(candidate);
            *keep = range.is_none_or(|(low, high)| (low..=high).contains(&round.demand.prompt_tokens));
        }
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.met(endpoints);
    }
}
