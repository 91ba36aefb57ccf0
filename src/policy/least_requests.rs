//! `least_requests`: fewest requests in flight. With the picker of two at random it is `p2c`.

use super::{Candidate, Demand, Score, cheapest_first};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeastRequests {}

impl Score for LeastRequests {
    fn score(&self, _: &Demand, candidates: &[Candidate], scores: &mut [f64]) {
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = f64::from(candidate.in_flight);
        }
        cheapest_first(scores);
    }
}
