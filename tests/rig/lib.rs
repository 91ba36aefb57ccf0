//! Starts the product on loopback ports of its own: a real Envoy with the shipped configuration, the filters as
//! built, engines, and the scorer. Tests, demo and benchmarks stand on it.
//!
//! What runs is what ships: `envoy/envoy.yaml` is read, its addresses are replaced and nothing else, unless a test
//! asks for an edit. Everything started ends when its owner is dropped.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test equipment"
)]

pub mod backend;
mod burst;
mod config;
pub mod measure;
mod process;
pub mod raw;
mod redis;
pub mod trap;

pub use backend::Backend;
pub use burst::{Burst, burst, chosen_by};
pub use config::{
    breaker, filter_config, find_all, lead_cluster, no_breaker, place_pool, shipped, with_opening,
    with_replicas,
};
pub use process::{Process, repository};
pub use raw::Raw;
pub use redis::{Redis, Relay, Way};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use weir_engine::Engine;

/// An edit of Envoy's configuration, before it is started.
pub type Edit = Box<dyn Fn(&mut Value) + Send + Sync>;

/// What to start.
pub struct Setup {
    /// The shipped configuration that Envoy runs.
    pub file: &'static str,
    /// Models that every engine serves besides its pool's.
    pub also: Vec<&'static str>,
    /// Engines in each of the two pools, `small` and `large`.
    pub engines: [usize; 2],
    /// What every engine is like; its models are set by the rig.
    pub engine: weir_engine::Config,
    /// Whether there is a scorer.
    pub scorer: bool,
    /// Whether the filters run as one module instead of several.
    pub chain: bool,
    /// The configuration of `limit`, which is not there without one.
    pub limit: Option<Value>,
    /// Worker threads of Envoy.
    pub workers: usize,
    /// An edit of Envoy's configuration, after the rig's own.
    pub edit: Option<Edit>,
    /// An edit of the scorer's configuration.
    pub edit_scorer: Option<Edit>,
    /// Log level of Envoy.
    pub log_level: &'static str,
    /// Log level of the filters and of the scorer.
    pub own_log_level: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        let engine =
            weir_engine::Config { prefill_ms_per_ktoken: 20.0, decode_ms: 2.0, ..Default::default() };
        Self {
            file: "envoy/envoy.yaml",
            also: Vec::new(),
            engines: [2, 2],
            engine,
            scorer: false,
            chain: false,
            limit: None,
            workers: 2,
            edit: None,
            edit_scorer: None,
            log_level: "warn",
            own_log_level: "info",
        }
    }
}

/// The models of the two pools.
pub const MODELS: [&str; 2] = ["demo-small", "demo-large"];

/// A gateway that runs.
pub struct Gateway {
    /// Where clients go: `http://127.0.0.1:PORT`.
    pub url: String,
    /// Envoy's admin interface.
    pub admin: String,
    /// The engines of both pools.
    pub engines: [Vec<Engine>; 2],
    /// The scorer, where there is one.
    pub scorer: Option<Scorer>,
    /// Envoy.
    pub envoy: Process,
    /// A client that talks HTTP/1.1.
    pub client: reqwest::Client,
    dir: TempDir,
}

/// Another Envoy before the same engines.
pub struct Second {
    /// Where clients go.
    pub url: String,
    /// Envoy's admin interface.
    pub admin: String,
    /// Envoy.
    pub process: Process,
}

/// A scorer that runs.
pub struct Scorer {
    /// Its address.
    pub url: String,
    /// Its configuration.
    pub config: PathBuf,
    /// Its process.
    pub process: Process,
    log: PathBuf,
    log_level: &'static str,
}

impl Scorer {
    /// Starts one of the shipped configuration `file`, with these endpoints of the two pools.
    pub async fn start(
        dir: &Path,
        file: &str,
        addresses: &[Vec<String>; 2],
        edit: Option<&Edit>,
        log_level: &'static str,
    ) -> Result<Self> {
        let port = free_port()?;
        let mut scorer = shipped(file)?;
        scorer["listen"] = format!("127.0.0.1:{port}").into();
        for (pool, addresses) in addresses.iter().enumerate() {
            scorer["pools"][pool]["endpoints"] = addresses.clone().into();
        }
        if let Some(edit) = edit {
            edit(&mut scorer);
        }
        let (config, log) = (dir.join("scorer.json"), dir.join("scorer.log"));
        std::fs::write(&config, serde_json::to_vec_pretty(&scorer)?)?;
        let process = Self::start_process(&config, &log, log_level)?;
        let scorer = Self { url: format!("http://127.0.0.1:{port}"), config, process, log, log_level };
        scorer.answers().await?;
        Ok(scorer)
    }

    async fn answers(&self) -> Result<()> {
        let answers = async || get(&self.url, "/healthz").await.is_ok();
        wait_until("the scorer answers", Duration::from_secs(10), answers).await
    }

    /// What it has written into its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What it knows of its pools.
    pub async fn loads(&self) -> Result<Value> {
        Ok(serde_json::from_str(&get(&self.url, "/v1/loads").await?)?)
    }

    /// Leases out, as it counts them.
    pub async fn leases(&self) -> Result<u64> {
        let loads = self.loads().await?;
        let pools = loads["pools"].as_array().context("pools")?;
        Ok(pools.iter().filter_map(|pool| pool["leases"].as_u64()).sum())
    }

    fn start_process(config: &Path, log: &Path, level: &str) -> Result<Process> {
        let weir = repository().join("dist/weir").display().to_string();
        let command = ["env".into(), format!("RUST_LOG={level}"), weir, "scorer".into(), "--config".into()];
        Process::start(&[&command[..], &[config.display().to_string()]].concat(), log)
    }

    /// Starts it again after [`Process::kill`].
    pub async fn restart(&mut self) -> Result<()> {
        self.process = Self::start_process(&self.config, &self.log, self.log_level)?;
        self.answers().await
    }
}

impl Gateway {
    /// Starts everything and waits until it answers.
    pub async fn start(setup: Setup) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("weir-").tempdir()?;
        let mut engines = [Vec::new(), Vec::new()];
        for ((pool, number), model) in engines.iter_mut().zip(setup.engines).zip(MODELS) {
            for _ in 0..number {
                let models = [model].iter().chain(&setup.also).map(|model| (*model).to_owned()).collect();
                let config = weir_engine::Config { models, ..setup.engine.clone() };
                pool.push(Engine::start(config).await?);
            }
        }
        let addresses =
            [0, 1].map(|pool: usize| engines[pool].iter().map(|e| e.addr.to_string()).collect::<Vec<_>>());
        let scorer = match setup.scorer {
            true => {
                let (edit, level) = (setup.edit_scorer.as_ref(), setup.own_log_level);
                Some(Scorer::start(dir.path(), "envoy/scorer.yaml", &addresses, edit, level).await?)
            }
            false => None,
        };
        let scorer_port = scorer.as_ref().map(|scorer| port_of(&scorer.url));
        let (port, admin_port) = (free_port()?, free_port()?);
        let mut envoy = shipped(setup.file)?;
        if let Some(limit) = &setup.limit {
            config::limit(&mut envoy, shipped("envoy/limit.yaml")?, limit);
        }
        config::place(&mut envoy, &addresses, port, admin_port, scorer_port, &dir.path().join("access.log"));
        if setup.chain {
            config::join(&mut envoy);
        }
        if let Some(edit) = &setup.edit {
            edit(&mut envoy);
        }
        let file = dir.path().join("envoy.json");
        std::fs::write(&file, serde_json::to_vec_pretty(&envoy)?)?;
        let levels = [setup.log_level, setup.own_log_level];
        let (url, admin) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{admin_port}"));
        let envoy = start_envoy(&file, &admin, setup.workers, levels).await?;
        // What is never answered fails one test, and does not hold up the others.
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(180)).build()?;
        Ok(Self { url, admin, engines, scorer, envoy, client, dir })
    }

    /// Starts a second Envoy with the same configuration, before the same engines and the same scorer. It writes into the
    /// same access log.
    pub async fn second(&self) -> Result<Second> {
        let mut envoy: Value = serde_json::from_slice(&std::fs::read(self.dir.path().join("envoy.json"))?)?;
        let (port, admin_port) = (free_port()?, free_port()?);
        envoy["admin"]["address"]["socket_address"]["port_value"] = admin_port.into();
        envoy["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] = port.into();
        let file = self.dir.path().join(format!("envoy-{port}.json"));
        std::fs::write(&file, serde_json::to_vec_pretty(&envoy)?)?;
        let (url, admin) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{admin_port}"));
        let process = start_envoy(&file, &admin, 2, ["warn", "info"]).await?;
        Ok(Second { url, admin, process })
    }

    /// Where this run's configurations and logs are: `envoy.json`, `access.log`, and so on.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Envoy's log so far.
    pub fn envoy_log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("envoy.log")).unwrap_or_default()
    }

    /// The scorer's log so far.
    pub fn scorer_log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("scorer.log")).unwrap_or_default()
    }

    /// The access log so far, a value per line.
    pub fn access_log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The access log line of a request by the id that its answer had.
    pub async fn logged(&self, request_id: &str) -> Result<Value> {
        let find = || self.access_log().into_iter().find(|line| line["request_id"] == request_id);
        wait_until("the access log line", Duration::from_secs(5), async || find().is_some()).await?;
        find().context("gone")
    }

    /// Envoy's counters and gauges.
    pub async fn stats(&self) -> Result<BTreeMap<String, u64>> {
        let text = get(&self.admin, "/stats").await?;
        let stat = |line: &str| {
            line.split_once(": ").and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        };
        Ok(text.lines().filter_map(stat).collect())
    }

    /// One stat of a filter's; zero when it does not exist.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        Ok(self.stats().await?.get(&format!("wasmcustom.{name}")).copied().unwrap_or(0))
    }

    /// Leases out, as `pick` counts them over all workers.
    pub async fn leases(&self) -> Result<u64> {
        let stats = self.stats().await?;
        Ok(stats.iter().filter(|(name, _)| name.contains("weir_pick_leases")).map(|(_, value)| value).sum())
    }

    /// A stat of `breaker`'s, over all pools: `trips_total`, `out`, `probes`, …
    pub async fn breaker(&self, name: &str) -> Result<u64> {
        let name = format!("wasmcustom.weir_breaker_{name};");
        Ok(self.stats().await?.iter().filter(|(own, _)| own.starts_with(&name)).map(|(_, value)| value).sum())
    }

    /// Leases out, as the scorer counts them.
    pub async fn scorer_leases(&self) -> Result<u64> {
        self.scorer.as_ref().context("there is no scorer")?.leases().await
    }

    /// Requests in the engines, running or waiting.
    pub fn in_engines(&self) -> usize {
        self.engines
            .iter()
            .flatten()
            .map(|engine| engine.state())
            .map(|state| state.running + state.waiting)
            .sum()
    }

    /// Waits until nobody holds anything any more: engines, `pick`, scorer; no lease, and no slot of a probe.
    pub async fn quiet(&self, most: Duration) -> Result<()> {
        let quiet = async || {
            let scorer = match &self.scorer {
                Some(_) => self.scorer_leases().await.is_ok_and(|leases| leases == 0),
                None => true,
            };
            let probes = self.breaker("probes").await.is_ok_and(|probes| probes == 0);
            scorer && probes && self.in_engines() == 0 && self.leases().await.is_ok_and(|leases| leases == 0)
        };
        let waited = wait_until("all leases have ended", most, quiet).await;
        let (pick, scorer) = (self.leases().await, self.scorer_leases().await.ok());
        waited.with_context(|| format!("engines {}, pick {pick:?}, scorer {scorer:?}", self.in_engines()))
    }

    /// What the engines of a pool received, each with the place of the engine, in no order.
    pub fn received(&self, pool: usize) -> Vec<(usize, weir_engine::Record)> {
        let engines = self.engines[pool].iter().enumerate();
        engines
            .flat_map(|(place, engine)| engine.requests().into_iter().map(move |record| (place, record)))
            .collect()
    }

    /// Sends a chat request and gives the answer, whatever its status.
    pub async fn chat(&self, body: &Value) -> Result<reqwest::Response> {
        self.chat_at(&self.url, body).await
    }

    /// The same through the gateway at `url`.
    pub async fn chat_at(&self, url: &str, body: &Value) -> Result<reqwest::Response> {
        Ok(self.client.post(format!("{url}/v1/chat/completions")).json(body).send().await?)
    }
}

/// Starts Envoy and waits until it answers. Its log is beside its configuration.
async fn start_envoy(file: &Path, admin: &str, workers: usize, levels: [&str; 2]) -> Result<Process> {
    let command = [
        envoy_binary()?.display().to_string(),
        "-c".into(),
        file.display().to_string(),
        // With hot restart Envoy ends with the thread that started it.
        "--disable-hot-restart".into(),
        "--concurrency".into(),
        workers.to_string(),
        "-l".into(),
        levels[0].into(),
        "--component-log-level".into(),
        format!("wasm:{}", levels[1]),
        "--file-flush-interval-msec".into(),
        "50".into(),
    ];
    let log = file.with_extension("log");
    let mut envoy = Process::start(&command, &log)?;
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let ready =
        async || get(admin, "/ready").await.is_ok_and(|body| body.starts_with("LIVE")) || !envoy.runs();
    wait_until("Envoy is ready", Duration::from_secs(120), ready)
        .await
        .with_context(|| format!("its log: {}", said()))?;
    ensure!(envoy.runs(), "Envoy ended: {}", said());
    Ok(envoy)
}

/// A chat request of one user's message.
pub fn chat(model: &str, content: &str, max_tokens: u32) -> Value {
    serde_json::json!({"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens})
}

/// The id of a request, from its answer.
pub fn request_id(answer: &reqwest::Response) -> String {
    answer.headers()["x-request-id"].to_str().expect("ASCII").to_owned()
}

/// The `key=value` fields of what filters wrote into an access log line: of `facts`, `limit`, `pick` or `usage`.
pub fn fields(line: &Value, of: &str) -> BTreeMap<String, String> {
    let fields = line[of].as_str().unwrap_or_default().split(' ');
    fields
        .filter_map(|field| field.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// GETs a text; an error unless it answers 200.
pub async fn get(url: &str, path: &str) -> Result<String> {
    Ok(reqwest::get(format!("{url}{path}")).await?.error_for_status()?.text().await?)
}

/// Waits until something holds; an error after `most`.
pub async fn wait_until(what: &str, most: Duration, mut holds: impl AsyncFnMut() -> bool) -> Result<()> {
    let holds = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(most, holds).await.with_context(|| format!("waited {most:?} in vain until {what}"))
}

/// A port of loopback that nobody uses at the moment. It is below those that the system gives to outgoing
/// connections: one of them might take it before Envoy does.
pub fn free_port() -> Result<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(101);
    let port = || 20_000 + (start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000) as u16;
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(port).take(1000).find(free).context("no free port")
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL of the rig's")
}

/// Envoy, as `build.sh setup` fetched it, or as `WEIR_ENVOY` names it.
pub fn envoy_binary() -> Result<PathBuf> {
    let path =
        std::env::var_os("WEIR_ENVOY").map_or_else(|| repository().join(".tools/envoy"), PathBuf::from);
    ensure!(path.exists(), "no Envoy at {}: run ./build.sh setup", path.display());
    Ok(path)
}
