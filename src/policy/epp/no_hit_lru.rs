//! `no-hit-lru-scorer`: cold prompts go where none has gone for longest.
//!
//! ```text
//! score = 0.5                      for all, when anybody holds a part of the prompt
//!         1 - rank / (n - 1)       else; rank 0 for who got no cold prompt yet, then the one longest ago
//! ```
//!
//! Spreads cold prefixes evenly, so that no cache holds them all. Those that never got one share a rank.

use crate::instant::Instant;
use crate::policy::{Each, Known, News, Round, Score, scale};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct NoHitLru {
    /// Accepted as llm-d has it: one turn per endpoint is remembered, however many there are.
    lru_size: NonZeroU32,
    #[serde(skip)]
    turn: u64,
    #[serde(skip)]
    last: Each<u64>,
}

impl Default for NoHitLru {
    fn default() -> Self {
        const SIZE: NonZeroU32 = NonZeroU32::new(1024).unwrap();
        Self { lru_size: SIZE, turn: 0, last: Each::default() }
    }
}

impl Score for NoHitLru {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        if round.candidates.iter().any(|candidate| candidate.cached_tokens > 0) {
            return scores.fill(0.5);
        }
        let last = |place| self.last.at(place).copied().unwrap_or(0);
        let mut turns: Vec<u64> = round.candidates.iter().map(|candidate| last(candidate.place)).collect();
        turns.sort_unstable();
        let most = turns.len().saturating_sub(1).max(1) as f64;
        scale::fill(round, scores, |candidate| {
            let before = turns.partition_point(|turn| *turn < last(candidate.place));
            1.0 - before as f64 / most
        });
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.last.meet(endpoints);
    }

    fn learn(&mut self, news: &News, _: Instant) {
        let News::Booked { place, demand, uncached_tokens } = news else { return };
        if *uncached_tokens >= demand.prompt_tokens {
            self.turn += 1;
            if let Some(last) = self.last.at_mut(*place) {
                *last = self.turn;
            }
        }
    }
}
