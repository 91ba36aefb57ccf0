//! The run: for each body size some rounds, in each round every system once, in random order.
//!
//! All systems are up all the time and idle while another is measured. A measurement is a warm-up, a closed loop
//! around which the system's CPU time is read, then an open loop. Any response other than 200 ends the run:
//! a proxy that fails fast would look fast.

use super::load::Measured;
use super::machine;
use super::process::LOAD_CORE;
use super::report::{self, Row, Sample};
use super::systems::{self, BASE, Plan, System};
use anyhow::{Context, Result, ensure};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::{env, fs};
use tokio::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The Envoy binary.
    #[arg(long, default_value = "envoy")]
    envoy: PathBuf,
    /// An Envoy of this name with this complete configuration; may be given again. In it {{PORT}}, {{ADMIN_PORT}},
    /// {{BACKEND_1}}, {{BACKEND_2}} and {{SCORER_PORT}} stand for port numbers on 127.0.0.1.
    #[arg(long = "system", value_name = "NAME=FILE", value_parser = named)]
    systems: Vec<(String, PathBuf)>,
    /// The same with Weir's scorer, which listens on {{SCORER_PORT}}; may be given again.
    #[arg(long, value_name = "NAME=FILE", requires = "scorer_command", value_parser = named)]
    weir_scorer_config: Vec<(String, PathBuf)>,
    /// The same without our filters: the scorer is the endpoint picker, which listens on {{PICKER_PORT}}.
    #[arg(long, value_name = "FILE", requires = "scorer_command")]
    weir_picker_config: Option<PathBuf>,
    /// Starts that scorer; {{SCORER_PORT}}, {{BACKEND_1}}, {{BACKEND_2}} and {{PICKER_PORT}} stand for port numbers, the shell's
    /// quoting holds.
    #[arg(long, value_name = "COMMAND", requires = "weir_scorer_config")]
    scorer_command: Option<String>,
    /// Leaves out sglang-router (and its installation).
    #[arg(long)]
    without_sglang: bool,
    /// Leaves out Envoy with an external processor.
    #[arg(long)]
    without_ext_proc: bool,
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// Body sizes in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 128, 1024])]
    sizes: Vec<usize>,
    /// Requests of a closed loop, one number a size.
    #[arg(long, value_delimiter = ',', default_values_t = [2000, 1500, 600, 100])]
    requests: Vec<usize>,
    /// Requests of a warm-up before each measurement.
    #[arg(long, default_value_t = 200)]
    warm_up: usize,
    /// Requests of each system before the first round of a size. A gateway runs for months; V8 compiles wasm anew, and
    /// well, what has run some thousand times, and the CPU time of that is not a request's.
    #[arg(long, default_value_t = 20_000)]
    settle: usize,
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Requests a second in the open loop.
    #[arg(long, default_value_t = 60.0)]
    rate: f64,
    /// Each request bears one of so many API keys, at random; without this none has one. Settle with several times as many
    /// requests, so that all have come.
    #[arg(long)]
    keys: Option<NonZeroUsize>,
    /// Requests of an open loop.
    #[arg(long, default_value_t = 400)]
    open_requests: usize,
    /// Writes the report between the markers `side-by-side` of this Markdown file too.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.rate > 0.0 && options.concurrency > 0, "nothing to measure");
    ensure!(options.sizes.len() == options.requests.len(), "--requests needs one number for each of --sizes");
    let description = machine::description(Some(&options.envoy), !options.without_sglang).await?;
    let sglang = if options.without_sglang { None } else { Some(machine::sglang_router().await?) };
    let plan = Plan {
        envoy: options.envoy.clone(),
        systems: options.systems.clone(),
        weir_scorer: options.weir_scorer_config.clone(),
        weir_picker: options.weir_picker_config.clone(),
        scorer_command: options.scorer_command.clone(),
        sglang,
        ext_proc: !options.without_ext_proc,
    };
    let scratch = env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let tables = measured(options, &plan, &scratch)
        .await
        .with_context(|| format!("configurations and logs are in {}", scratch.display()))?;
    fs::remove_dir_all(&scratch)?;
    let report = format!(
        "Ratios to bare Envoy (`{BASE}`) in the same round: min / median / max. Closed loop with {} connections, open \
         loop with {} requests per second; proxies on one core, client and backends on another; CPU from the closed \
         loop, median, with all processes of a system.\n\n{description}\n{tables}",
        options.concurrency, options.rate
    );
    println!("{report}");
    if let Some(file) = &options.out {
        report::write_into(file, report::MARK, &report).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

async fn measured(options: &Options, plan: &Plan, scratch: &std::path::Path) -> Result<String> {
    let (_backends, systems) = systems::start(plan, scratch).await?;
    let mut tables = String::new();
    for (&kib, &requests) in options.sizes.iter().zip(&options.requests) {
        let mut rows: Vec<Row> =
            systems.iter().map(|system| Row { system: system.name.clone(), samples: Vec::new() }).collect();
        for system in &systems {
            load(options, system.port, kib * 1024, settling(options.settle, kib), &shape(options))
                .await
                .context("settling")?;
        }
        for round in 1..=options.rounds {
            let mut turns: Vec<_> = systems.iter().zip(&mut rows).collect();
            fastrand::shuffle(&mut turns);
            for (system, row) in turns {
                let sample = sample(options, system, kib * 1024, requests)
                    .await
                    .with_context(|| format!("{}, {kib} KiB, round {round}", row.system))?;
                eprintln!(
                    "{kib} KiB, round {round}: {:26} {:6.0} rps, CPU {:.3} s per 1000; open p50 {:.2} p99 {:.2} ms",
                    system.name,
                    sample.rate(),
                    sample.cpu,
                    sample.open.p50_ms,
                    sample.open.p99_ms
                );
                row.samples.push(sample);
            }
        }
        tables.push_str(&report::table(kib, &rows));
    }
    Ok(tables)
}

/// The closed loop's shape, for the client.
fn shape(options: &Options) -> [String; 2] {
    ["--concurrency".to_owned(), options.concurrency.to_string()]
}

/// Large bodies run the loops over their bytes more often, so fewer of them do.
fn settling(requests: usize, kib: usize) -> usize {
    requests.div_ceil(kib.max(1).isqrt())
}

async fn sample(options: &Options, system: &System, size: usize, requests: usize) -> Result<Sample> {
    let concurrency = shape(options);
    let rate = ["--rate", &options.rate.to_string()].map(str::to_owned);
    if options.warm_up > 0 {
        load(options, system.port, size, options.warm_up, &concurrency).await.context("warm-up")?;
    }
    let before = system.cpu()?;
    let closed = load(options, system.port, size, requests, &concurrency).await.context("closed loop")?;
    let cpu = system.cpu()?.saturating_sub(before).as_secs_f64() * 1000.0 / requests as f64;
    let open = load(options, system.port, size, options.open_requests, &rate).await.context("open loop")?;
    Ok(Sample { cpu, closed, open })
}

/// Runs the client, this program's hidden command, to its end.
async fn load(
    options: &Options,
    port: u16,
    size: usize,
    requests: usize,
    shape: &[String],
) -> Result<Measured> {
    let keys = options.keys.map(|keys| ["--keys".to_owned(), keys.to_string()]);
    let output = Command::new("taskset")
        .args(["-c", LOAD_CORE])
        .arg(systems::this_program())
        .args(["load", "--port", &port.to_string(), "--size", &size.to_string()])
        .args(["--requests", &requests.to_string()])
        .args(shape)
        .args(keys.into_iter().flatten())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("the client's answer")
}
