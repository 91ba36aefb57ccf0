//! The pickers: the best, the better of two at random, the best in turn, one at random, by shares.

use super::choose::best;
use super::{Each, Known, Pick, Round};
use crate::random::Random;

/// The highest score; ties at random, or all gateways would send their ties to the same endpoint.
#[derive(Debug, Default)]
pub(super) struct Best;

impl Pick for Best {
    fn pick(&mut self, _: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize> {
        best(scores, random, |_| true)
    }
}

/// The better of two different ones at random.
#[derive(Debug, Default)]
pub(super) struct OfTwo;

impl Pick for OfTwo {
    fn pick(&mut self, _: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize> {
        let one = random.below(scores.len());
        let other = random.below(scores.len().saturating_sub(1));
        let other = if other >= one { other + 1 } else { other };
        best(scores, random, |at| *at == one || *at == other)
    }
}

/// The best one after the other: of equals the one that was chosen longest ago, so that requests come to each evenly spaced
/// and it stays even while candidates come and go.
#[derive(Debug, Default)]
pub(super) struct Next {
    turn: u64,
    chosen: Each<u64>,
}

impl Pick for Next {
    fn pick(&mut self, round: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize> {
        let top = scores.iter().copied().reduce(f64::max)?;
        let turns = || {
            let best =
                round.candidates.iter().zip(scores).enumerate().filter(|(_, (_, score))| **score >= top);
            best.map(|(at, (candidate, _))| (at, self.chosen.at(candidate.place).copied().unwrap_or(0)))
        };
        let oldest = turns().map(|(_, turn)| turn).min()?;
        let oldest = || turns().filter(|(_, turn)| *turn == oldest).map(|(at, _)| at);
        let at = oldest().nth(random.below(oldest().count()))?;
        self.turn += 1;
        if let Some(chosen) = self.chosen.at_mut(round.candidates.get(at)?.place) {
            *chosen = self.turn;
        }
        Some(at)
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.chosen.meet(endpoints);
    }
}

/// One at random, whatever the scores.
#[derive(Debug, Default)]
pub(super) struct Any;

impl Pick for Any {
    fn pick(&mut self, _: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize> {
        (!scores.is_empty()).then(|| random.below(scores.len()))
    }
}

/// At random, in proportion to the scores. With no score above zero any one.
#[derive(Debug, Default)]
pub(super) struct Share;

impl Pick for Share {
    fn pick(&mut self, _: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize> {
        let total: f64 = scores.iter().map(|score| score.max(0.0)).sum();
        if total <= 0.0 || !total.is_finite() {
            return (!scores.is_empty()).then(|| random.below(scores.len()));
        }
        let mut left = random.unit() * total;
        let within = |score: &f64| {
            left -= score.max(0.0);
            left < 0.0
        };
        scores.iter().position(within).or_else(|| scores.iter().rposition(|score| *score > 0.0))
    }
}

/// In turns, in proportion to the scores: earliest deadline first (gRPC's A58). Whoever is chosen is due again after
/// 1/score; the start is random, so that gateways do not move in step.
#[derive(Debug, Default)]
pub(super) struct Turns {
    time: f64,
    due: Each<f64>,
}

impl Pick for Turns {
    fn pick(&mut self, round: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize> {
        // A score of zero is due practically never.
        const LEAST: f64 = 1e-9;
        let pace = |score: f64| 1.0 / score.max(LEAST);
        let mut first: Option<(f64, usize, usize)> = None;
        for (at, (candidate, score)) in round.candidates.iter().zip(scores).enumerate() {
            let Some(due) = self.due.at_mut(candidate.place) else { continue };
            // New, or away so long that it would have to catch up: somewhere within its first turn.
            if *due == 0.0 || *due < self.time {
                *due = self.time + pace(*score) * random.unit();
            }
            if first.is_none_or(|(earliest, ..)| *due < earliest) {
                first = Some((*due, at, candidate.place));
            }
        }
        let Some((time, at, place)) = first else { return best(scores, random, |_| true) };
        self.time = time;
        if let (Some(due), Some(score)) = (self.due.at_mut(place), scores.get(at)) {
            *due = time + pace(*score);
        }
        Some(at)
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.due.meet(endpoints);
    }
}

/// At random, better ones more often: softmax of the scores at a temperature; at 0 the best.
#[derive(Debug)]
pub(super) struct Softmax(pub(super) f64);

impl Pick for Softmax {
    fn pick(&mut self, round: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize> {
        if self.0 <= 0.0 {
            return Best.pick(round, scores, random);
        }
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut left = random.unit() * scores.iter().map(|score| ((score - top) / self.0).exp()).sum::<f64>();
        let within = |score: &f64| {
            left -= ((score - top) / self.0).exp();
            left < 0.0
        };
        scores.iter().position(within).or_else(|| scores.len().checked_sub(1))
    }
}
