//! What a step of an engine costs: time from what it computes and what it reads.
//!
//! A step is one pass of the model over a batch: chunks of prompts and one token of each running answer.
//!
//! ```text
//! compute = prefill_us * prompt tokens + decode_us * answers + pair_ns * (token, context) pairs of the prompts
//! memory  = read_us (weights, once a step) + kv_ns * context tokens of the answers
//! step    = overhead_us + max(compute, memory)       or, where a source measured sums: + compute + memory
//! ```
//!
//! That is the roofline: attention over a long prompt is the pair term, quadratic in its length; a running answer is
//! free as long as the step reads memory anyway, and slows everybody when a prompt computes. The figures of
//! `engines.json` say where they come from.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir::invalid::{Invalid, read};

/// How an engine behaves: its costs, its memory and its scheduler's bounds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Where the figures are from.
    pub source: String,
    /// Microseconds of any step.
    pub overhead_us: f64,
    /// Microseconds of computing one prompt token, its attention aside.
    pub prefill_us: f64,
    /// Microseconds of computing one token of an answer.
    pub decode_us: f64,
    /// Nanoseconds of attention for one prompt token and one token before it.
    pub pair_ns: f64,
    /// Microseconds of reading the weights, once a step.
    pub read_us: f64,
    /// Nanoseconds of reading one token of context for an answer.
    pub kv_ns: f64,
    /// Whether computing and reading hide each other (the longer counts) or add up.
    pub overlap: bool,
    /// Tokens that one step may compute, prompts and answers together.
    pub step_tokens: u32,
    /// Whether answers take nothing of `step_tokens`: an engine that computes them beside its prompts.
    #[serde(default)]
    pub answers_beside: bool,
    /// Requests that run at the same time, at most.
    pub batch: u32,
    /// Tokens of the KV memory.
    pub kv_tokens: u64,
    /// Tokens of a KV block.
    pub block_tokens: u32,
    /// Adapters that fit beside the model.
    pub adapters: u32,
    /// Microseconds of loading an adapter; the engine stands still meanwhile.
    pub adapter_us: f64,
}

/// What one step computes and reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Tokens of prompts, or of answers computed again.
    pub prefill: u64,
    /// Pairs of such a token with one before it.
    pub pairs: f64,
    /// Answers that get one token.
    pub decode: u64,
    /// Their context.
    pub context: u64,
    /// Adapters to load.
    pub adapters: u32,
}

impl Work {
    /// Adds `tokens` of a prompt behind `before` others.
    pub fn add_prefill(&mut self, before: u32, tokens: u32) {
        self.prefill += u64::from(tokens);
        self.pairs += f64::from(tokens) * (f64::from(before) + f64::from(tokens) / 2.0);
    }

    /// Adds one token of an answer with so much context.
    pub fn add_decode(&mut self, context: u32) {
        self.decode += 1;
        self.context += u64::from(context);
    }
}

impl Spec {
    /// Nanoseconds that a step takes, on an engine of this speed (1 is the specified one).
    pub fn step_ns(&self, work: &Work, speed: f64) -> u64 {
        let compute = self.prefill_us * work.prefill as f64
            + self.decode_us * work.decode as f64
            + self.pair_ns * work.pairs / 1_000.0;
        let memory = self.read_us + self.kv_ns * work.context as f64 / 1_000.0;
        let both = if self.overlap { compute.max(memory) } else { compute + memory };
        let us = self.overhead_us + both + self.adapter_us * f64::from(work.adapters);
        (us * 1_000.0 / speed).max(1.0) as u64
    }

    /// Blocks of the KV memory.
    pub fn blocks(&self) -> usize {
        usize::try_from(self.kv_tokens / u64::from(self.block_tokens.max(1))).unwrap_or(usize::MAX)
    }

    /// Refuses what no engine can have.
    pub fn check(&self) -> Result<(), Invalid> {
        let positive = [
            ("step_tokens", u64::from(self.step_tokens)),
            ("batch", u64::from(self.batch)),
            ("block_tokens", u64::from(self.block_tokens)),
            ("kv_tokens", self.kv_tokens),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(Invalid::new(*name, "0: expected 1 or more"));
        }
        let costs = [
            ("overhead_us", self.overhead_us),
            ("prefill_us", self.prefill_us),
            ("decode_us", self.decode_us),
            ("pair_ns", self.pair_ns),
            ("read_us", self.read_us),
            ("kv_ns", self.kv_ns),
            ("adapter_us", self.adapter_us),
        ];
        match costs.iter().find(|(_, cost)| !(0.0..1e9).contains(cost)) {
            Some((name, cost)) => Err(Invalid::new(*name, format!("{cost}: expected 0 to 1e9"))),
            None => Ok(()),
        }
    }
}

/// The engines of a data file, by name.
pub fn read_specs(json: &[u8]) -> Result<BTreeMap<String, Spec>, Invalid> {
    let specs: BTreeMap<String, Spec> = read(json)?;
    for (name, spec) in &specs {
        spec.check().map_err(|invalid| invalid.within(name))?;
    }
    Ok(specs)
}

/// The engines that come with the lab.
pub fn specs() -> Result<BTreeMap<String, Spec>, Invalid> {
    read_specs(include_bytes!("../../engines.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(spec: &Spec, work: &Work) -> f64 {
        spec.step_ns(work, 1.0) as f64 / 1e9
    }

    fn spec(name: &str) -> Spec {
        specs().unwrap().remove(name).unwrap()
    }

    #[test]
    fn the_v100_has_the_gradients_of_its_paper() {
        let spec = spec("v100-llama2-7b");
        let mut short = Work::default();
        short.add_prefill(0, 1_000);
        let mut long = Work::default();
        long.add_prefill(0, 2_000);
        let per_token = (seconds(&spec, &long) - seconds(&spec, &short)) / 1_000.0;
        assert!((per_token - 3.2e-4).abs() < 1e-6, "{per_token}");
        let decode = |answers, context| seconds(&spec, &Work { decode: answers, context, ..Work::default() });
        let per_token = (decode(20, 0) - decode(10, 0)) / 10.0;
        assert!((per_token - 3.3e-5).abs() < 1e-6, "{per_token}");
        let full = 40.0 / decode(40, 26_000);
        assert!((450.0..550.0).contains(&full), "{full} tokens a second");
    }

    #[test]
    fn long_prompts_cost_more_a_token_and_answers_ride_along_for_free() {
        let spec = spec("a100-llama3-8b");
        let prefill = |tokens: u32| {
            let mut work = Work::default();
            work.add_prefill(0, tokens);
            seconds(&spec, &work) / f64::from(tokens)
        };
        assert!(prefill(64_000) > 1.5 * prefill(4_000));
        let decode =
            |answers| seconds(&spec, &Work { decode: answers, context: answers * 1_000, ..Work::default() });
        assert!(decode(32) < 1.5 * decode(1), "memory is read anyway");
        assert!(decode(256) > 2.0 * decode(32));
    }

    #[test]
    fn wrong_figures_are_refused_with_their_place() {
        let mut specs = specs().unwrap();
        let mut spec = specs.remove("lane").unwrap();
        spec.step_tokens = 0;
        assert!(spec.check().unwrap_err().to_string().starts_with("step_tokens: 0"));
        let said = read_specs(br#"{"x": {"prefil_us": 1}}"#).unwrap_err().to_string();
        assert!(said.starts_with("x.prefil_us: ") || said.starts_with("x: "), "{said}");
    }
}
