//! `./build.sh reality`: what the lab says of some policies beside what a real gateway did.
#![allow(clippy::indexing_slicing, reason = "a native program on the test rig")]

mod reality;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The lab beside reality.
#[derive(Parser, Debug)]
struct Options {
    /// The workload, as in `weir lab`.
    #[arg(long, default_value = "agents")]
    trace: String,
    /// Its first so many requests.
    #[arg(long, default_value = "500")]
    requests: String,
    /// Requests a second.
    #[arg(long, default_value = "12")]
    rate: String,
    /// Engines.
    #[arg(long, default_value_t = 4)]
    engines: usize,
    /// A file whose part between `<!-- reality -->` and `<!-- /reality -->` becomes the table.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn policies() -> [(&'static str, Value); 5] {
    [
        ("round_robin", json!("round_robin")),
        ("least_requests", json!("least_requests")),
        ("prefix_hash", json!("prefix_hash")),
        ("cache_aware (SGLang's)", json!({"cache_aware": {"defaults": "gateway"}})),
        ("least_prefill", json!("least_prefill")),
    ]
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let traffic = ["--trace", &options.trace, "--requests", &options.requests, "--rate", &options.rate];
    let engine = rig::measure::engine();
    let mut table = String::from(
        "| policy, lab / measured | TTFT p50 s | p90 s | p99 s | E2E p50 s | TPOT p50 ms | good % | hit % | most/least | failed |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, policy) in policies() {
        let gateway = reality::gateway(policy.clone(), options.engines, &engine).await?;
        let (_, predicted) =
            reality::predict(gateway.dir(), &policy, options.engines, &engine, &traffic).await?;
        let (said, measured) = reality::measure(&gateway, &traffic).await?;
        eprintln!("{name}\n{said}");
        table += &row(name, &predicted, &measured);
    }
    println!("{table}");
    if let Some(out) = options.out {
        let text = std::fs::read_to_string(&out)?;
        let (before, rest) = text.split_once("<!-- reality -->").context("no <!-- reality -->")?;
        let (_, after) = rest.split_once("<!-- /reality -->").context("no <!-- /reality -->")?;
        std::fs::write(&out, format!("{before}<!-- reality -->\n{table}<!-- /reality -->{after}"))?;
    }
    Ok(())
}

fn row(name: &str, predicted: &Value, measured: &Value) -> String {
    let both = |of: &dyn Fn(&Value) -> String| format!("{} / {}", of(predicted), of(measured));
    let time = |which: &str, quantile: &str, unit: f64, decimals: usize| {
        both(&|figures| match figures[which][quantile].as_f64() {
            Some(ms) => format!("{:.decimals$}", ms / unit),
            None => "never".into(),
        })
    };
    let percent =
        |which: &str| both(&|figures| format!("{:.1}", figures[which].as_f64().unwrap_or_default() * 100.0));
    let cells = [
        time("ttft_ms", "p50", 1_000.0, 2),
        time("ttft_ms", "p90", 1_000.0, 2),
        time("ttft_ms", "p99", 1_000.0, 2),
        time("e2e_ms", "p50", 1_000.0, 2),
        time("tpot_ms", "p50", 1.0, 1),
        percent("good"),
        percent("hit"),
        both(&|figures| format!("{}/{}", figures["most"], figures["least"])),
        both(&|figures| figures["failed"].to_string()),
    ];
    format!("| {name} | {} |\n", cells.join(" | "))
}
