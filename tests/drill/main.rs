//! `./build.sh drill`: what clients notice while endpoints, and the scorer, fail in every way.
#![allow(clippy::disallowed_methods, clippy::indexing_slicing, reason = "a native program on the test rig")]

mod drill;

use anyhow::{Context, Result};
use clap::Parser;
use drill::{Pace, run, table};
use std::path::PathBuf;
use std::time::Duration;

/// The failure drill.
#[derive(Parser, Debug)]
struct Options {
    /// Seconds for which each fault is in force.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Requests per second.
    #[arg(long, default_value_t = 40.0)]
    rate: f64,
    /// Milliseconds of the breaker's cooldown.
    #[arg(long, default_value_t = 5_000)]
    trip_duration_ms: u64,
    /// A file whose part between `<!-- drill -->` and `<!-- /drill -->` becomes the table.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let pace = Pace {
        lasts: Duration::from_secs_f64(options.seconds),
        rate: options.rate,
        trip_duration: Duration::from_millis(options.trip_duration_ms),
    };
    let rows = run(pace, |row| eprintln!("{row:?}")).await?;
    let table = table(&rows);
    println!("{table}");
    if let Some(out) = options.out {
        let text = std::fs::read_to_string(&out)?;
        let (before, rest) = text.split_once("<!-- drill -->").context("no <!-- drill -->")?;
        let (_, after) = rest.split_once("<!-- /drill -->").context("no <!-- /drill -->")?;
        std::fs::write(&out, format!("{before}<!-- drill -->\n{table}<!-- /drill -->{after}"))?;
    }
    Ok(())
}
