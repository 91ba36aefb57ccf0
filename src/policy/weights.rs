//! Policies that share out by weight: `random`, `round_robin`, `weighted_round_robin`, `weighted_least_requests`.
//!
//! ```text
//! weighted_round_robin      share = weight * slow start
//! weighted_least_requests   share = weight * slow start / (requests in flight + 1)^active_request_bias
//! ```
//!
//! Shares become turns by earliest deadline first (`pickers::Turns`). A weight is `attributes.ADDRESS.weight` of the
//! pool, 1 unless given. At bias 0 the second is the first; the larger it is, the more busy endpoints are spared.
//! Sources: Envoy's round robin and least request with `active_request_bias` and `slow_start_config`; gRPC's A58.
//!
//! Of these only `weighted_least_requests` knows load, and none knows prefixes: for engines that differ in size and
//! have no prefix cache, or as a baseline.

use super::number::Amount;
use super::{Each, Known, Round, Score, SlowStart, scale};
use serde::{Deserialize, Serialize};

/// Nobody is better than another.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Alike {}

impl Score for Alike {
    fn score(&mut self, _: &Round<'_>, scores: &mut [f64]) {
        scores.fill(1.0);
    }
}

/// The weights that the configuration gives.
#[derive(Debug, Default)]
pub(super) struct Weights(Each<f64>);

impl Weights {
    pub(super) fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.0.meet(endpoints);
        for (place, known) in endpoints.iter().enumerate() {
            if let Some(weight) = self.0.at_mut(place) {
                *weight = known.attributes.weight;
            }
        }
    }

    pub(super) fn of(&self, place: usize) -> f64 {
        self.0.at(place).copied().unwrap_or(1.0)
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Weight {
    slow_start: SlowStart,
    #[serde(skip)]
    weights: Weights,
}

impl Score for Weight {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::fill(round, scores, |candidate| {
            self.weights.of(candidate.place) * self.slow_start.factor(candidate.age)
        });
        scale::in_proportion(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.weights.meet(endpoints);
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PerRequest {
    /// How much busy endpoints are spared; 0 is plain weighted round robin.
    active_request_bias: Amount,
    slow_start: SlowStart,
    #[serde(skip)]
    weights: Weights,
}

impl Default for PerRequest {
    fn default() -> Self {
        Self {
            active_request_bias: Amount::of(1.0),
            slow_start: SlowStart::default(),
            weights: Weights::default(),
        }
    }
}

impl Score for PerRequest {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::fill(round, scores, |candidate| {
            let weight = self.weights.of(candidate.place) * self.slow_start.factor(candidate.age);
            weight / (f64::from(candidate.in_flight) + 1.0).powf(self.active_request_bias.get())
        });
        scale::in_proportion(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.weights.meet(endpoints);
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::{at, busy, chosen, described, shares};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn weighted_round_robin_shares_by_weight_and_evenly_in_time() {
        let mut policy = described(json!("weighted_round_robin"), json!({"10.0.0.0:1": {"weight": 3}}), 2);
        let turns: Vec<usize> = (0..400).map(|_| chosen(&mut policy, &[at(0), at(1)])).collect();
        assert_eq!(turns.iter().filter(|at| **at == 0).count(), 300);
        assert!(turns.windows(5).all(|turns| turns.contains(&1)), "{turns:?}");
    }

    #[test]
    fn bias_one_halves_the_share_of_one_request_in_flight() {
        let candidates = [busy(0, 1, 0, 0), busy(1, 0, 0, 0)];
        assert_eq!(shares(json!("weighted_least_requests"), &candidates, 3_000), [1_000, 2_000]);
        let plain = json!({"weighted_least_requests": {"active_request_bias": 0}});
        assert_eq!(shares(plain, &candidates, 3_000), [1_500, 1_500]);
        let hard = json!({"weighted_least_requests": {"active_request_bias": 3}});
        assert_eq!(shares(hard, &candidates, 900), [100, 800]);
    }
}
