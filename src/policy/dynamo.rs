//! `dynamo`: prefill and decode work in blocks, as NVIDIA Dynamo's KV router weighs it.
//!
//! ```text
//! raw      = (queued prefill tokens + prompt tokens) / block_size
//! credit   = overlap_score_credit * decay * cached blocks
//! decay    = 1 / (1 + overlap_decay * x)     x = (queued tokens - least queued) / block_size / max(1, prompt blocks)
//! cost     = prefill_load_scale * max(0, raw - credit) + decode blocks + decode_active_request_weight * requests
//! choice   = the least cost; at a temperature, softmax of the costs scaled from 0 to 1
//! ```
//!
//! *Decode blocks* are those that the endpoint would hold with this request: the prompts of all requests in flight. Here
//! a block that two of them share counts twice, in Dynamo once. Queued tokens are the uncached part of prompts, and
//! leave at the first token. Credits for host and disk tiers (0.75 and 0.25 a block) are the precise index's ([`crate::kv::Config`]), for
//! all policies, and are in the cached blocks already; in Dynamo they do not decay.
//! Ties are broken at random. `alternative: lmetric` of Dynamo is the policy `lmetric`.
//!
//! The default scale of 1 makes a resident block as dear as one to compute, which is too much where answers are long:
//! on public traces a scale of 4 cut the 90th percentile of the time to the first token by 15 to 40 %. Decay helps where
//! one prefix is hot, and hurts near saturation, where it throws hits away; it is off.

use super::number::{Amount, Ratio};
use super::pickers::Softmax;
use super::table::{Made, effective};
use super::{Round, Score, scale};
use crate::invalid::{Invalid, read_value};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::num::NonZeroU32;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Dynamo {
    /// Tokens of a block.
    block_size: NonZeroU32,
    /// What a block to compute counts, against 1 for one that is held.
    prefill_load_scale: Amount,
    /// What of a cached block is credited.
    overlap_score_credit: Ratio,
    /// How fast credit shrinks behind a queue.
    overlap_decay: Amount,
    /// Blocks that a request in flight counts.
    decode_active_request_weight: Amount,
    /// 0 takes the least cost; above it others have a chance.
    temperature: Amount,
}

impl Default for Dynamo {
    fn default() -> Self {
        const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
        Self {
            block_size: SIXTEEN,
            prefill_load_scale: Amount::of(1.0),
            overlap_score_credit: Ratio::of(1.0),
            overlap_decay: Amount::of(0.0),
            decode_active_request_weight: Amount::of(0.0),
            temperature: Amount::of(0.0),
        }
    }
}

/// The policy: its picker has a parameter of its own.
pub(super) fn build(params: Value) -> Result<Made, Invalid> {
    let dynamo: Dynamo = read_value(params)?;
    let picker = Box::new(Softmax(dynamo.temperature.get()));
    Ok(Made { effective: effective(&dynamo), score: Box::new(dynamo), picker })
}

impl Dynamo {
    fn cost(&self, round: &Round<'_>, candidate: &super::Candidate, least_queued: u64) -> f64 {
        let blocks = |tokens: u64| tokens as f64 / f64::from(self.block_size.get());
        let prompt = u64::from(round.demand.prompt_tokens);
        let raw = blocks(candidate.queued_tokens.saturating_add(prompt));
        let ahead = blocks(candidate.queued_tokens.saturating_sub(least_queued)) / blocks(prompt).max(1.0);
        let decay = 1.0 / (1.0 + self.overlap_decay.get() * ahead);
        let credit = self.overlap_score_credit.get() * decay * blocks(u64::from(candidate.cached_tokens));
        let decode = blocks(candidate.held_tokens.saturating_add(prompt));
        let requests = self.decode_active_request_weight.get() * f64::from(candidate.in_flight);
        self.prefill_load_scale.get() * (raw - credit).max(0.0) + decode + requests
    }
}

impl Score for Dynamo {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let least = round.candidates.iter().map(|candidate| candidate.queued_tokens).min().unwrap_or(0);
        scale::fill(round, scores, |candidate| self.cost(round, candidate, least));
        scale::cheapest_first(scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instant::Instant;
    use crate::policy::tests::{chosen_for, read, shares_for};
    use crate::policy::{Candidate, Demand};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const DEMAND: Demand =
        Demand { prompt_tokens: 160, prompt_units: 10, output_tokens: 0, stream: true, ..EMPTY };
    const EMPTY: Demand = Demand {
        prompt_tokens: 0,
        prompt_units: 0,
        output_tokens: 0,
        stream: false,
        session: None,
        tenant: None,
        adapter: None,
        slo_ttft_ms: None,
        slo_tpot_ms: None,
        retried: false,
    };

    /// The three workers of Dynamo's documentation: blocks of the prompt cached, blocks held.
    fn workers() -> [Candidate; 3] {
        [(0, 2, 10_u32), (1, 5, 5), (2, 8, 9)].map(|(place, cached, held)| Candidate {
            place,
            cached_tokens: cached * 16,
            held_tokens: u64::from(held) * 16,
            in_flight: 1,
            ..Candidate::default()
        })
    }

    #[test]
    fn the_worked_example_costs_18_10_and_11() {
        let candidates = workers();
        let round = Round { demand: &DEMAND, blocks: &[], candidates: &candidates, now: Instant::default() };
        // The example leaves the request's own ten blocks out of what is held.
        let costs = candidates.map(|candidate| Dynamo::default().cost(&round, &candidate, 0) - 10.0);
        assert_eq!(costs, [18.0, 10.0, 11.0]);
        assert_eq!(chosen_for(&mut read(json!("dynamo"), 3), &DEMAND, &[], &candidates), 1);
        let scaled = json!({"dynamo": {"prefill_load_scale": 4}});
        assert_eq!(chosen_for(&mut read(scaled, 3), &DEMAND, &[], &candidates), 2, "4*5+5 against 4*2+9");
    }

    #[test]
    fn decay_halves_the_credit_behind_one_request_more_in_the_queue() {
        let dynamo = Dynamo { overlap_decay: Amount::of(1.0), ..Dynamo::default() };
        let behind = Candidate { queued_tokens: 160, cached_tokens: 160, ..Candidate::default() };
        let round = Round { demand: &DEMAND, blocks: &[], candidates: &[behind], now: Instant::default() };
        assert_eq!(dynamo.cost(&round, &behind, 0), 20.0 - 5.0 + 10.0);
        assert_eq!(dynamo.cost(&round, &behind, 160), 20.0 - 10.0 + 10.0, "nobody has less");
    }

    #[test]
    fn a_temperature_gives_the_others_a_chance() {
        let hot = json!({"dynamo": {"temperature": 1}});
        let counts = shares_for(&mut read(hot, 3), &DEMAND, &workers(), 3_000);
        // Costs 18, 10, 11 scaled: 1, 0, 1/8; shares e^-1, 1, e^-0.125.
        assert!((400..600).contains(&counts[0]), "{counts:?}");
        assert!(counts[1] > counts[2] && counts[2] > 1_000, "{counts:?}");
    }
}
