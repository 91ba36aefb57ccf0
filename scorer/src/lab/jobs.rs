//! Runs on all cores, with progress on standard error. The result does not depend on how many cores there are.

use super::{Bench, Case};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use weir_lab::report::Summary;
use weir_lab::run::run as run_one;
use weir_lab::suite::Contender;

/// Every contender in every case: for each case the summaries in the order of the contenders.
pub(super) fn run(
    contenders: &[Contender],
    cases: &[Case],
    bench: &Bench,
) -> anyhow::Result<Vec<Vec<Summary>>> {
    let jobs: Vec<(usize, &Case, &Contender)> = cases
        .iter()
        .flat_map(|case| contenders.iter().map(move |contender| (case, contender)))
        .enumerate()
        .map(|(at, (case, contender))| (at, case, contender))
        .collect();
    let all: usize = jobs.iter().map(|(_, case, _)| case.workload.requests.len()).sum();
    let (next, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let done: Mutex<Vec<(usize, anyhow::Result<Summary>)>> = Mutex::default();
    let shown = std::io::stderr().is_terminal();
    let work = || {
        while let Some((at, case, contender)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut told = 0;
            let mut watch = |so_far: usize| {
                let sum = over.fetch_add(so_far - told, Ordering::Relaxed) + so_far - told;
                told = so_far;
                if shown {
                    let _ =
                        write!(std::io::stderr(), "\r{:3} % of {} runs ", sum * 100 / all.max(1), jobs.len());
                }
            };
            let summary = bench.setup(contender, case).and_then(|setup| {
                let outcome = run_one(&setup, &case.workload, &mut watch)?;
                Ok(Summary::new(&contender.name, &case.workload, case.rate, &bench.traffic.slo(), &outcome))
            });
            if !shown {
                let _ = writeln!(std::io::stderr(), "{} on {}: done", contender.name, case.workload.name);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((*at, summary));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(jobs.len()) {
            scope.spawn(work);
        }
    });
    if shown {
        let _ = write!(std::io::stderr(), "\r{:30}\r", "");
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    let summaries = done.into_iter().map(|(_, summary)| summary).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(summaries.chunks(contenders.len().max(1)).map(<[Summary]>::to_vec).collect())
}
