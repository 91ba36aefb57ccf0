//! `weir lab calibrate`: an engine for the lab from what `weir load --log` measured of a real one.

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use weir_lab::engine::{Fit, Point, fit, specs};

/// What was measured, and what to make of it.
#[derive(Args, Debug)]
pub struct Calibrate {
    /// A log of `weir load`, of an engine alone with `--concurrency 1` or so slow a rate that nothing waits.
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// The name of the engine.
    #[arg(long, default_value = "mine")]
    name: String,
    /// What is not measured (memory, batch, chunks) is as that engine's.
    #[arg(long, default_value = super::DEFAULT_ENGINE)]
    like: String,
}

/// Prints a file of engines, as `--engines` takes it.
pub(super) fn calibrate(options: &Calibrate, say: &dyn Fn(&str)) -> anyhow::Result<()> {
    let mut known = specs()?;
    let names = known.keys().cloned().collect::<Vec<_>>().join(", ");
    let like = known
        .remove(&options.like)
        .with_context(|| format!("--like {}: expected one of {names}", options.like))?;
    let lines = crate::load::read_log(&options.log)?;
    let alone = lines.iter().enumerate().filter(|(at, line)| {
        lines
            .iter()
            .enumerate()
            .all(|(other, its)| other == *at || its.end_ms <= line.due_ms || its.due_ms >= line.end_ms)
    });
    let points: Vec<Point> = alone
        .map(|(_, line)| Point {
            prompt: line.prompt,
            cached: line.cached,
            output: line.output,
            ttft_us: (line.first_ms - line.due_ms) * 1_000.0,
            tpot_us: (line.output > 1.0)
                .then(|| (line.end_ms - line.first_ms) * 1_000.0 / (line.output - 1.0)),
        })
        .collect();
    ensure!(!points.is_empty(), "{}: no request was alone: take a slower rate", options.log.display());
    let Fit { spec, ttft_off, tpot_off, ttft_apart } =
        fit(&points, &like).with_context(|| options.log.display().to_string())?;
    say(&serde_json::to_string_pretty(&json!({ options.name.as_str(): spec }))?);
    let percent = |share: f64| share * 100.0;
    log::info!(
        "{} of {} requests were alone; fitted times are off by {:.1} % (TTFT) and {:.1} % (TPOT) in the mean; \
         requests of like length differ by {:.1} % among themselves (TTFT)",
        points.len(),
        lines.len(),
        percent(ttft_off),
        percent(tpot_off),
        percent(ttft_apart)
    );
    Ok(())
}
