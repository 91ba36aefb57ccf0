//! How fast prompts are computed: for answers that do not show their first token.
//!
//! Without a stream the first byte of an answer is its last as well, so an engine that has long computed the prompt
//! and is only writing would look as if the prompt still waited. Streams show how long *queued and own uncached
//! tokens* take until the first token; of the others the prompt is taken to be computed after as long.
//!
//! The pace is tokens by time, both as sums that fade: a long prompt tells more than a short one, whose time is
//! mostly overhead.

use std::time::Duration;

/// Prompt tokens per second, as streams have shown it.
#[derive(Debug)]
pub(super) struct Pace {
    tokens: f64,
    seconds: f64,
}

impl Pace {
    /// What a new sample leaves of the older ones.
    const FADE: f64 = 0.9;

    /// Assumes `tokens_per_s` until it has learned.
    pub(super) fn new(tokens_per_s: u32) -> Self {
        Self { tokens: f64::from(tokens_per_s), seconds: 1.0 }
    }

    /// `tokens` took `time` from booking to first token.
    pub(super) fn learn(&mut self, tokens: u64, time: Duration) {
        if tokens > 0 && !time.is_zero() {
            self.tokens = self.tokens * Self::FADE + tokens as f64;
            self.seconds = self.seconds * Self::FADE + time.as_secs_f64();
        }
    }

    /// How long `tokens` take.
    pub(super) fn time_for(&self, tokens: u64) -> Duration {
        const MOST: f64 = 600.0;
        Duration::from_secs_f64((tokens as f64 * self.seconds / self.tokens).clamp(0.0, MOST))
    }
}
