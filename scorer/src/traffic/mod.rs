//! What is asked of a pool, simulated ([`crate::lab`]) or real ([`crate::load`]), and what counts as good: one command line
//! and one report for both, so that they can be laid side by side.

mod traces;

pub use traces::{names, read};

use anyhow::{Context, ensure};
use clap::Args;
use std::path::{Path, PathBuf};
use weir_lab::report::{Slo, Summary, csv};
use weir_lab::workload::{Request, retimed};

/// Generated requests, unless told otherwise.
const GENERATED: usize = 8_000;

/// Requests, when they come, and where their figures go.
#[derive(Args, Clone, Debug)]
pub struct Traffic {
    /// A trace or generated workload by name (see `weir lab list`), or a trace file: Mooncake's JSON lines or Azure's CSV.
    #[arg(long, visible_alias = "workload", default_value = "conversation", value_name = "NAME|FILE")]
    pub trace: String,
    /// How much quicker than written the requests come.
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// The first so many requests; 0 is a whole trace, or 8,000 generated ones.
    #[arg(long, default_value_t = 0)]
    pub requests: usize,
    /// Requests a second at speed 1, as a Poisson process, in place of the times that are written.
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// With --rate: how much the gaps vary; 1 is a Poisson process, more comes in bursts (gamma).
    #[arg(long, default_value_t = 1.0, requires = "rate")]
    pub variation: f64,
    /// Goodput: milliseconds to the first token, at most.
    #[arg(long, default_value_t = 2_000.0)]
    pub slo_ttft_ms: f64,
    /// Goodput: milliseconds per further token, at most.
    #[arg(long, default_value_t = 100.0)]
    pub slo_tpot_ms: f64,
    /// Fixes all that is random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the figures as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Traffic {
    /// The requests of the workload that the command line names.
    pub fn read(&self) -> anyhow::Result<Vec<Request>> {
        self.read_of(&self.trace, self.requests)
    }

    /// The first so many of another workload, at these times.
    pub fn read_of(&self, name: &str, requests: usize) -> anyhow::Result<Vec<Request>> {
        above_zero("--speed", self.speed)?;
        let all = read(name, requests, GENERATED, self.seed)?;
        let Some(rate) = self.rate else { return Ok(all) };
        above_zero("--rate", rate)?;
        above_zero("--variation", self.variation)?;
        Ok(retimed(all, rate, self.variation, self.seed))
    }

    /// What counts as good.
    pub fn slo(&self) -> Slo {
        Slo { ttft_ms: self.slo_ttft_ms, tpot_ms: self.slo_tpot_ms }
    }

    /// Writes the files that the command line names.
    pub fn write(&self, summaries: &[Summary]) -> anyhow::Result<()> {
        if let Some(file) = &self.csv {
            write(file, &csv(summaries))?;
        }
        if let Some(file) = &self.json {
            write(file, &(serde_json::to_string_pretty(summaries)? + "\n"))?;
        }
        Ok(())
    }
}

/// Refuses what is no number above 0.
pub fn above_zero(option: &str, value: f64) -> anyhow::Result<()> {
    ensure!(value > 0.0 && value.is_finite(), "{option}: expected a number above 0");
    Ok(())
}

/// Writes a file of results.
pub fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("{}: cannot be written", file.display()))
}
