//! `context-length-aware`: prompts to endpoints that are meant for their length.
//!
//! ```text
//! in range      0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * (max - tokens) / width)
//! out of range  0.3 / (1 + distance / 1000)
//! no label      0.5
//! ```
//!
//! Tight ranges and those with room above come first; out of range the nearest. An exact range (width 0) gets 1. The range is the
//! label `llm-d.ai/context-length-range`, `min-max`, both included. With `enableFiltering` those out of range are left out. A label
//! that is no range is refused: llm-d gives such an endpoint 0, for every request, and says so in a log.

use super::table::Scored;
use crate::invalid::{Invalid, read_value};
use crate::policy::{Attributes, Candidate, Each, Keep, Known, Round, Score, scale};
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
            if let Some(range) = self.of.at_mut(place) {
                *range = known.attributes.labels.get(&self.label).and_then(|text| read(text));
            }
        }
    }

    fn range(&self, candidate: &Candidate) -> Option<(u32, u32)> {
        self.of.at(candidate.place).copied().flatten()
    }
}

/// A range, as a label has it.
fn read(text: &str) -> Option<(u32, u32)> {
    let (low, high) = text.split_once('-')?;
    let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
    (low <= high).then_some((low, high))
}

impl Score for Ranges {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        const WIDE: f64 = 10_000.0;
        const FAR: f64 = 1_000.0;
        const LEAST: f64 = 0.3;
        let tokens = round.demand.prompt_tokens;
        scale::fill(round, scores, |candidate| match self.range(candidate) {
            None => 0.5,
            Some((low, high)) if low == high && tokens == low => 1.0,
            Some((low, high)) if (low..=high).contains(&tokens) => {
                let (width, room) = (f64::from(high - low), f64::from(high - tokens));
                LEAST + (1.0 - LEAST) * (0.7 / (1.0 + width / WIDE) + 0.3 * room / width)
            }
            Some((low, high)) => {
                let distance = low.saturating_sub(tokens).max(tokens.saturating_sub(high));
                LEAST / (1.0 + f64::from(distance) / FAR)
            }
        });
    }

    fn check(&self, attributes: &Attributes) -> Result<(), Invalid> {
        match attributes.labels.get(&self.label) {
            Some(text) if read(text).is_none() => {
                let why = format!("{text:?} is no range of tokens; write it as \"8192-32768\"");
                Err(Invalid::new(format!("labels[{:?}]", self.label), why))
            }
            _ => Ok(()),
        }
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
