//! Costs and guesses to scores.

use super::{Candidate, Round};

/// Fills `scores` with a number per candidate.
pub(super) fn fill(round: &Round<'_>, scores: &mut [f64], number: impl Fn(&Candidate) -> f64) {
    for (score, candidate) in scores.iter_mut().zip(round.candidates) {
        *score = number(candidate);
    }
}

/// Turns costs, where less is better, into scores: the cheapest gets 1, the dearest 0; all alike get 1. What costs no
/// finite number gets 0, and is dearer than all that do.
pub(super) fn cheapest_first(costs: &mut [f64]) {
    let finite = || costs.iter().copied().filter(|cost| cost.is_finite());
    let (low, high) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), c| (l.min(c), h.max(c)));
    let least = if finite().count() == costs.len() { 0.0 } else { 0.1 };
    let span = high - low;
    for cost in costs {
        *cost = match (cost.is_finite(), span > 0.0) {
            (false, _) => 0.0,
            (true, true) => least + (1.0 - least) * (high - *cost) / span,
            (true, false) => 1.0,
        };
    }
}

/// Makes costs equal to the least that are above it by no more than this share of it.
pub(super) fn alike(costs: &mut [f64], share: f64) {
    let Some(least) = costs.iter().copied().reduce(f64::min) else { return };
    for cost in costs.iter_mut().filter(|cost| **cost <= least * (1.0 + share)) {
        *cost = least;
    }
}

/// Turns weights into scores in proportion: the heaviest gets 1.
pub(super) fn in_proportion(weights: &mut [f64]) {
    let most = weights.iter().copied().filter(|weight| weight.is_finite()).fold(0.0, f64::max);
    for weight in weights {
        *weight = if most > 0.0 && weight.is_finite() { (*weight / most).clamp(0.0, 1.0) } else { 1.0 };
    }
}

/// Fills `scores` with what is known of candidates, as `known` gives it, lowest and highest among them. Of whom nothing is
/// known gets the mean of the others, so that it is neither flooded nor starved; if nothing is known of anybody, all get
/// one half.
pub(super) fn known_or_mean(
    round: &Round<'_>,
    scores: &mut [f64],
    known: impl Fn(&Candidate) -> Option<f64>,
) {
    let (mut sum, mut count) = (0.0, 0.0);
    for (score, candidate) in scores.iter_mut().zip(round.candidates) {
        *score = known(candidate).map_or(f64::NAN, |score| {
            sum += score;
            count += 1.0;
            score
        });
    }
    let mean = if count > 0.0 { sum / count } else { 0.5 };
    for score in scores {
        *score = if score.is_nan() { mean } else { *score };
    }
}

/// Fills `values` with what is known of candidates. Of whom nothing is known is taken to be like the others for as much as
/// was sent there: as many requests in flight, as much of it. Were it the mean, it would never be the best, and so get
/// nothing; were it nothing, it would get all.
pub(super) fn known_or_alike(
    round: &Round<'_>,
    values: &mut [f64],
    known: impl Fn(&Candidate) -> Option<f64>,
) {
    let those = || round.candidates.iter().filter_map(|candidate| Some((candidate, known(candidate)?)));
    let (sum, in_flight, count) = those().fold((0.0, 0.0, 0.0), |(sum, in_flight, count), (one, value)| {
        (sum + value, in_flight + f64::from(one.in_flight), count + 1.0)
    });
    fill(round, values, |candidate| {
        let alike =
            if in_flight > 0.0 { f64::from(candidate.in_flight) * sum / in_flight } else { sum / count };
        known(candidate).unwrap_or(if count > 0.0 { alike } else { 0.5 })
    });
}

/// The same of numbers of requests: if nobody says any, those in flight here.
pub(super) fn known_or_in_flight(
    round: &Round<'_>,
    values: &mut [f64],
    known: fn(&Candidate) -> Option<f64>,
) {
    if round.candidates.iter().all(|candidate| known(candidate).is_none()) {
        fill(round, values, |candidate| f64::from(candidate.in_flight));
    } else {
        known_or_alike(round, values, known);
    }
}
