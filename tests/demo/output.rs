//! What is printed: a table for people, or JSON lines.

use crate::play::Row;
use crate::summary::{Figures, Summary};
use anyhow::Result;
use serde_json::{Value, json};
use std::io::{Write, stdout};

/// The way the demo speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    Table,
    Json,
}

impl Output {
    /// What comes before the rows.
    pub(crate) fn head(self) -> Result<()> {
        match self {
            Self::Table => print(&row("turn", "model", "endpoint", "by", "why", "cached", "TTFT ms")),
            Self::Json => Ok(()),
        }
    }

    /// One request. Of the comparison a person sees only the sums.
    pub(crate) fn row(self, of: &Row) -> Result<()> {
        match self {
            Self::Table if of.run == "round_robin" => Ok(()),
            Self::Table => {
                let turn = format!("{}/{}", of.conversation, of.turn);
                let words = of.problem.as_ref().map_or(of.why.words.as_str(), |_| "FAILED, see below");
                let ttft = of.ttft_ms.map_or("-".into(), |ms| format!("{ms:.1}"));
                print(&row(
                    &turn,
                    of.model,
                    &of.endpoint,
                    &of.why.by,
                    words,
                    &of.cached_tokens.to_string(),
                    &ttft,
                ))
            }
            Self::Json => print(&json_row(of).to_string()),
        }
    }

    /// The end.
    pub(crate) fn summary(self, summary: &Summary) -> Result<()> {
        match self {
            Self::Table => print(&table(summary)),
            Self::Json => print(&json!({ "summary": json_summary(summary) }).to_string()),
        }
    }
}

fn print(text: &str) -> Result<()> {
    Ok(writeln!(stdout(), "{text}")?)
}

/// At most 100 columns while numbers are of the size that a demo has.
fn row(turn: &str, model: &str, endpoint: &str, by: &str, why: &str, cached: &str, ttft: &str) -> String {
    format!("{turn:<5} {model:<10} {endpoint:<15}  {by:<8} {why:<41} {cached:>6} {ttft:>8}")
}

fn table(summary: &Summary) -> String {
    let Summary { shipped, round_robin, .. } = summary;
    let mut lines = vec![String::new(), line("", ["as shipped", "round robin"], "")];
    let both = |of: &dyn Fn(&Figures) -> String| [of(shipped), of(round_robin)];
    let mut add = |name: &str, [ours, theirs]: [String; 2], note: &str| {
        lines.push(line(name, [&ours, &theirs], note));
    };
    add("answered", both(&|f| format!("{} of {}", f.answered, f.requests)), "");
    add("later turns at the same endpoint", both(&stayed), "affinity");
    for model in rig::MODELS {
        let counts =
            |f: &Figures| f.spread[model].values().map(usize::to_string).collect::<Vec<_>>().join(" + ");
        add(&format!("requests per endpoint, {model}"), both(&counts), "spread");
    }
    let saved = summary.saved_percent().map_or(String::new(), |percent| format!("{percent:.1} % saved"));
    add("prompt tokens", both(&|f| grouped(f.prompt_tokens)), "");
    add("prefill tokens computed", both(&|f| grouped(f.prefill_tokens)), &saved);
    let ttft = |f: &Figures| f.median_ttft_ms.map_or("-".into(), |ms| format!("{ms:.1} ms"));
    add("median TTFT", both(&ttft), "");
    lines.join("\n")
}

fn line(name: &str, [ours, theirs]: [&str; 2], note: &str) -> String {
    format!("{name:<34} {ours:>18} {theirs:>18}   {note}").trim_end().to_owned()
}

fn stayed(figures: &Figures) -> String {
    let Figures { stayed, later, .. } = figures;
    figures.affinity().map_or("-".into(), |share| format!("{stayed} of {later}, {:.0} %", share * 100.0))
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Three decimals: in milliseconds, all that a client can tell.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

fn json_row(row: &Row) -> Value {
    let mut value = json!({
        "run": row.run, "conversation": row.conversation, "turn": row.turn, "model": row.model,
        "endpoint": row.endpoint, "by": row.why.by, "why": row.why.words, "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens, "ttft_ms": row.ttft_ms.map(rounded), "status": row.status,
    });
    if let Some(problem) = &row.problem {
        value["problem"] = problem.as_str().into();
    }
    value
}

fn json_summary(summary: &Summary) -> Value {
    let figures = |f: &Figures| {
        json!({
            "requests": f.requests, "answered": f.answered, "later_turns": f.later, "stayed": f.stayed,
            "affinity": f.affinity(), "prompt_tokens": f.prompt_tokens, "prefill_tokens": f.prefill_tokens,
            "median_ttft_ms": f.median_ttft_ms.map(rounded), "spread": f.spread,
        })
    };
    json!({
        "ok": summary.failures.is_empty(), "failures": summary.failures, "saved_percent": summary.saved_percent().map(rounded),
        "shipped": figures(&summary.shipped), "round_robin": figures(&summary.round_robin),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_row_fits_a_hundred_columns() {
        let why = "prefix: 9999 of 9999 tokens cached there";
        assert!(
            row("999/9", "demo-small", "127.0.0.1:65535", "fallback", why, "123456", "12345.6").len() <= 100
        );
    }
}
