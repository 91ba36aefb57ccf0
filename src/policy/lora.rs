//! `lora_affinity` (llm-d: `lora-affinity-scorer`): where the request's adapter is loaded, or can be.
//!
//! ```text
//! 1.0  it is loaded there: the engine says so, or requests for it went there within memory_ms
//! 0.8  it is not, and a slot is free
//! 0.6  requests for it wait there, and no slot is free
//! 0    neither, or it is not in the endpoint's list of models
//! ```
//!
//! vLLM's metric names adapters that have requests at the moment, not those that are loaded: between two requests an
//! adapter looks gone. So what was sent there counts as well. An endpoint that says nothing of adapters gets the mean
//! of the others; a request without an adapter is indifferent. As a policy by itself it sends the rest by ties at
//! random: combine it with a load score.

use super::number::MillisOrOff;
use super::{Adapter, Candidate, Demand, Each, Known, News, Round, Score, scale};
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Adapters remembered of an endpoint.
const REMEMBERED: usize = 256;

/// When a request for each adapter was last sent to each endpoint.
#[derive(Debug, Default)]
pub(super) struct Sent(Each<HashMap<u64, Instant>>);

impl Sent {
    pub(super) fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.0.meet(endpoints);
    }

    pub(super) fn learn(&mut self, news: &News, now: Instant) {
        let News::Booked { place, demand, .. } = news else { return };
        let (Some(adapter), Some(sent)) = (demand.adapter, self.0.at_mut(*place)) else { return };
        sent.insert(adapter, now);
        if sent.len() > REMEMBERED {
            let oldest = sent.iter().min_by_key(|(_, at)| **at).map(|(adapter, _)| *adapter);
            oldest.and_then(|adapter| sent.remove(&adapter));
        }
    }

    /// Whether the request's adapter is loaded there: the engine says so, or it was sent there within that time and the
    /// engine does not say that it has no such model.
    pub(super) fn is_loaded(
        &self,
        demand: &Demand,
        candidate: &Candidate,
        now: Instant,
        memory: MillisOrOff,
    ) -> bool {
        let sent = self.0.at(candidate.place);
        let last = demand.adapter.and_then(|adapter| sent?.get(&adapter));
        let lately = last.is_some_and(|last| now.since(*last).as_millis() < u128::from(memory.get()));
        match candidate.adapter {
            Adapter::Resident => true,
            Adapter::Absent => false,
            _ => lately,
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LoraAffinity {
    /// Milliseconds for which an adapter is taken to be loaded after its last request there; 0 trusts the engine alone.
    memory_ms: MillisOrOff,
    #[serde(skip)]
    sent: Sent,
}

/// Milliseconds for which an adapter is taken to be loaded, unless given.
pub(super) const MEMORY: MillisOrOff = MillisOrOff::of(300_000);

impl Default for LoraAffinity {
    fn default() -> Self {
        Self { memory_ms: MEMORY, sent: Sent::default() }
    }
}

impl Score for LoraAffinity {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        if round.demand.adapter.is_none() {
            return scores.fill(1.0);
        }
        let is_loaded =
            |candidate: &Candidate| self.sent.is_loaded(round.demand, candidate, round.now, self.memory_ms);
        scale::known_or_mean(round, scores, |candidate| match candidate.adapter {
            Adapter::Resident => Some(1.0),
            _ if is_loaded(candidate) => Some(1.0),
            Adapter::Room => Some(0.8),
            Adapter::Waiting => Some(0.6),
            Adapter::Full | Adapter::Absent => Some(0.0),
            Adapter::Unknown => None,
        });
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.sent.meet(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        self.sent.learn(news, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{at, read};
    use crate::policy::{Candidate, Demand};
    use crate::random::Random;
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const WANTS: u64 = 7;

    #[test]
    fn residency_room_and_waiting_score_as_llm_d_has_it() {
        use Adapter::{Absent, Full, Resident, Room, Unknown, Waiting};
        let mut policy = read(json!("lora_affinity"), 6);
        let demand = Demand { adapter: Some(WANTS), ..Demand::default() };
        let candidates: Vec<Candidate> = [Resident, Room, Waiting, Full, Unknown, Absent]
            .into_iter()
            .enumerate()
            .map(|(place, adapter)| Candidate { adapter, ..at(place) })
            .collect();
        let mut scores = |now| {
            let round = Round { demand: &demand, blocks: &[], candidates: &candidates, now };
            policy.choose(&round, 1, &mut Random::new(1));
            policy.explain().iter().map(|one| (one.total * 100.0).round() / 100.0).collect::<Vec<f64>>()
        };
        assert_eq!(scores(Instant::default()), [1.0, 0.8, 0.6, 0.0, 0.48, 0.0], "unknown is the mean");
    }

    #[test]
    fn what_was_sent_there_counts_between_two_requests() {
        let mut policy = read(json!("lora_affinity"), 2);
        let demand = Demand { adapter: Some(WANTS), ..Demand::default() };
        let sent = News::Booked { place: 1, demand, uncached_tokens: 0 };
        policy.learn(&sent, Instant::default());
        let candidates = [0, 1].map(|place| Candidate { adapter: Adapter::Room, ..at(place) });
        let mut counts = |now| {
            let mut counts = [0; 2];
            for seed in 0..100 {
                let round = Round { demand: &demand, blocks: &[], candidates: &candidates, now };
                counts[policy.choose(&round, 1, &mut Random::new(seed))[0]] += 1;
            }
            counts
        };
        assert_eq!(counts(Instant::from_millis(200_000)), [0, 100]);
        assert!(counts(Instant::from_millis(400_000))[0] > 20, "forgotten");
    }
}
