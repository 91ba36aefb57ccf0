//! `weir-bench reserve`: how long the scorer takes to choose and book, as a gateway on the same machine sees it.
//!
//! Open loop: calls start by the clock, whoever still waits for an answer. At ten thousand a second a timer of a millisecond
//! would send ten calls at once and measure their queue, so the driver spins on a core of its own until the next one is due. A
//! call's time counts from when it is sent, so that a driver that is kept from its core does not count as a slow scorer.
//! Each call carries, as those of `pick` do, what became of an earlier one: so leases begin and end at the same rate.
//! Scorer and driver have a core each; CPU is the scorer's alone.

use crate::side_by_side::http1::Connection;
use crate::side_by_side::process::{LOAD_CORE, PROXY_CORE, Process};
use crate::side_by_side::{machine, report};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::task::{JoinSet, LocalSet, yield_now};
use weir::policy::Demand;
use weir::pool::Ask;
use weir::wire::{self, Event, Reserve};

/// Connections that are ready, as many as an Envoy's workers would hold.
const READY: usize = 16;
/// So many calls later the end of a request is told.
const UNDER_WAY: u64 = 200;
const WARM_UP: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// The markers of the table in a Markdown file.
const MARK: &str = "reserve";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The program weir.
    #[arg(long, default_value = "dist/weir")]
    weir: PathBuf,
    /// Calls a second.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    rates: Vec<u32>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Rounds of each; the table has the median.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value_t = 8)]
    endpoints: u16,
    /// Block hashes in a call.
    #[arg(long, default_value_t = 64)]
    blocks: u64,
    /// Writes the table between the markers `reserve` of this Markdown file too.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The driver, as a process of its own.
#[derive(clap::Args)]
pub(crate) struct Drive {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    rate: u32,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    blocks: u64,
    /// The first lease's number: those of an earlier driver are not used again.
    #[arg(long)]
    first: u64,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.seconds > 0 && options.endpoints > 0, "nothing to measure");
    let scratch = tempdir()?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let endpoints: Vec<String> = (1..=options.endpoints).map(|at| format!("10.0.0.1:{at}")).collect();
    let config = scratch.join("scorer.json");
    let text = serde_json::json!({
        "listen": format!("127.0.0.1:{port}"),
        "pools": [{"name": "bench", "models": ["bench"], "endpoints": endpoints}],
    });
    std::fs::write(&config, text.to_string())?;
    let command = [options.weir.as_os_str(), "scorer".as_ref(), "--config".as_ref(), config.as_os_str()];
    let scorer = Process::start("scorer", PROXY_CORE, &command, &scratch)?;
    let begun = Instant::now();
    while Connection::open(port).await.is_err() {
        scorer.check()?;
        ensure!(begun.elapsed() < PATIENCE, "the scorer does not listen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut table = format!(
        "{}\n\nOne call chooses among {} endpoints and carries {} block hashes and the end of an earlier request.\n\n\
         | calls a second | p50 µs | p99 µs | p99.9 µs | CPU ms per 1000 calls |\n|---|---|---|---|---|\n",
        machine::description(None, false).await?,
        options.endpoints,
        options.blocks
    );
    let mut first = 0;
    for &rate in &options.rates {
        let mut rounds = Vec::new();
        for _ in 0..options.rounds {
            let measured = measure(options, &scorer, port, rate, first).await?;
            eprintln!("{rate} a second: {measured:?}");
            first += u64::from(rate) * (options.seconds + 2 * WARM_UP.as_secs());
            rounds.push(measured);
        }
        let median = |of: fn(&Measured) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let _ = writeln!(
            table,
            "| {rate} | {:.0} | {:.0} | {:.0} | {:.1} |",
            median(|one| one.p50_us),
            median(|one| one.p99_us),
            median(|one| one.p999_us),
            median(|one| one.cpu_ms)
        );
    }
    drop(scorer);
    std::fs::remove_dir_all(&scratch)?;
    println!("{table}");
    if let Some(file) = &options.out {
        report::write_into(file, MARK, &table).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

#[derive(Debug)]
struct Measured {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    cpu_ms: f64,
}

async fn measure(options: &Options, scorer: &Process, port: u16, rate: u32, first: u64) -> Result<Measured> {
    let warm_up = WARM_UP.as_secs();
    drive(options, port, rate, warm_up, first).await?;
    let before = scorer.cpu()?;
    let [p50_us, p99_us, p999_us] =
        drive(options, port, rate, options.seconds, first + u64::from(rate) * 2 * warm_up).await?;
    let calls = f64::from(rate) * options.seconds as f64;
    let cpu_ms = scorer.cpu()?.saturating_sub(before).as_secs_f64() * 1e6 / calls;
    Ok(Measured { p50_us, p99_us, p999_us, cpu_ms })
}

/// Runs the driver to its end.
async fn drive(options: &Options, port: u16, rate: u32, seconds: u64, first: u64) -> Result<[f64; 3]> {
    let output = Command::new("taskset")
        .args(["-c", LOAD_CORE])
        .arg(std::env::current_exe()?)
        .args(["reserve-drive", "--port", &port.to_string(), "--rate", &rate.to_string()])
        .args(["--seconds", &seconds.to_string(), "--first", &first.to_string()])
        .args(["--blocks", &options.blocks.to_string()])
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("the driver's answer")
}

/// The driver: prints three quantiles in microseconds.
pub(crate) async fn driver(options: &Drive) -> Result<()> {
    let wanted = u64::from(options.rate) * options.seconds;
    let took = LocalSet::new().run_until(calls(options, wanted)).await?;
    let us = |quantile| took.value_at_quantile(quantile) as f64 / 1e3;
    println!("{}", serde_json::to_string(&[us(0.5), us(0.99), us(0.999)])?);
    Ok(())
}

async fn calls(options: &Drive, wanted: u64) -> Result<Histogram<u64>> {
    let mut ready = Vec::new();
    for _ in 0..READY {
        ready.push(Connection::open(options.port).await?);
    }
    let idle = Rc::new(RefCell::new(ready));
    let took = Rc::new(RefCell::new(Histogram::<u64>::new(3)?));
    let mut under_way = JoinSet::new();
    let begun = Instant::now();
    for nth in 0..wanted {
        let message = message(options, nth);
        let due = Duration::from_secs_f64(nth as f64 / f64::from(options.rate));
        // At least once, also when it is late: the answers have to be read by somebody.
        loop {
            yield_now().await;
            if begun.elapsed() >= due {
                break;
            }
        }
        let (idle, took, port) = (Rc::clone(&idle), Rc::clone(&took), options.port);
        under_way.spawn_local(async move {
            let begun = Instant::now();
            let connection = idle.borrow_mut().pop();
            let mut connection = match connection {
                Some(connection) => connection,
                None => Connection::open(port).await?,
            };
            connection.send(&message).await?;
            let status = connection.response().await?;
            ensure!(status == 200, "status {status}");
            took.borrow_mut().record(u64::try_from(begun.elapsed().as_nanos())?)?;
            idle.borrow_mut().push(connection);
            Ok(())
        });
        while let Some(done) = under_way.try_join_next() {
            done??;
        }
    }
    let rest = async {
        while let Some(done) = under_way.join_next().await {
            done??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, rest).await.context("the scorer does not keep up")??;
    drop(under_way);
    let took = took.borrow().clone();
    Ok(took)
}

/// One call: a prompt of which half is shared with others, and the end of an earlier request.
fn message(options: &Drive, nth: u64) -> Vec<u8> {
    let lease = options.first + nth;
    let (own, half) = (wire::name_hash(&lease.to_string()), options.blocks / 2);
    let blocks: Vec<u64> = (0..options.blocks)
        .map(|at| if at < half { at * 31 + lease % 64 } else { own.wrapping_add(at) })
        .collect();
    let tokens = u32::try_from(options.blocks * 16).unwrap_or(u32::MAX);
    let demand =
        Demand { prompt_tokens: tokens, prompt_units: tokens / 16, stream: true, ..Demand::default() };
    let events = match lease.checked_sub(UNDER_WAY) {
        Some(lease) => {
            let pool = || "bench".to_owned();
            // Whichever was chosen: an address that is not known changes nothing of that.
            let first = Event::FirstToken { pool: pool(), lease, served: String::new() };
            vec![first, Event::End { pool: pool(), lease, answered: None }]
        }
        None => Vec::new(),
    };
    let ask =
        Reserve { events, ..Reserve::of("bench", lease, &Ask { blocks: &blocks, demand, prompt: None }) };
    let body = serde_json::to_string(&ask).unwrap_or_default();
    let path = wire::RESERVE_PATH;
    format!("POST {path} HTTP/1.1\r\nhost: scorer\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn tempdir() -> Result<PathBuf> {
    let folder: &Path = &std::env::temp_dir();
    let folder = folder.join(format!("weir-reserve-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
