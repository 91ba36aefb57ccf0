//! The scraper, from outside: what engines say reaches `/v1/loads` and `/metrics`, and what goes wrong with one is not
//! another's.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "tests")]

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use weir::policy::Demand;
use weir::pool::{Ask, Said};
use weir::wire::Reserve;
use weir_scorer::scorer::{Config, Scorer, Signals, scrape};

/// What an engine says when it is asked.
#[derive(Clone, Debug)]
enum Says {
    Waiting(u32),
    Garbage,
    Error,
    Nothing,
}

#[derive(Clone)]
struct Engine {
    address: String,
    says: Arc<Mutex<Says>>,
    asked: Arc<AtomicUsize>,
    /// Requests out at the same time, and the most that there ever were.
    out: Arc<AtomicUsize>,
    most_out: Arc<AtomicUsize>,
}

impl Engine {
    async fn start(says: Says) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let count = || Arc::new(AtomicUsize::new(0));
        let engine = Self {
            address,
            says: Arc::new(Mutex::new(says)),
            asked: count(),
            out: count(),
            most_out: count(),
        };
        let shared = engine.clone();
        let answer = move || {
            let engine = shared.clone();
            async move { engine.answer().await }
        };
        const MODELS: &str = r#"{"data":[{"id":"base","parent":null},{"id":"lora","parent":"base"}]}"#;
        let router =
            Router::new().route("/metrics", get(answer)).route("/v1/models", get(|| async { MODELS }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        engine
    }

    async fn answer(self) -> Response {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let out = self.out.fetch_add(1, Ordering::Relaxed) + 1;
        let _ends = Ends(Arc::clone(&self.out));
        self.most_out.fetch_max(out, Ordering::Relaxed);
        let says = self.says.lock().unwrap().clone();
        match says {
            Says::Waiting(n) => {
                let text =
                    format!("vllm:num_requests_waiting{{engine=\"0\"}} {n}\nvllm:kv_cache_usage_perc 0.25\n");
                text.into_response()
            }
            Says::Garbage => "<html>".into_response(),
            Says::Error => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Says::Nothing => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                StatusCode::OK.into_response()
            }
        }
    }

    fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }
}

/// A request is over, also when the client has left.
struct Ends(Arc<AtomicUsize>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Running {
    scorer: Arc<Scorer>,
    scraping: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.scraping.abort();
    }
}

fn config(engines: &[&Engine]) -> Config {
    let addresses: Vec<&str> = engines.iter().map(|engine| engine.address.as_str()).collect();
    let text = json!({
        "pools": [{"name": "a", "models": [], "endpoints": addresses}],
        "choose": {"stale_ms": 400},
        "signals": {"interval_ms": 50, "timeout_ms": 100},
    });
    Config::read(text.to_string().as_bytes()).unwrap()
}

fn start(engines: &[&Engine]) -> Running {
    start_with(config(engines))
}

fn start_with(config: Config) -> Running {
    let scorer = Arc::new(Scorer::new(&config).unwrap());
    let signals: Signals = config.signals.unwrap();
    let task = scrape(Arc::clone(&scorer), signals);
    Running { scorer, scraping: tokio::spawn(async move { task.await.unwrap() }) }
}

impl Running {
    fn said(&self, engine: &Engine) -> Option<Said> {
        self.scorer.loads()[0].engines.iter().find(|said| said.address == engine.address).cloned()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..1_000 {
            if is_so(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {what}");
    }
}

#[tokio::test]
async fn what_an_engine_says_is_shown_with_what_was_sent_since() {
    let engine = Engine::start(Says::Waiting(3)).await;
    let running = start(&[&engine]);
    running.until("heard", |running| running.said(&engine).is_some()).await;
    let said = running.said(&engine).unwrap();
    assert_eq!((said.waiting, said.running, said.kv_usage), (Some(3), None, Some(0.25)));
    engine.say(Says::Nothing);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let demand = Demand { prompt_tokens: 10, prompt_units: 1, stream: true, ..Demand::default() };
    running.scorer.reserve(&Reserve::of("a", 1, &Ask { blocks: &[], demand, prompt: None })).unwrap();
    assert_eq!(running.said(&engine).unwrap().sent_since, 1);
    let metrics = running.scorer.metrics().unwrap();
    let labels = format!("{{endpoint=\"{}\",pool=\"a\"}}", engine.address);
    for line in [
        format!("weir_scorer_engine_waiting{labels} 3"),
        format!("weir_scorer_engine_kv_usage{labels} 0.25"),
        format!("weir_scorer_engine_sent_since{labels} 1"),
    ] {
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    assert!(metrics.contains("weir_scorer_engine_age_seconds"));
    assert!(!metrics.contains("weir_scorer_engine_running{"), "unknown is not shown as a number");
}

#[tokio::test]
async fn one_that_hangs_delays_no_other_and_is_asked_once_at_a_time() {
    let (hanging, good) = (Engine::start(Says::Nothing).await, Engine::start(Says::Waiting(1)).await);
    let running = start(&[&hanging, &good]);
    running.until("ten scrapes", |_| good.asked.load(Ordering::Relaxed) > 10).await;
    assert!(running.said(&hanging).is_none());
    assert!(hanging.asked.load(Ordering::Relaxed) < good.asked.load(Ordering::Relaxed));
    // The connection of one that was given up may be noticed late by the engine; a second one is not opened beside it.
    assert!(hanging.most_out.load(Ordering::Relaxed) <= 2);
}

#[tokio::test]
async fn what_an_engine_said_goes_stale_when_it_falls_silent_and_comes_back() {
    for silence in [Says::Nothing, Says::Error, Says::Garbage] {
        let engine = Engine::start(Says::Waiting(7)).await;
        let running = start(&[&engine]);
        running.until("heard", |running| running.said(&engine).is_some()).await;
        engine.say(silence.clone());
        running.until("stale", |running| running.said(&engine).is_none()).await;
        engine.say(Says::Waiting(2));
        running
            .until("back", |running| running.said(&engine).is_some_and(|said| said.waiting == Some(2)))
            .await;
        let outcome = if matches!(silence, Says::Garbage) { "unknown" } else { "failed" };
        let metrics = running.scorer.metrics().unwrap();
        assert!(
            !metrics.contains(&format!("weir_scorer_scrapes_total{{outcome=\"{outcome}\"}} 0")),
            "{metrics}"
        );
    }
}

#[tokio::test]
async fn endpoints_that_join_are_scraped_and_those_that_leave_are_not() {
    let (one, two) = (Engine::start(Says::Waiting(1)).await, Engine::start(Says::Waiting(2)).await);
    let running = start(&[&one]);
    running.until("one", |running| running.said(&one).is_some()).await;
    running.scorer.set_endpoints(&config(&[&two]));
    running.until("two", |running| running.said(&two).is_some()).await;
    let asked = one.asked.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(one.asked.load(Ordering::Relaxed) <= asked + 1, "one under way at the most");
}

#[tokio::test]
async fn adapters_are_known_from_the_list_of_models_where_that_is_asked_for() {
    let (one, two) = (Engine::start(Says::Waiting(1)).await, Engine::start(Says::Nothing).await);
    let mut config = config(&[&one, &two]);
    config.choose.policy = json!("lora_affinity");
    config.signals.as_mut().unwrap().models_path = Some("/v1/models".into());
    let running = start_with(config);
    let mut lease = 0;
    let mut adapter = |name: &str| {
        lease += 1;
        let adapter = Some(weir::wire::name_hash(name));
        let demand = Demand { prompt_tokens: 10, prompt_units: 1, adapter, ..Demand::default() };
        let ask =
            Reserve { explain: true, ..Reserve::of("a", lease, &Ask { blocks: &[], demand, prompt: None }) };
        let why = running.scorer.reserve(&ask).unwrap().why.unwrap();
        let of = |engine: &Engine| {
            let all = why["candidates"].as_array().unwrap().iter();
            let mut its = all.filter(|candidate| candidate["endpoint"] == engine.address);
            its.next().unwrap()["adapter"].clone()
        };
        (of(&one), of(&two))
    };
    running.until("heard", |running| running.said(&one).is_some()).await;
    assert_eq!(adapter("lora"), (json!("resident"), json!(null)), "one that says nothing is unknown");
    assert_eq!(adapter("other"), (json!("absent"), json!(null)));
}
