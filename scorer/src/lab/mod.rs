//! `weir lab`: reads traces, runs contenders on all cores, prints what users would have seen.
//!
//! The lab itself is pure ([`weir_lab`]); files, threads and progress are here.

mod calibrate;
mod jobs;
mod paper;

use crate::traffic::{Traffic, above_zero, names, write};
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_lab::engine::{Spec, read_specs, specs};
use weir_lab::report::{Standings, curves, goodput, knees, table};
use weir_lab::routing::{Role, Routing, Share};
use weir_lab::run::{Change, Setup, Transfer};
use weir_lab::suite::{self, Contender, SUITE, contenders, splitters};
use weir_lab::workload::Workload;

/// What to do in the lab.
#[derive(Debug, Subcommand)]
pub enum Lab {
    /// Run one policy.
    Run {
        /// The policy: a name, or JSON with its parameters.
        #[arg(long, default_value = "least_prefill")]
        policy: String,
        /// The pool, the routers and the requests.
        #[command(flatten)]
        bench: Bench,
    },
    /// Run several policies on the same requests.
    Compare {
        /// A policy: a name, JSON with its parameters, or LABEL=JSON. Several may be given; without any, all that there are.
        #[arg(long = "policy")]
        policies: Vec<String>,
        /// All workloads of the suite in place of one.
        #[arg(long, conflicts_with = "trace")]
        suite: bool,
        /// A suite of one's own: JSON or YAML, a list of `workload`, `engine`, `speed` and `requests`.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "suite"])]
        cases: Option<PathBuf>,
        /// A Markdown file whose part between `<!-- suite -->` and `<!-- /suite -->` becomes the standings of several workloads.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// The pool, the routers and the requests.
        #[command(flatten)]
        bench: Bench,
    },
    /// Run several policies at several speeds, to see where each one's knee is.
    Sweep {
        /// As in compare.
        #[arg(long = "policy")]
        policies: Vec<String>,
        /// Speeds, in place of one.
        #[arg(long, value_delimiter = ',', default_value = "0.6,0.8,1.0,1.2,1.4,1.6")]
        speeds: Vec<f64>,
        /// A picture of goodput over the speed.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// The pool, the routers and the requests.
        #[command(flatten)]
        bench: Bench,
    },
    /// Intelligent Router's experiment: its table, and ours beside it.
    Paper(paper::Paper),
    /// Train the router that learns, for that experiment.
    Train(paper::Train),
    /// Make an engine for the lab from what `weir load --log` measured of a real one.
    Calibrate(calibrate::Calibrate),
    /// List traces, generated workloads and engines.
    List,
}

/// The pool, the routers and the requests of a run.
#[derive(Args, Debug)]
pub struct Bench {
    /// The requests.
    #[command(flatten)]
    traffic: Traffic,
    /// Endpoints.
    #[arg(long, default_value_t = 8)]
    endpoints: usize,
    /// The engine, by its name in `--engines` or in the lab's own list.
    #[arg(long)]
    engine: Option<String>,
    /// A file of engines, as lab/engines.json.
    #[arg(long, value_name = "FILE")]
    engines: Option<PathBuf>,
    /// Speeds of single endpoints, the first ones: 1 is as specified.
    #[arg(long, value_delimiter = ',', value_name = "SPEED,…")]
    engine_speeds: Vec<f64>,
    /// The first so many endpoints compute prompts for the others, where the policy has it so.
    #[arg(long, default_value_t = 0)]
    prefillers: usize,
    /// Milliseconds until the KV of a prompt is with the endpoint that answers, whatever its length.
    #[arg(long, default_value_t = Transfer::default().ms)]
    kv_ms: f64,
    /// Microseconds more for each token.
    #[arg(long, default_value_t = Transfer::default().us_per_token)]
    kv_us_per_token: f64,
    /// An endpoint that dies: its place from 0, and the second.
    #[arg(long, value_name = "PLACE@SECOND", value_parser = moment)]
    kill: Vec<(usize, f64)>,
    /// A dead endpoint that starts, with an empty cache.
    #[arg(long, value_name = "PLACE@SECOND", value_parser = moment)]
    start: Vec<(usize, f64)>,
    /// The routers as JSON, or a file of it: what the options below do not reach.
    #[arg(long, value_name = "JSON|FILE")]
    routing: Option<String>,
    /// Proxies.
    #[arg(long)]
    proxies: Option<u32>,
    /// What proxies tell each other.
    #[arg(long)]
    share: Option<Sharing>,
    /// Milliseconds between two looks at an engine's metrics; 0 is never.
    #[arg(long)]
    metrics_ms: Option<f64>,
    /// Milliseconds until a report is heard.
    #[arg(long)]
    report_ms: Option<f64>,
    /// The share of reports that are lost.
    #[arg(long)]
    lost: Option<f64>,
}

/// [`Share`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Sharing {
    /// Nothing.
    Nothing,
    /// Bookings, as workers of one Envoy do.
    Bookings,
    /// Bookings, seen only in a picture taken every --metrics-ms.
    Pictures,
    /// One book, the scorer's.
    Book,
}

/// The engine, unless told otherwise.
const DEFAULT_ENGINE: &str = "h100-llama3-8b";

/// Runs a command of the lab; what is to be printed goes through `say`.
pub fn run(lab: Lab, say: &dyn Fn(&str)) -> anyhow::Result<()> {
    match lab {
        Lab::List => {
            names().iter().for_each(|(name, about)| say(&format!("{name:<16} {about}")));
            say("");
            specs()?.iter().for_each(|(name, spec)| say(&format!("{name:<16} {}", spec.source)));
            Ok(())
        }
        Lab::Calibrate(options) => calibrate::calibrate(&options, say),
        Lab::Paper(options) => paper::paper(&options, say),
        Lab::Train(options) => paper::learn(&options),
        Lab::Run { policy, bench } => compare(&[policy], &[bench.only()?], &bench, None, say),
        Lab::Compare { policies, suite, cases, out, bench } => {
            let cases = match (&cases, suite) {
                (Some(file), _) => bench.all(&read_cases(file)?)?,
                (None, true) => bench.all(SUITE)?,
                (None, false) => vec![bench.only()?],
            };
            ensure!(out.is_none() || cases.len() > 1, "--out: one workload has no standings");
            compare(&policies, &cases, &bench, out.as_deref(), say)
        }
        Lab::Sweep { policies, speeds, svg, bench } => {
            ensure!(speeds.iter().all(|speed| *speed > 0.0), "--speeds: expected numbers above 0");
            let only = bench.only()?;
            let workload = only.workload.clone();
            let cases: Vec<Case> = speeds.iter().map(|speed| Case { rate: *speed, ..only.clone() }).collect();
            let summaries = jobs::run(&bench.contenders(&policies)?, &cases, &bench)?;
            for (speed, of) in speeds.iter().zip(&summaries) {
                say(&format!("\n{} at speed {speed}", workload.name));
                say(table(of).trim_end());
            }
            let summaries = summaries.concat();
            say(&format!("\n{}", knees(&summaries).trim_end()));
            if let Some(file) = &svg {
                let title = format!("Goodput, {}", workload.name);
                let all = goodput(&summaries);
                write(file, &curves(&title, "speed", "share of requests within the SLO", &all))?;
            }
            bench.traffic.write(&summaries)
        }
    }
}

/// Requests, how quickly they come, and the engines.
#[derive(Clone, Debug)]
struct Case {
    workload: Arc<Workload>,
    rate: f64,
    engine: (String, Arc<Spec>),
}

fn compare(
    policies: &[String],
    cases: &[Case],
    bench: &Bench,
    out: Option<&Path>,
    say: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let summaries = jobs::run(&bench.contenders(policies)?, cases, bench)?;
    for (Case { workload, rate, engine: (engine, _) }, of) in cases.iter().zip(&summaries) {
        let Some(first) = of.first() else { continue };
        say(&format!(
            "{} at speed {rate}: {} requests, {} x {}, hits at most {:.1} %, good is TTFT {} ms and TPOT {} ms",
            workload.name,
            first.offered,
            bench.endpoints,
            engine,
            first.ceiling * 100.0,
            bench.traffic.slo_ttft_ms,
            bench.traffic.slo_tpot_ms
        ));
        say(table(of).trim_end());
        say("");
    }
    if cases.len() > 1 {
        let named = |case: &Case| format!("{} {} x{}", case.workload.name, short(&case.engine.0), case.rate);
        let named: Vec<_> = cases.iter().map(named).zip(summaries.iter().cloned()).collect();
        let standings = Standings::new(&named);
        say(standings.table().trim_end());
        if let Some(file) = out {
            replace_in(file, &standings.markdown())?;
        }
    }
    bench.traffic.write(&summaries.concat())
}

/// Puts a table between the marks of a file.
fn replace_in(file: &Path, table: &str) -> anyhow::Result<()> {
    let name = || file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(name)?;
    let (begin, end) = ("<!-- suite -->\n", "<!-- /suite -->");
    let parts = text.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, after) = parts.with_context(|| format!("{}: no {} … {end}", name(), begin.trim_end()))?;
    write(file, &format!("{before}{begin}{table}{end}{after}"))
}

/// Without the tail of a product of decimals.
fn rounded(speed: f64) -> f64 {
    (speed * 1e6).round() / 1e6
}

/// The GPU of an engine's name.
fn short(engine: &str) -> &str {
    engine.split('-').next().unwrap_or(engine)
}

impl Bench {
    /// Cases, each with its own engine unless the command line names one.
    fn all(&self, cases: &[suite::Case]) -> anyhow::Result<Vec<Case>> {
        let read = |of: &suite::Case| {
            self.case(
                &of.workload,
                self.spec(&of.engine)?,
                rounded(of.speed * self.traffic.speed),
                of.requests,
            )
        };
        cases.iter().map(read).collect()
    }

    /// The one case that the command line names.
    fn only(&self) -> anyhow::Result<Case> {
        let engine = self.spec(DEFAULT_ENGINE)?;
        self.case(&self.traffic.trace, engine, self.traffic.speed, self.traffic.requests)
    }

    fn case(
        &self,
        name: &str,
        engine: (String, Arc<Spec>),
        rate: f64,
        requests: usize,
    ) -> anyhow::Result<Case> {
        above_zero("--speed", rate)?;
        let requests = self.traffic.read_of(name, requests)?;
        Ok(Case { workload: Arc::new(Workload::new(name, requests, engine.1.block_tokens)), rate, engine })
    }

    /// The engine that the command line names, or else this one.
    fn spec(&self, or: &str) -> anyhow::Result<(String, Arc<Spec>)> {
        let mut all = match &self.engines {
            Some(file) => {
                let text = std::fs::read(file).with_context(|| file.display().to_string())?;
                read_specs(&text).with_context(|| file.display().to_string())?
            }
            None => specs()?,
        };
        let name = self.engine.as_deref().unwrap_or(or);
        let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
        let spec = all.remove(name).with_context(|| format!("--engine {name}: expected one of {known}"))?;
        Ok((name.to_owned(), Arc::new(spec)))
    }

    fn routing(&self) -> anyhow::Result<Routing> {
        let mut routing: Routing = match &self.routing {
            Some(given) => weir::invalid::read_value(json_or_file(given)?).context("--routing")?,
            None => Routing::default(),
        };
        routing.proxies = self.proxies.unwrap_or(routing.proxies);
        routing.report_ms = self.report_ms.unwrap_or(routing.report_ms);
        routing.metrics_ms = self.metrics_ms.unwrap_or(routing.metrics_ms);
        routing.lost = self.lost.unwrap_or(routing.lost);
        routing.share = match self.share {
            Some(Sharing::Nothing) => Share::Nothing,
            Some(Sharing::Bookings) => Share::Bookings,
            Some(Sharing::Pictures) => Share::Pictures,
            Some(Sharing::Book) => Share::Book,
            None => routing.share,
        };
        routing.check().context("routing")?;
        Ok(routing)
    }

    /// The policies named, or all.
    fn contenders(&self, policies: &[String]) -> anyhow::Result<Vec<Contender>> {
        let routing = self.routing()?;
        let splitters = splitters(&routing);
        let all = contenders(&routing);
        if policies.is_empty() {
            return Ok(if self.prefillers > 0 { splitters } else { all });
        }
        let contender = |given: &String| {
            if let Some(known) = all.iter().chain(&splitters).find(|contender| contender.name == *given) {
                return Ok(known.clone());
            }
            let (label, policy) = match given.split_once('=') {
                Some((label, policy)) if !label.contains('{') => (label, policy),
                _ => (given.as_str(), given.as_str()),
            };
            let policy = match policy.starts_with('{') {
                true => json_or_file(policy)?,
                false => Value::String(policy.to_owned()),
            };
            weir::policy::Policy::read(&policy).with_context(|| format!("--policy {given}"))?;
            Ok(Contender::new(label, policy, routing.clone()))
        };
        policies.iter().map(contender).collect()
    }

    fn setup(&self, contender: &Contender, case: &Case) -> anyhow::Result<Setup> {
        ensure!(self.endpoints > 0, "--endpoints 0: expected 1 or more");
        let mut setup = Setup::new(&case.engine.1, self.endpoints, contender.routing.clone());
        setup.seed = self.traffic.seed;
        setup.rate = case.rate;
        for (endpoint, speed) in setup.endpoints.iter_mut().zip(&self.engine_speeds) {
            ensure!(*speed > 0.0 && speed.is_finite(), "--engine-speeds {speed}: expected numbers above 0");
            endpoint.speed = *speed;
        }
        ensure!(
            self.prefillers < self.endpoints,
            "--prefillers {}: expected fewer than there are endpoints",
            self.prefillers
        );
        for (at, endpoint) in setup.endpoints.iter_mut().enumerate().filter(|_| self.prefillers > 0) {
            endpoint.role = if at < self.prefillers { Role::Prefill } else { Role::Decode };
        }
        let times = [("--kv-ms", self.kv_ms), ("--kv-us-per-token", self.kv_us_per_token)];
        if let Some((option, time)) = times.iter().find(|(_, time)| !(0.0..1e9).contains(time)) {
            bail!("{option} {time}: expected 0 to 1e9");
        }
        setup.transfer = Transfer { ms: self.kv_ms, us_per_token: self.kv_us_per_token };
        let changes = [(&self.kill, false), (&self.start, true)];
        for (endpoint, second, alive) in changes
            .iter()
            .flat_map(|(list, alive)| list.iter().map(|(place, second)| (*place, *second, *alive)))
        {
            ensure!(endpoint < self.endpoints, "endpoint {endpoint}: there are {}", self.endpoints);
            setup.changes.push(Change { at: (second * 1e9) as u64, endpoint, alive });
        }
        Ok(setup)
    }
}

fn read_cases(file: &Path) -> anyhow::Result<Vec<suite::Case>> {
    let name = file.display().to_string();
    let text = crate::document::bytes_of(file).with_context(|| name.clone())?;
    let value = crate::document::read_one(&text).with_context(|| name.clone())?;
    weir::invalid::read_value(value).context(name)
}

/// What was given, or what is in the file of that name.
pub(crate) fn json_or_file(given: &str) -> anyhow::Result<Value> {
    let text = match given.trim_start().starts_with('{') {
        true => given.as_bytes().to_vec(),
        false => crate::document::bytes_of(Path::new(given)).with_context(|| given.to_owned())?,
    };
    crate::document::read_one(&text).with_context(|| given.to_owned())
}

/// `3@20.5`: a place and a second.
fn moment(given: &str) -> anyhow::Result<(usize, f64)> {
    let Some((place, second)) = given.split_once('@') else { bail!("expected PLACE@SECOND, as 3@20.5") };
    let second: f64 = second.parse()?;
    ensure!((0.0..1e9).contains(&second), "the second is from 0 to 1e9");
    Ok((place.parse()?, second))
}
