//! `least_requests`: fewest requests in flight. With the picker of two at random it is `p2c`.
//!
//! ```text
//! cost = requests in flight
//! ```
//!
//! All that was accepted and is not finished counts, whatever the path it was sent to, and none counts twice or is
//! given back twice: the pool's leases see to it. Requests are alike to this policy; where prompts differ in length,
//! `least_prefill` knows better. Source: Envoy's least request; two choices: Mitzenmacher, 2001.

use super::{Round, Score, scale};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeastRequests {}

impl Score for LeastRequests {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        scale::fill(round, scores, |candidate| f64::from(candidate.in_flight));
        scale::cheapest_first(scores);
    }
}
