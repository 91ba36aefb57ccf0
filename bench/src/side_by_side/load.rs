//! The client: one measurement of one system, printed as a line of JSON.
//!
//! Closed loop (each connection sends its next request when it has its answer) finds the throughput; open loop
//! (requests start by the clock, whoever is still waiting) finds the latency, which a closed loop hides by slowing
//! down with the proxy. In an open loop latency counts from the moment the request is started: the timer's own
//! rounding, up to a millisecond, is not the proxy's, and a late answer delays no other request.

use super::bodies;
use super::http1::Connection;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Longer than any healthy answer, shorter than a reader's patience.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that an open loop has ready at the start, so that it does not measure the handshake.
const READY: usize = 8;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    port: u16,
    /// Bytes in a body.
    #[arg(long)]
    size: usize,
    #[arg(long)]
    requests: usize,
    /// Closed loop with so many connections.
    #[arg(long, conflicts_with = "rate", required_unless_present = "rate")]
    concurrency: Option<usize>,
    /// Open loop with so many requests a second.
    #[arg(long)]
    rate: Option<f64>,
    /// Each request bears one of so many API keys.
    #[arg(long)]
    keys: Option<NonZeroUsize>,
}

/// What a measurement found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) requests: usize,
    pub(crate) seconds: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let requests: Vec<Vec<u8>> = bodies::pool(options.size)?.iter().map(|body| request(body)).collect();
    let Options { port, keys, requests: wanted, .. } = *options;
    let load = Rc::new(Load { port, requests, keys, sent: Cell::new(0), wanted });
    let begun = Instant::now();
    let latencies = match (options.concurrency, options.rate) {
        (Some(concurrency), _) => LocalSet::new().run_until(load.closed(concurrency)).await?,
        (None, rate) => LocalSet::new().run_until(load.open(rate.context("no --rate")?)).await?,
    };
    let seconds = begun.elapsed().as_secs_f64();
    let mut histogram = Histogram::<u64>::new(3)?;
    for latency in &latencies {
        histogram.record(u64::try_from(latency.as_nanos())?)?;
    }
    let ms = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    let measured = Measured { requests: latencies.len(), seconds, p50_ms: ms(0.5), p99_ms: ms(0.99) };
    ensure!(measured.requests == options.requests, "{} of {} sent", measured.requests, options.requests);
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// One request of the smallest size, to learn whether a system serves yet.
pub(crate) async fn probe(port: u16) -> Result<()> {
    let body = bodies::pool(1024)?.pop().context("no body")?;
    let mut connection = Connection::open(port).await?;
    exchange(&mut connection, &request(&body)).await.map(|_| ())
}

struct Load {
    port: u16,
    requests: Vec<Vec<u8>>,
    keys: Option<NonZeroUsize>,
    sent: Cell<usize>,
    wanted: usize,
}

impl Load {
    /// The next request of the pool, until enough were sent; its key at random, so that each measurement meets all of them.
    fn next(&self) -> Option<Cow<'_, [u8]>> {
        let number = self.sent.get();
        self.sent.set(number + 1);
        if number >= self.wanted {
            return None;
        }
        let request = self.requests.get(number % self.requests.len())?;
        let Some(keys) = self.keys else { return Some(request.into()) };
        let key = format!("authorization: Bearer key-{}\r\n", fastrand::usize(..keys.get()));
        let rest = request.strip_prefix(LINE.as_bytes())?;
        Some([LINE.as_bytes(), key.as_bytes(), rest].concat().into())
    }

    async fn closed(self: Rc<Self>, concurrency: usize) -> Result<Vec<Duration>> {
        let mut connections = JoinSet::new();
        for _ in 0..concurrency {
            let load = Rc::clone(&self);
            connections.spawn_local(async move {
                let mut connection = Connection::open(load.port).await?;
                let mut latencies = Vec::new();
                while let Some(request) = load.next() {
                    latencies.push(exchange(&mut connection, &request).await?);
                }
                anyhow::Ok(latencies)
            });
        }
        let mut all = Vec::new();
        while let Some(latencies) = connections.join_next().await {
            all.extend(latencies??);
        }
        Ok(all)
    }

    async fn open(self: Rc<Self>, rate: f64) -> Result<Vec<Duration>> {
        let idle = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..READY {
            let connection = Connection::open(self.port).await?;
            idle.borrow_mut().push(connection);
        }
        let mut ticks = interval(Duration::from_secs_f64(1.0 / rate));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut exchanges = JoinSet::new();
        for _ in 0..self.wanted {
            ticks.tick().await;
            let (load, idle) = (Rc::clone(&self), Rc::clone(&idle));
            exchanges.spawn_local(async move {
                let begun = Instant::now();
                let ready = idle.borrow_mut().pop();
                let mut connection = match ready {
                    Some(connection) => connection,
                    None => Connection::open(load.port).await?,
                };
                exchange(&mut connection, &load.next().context("no request")?).await?;
                idle.borrow_mut().push(connection);
                anyhow::Ok(begun.elapsed())
            });
        }
        let mut all = Vec::new();
        while let Some(latency) = exchanges.join_next().await {
            all.push(latency??);
        }
        Ok(all)
    }
}

async fn exchange(connection: &mut Connection, request: &[u8]) -> Result<Duration> {
    let begun = Instant::now();
    let status = timeout(PATIENCE, async {
        connection.send(request).await?;
        connection.response().await
    })
    .await
    .context("no answer")??;
    ensure!(status == 200, "status {status}");
    Ok(begun.elapsed())
}

const LINE: &str = "POST /v1/chat/completions HTTP/1.1\r\n";

fn request(body: &str) -> Vec<u8> {
    format!(
        "{LINE}host: 127.0.0.1\r\nuser-agent: weir-bench\r\naccept: */*\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
