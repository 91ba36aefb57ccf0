//! `consistent_hash` and `prefix_hash`: the same key to the same endpoint, with nothing to remember and nothing shared.
//!
//! ```text
//! order  = endpoints by hash(key, endpoint), highest first          (rendezvous hashing, Thaler and Ravishankar, 1996)
//! bound  = max(ceil(balance * (all requests + 1) / endpoints), mean requests + margin)
//! choice = the first of the order that has fewer requests than bound
//! ```
//!
//! The key is the session (else the tenant, else the prompt's beginning), or for `prefix_hash` the beginning alone, as
//! far as the block at `prefix_tokens`. Gateways that share nothing agree, and when an endpoint leaves only its own keys
//! move; a ring of virtual nodes gives the same with more to keep, and less evenly. The bound is that of bounded load
//! (Mirrokni et al., 2016), which Envoy has as `hash_balance_factor` and SGLang's `prefix_hash` as `load_factor` 1.25.
//! `margin` is for many gateways: each sees a slice of the requests, of which the mean is so small that any bound
//! would be hit. Beyond the bound the next of the order is taken, so that overflow of one key stays together too.
//!
//! For session affinity, and for prefix affinity where gateways share nothing. It does not know what is cached; where
//! one pool sees all requests `least_prefill` and `cache_aware` do better. Without any key the least busy is taken.

use super::number::{Amount, Bound};
use super::{Round, Score, scale};
use crate::block;
use crate::random::Random;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// What the key is made of.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum On {
    #[default]
    Session,
    Tenant,
    Prefix,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConsistentHash {
    /// What is tried first for a key; then the others, in this order: session, tenant, prefix.
    hash_on: On,
    /// How many times the mean an endpoint may have; 0 for no bound.
    balance: Bound,
    /// Requests above the mean that it may have in any case.
    margin: Amount,
}

impl Default for ConsistentHash {
    fn default() -> Self {
        Self { hash_on: On::Session, balance: Bound::of(1.25), margin: Amount::of(0.0) }
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PrefixHash {
    /// Tokens of the prompt that make the key.
    prefix_tokens: NonZeroU32,
    /// Tokens of the smallest block, as `extract` cuts them.
    block_tokens: NonZeroU32,
    /// How many times the mean an endpoint may have; 0 for no bound.
    balance: Bound,
    /// Requests above the mean that it may have in any case.
    margin: Amount,
}

impl Default for PrefixHash {
    fn default() -> Self {
        const TOKENS: NonZeroU32 = NonZeroU32::new(256).unwrap();
        const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
        Self {
            prefix_tokens: TOKENS,
            block_tokens: SIXTEEN,
            balance: Bound::of(1.25),
            margin: Amount::of(0.0),
        }
    }
}

/// The hash of the prompt's first units; of a shorter prompt that of all its whole blocks.
fn beginning(blocks: &[u64], units: usize) -> Option<u64> {
    blocks.get(..block::within(units).clamp(1, blocks.len().max(1)))?.last().copied()
}

impl Score for ConsistentHash {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        const UNITS: usize = 16;
        let prefix = || beginning(round.blocks, UNITS);
        let (session, tenant) = (round.demand.session, round.demand.tenant);
        let key = match self.hash_on {
            On::Session => session.or(tenant).or_else(prefix),
            On::Tenant => tenant.or(session).or_else(prefix),
            On::Prefix => prefix().or(session).or(tenant),
        };
        bounded(round, scores, key, self.balance, self.margin);
    }
}

impl Score for PrefixHash {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let units = self.prefix_tokens.get() / self.block_tokens.get();
        let key = beginning(round.blocks, units.max(1) as usize);
        bounded(round, scores, key, self.balance, self.margin);
    }
}

/// Those within the bound by their hash, from 0.5 up; the others below, the least busy first.
fn bounded(round: &Round<'_>, scores: &mut [f64], key: Option<u64>, balance: Bound, margin: Amount) {
    let total: f64 = round.candidates.iter().map(|candidate| f64::from(candidate.in_flight)).sum();
    let count = round.candidates.len().max(1) as f64;
    let bound = (balance.get() * (total + 1.0) / count).ceil().max(total / count + margin.get());
    let bound = if balance.get() > 0.0 { bound } else { f64::INFINITY };
    let least_busy = |in_flight: u32| 0.5 / (1.0 + f64::from(in_flight));
    let Some(key) = key else {
        return scale::fill(round, scores, |candidate| least_busy(candidate.in_flight));
    };
    scale::fill(round, scores, |candidate| {
        if f64::from(candidate.in_flight) < bound {
            0.5 + 0.5 * Random::new(key ^ candidate.seed.rotate_left(32)).unit()
        } else {
            0.5 * least_busy(candidate.in_flight)
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{at, busy, chosen, chosen_for, read};
    use crate::policy::{Candidate, Demand};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn of(session: u64) -> Demand {
        Demand { session: Some(session), prompt_tokens: 100, ..Demand::default() }
    }

    fn idle(count: usize) -> Vec<Candidate> {
        (0..count).map(at).collect()
    }

    #[test]
    fn a_session_stays_and_only_the_keys_of_one_that_left_move() {
        let mut policy = read(json!("consistent_hash"), 8);
        let all = idle(8);
        let mut counts = [0; 8];
        let mut moved = 0;
        for session in 0..800 {
            let place = chosen_for(&mut policy, &of(session), &[], &all);
            assert_eq!(chosen_for(&mut policy, &of(session), &[], &all), place);
            counts[place] += 1;
            let after = chosen_for(&mut policy, &of(session), &[], &all[..7]);
            moved += usize::from(after != place);
        }
        assert!(counts.iter().all(|count| (60..=140).contains(count)), "{counts:?}");
        assert_eq!(moved, counts[7]);
    }

    #[test]
    fn a_key_overflows_at_the_bound_and_always_to_the_same() {
        let mut policy = read(json!("consistent_hash"), 4);
        let home = chosen_for(&mut policy, &of(1), &[], &idle(4));
        let mut full = idle(4);
        // ceil(1.25 * (2 + 1) / 4) = 1
        full[home].in_flight = 2;
        let next = chosen_for(&mut policy, &of(1), &[], &full);
        assert_ne!(next, home);
        assert!((0..20).all(|_| chosen_for(&mut policy, &of(1), &[], &full) == next));
        let mut loose = read(json!({"consistent_hash": {"margin": 10}}), 4);
        assert_eq!(chosen_for(&mut loose, &of(1), &[], &full), home);
        let mut unbounded = read(json!({"consistent_hash": {"balance": 0}}), 4);
        full[home].in_flight = 99;
        assert_eq!(chosen_for(&mut unbounded, &of(1), &[], &full), home);
    }

    #[test]
    fn prompts_that_begin_alike_go_together_and_without_a_key_load_decides() {
        let mut policy = read(json!("prefix_hash"), 8);
        let prompt = |tail: u64| -> Vec<u64> { (0..16).chain([tail]).map(|n| n * 77 + 5).collect() };
        let place = chosen_for(&mut policy, &Demand::default(), &prompt(100), &idle(8));
        for tail in 0..50 {
            assert_eq!(chosen_for(&mut policy, &Demand::default(), &prompt(tail), &idle(8)), place);
        }
        assert_eq!(chosen(&mut policy, &[busy(0, 3, 0, 0), busy(1, 1, 0, 0), busy(2, 2, 0, 0)]), 1);
    }
}
