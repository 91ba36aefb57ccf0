//! `weir-modes`: what three proxies with one scorer make of the same traffic when each request asks the scorer, when the scorer
//! keeps telling the proxies and they choose, and when there is no scorer. One after the other, round by round.
#![allow(clippy::indexing_slicing, reason = "a native program on the test rig")]

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rig::measure::{engine, show_endpoints};
use rig::{Edit, Gateway, MODELS, Second, Setup, chat, filter_config, get, repository, wait_until};
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinSet;

const SOON: Duration = Duration::from_secs(30);
/// Requests at once, in a burst.
const BURST: usize = 64;

/// Modes side by side.
#[derive(Parser, Debug)]
struct Options {
    /// The workload, as in `weir lab`.
    #[arg(long, default_value = "agents")]
    trace: String,
    /// Its first so many requests.
    #[arg(long, default_value_t = 300)]
    requests: usize,
    /// Requests a second, through all proxies.
    #[arg(long, default_value = "20")]
    rate: String,
    /// Engines.
    #[arg(long, default_value_t = 8)]
    engines: usize,
    /// Rounds of all modes.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Milliseconds between two calls in mode push.
    #[arg(long, default_value_t = 5)]
    push_ms: u64,
    /// Bursts a round.
    #[arg(long, default_value_t = 4)]
    bursts: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    None,
    Ask,
    Push,
}

/// What one round of one mode came to.
#[derive(Debug, Default)]
struct Figures {
    /// Milliseconds: p50, p90, p99.
    ttft: [f64; 3],
    hit: f64,
    most: f64,
    least: f64,
    failed: f64,
    /// CPU milliseconds per 1,000 requests of the proxies, and of the scorer.
    proxies: f64,
    scorer: f64,
    /// The same per second while nothing happens.
    idle: f64,
    /// The most that an endpoint got of a burst, and the least.
    burst: [f64; 2],
}

struct Run {
    gateway: Gateway,
    others: Vec<Second>,
}

impl Run {
    async fn start(options: &Options, mode: Mode) -> Result<Self> {
        let push_ms = options.push_ms;
        let edit: Edit = Box::new(move |envoy| {
            if mode != Mode::None {
                filter_config(envoy, "pick", |pick| {
                    pick["scorer"]["mode"] = if mode == Mode::Ask { "ask" } else { "push" }.into();
                    pick["scorer"]["push_ms"] = push_ms.into();
                });
            }
            show_endpoints(envoy);
        });
        let engine = engine();
        let setup = Setup {
            engines: [options.engines, 1],
            engine,
            scorer: mode != Mode::None,
            chain: true,
            edit: Some(edit),
            own_log_level: "warn",
            ..Setup::default()
        };
        let gateway = Gateway::start(setup).await?;
        let others = vec![gateway.second().await?, gateway.second().await?];
        let run = Self { gateway, others };
        run.warm(mode).await?;
        Ok(run)
    }

    fn urls(&self) -> Vec<&str> {
        let others = self.others.iter().map(|second| second.url.as_str());
        std::iter::once(self.gateway.url.as_str()).chain(others).collect()
    }

    fn admins(&self) -> impl Iterator<Item = &str> {
        let others = self.others.iter().map(|second| second.admin.as_str());
        std::iter::once(self.gateway.admin.as_str()).chain(others)
    }

    /// Has each worker join, and V8 compile what it will run.
    async fn warm(&self, mode: Mode) -> Result<()> {
        let mut asked = JoinSet::new();
        for n in 0..1_500 {
            let (client, url) = (self.gateway.client.clone(), self.urls()[n % 3].to_owned());
            let body = chat(MODELS[1], &format!("warm {n}"), 1);
            asked.spawn(
                async move { client.post(format!("{url}/v1/chat/completions")).json(&body).send().await },
            );
            if asked.len() >= 24 {
                asked.join_next().await.context("one was sent")???;
            }
        }
        while let Some(answer) = asked.join_next().await {
            answer??;
        }
        if mode == Mode::Push {
            for admin in self.admins() {
                let trusted = async || {
                    let stats = get(admin, "/stats?filter=push_trusted").await;
                    stats.is_ok_and(|text| text.contains("weir_pick_push_trusted: 1"))
                };
                wait_until("the scorer's word is trusted", SOON, trusted).await?;
            }
        }
        Ok(())
    }

    /// CPU milliseconds so far of the proxies and of the scorer.
    fn cpu(&self) -> Result<[f64; 2]> {
        let others = self.others.iter().map(|second| second.process.id());
        let proxies = std::iter::once(self.gateway.envoy.id()).chain(others).map(cpu_ms);
        let proxies = proxies.sum::<Result<f64>>()?;
        let scorer = self.gateway.scorer.as_ref().map_or(Ok(0.0), |scorer| cpu_ms(scorer.process.id()))?;
        Ok([proxies, scorer])
    }

    async fn measure(&self, options: &Options) -> Result<Figures> {
        let before = self.cpu()?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let idle = self.cpu()?;
        let idle = (idle[0] + idle[1] - before[0] - before[1]) / 3.0;
        let before = self.cpu()?;
        let figures = self.load(options).await?;
        let after = self.cpu()?;
        let per = |at: usize| (after[at] - before[at]) * 1_000.0 / options.requests as f64;
        let [proxies, scorer] = [per(0), per(1)];
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let mut burst = [0.0, f64::MAX];
        for nth in 0..options.bursts {
            let each = self.burst(nth).await?;
            let [most, least] = [each.iter().max(), each.iter().min()].map(|n| *n.unwrap_or(&0) as f64);
            burst = [f64::max(burst[0], most), f64::min(burst[1], least)];
        }
        Ok(Figures {
            ttft: ["p50", "p90", "p99"].map(|quantile| number(&figures["ttft_ms"][quantile])),
            hit: number(&figures["hit"]) * 100.0,
            most: number(&figures["most"]),
            least: number(&figures["least"]),
            failed: number(&figures["failed"]),
            proxies,
            scorer,
            idle,
            burst,
        })
    }

    async fn load(&self, options: &Options) -> Result<Value> {
        let json = self.gateway.dir().join("figures.json");
        let (urls, requests) = (self.urls().join(","), options.requests.to_string());
        let arguments = ["load", "--url", &urls, "--model", MODELS[0], "--trace", &options.trace];
        let more = ["--rate", &options.rate, "--requests", &requests, "--json"];
        let output = tokio::process::Command::new(repository().join("dist/weir"))
            .args(arguments)
            .args(more)
            .arg(&json)
            .output()
            .await?;
        ensure!(output.status.success(), "weir load: {}", String::from_utf8_lossy(&output.stderr));
        let figures: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
        Ok(figures.get(0).context("no figures")?.clone())
    }

    /// Requests at once that nobody has seen before: how many each engine gets.
    async fn burst(&self, nth: usize) -> Result<Vec<usize>> {
        self.gateway.quiet(SOON).await?;
        self.gateway.engines[0].iter().for_each(weir_engine::Engine::clear_requests);
        let mut asked = JoinSet::new();
        for n in 0..BURST {
            let (client, url) = (self.gateway.client.clone(), self.urls()[n % 3].to_owned());
            let body = chat(MODELS[0], &format!("{nth} {n} {}", "cold ".repeat(300)), 20);
            asked.spawn(
                async move { client.post(format!("{url}/v1/chat/completions")).json(&body).send().await },
            );
        }
        while let Some(answer) = asked.join_next().await {
            ensure!(answer??.status() == 200, "a request of the burst failed");
        }
        Ok(self.gateway.engines[0].iter().map(|engine| engine.requests().len()).collect())
    }
}

/// CPU milliseconds of a process so far.
fn cpu_ms(pid: u32) -> Result<f64> {
    const TICK_MS: f64 = 10.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|ticks| ticks.parse::<f64>().ok()).context("no times");
    Ok((next()? + next()?) * TICK_MS)
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let modes = [("no scorer", Mode::None), ("ask", Mode::Ask), ("push", Mode::Push)];
    let mut all: Vec<Vec<Figures>> = modes.iter().map(|_| Vec::new()).collect();
    for round in 0..options.rounds {
        for ((name, mode), rounds) in modes.iter().zip(&mut all) {
            let figures = Run::start(&options, *mode).await?.measure(&options).await?;
            eprintln!("round {round}, {name}: {figures:?}");
            rounds.push(figures);
        }
    }
    println!(
        "| mode | TTFT p50 ms | p90 ms | p99 ms | hit % | most/least | failed | CPU ms per 1,000: proxies | scorer | idle, CPU ms a second | {BURST} at once: most/least |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for ((name, _), rounds) in modes.iter().zip(&all) {
        println!("| {name} | {} |", row(rounds));
    }
    Ok(())
}

/// Medians over the rounds; of bursts the worst.
fn row(rounds: &[Figures]) -> String {
    let median = |of: &dyn Fn(&Figures) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let most = rounds.iter().map(|one| one.burst[0]).fold(0.0, f64::max);
    let least = rounds.iter().map(|one| one.burst[1]).fold(f64::MAX, f64::min);
    [
        format!("{:.0}", median(&|one| one.ttft[0])),
        format!("{:.0}", median(&|one| one.ttft[1])),
        format!("{:.0}", median(&|one| one.ttft[2])),
        format!("{:.1}", median(&|one| one.hit)),
        format!("{:.0}/{:.0}", median(&|one| one.most), median(&|one| one.least)),
        format!("{:.0}", median(&|one| one.failed)),
        format!("{:.0}", median(&|one| one.proxies)),
        format!("{:.0}", median(&|one| one.scorer)),
        format!("{:.0}", median(&|one| one.idle)),
        format!("{most:.0}/{least:.0}"),
    ]
    .join(" | ")
}
