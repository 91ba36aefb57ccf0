//! From samples to Markdown.
//!
//! On a shared machine absolute figures swing by a factor of two between rounds, and whatever runs next to a round
//! slows all systems in it alike: so each figure is divided by bare Envoy's of the same round, and the spread over
//! the rounds is shown beside the median.

use super::load::Measured;
use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The markers of the side-by-side tables in a Markdown file.
pub(crate) const MARK: &str = "side-by-side";

/// One system in one round.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// CPU seconds per 1000 requests of the closed loop.
    pub(crate) cpu: f64,
    pub(crate) closed: Measured,
    pub(crate) open: Measured,
}

impl Sample {
    pub(crate) fn rate(&self) -> f64 {
        self.closed.requests as f64 / self.closed.seconds
    }
}

/// All rounds of one system at one size.
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) samples: Vec<Sample>,
}

/// The table of one body size; the first row is the base of all ratios.
pub(crate) fn table(kib: usize, rows: &[Row]) -> String {
    let base = rows.first().map(|row| row.samples.as_slice()).unwrap_or_default();
    let mut table = format!(
        "\n### {kib} KiB body\n\nThe base: {:.0} requests/s in the closed loop, p50 {:.2} ms and p99 {:.2} ms in the open \
         one (medians of {} rounds).\n\n\
         | system | CPU s per 1000 requests | CPU ratio | closed-loop rps ratio | open p50 ratio | open p99 ratio |\n\
         |---|---|---|---|---|---|\n",
        spread(base.iter().map(Sample::rate)).median,
        spread(base.iter().map(|sample| sample.open.p50_ms)).median,
        spread(base.iter().map(|sample| sample.open.p99_ms)).median,
        base.len(),
    );
    for row in rows {
        let ratio = |of: fn(&Sample) -> f64| {
            spread(row.samples.iter().zip(base).map(|(sample, base)| of(sample) / of(base))).to_string()
        };
        let _ = writeln!(
            table,
            "| {} | {:.3} | {} | {} | {} | {} |",
            row.system,
            spread(row.samples.iter().map(|sample| sample.cpu)).median,
            ratio(|sample| sample.cpu),
            ratio(Sample::rate),
            ratio(|sample| sample.open.p50_ms),
            ratio(|sample| sample.open.p99_ms),
        );
    }
    table
}

struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl std::fmt::Display for Spread {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:.2} / {:.2} / {:.2}", self.least, self.median, self.most)
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let last = values.len().saturating_sub(1);
    Spread { least: at(0), median: (at(last / 2) + at(last.div_ceil(2))) / 2.0, most: at(last) }
}

/// Puts the report between the markers of a file; both are added at the end, and the file made, if need be.
pub(crate) fn write_into(file: &Path, mark: &str, report: &str) -> Result<()> {
    let old = match fs::read_to_string(file) {
        Ok(old) => old,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(fs::write(file, replaced(&old, mark, report)?)?)
}

fn replaced(old: &str, mark: &str, report: &str) -> Result<String> {
    let (report, begin, end) = (report.trim(), format!("<!-- {mark} -->"), format!("<!-- /{mark} -->"));
    Ok(match (old.split_once(&begin), old.split_once(&end)) {
        (Some((before, rest)), Some(_)) => match rest.split_once(&end) {
            Some((_, after)) => format!("{before}{begin}\n{report}\n{end}{after}"),
            None => bail!("{end} stands before {begin}"),
        },
        (None, None) if old.is_empty() => format!("{begin}\n{report}\n{end}\n"),
        (None, None) => format!("{}\n\n{begin}\n{report}\n{end}\n", old.trim_end()),
        _ => bail!("only one of {begin} and {end} is there"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_only_what_is_between_the_markers() {
        let (begin, end) = ("<!-- m -->", "<!-- /m -->");
        let first = replaced("# Results\n", "m", "one").unwrap();
        assert_eq!(first, format!("# Results\n\n{begin}\none\n{end}\n"));
        let second = replaced(&format!("{first}\nafter\n"), "m", "two\n").unwrap();
        assert_eq!(second, format!("# Results\n\n{begin}\ntwo\n{end}\n\nafter\n"));
        assert!(replaced(begin, "m", "three").is_err());
        assert!(replaced(&format!("{end}{begin}"), "m", "three").is_err());
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let sample = |cpu| {
            let measured = Measured { requests: 1000, seconds: cpu, p50_ms: cpu, p99_ms: cpu };
            Sample { cpu, closed: measured, open: measured }
        };
        let base = Row { system: "envoy".into(), samples: vec![sample(1.0), sample(2.0), sample(4.0)] };
        let twice = Row { system: "twice".into(), samples: vec![sample(2.0), sample(4.0), sample(8.0)] };
        let table = table(1, &[base, twice]);
        let constant = "2.00 / 2.00 / 2.00";
        assert!(table.ends_with(&format!(
            "| twice | 4.000 | {constant} | 0.50 / 0.50 / 0.50 | {constant} | {constant} |\n"
        )));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(spread([4.0, 1.0, 3.0, 2.0].into_iter()).to_string(), "1.00 / 2.50 / 4.00");
    }
}
