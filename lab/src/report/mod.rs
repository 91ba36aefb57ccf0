//! What users would have seen: times, goodput, hits, and how evenly the pool was used.
//!
//! A request that got no first token counts as one that waits for ever: it is in every quantile, and in goodput as a
//! failure. Otherwise a router that turns away a seventh of its users would have the best times.

mod knee;
mod print;
mod standings;
mod svg;

pub use knee::{goodput, knees};
pub use print::{COLUMNS, csv, table};
pub use standings::Standings;
pub use svg::{Curve, curves};

use crate::run::{End, Outcome, Record};
use crate::workload::Workload;
use serde::Serialize;
use std::collections::BTreeMap;

/// What counts as good: both must be met.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slo {
    /// Milliseconds to the first token, at most.
    pub ttft_ms: f64,
    /// Milliseconds per further token, at most.
    pub tpot_ms: f64,
}

impl Default for Slo {
    /// MLPerf's for Llama-3.1-8B as a server: 2 s and 100 ms.
    fn default() -> Self {
        Self { ttft_ms: 2_000.0, tpot_ms: 100.0 }
    }
}

/// Quantiles of a time, in milliseconds; `None` is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half are quicker.
    pub p50: Option<f64>,
    /// Nine of ten are quicker.
    pub p90: Option<f64>,
    /// 99 of 100 are quicker.
    pub p99: Option<f64>,
    /// The slowest.
    pub max: Option<f64>,
    /// Of those that came at all.
    pub mean: Option<f64>,
}

impl Quantiles {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = ((times.len() as f64 * share).ceil() as usize).max(1) - 1;
            times.get(place).copied().filter(|time| time.is_finite()).map(rounded)
        };
        let came: Vec<f64> = times.iter().copied().filter(|time| time.is_finite()).collect();
        let mean = (!came.is_empty()).then(|| rounded(came.iter().sum::<f64>() / came.len() as f64));
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0), mean }
    }
}

/// A run in figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The contender.
    pub policy: String,
    /// The workload.
    pub workload: String,
    /// How much quicker than written the requests came.
    pub rate: f64,
    /// Requests offered.
    pub offered: usize,
    /// Those that nobody could take, and those that broke.
    pub failed: usize,
    /// Time to the first token.
    pub ttft_ms: Quantiles,
    /// Time per further token.
    pub tpot_ms: Quantiles,
    /// Time to the last token.
    pub e2e_ms: Quantiles,
    /// The share of the offered requests that met the SLO, 0 to 1.
    pub good: f64,
    /// Requests a second that met it.
    pub good_per_s: f64,
    /// The share of prompt tokens that were not computed, 0 to 1.
    pub hit: f64,
    /// The same for one endless cache.
    pub ceiling: f64,
    /// Requests at the endpoint that got most, and at the one that got least.
    pub most: usize,
    /// See `most`.
    pub least: usize,
    /// Requests in the fullest endpoint less those in the emptiest, mean over the seconds.
    pub load_gap: f64,
    /// Requests put back by engines for want of memory.
    pub preempted: u64,
    /// How alike tenants fared (Jain's index of their goodput): 1 is alike, 1/n is one alone.
    pub fairness: f64,
    /// Leases that leaked.
    pub leaked: usize,
    /// Requests whose prompt another endpoint computed than the one that answered.
    pub split: usize,
    /// Seconds from the first arrival to the last token.
    pub seconds: f64,
}

impl Summary {
    /// The figures of a run.
    pub fn new(policy: &str, workload: &Workload, rate: f64, slo: &Slo, outcome: &Outcome) -> Self {
        let records = &outcome.records;
        let times =
            |of: &dyn Fn(&Record) -> Option<f64>| Quantiles::of(records.iter().filter_map(of).collect());
        let ttft = |record: &Record| record.first.map_or(f64::INFINITY, |first| ms(first - record.arrived));
        let tpot = |record: &Record| match (record.how, record.first) {
            (End::Answered, Some(first)) => {
                let more = record.output.saturating_sub(1);
                (more > 0).then(|| ms(record.end - first) / f64::from(more))
            }
            _ => Some(f64::INFINITY),
        };
        let answered = |record: &Record| record.how == End::Answered;
        let good = |record: &Record| {
            answered(record)
                && ttft(record) <= slo.ttft_ms
                && tpot(record).is_none_or(|tpot| tpot <= slo.tpot_ms)
        };
        let goods: Vec<bool> = records.iter().map(good).collect();
        let met = goods.iter().filter(|good| **good).count();
        let mut assigned = vec![0_usize; outcome.engines.len()];
        for record in records.iter().filter(|record| record.attempts > 0) {
            assigned[record.endpoint] += 1;
            record.prefill.iter().for_each(|at| assigned[*at] += 1);
        }
        let (mut cached, mut prompts) = (0_u64, 0_u64);
        for record in records.iter().filter(|record| answered(record)) {
            cached += u64::from(record.cached);
            prompts += u64::from(record.prompt);
        }
        let last = records.iter().map(|record| record.end).max().unwrap_or(0);
        let seconds = ms(last) / 1_000.0;
        let gap =
            |load: &Vec<u32>| f64::from(load.iter().max().unwrap_or(&0) - load.iter().min().unwrap_or(&0));
        Self {
            policy: policy.to_owned(),
            workload: workload.name.clone(),
            rate,
            offered: records.len(),
            failed: records.iter().filter(|record| !answered(record)).count(),
            ttft_ms: times(&|record| Some(ttft(record))),
            tpot_ms: times(&tpot),
            e2e_ms: times(&|record| {
                Some(if answered(record) { ms(record.end - record.arrived) } else { f64::INFINITY })
            }),
            good: rounded(share(met, records.len())),
            good_per_s: rounded(met as f64 / seconds.max(1e-9)),
            hit: rounded(cached as f64 / prompts.max(1) as f64),
            ceiling: rounded(workload.ceiling),
            most: assigned.iter().copied().max().unwrap_or(0),
            least: assigned.iter().copied().min().unwrap_or(0),
            load_gap: rounded(outcome.load.iter().map(gap).sum::<f64>() / outcome.load.len().max(1) as f64),
            preempted: outcome.engines.iter().map(|done| done.preempted).sum(),
            fairness: rounded(fairness(workload, &goods)),
            leaked: outcome.leaked,
            split: records.iter().filter(|record| record.prefill.is_some()).count(),
            seconds: rounded(seconds),
        }
    }
}

/// Jain's index of the tenants' goodput.
fn fairness(workload: &Workload, goods: &[bool]) -> f64 {
    let mut tenants: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for (request, good) in workload.requests.iter().zip(goods) {
        let (met, all) = tenants.entry(request.tenant).or_default();
        *met += usize::from(*good);
        *all += 1;
    }
    let shares: Vec<f64> = tenants.values().map(|(met, all)| share(*met, *all)).collect();
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 1.0 }
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// Four decimals: what a reader can use, and the same text on every machine.
fn rounded(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Done;
    use crate::workload::{Piece, Request};

    const SECOND: u64 = 1_000_000_000;

    fn outcome(records: Vec<Record>) -> (Workload, Outcome) {
        let request = |id| Request { prompt: vec![Piece { id, tokens: 100 }], ..Request::default() };
        let workload = Workload::new("w", (0..records.len() as u64).map(request).collect(), 16);
        (workload, Outcome { records, engines: vec![Done::default(); 2], ..Outcome::default() })
    }

    fn answered(ttft_s: u64, tpot_ms: u64) -> Record {
        let first = ttft_s * SECOND;
        Record {
            first: Some(first),
            end: first + 10_000_000 * tpot_ms,
            how: End::Answered,
            prompt: 100,
            output: 11,
            attempts: 1,
            ..Record::default()
        }
    }

    #[test]
    fn who_gets_no_token_waits_for_ever_and_is_not_good() {
        let mut records = vec![answered(1, 50); 8];
        records.extend([Record::default(); 2]);
        let (workload, outcome) = outcome(records);
        let summary = Summary::new("p", &workload, 1.0, &Slo::default(), &outcome);
        assert_eq!((summary.failed, summary.good), (2, 0.8));
        assert_eq!(
            (summary.ttft_ms.p50, summary.ttft_ms.p90, summary.ttft_ms.mean),
            (Some(1_000.0), None, Some(1_000.0))
        );
    }

    #[test]
    fn standings_say_how_far_each_is_behind_the_best_of_each_case() {
        let of = |policy: &str, ttft_s| {
            let (workload, outcome) = outcome(vec![answered(ttft_s, 50); 4]);
            Summary::new(policy, &workload, 1.0, &Slo::default(), &outcome)
        };
        let cases = [
            ("one".to_owned(), vec![of("a", 1), of("b", 2)]),
            ("two".to_owned(), vec![of("a", 8), of("b", 2)]),
        ];
        let standings = Standings::new(&cases);
        let lines: Vec<String> = standings
            .table()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines[1], "a 1.00 +0.0 4.00 -100.0 2.00 -50.0 4.00 -100.0");
        assert_eq!(lines[2], "b 2.00 +0.0 1.00 +0.0 1.41 +0.0 2.00 +0.0");
        let markdown = standings.markdown();
        let lines: Vec<&str> = markdown.lines().skip(2).collect();
        assert_eq!(lines[0], "| best | 1.00 s, 100.0 % | 2.00 s, 100.0 % | | |");
        assert_eq!(lines[2], "| b | 2.00 +0.0 | **1.00 +0.0** | 1.41 +0.0 | 2.00 +0.0 |");
    }

    #[test]
    fn good_is_quick_to_begin_and_quick_to_go_on() {
        let (workload, outcome) =
            outcome(vec![answered(1, 50), answered(3, 50), answered(1, 150), answered(2, 100)]);
        let summary = Summary::new("p", &workload, 1.0, &Slo::default(), &outcome);
        assert_eq!((summary.good, summary.tpot_ms.max), (0.5, Some(150.0)));
        assert_eq!((summary.most, summary.least), (4, 0));
    }
}
