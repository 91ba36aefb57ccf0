//! How the next endpoint is chosen: scores, then a pick.
//!
//! A policy is a weighted sum of [`Score`]s and one [`Pick`]. A score sees all candidates at once, so that it can
//! compare them, has no side effects, and fills numbers from 0 (worst) to 1 (best). A picker gets the sums and
//! random numbers. Who may be chosen at all is no policy: the pool decides that before.
//!
//! | policy | chooses | when |
//! |---|---|---|
//! | `least_prefill` (default) | least queued and own uncached prefill tokens, see `prefill.rs` | LLM engines with a prefix cache |
//! | `least_requests` | fewest requests in flight | engines without a prefix cache |
//! | `p2c` | the less busy of two at random (Mitzenmacher, 2001) | many gateways that share nothing |
//! | `round_robin` | one after the other | a baseline |
//!
//! To add one: a file here with its formula, and a row in `POLICIES`.

mod least_requests;
mod pickers;
mod prefill;

use crate::invalid::{Invalid, read_value};
use crate::random::Random;
use serde::Deserialize;
use serde_json::Value;
use std::fmt;

/// What a request brings to a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// The same in units of prefix blocks, see [`crate::block`].
    pub prompt_units: u32,
    /// The most tokens it may write.
    pub output_tokens: u32,
    /// Its answer comes as a stream: the first token will be seen.
    pub stream: bool,
}

/// What is known of an endpoint that may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Requests accepted and not finished.
    pub in_flight: u32,
    /// Uncached prompt tokens of requests whose first token has not come.
    pub queued_tokens: u64,
    /// Tokens of this request's prompt that it holds in its cache.
    pub cached_tokens: u32,
}

impl Candidate {
    /// Prompt tokens that this endpoint would have to compute for `demand`.
    pub fn uncached_tokens(&self, demand: &Demand) -> u32 {
        demand.prompt_tokens.saturating_sub(self.cached_tokens)
    }
}

/// Judges candidates.
pub trait Score: fmt::Debug + Send {
    /// Fills one number per candidate, 0 for the worst to 1 for the best.
    fn score(&self, demand: &Demand, candidates: &[Candidate], scores: &mut [f64]);
}

/// Chooses among judged candidates.
pub trait Pick: fmt::Debug + Send {
    /// The place of the chosen one in `scores`; `None` only when that is empty.
    fn pick(&mut self, scores: &[f64], random: &mut Random) -> Option<usize>;
}

/// A policy, ready to choose.
#[derive(Debug)]
pub struct Policy {
    name: &'static str,
    scorers: Vec<(f64, Box<dyn Score>)>,
    picker: Box<dyn Pick>,
    one: Vec<f64>,
    sum: Vec<f64>,
}

type Build = fn(Value) -> Result<Policy, Invalid>;

/// Every policy by name.
const POLICIES: &[(&str, Build)] = &[
    ("least_prefill", |params| {
        Ok(Policy::new("least_prefill", read_value::<prefill::LeastPrefill>(params)?, pickers::Best))
    }),
    ("least_requests", |params| {
        Ok(Policy::new("least_requests", read_value::<least_requests::LeastRequests>(params)?, pickers::Best))
    }),
    ("p2c", |params| {
        Ok(Policy::new("p2c", read_value::<least_requests::LeastRequests>(params)?, pickers::OfTwo))
    }),
    ("round_robin", |params| {
        read_value::<NoParameters>(params)?;
        Ok(Policy {
            scorers: Vec::new(),
            ..Policy::new("round_robin", least_requests::LeastRequests {}, pickers::Next::default())
        })
    }),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

impl Policy {
    fn new(name: &'static str, score: impl Score + 'static, picker: impl Pick + 'static) -> Self {
        let scorers: Vec<(f64, Box<dyn Score>)> = vec![(1.0, Box::new(score))];
        Self { name, scorers, picker: Box::new(picker), one: Vec::new(), sum: Vec::new() }
    }

    /// Reads a policy: its name, or an object of its name and parameters, `{"least_prefill": {"batch_weight": 16}}`.
    pub fn read(value: &Value) -> Result<Self, Invalid> {
        let (name, params) = match value {
            Value::Null => ("least_prefill", None),
            Value::String(name) => (name.as_str(), None),
            Value::Object(map) if map.len() == 1 => match map.iter().next() {
                Some((name, params)) => (name.as_str(), Some(params.clone())),
                None => ("", None),
            },
            _ => {
                return Err(Invalid::new(
                    "",
                    "expected the name of a policy, or one name with its parameters",
                ));
            }
        };
        let Some((name, build)) = POLICIES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = POLICIES.iter().map(|(known, _)| *known).collect();
            return Err(Invalid::new(
                "",
                format!("unknown policy {name:?}; expected one of {}", known.join(", ")),
            ));
        };
        build(params.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
            .map_err(|invalid| invalid.within(name))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Orders candidates: the chosen one first, then up to `most - 1` others, best score first, as fallbacks.
    pub fn choose(
        &mut self,
        demand: &Demand,
        candidates: &[Candidate],
        most: usize,
        random: &mut Random,
    ) -> Vec<usize> {
        self.sum.clear();
        self.sum.resize(candidates.len(), 0.0);
        self.one.resize(candidates.len(), 0.0);
        for (weight, scorer) in &self.scorers {
            scorer.score(demand, candidates, &mut self.one);
            for (sum, one) in self.sum.iter_mut().zip(&self.one) {
                *sum += weight * one.clamp(0.0, 1.0);
            }
        }
        let Some(chosen) = self.picker.pick(&self.sum, random) else { return Vec::new() };
        let mut order = vec![chosen];
        while order.len() < most.min(candidates.len()) {
            let left = |at: &usize| !order.contains(at);
            let Some(next) = best(&self.sum, random, left) else { break };
            order.push(next);
        }
        order
    }
}

/// The place of the highest score among those that `among` lets in; a random one of equals.
fn best(scores: &[f64], random: &mut Random, among: impl Fn(&usize) -> bool) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    let mut equals = 0_usize;
    for (at, &score) in scores.iter().enumerate().filter(|(at, _)| among(at)) {
        match best {
            Some((_, top)) if score < top => {}
            Some((_, top)) if score == top => {
                equals += 1;
                if random.below(equals) == 0 {
                    best = Some((at, score));
                }
            }
            _ => {
                equals = 1;
                best = Some((at, score));
            }
        }
    }
    best.map(|(at, _)| at)
}

/// Turns costs, where less is better, into scores: the cheapest gets 1, the dearest 0; all alike get 1.
fn cheapest_first(costs: &mut [f64]) {
    let (low, high) =
        costs.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &c| (low.min(c), high.max(c)));
    let span = high - low;
    for cost in costs {
        *cost = if span > 0.0 { (high - *cost) / span } else { 1.0 };
    }
}

#[cfg(test)]
mod tests;
