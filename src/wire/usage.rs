//! What an answer used, as one line of fields.

use super::one_word;
use crate::response::{Report, Status, Usage};
use std::fmt::Write;

/// Usage as filter state; times in milliseconds.
pub fn write_usage(report: &Report, ttft_ms: Option<f64>, tpot_ms: Option<f64>) -> String {
    let mut line = format!("status={}", report.status.name());
    if let Some(usage) = report.usage {
        let Usage { input, cached, output, reasoning } = usage;
        let _ = write!(line, " input={input} cached={cached} output={output} reasoning={reasoning}");
    }
    // Without the engine's last word, what was delivered counts.
    if report.status != Status::Complete && report.streamed {
        let _ = write!(line, " deltas={}", report.deltas);
        if report.delivered() > report.deltas {
            let _ = write!(line, " text={}", report.text);
        }
    }
    if report.unread {
        line += " unread=1";
    }
    for (name, ms) in [("ttft_ms", ttft_ms), ("tpot_ms", tpot_ms)] {
        if let Some(ms) = ms {
            let _ = write!(line, " {name}={ms:.3}");
        }
    }
    for (name, word) in [("finish", &report.finish), ("error", &report.error)] {
        if let Some(word) = word {
            let _ = write!(line, " {name}={}", one_word(word));
        }
    }
    line
}

/// The times of [`write_usage`], in milliseconds: to the first token, and per further token.
pub fn read_times(line: &str) -> (Option<f64>, Option<f64>) {
    let time = |name: &str| {
        let value = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value?.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms >= 0.0)
    };
    (time("ttft_ms"), time("tpot_ms"))
}

/// Usage from filter state; the times are left out.
pub fn read_usage(line: &str) -> Option<Report> {
    let mut report = Report::default();
    let mut usage = Usage::default();
    for field in line.split(' ') {
        match field.split_once('=')? {
            ("status", name) => report.status = Status::of_name(name)?,
            ("input", n) => usage.input = n.parse().ok()?,
            ("cached", n) => usage.cached = n.parse().ok()?,
            ("output", n) => usage.output = n.parse().ok()?,
            ("reasoning", n) => usage.reasoning = n.parse().ok()?,
            ("deltas", n) => (report.streamed, report.deltas) = (true, n.parse().ok()?),
            ("text", n) => report.text = n.parse().ok()?,
            ("unread", "1") => report.unread = true,
            ("finish", word) => report.finish = Some(word.to_owned()),
            ("error", word) => report.error = Some(word.to_owned()),
            _ => {}
        }
    }
    if report.status != Status::Missing {
        report.usage = Some(usage);
    }
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn usage_survives_the_way() {
        let usage = Some(Usage { input: 9, cached: 4, output: 3, reasoning: 1 });
        for (usage, status, streamed, deltas, text) in [
            (usage, Status::Complete, false, 0, 0),
            (usage, Status::Partial, true, 7, 0),
            (None, Status::Missing, true, 7, 29),
            (None, Status::Missing, true, 0, 0),
            (None, Status::Missing, false, 0, 0),
        ] {
            let (finish, error) = (Some("stop".into()), Some("e".into()));
            let unread = usage.is_none();
            let report = Report { usage, status, finish, error, streamed, deltas, text, unread };
            let line = write_usage(&report, Some(1.0), None);
            assert_eq!(read_times(&line), (Some(1.0), None));
            assert_eq!(read_usage(&line), Some(report));
        }
        assert_eq!(read_usage("nonsense"), None);
    }

    #[test]
    fn an_engines_words_cannot_forge_a_field() {
        let finish = Some("stop input=9\n".into());
        let report = Report { finish, streamed: true, deltas: 4, ..Report::default() };
        assert_eq!(
            write_usage(&report, Some(1.5), None),
            "status=missing deltas=4 ttft_ms=1.500 finish=stopinput=9"
        );
    }
}
