//! The pickers: the best, the better of two at random, the next.

use super::{Pick, best};
use crate::random::Random;

/// The highest score; ties at random, or all gateways would send their ties to the same endpoint.
#[derive(Debug)]
pub(super) struct Best;

impl Pick for Best {
    fn pick(&mut self, scores: &[f64], random: &mut Random) -> Option<usize> {
        best(scores, random, |_| true)
    }
}

/// The better of two different ones at random.
#[derive(Debug)]
pub(super) struct OfTwo;

impl Pick for OfTwo {
    fn pick(&mut self, scores: &[f64], random: &mut Random) -> Option<usize> {
        let one = random.below(scores.len());
        let other = random.below(scores.len().saturating_sub(1));
        let other = if other >= one { other + 1 } else { other };
        best(scores, random, |at| *at == one || *at == other)
    }
}

/// One after the other.
#[derive(Debug, Default)]
pub(super) struct Next(usize);

impl Pick for Next {
    fn pick(&mut self, scores: &[f64], _: &mut Random) -> Option<usize> {
        let at = self.0.checked_rem(scores.len())?;
        self.0 = at + 1;
        Some(at)
    }
}
