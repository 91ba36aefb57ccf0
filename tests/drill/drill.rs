//! The failure drill: open-loop load over four endpoints while things fail, one after the other.
//!
//! Requests come at random times, whether earlier ones have been answered or not, as clients do. Each asks for a stream. Of a step
//! count the requests that were sent while its fault was in force:
//!
//! - *lost*: no first token, although an endpoint was well that could have served it;
//! - *broken*: the answer broke off after its first token, when nobody can help any more; or the VM died in which the request was, or was not
//!   loaded anew yet, whether there had been a token or not: nothing that another endpoint might do helps there;
//! - *garbled*: a whole answer with status 200 that says nothing;
//! - attempts per request, as Envoy counts them; time to the first token, beside that of the step without a fault.

use anyhow::{Context, Result, ensure};
use rig::{Edit, Gateway, MODELS, Setup, chat, filter_config, get, trap, wait_until};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weir::random::Random;
use weir_engine::{Config, Engine, Fault, Kind};

/// How long and how hard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Time for which each fault is in force.
    pub(crate) lasts: Duration,
    /// Requests per second.
    pub(crate) rate: f64,
    /// The cooldown of the breaker.
    pub(crate) trip_duration: Duration,
}

/// What came of one step.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) requests: usize,
    pub(crate) lost: usize,
    pub(crate) broken: usize,
    pub(crate) garbled: usize,
    pub(crate) ttft_p50_ms: f64,
    pub(crate) ttft_p99_ms: f64,
    pub(crate) attempts: f64,
    /// From the fault to the moment when the scorer has the endpoint out.
    pub(crate) out_ms: Option<u128>,
    /// From its end to the moment when the endpoint is in again.
    pub(crate) in_ms: Option<u128>,
    /// Nothing is held after the step: no lease, no slot of a probe, no reservation of `limit`'s.
    pub(crate) quiet: bool,
}

/// What came of one request.
#[derive(Debug)]
struct Seen {
    sent: Instant,
    ended: Instant,
    ttft: Option<Duration>,
    whole: bool,
    says_something: bool,
    /// What was there in the place of a stream.
    instead: String,
}

enum Step {
    /// This fault, at the first endpoint.
    One(Fault),
    /// All endpoints die.
    All,
    Scorer,
    /// The filters' VM in one worker dies, and every now and then again in whichever.
    Vm,
    None,
}

/// What a worker has not been heard of for this long is over: a VM that dies takes along what would have ended its leases.
const LEASE: Duration = Duration::from_secs(5);
/// Envoy loads a VM anew at once, unless it has just done so: up to a second later then.
const BETWEEN_VMS: Duration = Duration::from_millis(2_500);
/// Whatever happens, a client hears of its request before that.
const ANSWERED: Duration = Duration::from_secs(60);
/// Instead of a minute, as shipped: a request that a filter held when its VM died ends after that.
const HELD: &str = "2s";
/// What comes to a worker in the moment after its VM's death may find none.
const RELOAD: Duration = Duration::from_millis(500);

fn steps() -> [(&'static str, Step); 12] {
    let one = |kind| Step::One(Fault::new(kind));
    let later = |kind| Step::One(Fault { retry_after_s: Some(2), ..Fault::new(kind) });
    [
        ("nothing", Step::None),
        ("one dies", one(Kind::Die)),
        ("one hangs", one(Kind::Hang)),
        ("one is ten times slower", one(Kind::Slow)),
        ("one answers 503, Retry-After 2", later(Kind::Http503)),
        ("one answers 429, Retry-After 2", later(Kind::Http429)),
        ("one breaks off after 5 tokens", Step::One(Fault::new(Kind::CutStream).after_tokens(5))),
        ("one answers garbage", one(Kind::Garbage)),
        ("all die", Step::All),
        ("the scorer dies", Step::Scorer),
        ("a worker's VM dies", Step::Vm),
        ("nothing any more", Step::None),
    ]
}

/// Runs the drill; `told` hears of each step when it is over.
pub(crate) async fn run(pace: Pace, mut told: impl FnMut(&Row)) -> Result<Vec<Row>> {
    let millis = u64::try_from(pace.trip_duration.as_millis())?;
    let lease_ms = u64::try_from(LEASE.as_millis())?;
    let breaker = move || {
        let mut config = serde_json::to_value(weir::breaker::Config::default()).unwrap_or_default();
        config["rules"][0]["trip_duration_ms"] = millis.into();
        config["rules"][1]["trip_duration_ms"] = millis.into();
        config
    };
    let dir = tempfile::tempdir()?;
    let module = dir.path().join("chain.wasm");
    trap::write_mortal("dist/chain.wasm", &module)?;
    let edit: Edit = Box::new(move |envoy| {
        trap::run_mortal(envoy, "chain.wasm", &module);
        for manager in rig::find_all(envoy, &|value| value["stream_idle_timeout"].is_string()) {
            manager["stream_idle_timeout"] = HELD.into();
        }
        filter_config(envoy, "pick", |pick| {
            pick["choose"]["breaker"] = breaker();
            pick["choose"]["lease_ms"] = lease_ms.into();
        });
        // A request at an endpoint that hangs waits this long, and not five minutes.
        for policy in rig::find_all(envoy, &|value| value["retry_on"].is_string()) {
            policy["per_try_idle_timeout"] = "1s".into();
        }
    });
    let edit_scorer: Edit = Box::new(move |scorer| {
        scorer["choose"]["breaker"] = breaker();
        scorer["choose"]["lease_ms"] = lease_ms.into();
    });
    let limit = json!({"name": "all", "key": ["model"], "windows": [{"tokens": 1_000_000_000, "per_s": 60}]});
    let setup = Setup {
        chain: true,
        limit: Some(json!({"limits": [limit]})),
        engines: [4, 1],
        engine: Config { prefill_ms_per_ktoken: 40.0, decode_ms: 5.0, ..Config::default() },
        scorer: true,
        edit: Some(edit),
        edit_scorer: Some(edit_scorer),
        ..Setup::default()
    };
    let mut gateway = Gateway::start(setup).await?;
    let mut random = Random::new(5);
    let mut rows: Vec<Row> = Vec::new();
    for (what, step) in steps() {
        let row =
            one_step(&mut gateway, what, &step, pace, &mut random).await.with_context(|| what.to_owned())?;
        told(&row);
        rows.push(row);
    }
    Ok(rows)
}

async fn one_step(
    gateway: &mut Gateway,
    what: &'static str,
    step: &Step,
    pace: Pace,
    random: &mut Random,
) -> Result<Row> {
    let logged = gateway.access_log().len();
    let start = Instant::now();
    match step {
        Step::One(fault) => gateway.engines[0][0].fault(fault.clone()),
        Step::All => gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(Kind::Die))),
        Step::Scorer => gateway.scorer.as_mut().context("a scorer")?.process.kill(),
        Step::Vm | Step::None => {}
    }
    let watched = matches!(step, Step::One(_) | Step::All);
    let (mut out_ms, mut requests, mut deaths) = (None, Vec::new(), Vec::new());
    let mut next = start;
    while start.elapsed() < pace.lasts {
        if watched && out_ms.is_none() && out(gateway).await? > 0 {
            out_ms = Some(start.elapsed().as_millis());
        }
        if matches!(step, Step::Vm) && start.elapsed() >= BETWEEN_VMS * deaths.len() as u32 {
            let url = gateway.url.clone();
            deaths.push(tokio::spawn(async move {
                let from = Instant::now();
                trap::end_a_vm(&url).await.map(|()| (from, Instant::now()))
            }));
        }
        while next <= Instant::now() {
            requests.push(tokio::spawn(request(gateway.client.clone(), gateway.url.clone(), random.next())));
            let unit = (random.below(1 << 20) as f64 + 1.0) / f64::from(1 << 20);
            next += Duration::from_secs_f64(-unit.ln() / pace.rate);
        }
        sleep(Duration::from_millis(5)).await;
    }
    let mut seen = Vec::new();
    for request in requests {
        seen.push(request.await?);
    }
    let longest = seen.iter().map(|seen| seen.ended - seen.sent).max().unwrap_or_default();
    ensure!(longest < ANSWERED, "a request hung for {longest:?}");
    let mut died = Vec::new();
    for death in deaths {
        died.push(death.await??);
    }
    let ended = Instant::now();
    match step {
        Step::One(fault) if fault.kind == Kind::Die => revive(gateway, 0..1).await?,
        Step::One(_) => gateway.engines[0][0].fault(Fault::new(Kind::None)),
        Step::All => revive(gateway, 0..4).await?,
        Step::Scorer => gateway.scorer.as_mut().context("a scorer")?.restart().await?,
        Step::Vm => reloaded(gateway, died.len() as u64).await?,
        Step::None => {}
    }
    let log = gateway.access_log().split_off(logged);
    let attempts: u64 = log.iter().filter_map(|line| line["attempts"].as_u64()).sum();
    // Probes are requests, so there must be some.
    let back = async || {
        let _ = request(gateway.client.clone(), gateway.url.clone(), random.next()).await;
        out(gateway).await.is_ok_and(|out| out == 0)
    };
    wait_until("all endpoints are in", Duration::from_secs(90), back).await?;
    let in_ms = out_ms.map(|_| ended.elapsed().as_millis());
    let quiet = gateway.quiet(LEASE + Duration::from_secs(10)).await.is_ok();
    let quiet = quiet && reserves_nothing(gateway).await;
    let vm_died =
        |seen: &Seen| died.iter().any(|(from, to)| seen.sent <= *to + RELOAD && seen.ended >= *from);
    let lost = |seen: &Seen| seen.ttft.is_none() && !vm_died(seen) && !matches!(step, Step::All);
    let broken = |seen: &Seen| !seen.whole && (seen.ttft.is_some() || vm_died(seen));
    let from_start = |at: Instant| at.saturating_duration_since(start).as_millis();
    for seen in seen.iter().filter(|seen| lost(seen)) {
        println!(
            "lost, {what}, from {} to {} ms: {}",
            from_start(seen.sent),
            from_start(seen.ended),
            seen.instead
        );
    }
    for (from, to) in &died {
        println!("a VM died from {} to {} ms", from_start(*from), from_start(*to));
    }
    let mut ttfts: Vec<f64> = seen.iter().filter_map(|seen| Some(seen.ttft?.as_secs_f64() * 1e3)).collect();
    ttfts.sort_by(f64::total_cmp);
    let at = |share: f64| ttfts.get((ttfts.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    Ok(Row {
        what,
        requests: seen.len(),
        lost: seen.iter().filter(|seen| lost(seen)).count(),
        broken: seen.iter().filter(|seen| broken(seen)).count(),
        garbled: seen.iter().filter(|seen| seen.ttft.is_some() && seen.whole && !seen.says_something).count(),
        ttft_p50_ms: at(0.5),
        ttft_p99_ms: at(0.99),
        // What ended a VM was no request to anybody.
        attempts: attempts as f64 / log.len().saturating_sub(died.len()).max(1) as f64,
        out_ms,
        in_ms,
        quiet,
    })
}

/// Endpoints of the first pool that are out, as the scorer has it.
async fn out(gateway: &Gateway) -> Result<usize> {
    let scorer = gateway.scorer.as_ref().context("a scorer")?;
    let loads: Value = serde_json::from_str(&get(&scorer.url, "/v1/loads").await?)?;
    Ok(loads["pools"][0]["out"].as_array().context("out")?.len())
}

/// Whether `limit` has nothing reserved, as it counts itself.
async fn reserves_nothing(gateway: &Gateway) -> bool {
    let nothing = async || {
        let stats = gateway.stats().await.unwrap_or_default();
        let held = ["weir_limit_in_flight;", "weir_limit_reserved_tokens;"];
        let mut held =
            stats.iter().filter(|(name, _)| held.iter().any(|held| name.contains(held))).peekable();
        held.peek().is_some() && held.all(|(_, value)| *value == 0)
    };
    wait_until("nothing is reserved", Duration::from_secs(10), nothing).await.is_ok()
}

/// An error unless so many VMs have been loaded anew: or nothing was drilled.
async fn reloaded(gateway: &Gateway, times: u64) -> Result<()> {
    let count = async || {
        let stats = gateway.stats().await.unwrap_or_default();
        let counts = stats.iter().filter(|(name, _)| name.ends_with("vm_reload_success"));
        counts.map(|(_, count)| count).sum::<u64>() >= times
    };
    wait_until("dead VMs are loaded anew", Duration::from_secs(20), async || {
        let _ = get(&gateway.url, "/v1/models").await;
        count().await
    })
    .await
}

async fn revive(gateway: &mut Gateway, places: std::ops::Range<usize>) -> Result<()> {
    for engine in &mut gateway.engines[0][places] {
        let config = Config {
            port: engine.addr.port(),
            models: vec![MODELS[0].to_owned()],
            prefill_ms_per_ktoken: 40.0,
            decode_ms: 5.0,
            ..Config::default()
        };
        engine.ended().await;
        *engine = Engine::start(config).await?;
    }
    Ok(())
}

async fn request(client: reqwest::Client, url: String, number: u64) -> Seen {
    let mut body = chat(MODELS[0], &format!("{number:016x} {}", "word ".repeat(200)), 16);
    body["stream"] = json!(true);
    let sent = Instant::now();
    let mut seen =
        Seen { sent, ended: sent, ttft: None, whole: false, says_something: false, instead: String::new() };
    read(client, url, &body, &mut seen).await;
    seen.ended = Instant::now();
    seen
}

/// Sends it and notes what comes of it.
async fn read(client: reqwest::Client, url: String, body: &Value, seen: &mut Seen) {
    let mut answer = match client.post(format!("{url}/v1/chat/completions")).json(body).send().await {
        Ok(answer) => answer,
        Err(error) => return seen.instead = format!("{error:?}"),
    };
    if answer.status() != 200 {
        let status = answer.status();
        return seen.instead = format!("{status} {}", answer.text().await.unwrap_or_default());
    }
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => {
                seen.ttft.get_or_insert_with(|| seen.sent.elapsed());
                seen.says_something |= String::from_utf8_lossy(&chunk).contains("\"content\"");
            }
            Ok(None) => {
                seen.whole = true;
                return;
            }
            Err(_) => return,
        }
    }
}

/// The rows as a table in Markdown.
pub(crate) fn table(rows: &[Row]) -> String {
    let base = rows.first().map_or((0.0, 0.0), |row| (row.ttft_p50_ms, row.ttft_p99_ms));
    let ms = |ms: Option<u128>| ms.map_or_else(|| "–".to_owned(), |ms| ms.to_string());
    let added = |own: f64, base: f64| match own.is_finite() {
        true => format!("{:+.1}", own - base),
        false => "–".to_owned(),
    };
    let mut table = String::from(
        "| what fails | requests | lost | broken | garbled | TTFT p50 +ms | p99 +ms | attempts | out after ms | in after ms | left over |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        table += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {:.2} | {} | {} | {} |\n",
            row.what,
            row.requests,
            row.lost,
            row.broken,
            row.garbled,
            added(row.ttft_p50_ms, base.0),
            added(row.ttft_p99_ms, base.1),
            row.attempts,
            ms(row.out_ms),
            ms(row.in_ms),
            if row.quiet { "nothing" } else { "SOMETHING" },
        );
    }
    table
}
