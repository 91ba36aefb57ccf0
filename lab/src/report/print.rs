//! Summaries as a table for people and as CSV.

use super::{Quantiles, Summary};
use std::fmt::Write;

/// A column: its heading, and what it says of a run.
type Column = (&'static str, fn(&Summary) -> String);

/// The columns of the table: times in seconds but for TPOT.
pub const COLUMNS: &[Column] = &[
    ("policy", |summary| summary.policy.clone()),
    ("TTFT p50", |summary| seconds(summary.ttft_ms.p50)),
    ("p90", |summary| seconds(summary.ttft_ms.p90)),
    ("p99", |summary| seconds(summary.ttft_ms.p99)),
    ("max s", |summary| seconds(summary.ttft_ms.max)),
    ("TPOT p50", |summary| millis(summary.tpot_ms.p50)),
    ("p90 ms", |summary| millis(summary.tpot_ms.p90)),
    ("E2E p50", |summary| seconds(summary.e2e_ms.p50)),
    ("p90 s", |summary| seconds(summary.e2e_ms.p90)),
    ("good %", |summary| percent(summary.good)),
    ("hit %", |summary| percent(summary.hit)),
    ("most/least", |summary| format!("{}/{}", summary.most, summary.least)),
    ("gap", |summary| format!("{:.1}", summary.load_gap)),
    ("put back", |summary| summary.preempted.to_string()),
    ("failed", |summary| summary.failed.to_string()),
];

/// What only runs have in which prompts were computed elsewhere.
const SPLIT: Column = ("split", |summary| summary.split.to_string());

/// A table, first column to the left, numbers to the right.
pub fn table(summaries: &[Summary]) -> String {
    let split = summaries.iter().any(|summary| summary.split > 0).then_some(&SPLIT);
    let columns = || COLUMNS.iter().chain(split);
    let mut rows: Vec<Vec<String>> = vec![columns().map(|(heading, _)| (*heading).to_owned()).collect()];
    rows.extend(summaries.iter().map(|summary| columns().map(|(_, cell)| cell(summary)).collect()));
    aligned(&rows)
}

/// Rows of as many cells each.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if at == 0 { write!(line, "{cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Everything that a summary has, in one line each; a time that never came is empty.
pub fn csv(summaries: &[Summary]) -> String {
    let mut text = String::from("policy,workload,rate,offered,failed");
    for of in ["ttft", "tpot", "e2e"] {
        for which in ["p50", "p90", "p99", "max", "mean"] {
            let _ = write!(text, ",{of}_{which}_ms");
        }
    }
    text.push_str(
        ",good,good_per_s,hit,ceiling,most,least,load_gap,preempted,fairness,leaked,split,seconds\n",
    );
    for s in summaries {
        let _ = write!(
            text,
            "{},{},{},{},{}",
            quoted(&s.policy),
            quoted(&s.workload),
            s.rate,
            s.offered,
            s.failed
        );
        for Quantiles { p50, p90, p99, max, mean } in [s.ttft_ms, s.tpot_ms, s.e2e_ms] {
            for time in [p50, p90, p99, max, mean] {
                let _ = write!(text, ",{}", time.map_or(String::new(), |time| time.to_string()));
            }
        }
        let _ = writeln!(
            text,
            ",{},{},{},{},{},{},{},{},{},{},{},{}",
            s.good,
            s.good_per_s,
            s.hit,
            s.ceiling,
            s.most,
            s.least,
            s.load_gap,
            s.preempted,
            s.fairness,
            s.leaked,
            s.split,
            s.seconds
        );
    }
    text
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn seconds(ms: Option<f64>) -> String {
    ms.map_or("never".into(), |ms| format!("{:.2}", ms / 1_000.0))
}

fn millis(ms: Option<f64>) -> String {
    ms.map_or("never".into(), |ms| format!("{ms:.0}"))
}

fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}
