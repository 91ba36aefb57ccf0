//! How much a policy carries: the arrival rate up to which most requests are still good.
//!
//! Beyond some rate queues grow for as long as requests come, whatever the policy; what differs is where that begins. Between two rates that were
//! run the share of good requests is taken to fall in a line.

use super::print::aligned;
use super::{Curve, Summary};

/// The share of requests that must be good.
const ENOUGH: f64 = 0.9;

/// Where a curve of the share of good requests over the rate falls below `enough`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Knee {
    /// At the lowest rate already.
    Below(f64),
    /// There.
    At(f64),
    /// At none of them, up to this one.
    Above(f64),
}

impl Knee {
    /// Of points from the lowest rate to the highest; where it falls for good, should it rise again in between.
    fn of(points: &[(f64, f64)], enough: f64) -> Option<Self> {
        let (first, last) = (points.first()?, points.last()?);
        let Some(good) = points.iter().rposition(|(_, share)| *share >= enough) else {
            return Some(Self::Below(first.0));
        };
        let (rate, share) = points[good];
        Some(match points.get(good + 1) {
            None => Self::Above(last.0),
            Some((next, fallen)) => Self::At(rate + (next - rate) * (share - enough) / (share - fallen)),
        })
    }

    fn shown(self) -> String {
        match self {
            Self::Below(rate) => format!("below {rate}"),
            Self::At(rate) => format!("{rate:.2}"),
            Self::Above(rate) => format!("above {rate}"),
        }
    }
}

/// The share of good requests over the rate, a curve for each policy, of runs of several policies at several rates.
pub fn goodput(runs: &[Summary]) -> Vec<Curve> {
    let mut all: Vec<Curve> = Vec::new();
    for run in runs {
        let point = (run.rate, run.good);
        match all.iter_mut().find(|curve| curve.name == run.policy) {
            Some(curve) => curve.points.push(point),
            None => all.push(Curve { name: run.policy.clone(), points: vec![point] }),
        }
    }
    all.iter_mut().for_each(|curve| curve.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    all
}

/// Each policy's knee, of the same.
pub fn knees(runs: &[Summary]) -> String {
    let head = vec!["policy".to_owned(), format!("{:.0} % good up to speed", ENOUGH * 100.0)];
    let row = |curve: Curve| {
        let knee = Knee::of(&curve.points, ENOUGH).map_or(String::new(), Knee::shown);
        vec![curve.name, knee]
    };
    aligned(&[head].into_iter().chain(goodput(runs).into_iter().map(row)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_its_knee_where_it_falls_for_good() {
        let knee = |points: &[(f64, f64)]| Knee::of(points, 0.9);
        assert_eq!(knee(&[(1.0, 1.0), (2.0, 0.8)]), Some(Knee::At(1.5)));
        assert_eq!(knee(&[(1.0, 0.95), (1.2, 0.85), (1.4, 0.9), (1.6, 0.1)]), Some(Knee::At(1.4)));
        assert_eq!(knee(&[(1.0, 0.5), (2.0, 0.4)]), Some(Knee::Below(1.0)));
        assert_eq!(knee(&[(1.0, 0.99), (2.0, 0.9)]), Some(Knee::Above(2.0)));
        assert_eq!(knee(&[]), None);
    }
}
