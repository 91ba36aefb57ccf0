//! How far each policy is behind the best of each case: one table for a whole suite.

use super::Summary;
use super::print::aligned;
use std::fmt::Write;

/// What counts as first in Markdown: the 90th percentile of TTFT as a multiple of the best, goodput in points below it.
const FIRST: Behind = Behind { time: 1.02, good: -2.0 };

/// How far behind the best of a case: the 90th percentile of TTFT as a multiple, goodput in points, 0 or below.
#[derive(Clone, Copy, Debug)]
struct Behind {
    time: f64,
    good: f64,
}

/// A case: the best of either figure that any policy reached.
#[derive(Debug)]
struct Case {
    name: String,
    ttft_p90_ms: f64,
    good: f64,
}

/// Policies beside each other over all cases.
#[derive(Debug)]
pub struct Standings {
    cases: Vec<Case>,
    policies: Vec<(String, Vec<Behind>)>,
}

impl Standings {
    /// Of cases that have the same policies in the same order.
    pub fn new(cases: &[(String, Vec<Summary>)]) -> Self {
        let best = |(name, of): &(String, Vec<Summary>)| Case {
            name: name.clone(),
            ttft_p90_ms: of.iter().map(ttft_p90).fold(f64::INFINITY, f64::min),
            good: of.iter().map(|summary| summary.good).fold(0.0, f64::max),
        };
        let best: Vec<Case> = cases.iter().map(best).collect();
        let names = cases.first().map_or(&[][..], |(_, of)| of.as_slice());
        let row = |(at, policy): (usize, &Summary)| {
            let behind = |(case, (_, of)): (&Case, &(String, Vec<Summary>))| Behind {
                time: ttft_p90(&of[at]) / case.ttft_p90_ms,
                good: (of[at].good - case.good) * 100.0,
            };
            (policy.policy.clone(), best.iter().zip(cases).map(behind).collect())
        };
        Self { policies: names.iter().enumerate().map(row).collect(), cases: best }
    }

    /// For people. The last columns are the mean over the cases and the worst of them.
    pub fn table(&self) -> String {
        let mut rows = vec![self.heading()];
        for (policy, of) in &self.policies {
            let cells = of.iter().copied().chain([mean(of), worst(of)]);
            rows.push(std::iter::once(policy.clone()).chain(cells.map(|cell| cell.shown())).collect());
        }
        aligned(&rows)
    }

    /// The same as Markdown, with a row of what the best is. Bold is within 2 % and 2 points of it.
    pub fn markdown(&self) -> String {
        let heading = self.heading();
        let mut text = format!("| {} |\n|{}\n", heading.join(" | "), "---|".repeat(heading.len()));
        let best = self
            .cases
            .iter()
            .map(|case| format!("{:.2} s, {:.1} %", case.ttft_p90_ms / 1_000.0, case.good * 100.0));
        let _ = writeln!(text, "| best | {} | | |", best.collect::<Vec<_>>().join(" | "));
        for (policy, of) in &self.policies {
            let cells = of.iter().map(|cell| match cell.time <= FIRST.time && cell.good >= FIRST.good {
                true => format!("**{}**", cell.shown()),
                false => cell.shown(),
            });
            let cells: Vec<String> = cells.chain([mean(of).shown(), worst(of).shown()]).collect();
            let _ = writeln!(text, "| {policy} | {} |", cells.join(" | "));
        }
        text
    }

    fn heading(&self) -> Vec<String> {
        let first = std::iter::once("TTFT p90 x best, good - best");
        first
            .chain(self.cases.iter().map(|case| case.name.as_str()))
            .chain(["mean", "worst"])
            .map(str::to_owned)
            .collect()
    }
}

impl Behind {
    /// `1.03 -0.5`; what is more than a hundred times behind is just that.
    fn shown(self) -> String {
        let time = if self.time < 100.0 { format!("{:.2}", self.time) } else { ">100".to_owned() };
        format!("{time} {:+.1}", if self.good > -0.05 { 0.0 } else { self.good })
    }
}

/// The geometric mean of multiples, the mean of points.
fn mean(of: &[Behind]) -> Behind {
    let count = of.len().max(1) as f64;
    Behind {
        time: (of.iter().map(|cell| cell.time.ln()).sum::<f64>() / count).exp(),
        good: of.iter().map(|cell| cell.good).sum::<f64>() / count,
    }
}

/// The worst of either.
fn worst(of: &[Behind]) -> Behind {
    Behind {
        time: of.iter().map(|cell| cell.time).fold(1.0, f64::max),
        good: of.iter().map(|cell| cell.good).fold(0.0, f64::min),
    }
}

fn ttft_p90(summary: &Summary) -> f64 {
    summary.ttft_ms.p90.unwrap_or(f64::INFINITY)
}
