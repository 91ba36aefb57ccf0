//! What became of each request, as the lab's outcome and as lines of CSV.

use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use weir_lab::engine::Done;
use weir_lab::run::{End, Outcome, Record};

/// A request that is over. Times are nanoseconds from the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// When it should have been sent.
    pub(super) due: u64,
    /// When it was.
    pub(super) sent: u64,
    /// When its first token came.
    pub(super) first: Option<u64>,
    /// When it was over.
    pub(super) end: u64,
    /// The status of the answer, if there was one.
    pub(super) status: Option<u16>,
    /// The endpoint, where the gateway shows it.
    pub(super) endpoint: Option<String>,
    /// Tokens of its prompt.
    pub(super) prompt: u64,
    /// Those that the engine found in its cache, where it says so.
    pub(super) cached: Option<u64>,
    /// Tokens of the answer.
    pub(super) output: u64,
    /// Why it has no whole answer.
    pub(super) problem: Option<String>,
}

const SECOND: u64 = 1_000_000_000;

/// As the lab would have it: what cannot be seen from outside (memory, leases) is nothing.
pub(super) fn outcome(measured: &[Measured]) -> Outcome {
    let names: BTreeMap<&str, usize> =
        measured.iter().filter_map(|one| one.endpoint.as_deref()).map(|name| (name, 0)).collect();
    let places: BTreeMap<&str, usize> = names.into_keys().zip(0..).collect();
    let place = |one: &Measured| one.endpoint.as_deref().and_then(|name| places.get(name)).copied();
    let record = |one: &Measured| Record {
        arrived: one.due,
        first: one.first,
        end: one.end,
        how: match (&one.problem, one.first) {
            (None, _) => End::Answered,
            (Some(_), None) => End::Refused,
            (Some(_), Some(_)) => End::Broken,
        },
        endpoint: place(one).unwrap_or(0),
        prefill: None,
        prompt: narrow(one.prompt),
        cached: narrow(one.cached.unwrap_or(0)),
        output: narrow(one.output),
        attempts: u32::from(place(one).is_some() || (places.is_empty() && one.status.is_some())),
    };
    let last = measured.iter().map(|one| one.end).max().unwrap_or(0);
    let mut load = vec![vec![0_u32; places.len()]; usize::try_from(last / SECOND).unwrap_or(0) + 1];
    for (one, place) in measured.iter().filter_map(|one| Some((one, place(one)?))) {
        let seconds = one.due.div_ceil(SECOND)..one.end.div_ceil(SECOND);
        for second in seconds {
            let at = usize::try_from(second).ok().and_then(|second| load.get_mut(second)?.get_mut(place));
            at.into_iter().for_each(|count| *count += 1);
        }
    }
    Outcome {
        records: measured.iter().map(record).collect(),
        engines: vec![Done::default(); places.len().max(1)],
        leaked: 0,
        load,
    }
}

fn narrow(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Why requests failed, most frequent first.
pub(super) fn problems(measured: &[Measured]) -> Vec<(&str, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    measured
        .iter()
        .filter_map(|one| one.problem.as_deref())
        .for_each(|why| *counts.entry(why).or_default() += 1);
    let mut all: Vec<_> = counts.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all
}

/// Milliseconds that the client sent too late: 99th percentile and most.
pub(super) fn lateness(measured: &[Measured]) -> (f64, f64) {
    let mut late: Vec<u64> = measured.iter().map(|one| one.sent.saturating_sub(one.due)).collect();
    late.sort_unstable();
    let at = |share: usize| late.get((late.len() * share).div_ceil(100).max(1) - 1).copied().unwrap_or(0);
    (at(99) as f64 / 1e6, at(100) as f64 / 1e6)
}

/// The first line of a log.
pub(super) const LOG_HEAD: &str = "speed,request,due_ms,sent_ms,first_ms,end_ms,status,prompt_tokens,cached_tokens,output_tokens,endpoint,problem\n";

/// Adds the line of a request; what is not known is empty.
pub(super) fn log(text: &mut String, speed: f64, request: usize, one: &Measured) {
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let or_empty = |value: Option<String>| value.unwrap_or_default();
    let _ = writeln!(
        text,
        "{speed},{request},{},{},{},{},{},{},{},{},{},{}",
        ms(one.due),
        ms(one.sent),
        or_empty(one.first.map(|first| ms(first).to_string())),
        ms(one.end),
        or_empty(one.status.map(|status| status.to_string())),
        one.prompt,
        or_empty(one.cached.map(|cached| cached.to_string())),
        one.output,
        one.endpoint.as_deref().unwrap_or_default().replace(',', ";"),
        one.problem.as_deref().unwrap_or_default().replace([',', '\n'], ";"),
    );
}

/// A line of a log, of a request that was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Milliseconds from the start until it was due.
    pub due_ms: f64,
    /// Until its first token.
    pub first_ms: f64,
    /// Until its last.
    pub end_ms: f64,
    /// Tokens of its prompt.
    pub prompt: f64,
    /// Those found in the cache.
    pub cached: f64,
    /// Tokens of the answer.
    pub output: f64,
}

/// Reads a log; what was not answered is left out.
pub(super) fn read(text: &str) -> anyhow::Result<Vec<Line>> {
    let mut lines = text.lines();
    ensure!(lines.next() == Some(LOG_HEAD.trim_end()), "line 1: not what `weir load --log` writes");
    let mut all = Vec::new();
    for (line, number) in lines.zip(2..) {
        let fields: Vec<&str> = line.split(',').collect();
        let &[_, _, due, _, first, end, _, prompt, cached, output, _, problem] = fields.as_slice() else {
            anyhow::bail!("line {number}: expected 12 fields, got {}", fields.len());
        };
        if !problem.is_empty() || first.is_empty() {
            continue;
        }
        let parse = |what: &str, field: &str| {
            let field = if field.is_empty() { "0" } else { field };
            field.parse::<f64>().with_context(|| format!("line {number}: {what} {field:?}"))
        };
        all.push(Line {
            due_ms: parse("due_ms", due)?,
            first_ms: parse("first_ms", first)?,
            end_ms: parse("end_ms", end)?,
            prompt: parse("prompt_tokens", prompt)?,
            cached: parse("cached_tokens", cached)?,
            output: parse("output_tokens", output)?,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(endpoint: &str, due_s: u64, end_s: u64) -> Measured {
        Measured {
            due: due_s * SECOND,
            sent: due_s * SECOND + 2_000_000,
            first: Some(end_s * SECOND - SECOND / 2),
            end: end_s * SECOND,
            status: Some(200),
            endpoint: Some(endpoint.to_owned()),
            prompt: 100,
            cached: Some(16),
            output: 11,
            problem: None,
        }
    }

    #[test]
    fn endpoints_have_places_by_name_and_load_counts_who_is_there() {
        let failed = Measured { problem: Some("status 503".into()), ..Measured::default() };
        let outcome = outcome(&[one("b:1", 0, 3), one("a:1", 1, 2), failed]);
        assert_eq!((outcome.records[0].endpoint, outcome.records[1].endpoint), (1, 0));
        assert_eq!((outcome.records[2].how, outcome.records[2].attempts), (End::Refused, 0));
        assert_eq!(outcome.load, [[0, 1], [1, 1], [0, 1], [0, 0]]);
    }

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let mut text = LOG_HEAD.to_owned();
        log(&mut text, 1.5, 0, &one("a:1", 1, 3));
        log(
            &mut text,
            1.5,
            1,
            &Measured { problem: Some("status 503, twice".into()), ..Measured::default() },
        );
        let line =
            Line { due_ms: 1e3, first_ms: 2.5e3, end_ms: 3e3, prompt: 100.0, cached: 16.0, output: 11.0 };
        assert_eq!(read(&text).unwrap(), [line]);
        let said = read(&text.replace("16", "x")).unwrap_err().to_string();
        assert!(said.starts_with("line 2: cached_tokens"), "{said}");
        assert!(read("a,b\n").is_err());
    }

    #[test]
    fn lateness_and_problems_are_counted() {
        let broken = |why: &str| Measured { problem: Some(why.into()), ..Measured::default() };
        let all = [broken("a"), broken("b"), broken("b"), one("x", 0, 1)];
        assert_eq!(problems(&all), [("b", 2), ("a", 1)]);
        assert_eq!(lateness(&all), (2.0, 2.0));
    }
}
