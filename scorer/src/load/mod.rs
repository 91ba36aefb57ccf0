//! `weir load`: sends the lab's traffic to a real gateway, and prints the lab's report of what came back.
//!
//! The loop is open: every request has a time at which it is due, whatever became of the others, and all its times count
//! from then. So a gateway that stalls cannot hide it by slowing the client down, and a client that is late itself is seen
//! to be (`client late`). What follows others inside a task (a turn, a step of an agent) is due a pause after their end.
//! Prompts are real text whose shared beginnings are those of the workload; answers that come back in later prompts are
//! those that the engine gave.

mod answer;
mod drive;
mod measured;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use measured::Measured;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use weir::random::Random;
use weir_lab::report::{Summary, knees, table};
use weir_lab::workload::{Request, Workload, ramped, until};

use crate::traffic::{Traffic, above_zero, write};

/// A gateway, how it is asked, and what for.
#[derive(Args, Debug)]
pub struct Load {
    /// The gateway, as http://HOST:PORT; several are asked in turn, request by request.
    #[arg(long, value_delimiter = ',', required = true, value_name = "URL,…")]
    url: Vec<String>,
    /// The model to ask for.
    #[arg(long)]
    model: String,
    /// What to send.
    #[arg(long, value_enum, default_value = "chat")]
    api: Api,
    /// Names of adapters, asked for in place of the model where a workload asks for its adapters 0, 1, ….
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    adapters: Vec<String>,
    /// A header of every request; several may be given.
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = crate::explain::header)]
    headers: Vec<(String, String)>,
    /// The environment variable that holds a key, to be sent as `authorization: Bearer`.
    #[arg(long, value_name = "VARIABLE")]
    key_env: Option<String>,
    /// A header that names the workload's tenant, as tenant-3.
    #[arg(long, value_name = "NAME")]
    tenant_header: Option<String>,
    /// A header that names the conversation or task, as session-17.
    #[arg(long, value_name = "NAME")]
    session_header: Option<String>,
    /// More fields of every body, as {"ignore_eos": true}.
    #[arg(long, value_name = "JSON|FILE")]
    body: Option<String>,
    /// Several speeds, one after the other, in place of one: to find the knee.
    #[arg(long, value_delimiter = ',', conflicts_with = "speed")]
    speeds: Vec<f64>,
    /// Seconds in which requests begin, at each speed.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Seconds over which the rate rises from nothing, in a straight line.
    #[arg(long, value_name = "SECONDS")]
    ramp: Option<f64>,
    /// Requests in flight, at most: one that is due beyond that fails.
    #[arg(long, default_value_t = 1_000)]
    concurrency: usize,
    /// Seconds that a request may take, from when it is due to its last byte.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    timeout: f64,
    /// Seconds that a connection may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    connect_timeout: f64,
    /// The header of the answer that names the endpoint, where the gateway shows it: without it nothing is known of spread.
    #[arg(long, value_name = "NAME", default_value = "x-gateway-destination-endpoint-served")]
    endpoint_header: String,
    /// What the table calls this run.
    #[arg(long, default_value = "measured")]
    label: String,
    /// Write a line of CSV for each request.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The requests.
    #[command(flatten)]
    traffic: Traffic,
}

/// An API of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// How a gateway is asked.
#[derive(Debug)]
struct Target {
    http: reqwest::Client,
    urls: Vec<String>,
    /// Requests sent so far.
    sent: AtomicUsize,
    api: Api,
    model: String,
    adapters: Vec<String>,
    more: Map<String, Value>,
    tenant: Option<HeaderName>,
    session: Option<HeaderName>,
    endpoint: HeaderName,
    concurrency: usize,
    timeout: Duration,
}

/// Sends it all; what is to be printed goes through `say`.
pub fn run(load: &Load, say: &dyn Fn(&str)) -> anyhow::Result<()> {
    let target = Arc::new(load.target()?);
    let speeds = if load.speeds.is_empty() { vec![load.traffic.speed] } else { load.speeds.clone() };
    for speed in &speeds {
        let given = *speed > 0.0 && speed.is_finite();
        ensure!(given || load.speeds.is_empty(), "--speeds: expected numbers above 0");
        above_zero("--speed", *speed)?;
    }
    let requests = load.traffic.read()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut summaries = Vec::new();
    let mut log = measured::LOG_HEAD.to_owned();
    for (speed, step) in speeds.iter().zip(0_u64..) {
        let requests = load.at_speed(&requests, *speed)?;
        ensure!(!requests.is_empty(), "no request is due within --duration");
        // No step finds in the caches what another left there; the same seed sends the same text.
        let salt = Random::new(load.traffic.seed ^ (step << 32)).next();
        let workload = Arc::new(Workload::new(&load.traffic.trace, requests, 16));
        let measured = runtime.block_on(drive::drive(&target, &workload, salt));
        let outcome = measured::outcome(&measured);
        let summary = Summary::new(&load.label, &workload, *speed, &load.traffic.slo(), &outcome);
        say(&format!(
            "{} at speed {speed}: {} requests to {}, hits at most {:.1} %, good is TTFT {} ms and TPOT {} ms",
            workload.name,
            summary.offered,
            load.url.join(", "),
            summary.ceiling * 100.0,
            load.traffic.slo_ttft_ms,
            load.traffic.slo_tpot_ms
        ));
        say(table(std::slice::from_ref(&summary)).trim_end());
        tell(&measured, say);
        measured.iter().zip(0..).for_each(|(one, request)| measured::log(&mut log, *speed, request, one));
        summaries.push(summary);
    }
    if speeds.len() > 1 {
        say(knees(&summaries).trim_end());
    }
    load.traffic.write(&summaries)?;
    if let Some(file) = &load.log {
        write(file, &log)?;
    }
    ensure!(summaries.iter().any(|summary| summary.failed < summary.offered), "no request was answered");
    Ok(())
}

/// What the table has no column for: why requests failed, and whether the client kept its times.
fn tell(measured: &[Measured], say: &dyn Fn(&str)) {
    for (problem, count) in measured::problems(measured) {
        say(&format!("failed: {count} x {problem}"));
    }
    let (p99, max) = measured::lateness(measured);
    say(&format!("client late: p99 {p99:.1} ms, max {max:.1} ms\n"));
}

impl Load {
    /// The requests as they come at a speed.
    fn at_speed(&self, requests: &[Request], speed: f64) -> anyhow::Result<Vec<Request>> {
        let mut requests = requests.to_vec();
        for request in requests.iter_mut().filter(|request| request.after.is_empty()) {
            request.at = (request.at as f64 / speed) as u64;
        }
        if let Some(seconds) = self.ramp {
            above_zero("--ramp", seconds)?;
            requests = ramped(requests, seconds);
        }
        if let Some(seconds) = self.duration {
            above_zero("--duration", seconds)?;
            requests = until(requests, seconds);
        }
        Ok(requests)
    }

    fn target(&self) -> anyhow::Result<Target> {
        for one in &self.url {
            let url = reqwest::Url::parse(one).with_context(|| format!("--url {one}"))?;
            ensure!(url.scheme() == "http", "--url {one}: expected http://, TLS is not spoken");
            ensure!(matches!(url.path(), "" | "/"), "--url {one}: expected no path, --api says it");
        }
        let path = if self.api == Api::Chat { "chat/completions" } else { "completions" };
        ensure!(self.concurrency > 0, "--concurrency 0: expected 1 or more");
        let more = match &self.body {
            Some(given) => match crate::lab::json_or_file(given).context("--body")? {
                Value::Object(more) => more,
                other => bail!("--body: expected an object, got {other}"),
            },
            None => Map::new(),
        };
        let http = reqwest::Client::builder()
            .no_proxy()
            .default_headers(self.headers()?)
            .connect_timeout(seconds("--connect-timeout", self.connect_timeout)?)
            .build()?;
        let name = |option: &str, given: &Option<String>| {
            given.as_ref().map(|name| header(option, name)).transpose()
        };
        Ok(Target {
            http,
            urls: self.url.iter().map(|url| format!("{}/v1/{path}", url.trim_end_matches('/'))).collect(),
            sent: AtomicUsize::new(0),
            api: self.api,
            model: self.model.clone(),
            adapters: self.adapters.clone(),
            more,
            tenant: name("--tenant-header", &self.tenant_header)?,
            session: name("--session-header", &self.session_header)?,
            endpoint: header("--endpoint-header", &self.endpoint_header)?,
            concurrency: self.concurrency,
            timeout: seconds("--timeout", self.timeout)?,
        })
    }

    fn headers(&self) -> anyhow::Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let value =
                HeaderValue::from_str(value).with_context(|| format!("--header {name}: its value"))?;
            headers.append(header("--header", name)?, value);
        }
        if let Some(variable) = &self.key_env {
            let key = std::env::var(variable).with_context(|| format!("--key-env {variable}"))?;
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .with_context(|| format!("--key-env {variable}: not a header's value"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(headers)
    }
}

impl Target {
    /// Where the next request goes.
    fn url(&self) -> &str {
        let turn = self.sent.fetch_add(1, Ordering::Relaxed);
        self.urls.get(turn.checked_rem(self.urls.len()).unwrap_or(0)).map_or("", String::as_str)
    }
}

fn header(option: &str, name: &str) -> anyhow::Result<HeaderName> {
    HeaderName::try_from(name).with_context(|| format!("{option} {name}"))
}

fn seconds(option: &str, seconds: f64) -> anyhow::Result<Duration> {
    above_zero(option, seconds)?;
    Duration::try_from_secs_f64(seconds).with_context(|| format!("{option} {seconds}"))
}

/// A file of requests as `--log` writes it.
pub fn read_log(file: &Path) -> anyhow::Result<Vec<measured::Line>> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
    measured::read(&text).context(name)
}
