//! What the pool tells policies that learn.

use super::Demand;
use std::time::Duration;

/// What became of a request, by whoever it was chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// It was booked on an endpoint.
    Booked {
        /// The endpoint's place.
        place: usize,
        /// What it brought.
        demand: Demand,
        /// Prompt tokens to be computed.
        uncached_tokens: u32,
    },
    /// Its first token came, and it was seen.
    FirstToken {
        /// The place of the endpoint that served.
        place: usize,
        /// Since it was booked.
        after: Duration,
        /// Its own prompt tokens to be computed.
        uncached_tokens: u32,
        /// All that were queued there when it was booked, its own too.
        queued_tokens: u64,
    },
    /// It is over.
    Ended {
        /// The endpoint's place.
        place: usize,
        /// Since it was booked.
        after: Duration,
        /// Since its first token, when that was seen.
        decoding: Option<Duration>,
        /// Tokens written, when that is known: as the answer said, or what was delivered of a stream that did not say.
        output_tokens: Option<u32>,
        /// It ended in an error of the endpoint.
        failed: bool,
    },
    /// An endpoint said how it is, beside an answer (ORCA) or when asked.
    Reported {
        /// The endpoint's place.
        place: usize,
        /// What it said.
        signals: super::Signals,
    },
}
