//! The scorer as gateways see it: over HTTP on a loopback port.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use weir::policy::Demand;
use weir::pool::Ask;
use weir::wire::{self, Event, Reserve, Reserved};
use weir_scorer::scorer::{Config, Scorer, Watch, serve};

const PATIENCE: Duration = Duration::from_secs(10);

struct Running {
    base: String,
    client: Client,
    stop: oneshot::Sender<()>,
    server: JoinHandle<std::io::Result<()>>,
    scorer: Arc<Scorer>,
}

fn addresses(ports: std::ops::Range<u16>) -> Vec<String> {
    ports.map(|port| format!("10.0.0.1:{port}")).collect()
}

fn config(endpoints: &[String], choose: Value) -> Value {
    json!({"pools": [{"name": "a", "models": ["m"], "endpoints": endpoints}], "choose": choose})
}

async fn start(config: &Value) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let config = Config::read(config.to_string().as_bytes()).unwrap();
    let scorer = Arc::new(Scorer::new(&config).unwrap());
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(serve(listener, Arc::clone(&scorer), async {
        let _ = stopped.await;
    }));
    let client = Client::builder().no_proxy().build().unwrap();
    Running { base, client, stop, server, scorer }
}

impl Running {
    async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Response {
        self.client.post(format!("{}{path}", self.base)).body(body).send().await.unwrap()
    }

    async fn reserve(&self, lease: u64, prompt_tokens: u32, blocks: &[u64], events: Vec<Event>) -> Reserved {
        let prompt_units = blocks.len() as u32;
        let demand = Demand { prompt_tokens, prompt_units, stream: true, ..Demand::default() };
        let ask = Reserve { events, ..Reserve::of("a", lease, &Ask { blocks, demand, prompt: None }) };
        let response = self.post(wire::RESERVE_PATH, serde_json::to_string(&ask).unwrap()).await;
        assert_eq!(response.headers()[wire::SCORER], "1");
        assert_eq!(response.status(), StatusCode::OK);
        response.json().await.unwrap()
    }

    async fn report(&self, events: &[Event]) {
        let response = self.post(wire::REPORT_PATH, serde_json::to_string(events).unwrap()).await;
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
    }

    async fn text(&self, path: &str) -> String {
        self.client.get(format!("{}{path}", self.base)).send().await.unwrap().text().await.unwrap()
    }

    /// The first pool's leases, and each endpoint's requests in flight.
    async fn loads(&self) -> (u64, Vec<u64>) {
        let loads: Value = serde_json::from_str(&self.text("/v1/loads").await).unwrap();
        let pool = &loads["pools"][0];
        let endpoints = pool["endpoints"].as_array().unwrap();
        let in_flight = endpoints.iter().map(|endpoint| endpoint["in_flight"].as_u64().unwrap()).collect();
        (pool["leases"].as_u64().unwrap(), in_flight)
    }

    async fn eventually(&self, what: &str, holds: impl Fn(&(u64, Vec<u64>)) -> bool) {
        let wait = async {
            while !holds(&self.loads().await) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "never {what}: {:?}", self.loads().await);
    }
}

fn end(lease: u64) -> Event {
    Event::End { pool: "a".into(), lease, answered: None }
}

#[tokio::test]
async fn a_burst_is_spread_evenly_because_choosing_books() {
    let running = Arc::new(start(&config(&addresses(1..9), json!({}))).await);
    let mut burst = tokio::task::JoinSet::new();
    for lease in 0..64 {
        let running = Arc::clone(&running);
        burst.spawn(async move { running.reserve(lease, 1000, &[], vec![]).await.endpoints });
    }
    for endpoints in burst.join_all().await {
        assert_eq!(endpoints.len(), 3, "one and two fallbacks: {endpoints:?}");
    }
    assert_eq!(running.loads().await, (64, vec![8; 8]));
}

#[tokio::test]
async fn events_move_and_end_leases_with_the_next_call_or_alone() {
    let running = start(&config(&addresses(1..3), json!({}))).await;
    let first = running.reserve(1, 100, &[7, 8], vec![]).await;
    assert_eq!((first.cached_tokens, first.queued_tokens, first.in_flight), (0, 0, 0));
    assert_eq!(first.policy, "least_prefill");
    let second = running.reserve(2, 33, &[7, 8], vec![end(1)]).await;
    assert_eq!(second.endpoints[0], first.endpoints[0], "the prefix is there");
    assert_eq!((second.cached_tokens, second.in_flight), (32, 0), "the event came before the choice");
    let other = second.endpoints[1].clone();
    running.report(&[Event::FirstToken { pool: "a".into(), lease: 2, served: other.clone() }]).await;
    let loads = running.scorer.loads();
    let of = |address: &str| loads[0].endpoints.iter().find(|load| load.address == address).unwrap().clone();
    assert_eq!(
        (of(&other).in_flight, of(&second.endpoints[0]).in_flight),
        (1, 0),
        "moved where it was served"
    );
    running
        .report(&[end(2), end(2), end(99), Event::End { pool: "none".into(), lease: 2, answered: None }])
        .await;
    assert_eq!(running.loads().await, (0, vec![0, 0]));
}

#[tokio::test]
async fn refusals_say_why_and_are_signed() {
    let running = start(&config(&addresses(1..2), json!({}))).await;
    let cases = [
        (
            wire::RESERVE_PATH,
            r#"{"pool":"b","lease":1,"demand":{"prompt_tokens":1,"prompt_units":1},"blocks":""}"#.into(),
            404,
            "no pool is named \"b\"",
        ),
        (wire::RESERVE_PATH, r#"{"pool":"a","lease":"x"}"#.into(), 400, "lease: invalid type"),
        (wire::REPORT_PATH, r#"[{"event":"end","pool":"a","lease":1},{"event":"over"}]"#.into(), 400, "[1]"),
        (wire::REPORT_PATH, " ".repeat((1 << 20) + 1), 413, "larger than 1048576 bytes"),
    ];
    for (path, body, status, why) in cases {
        let response = running.post(path, body).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[wire::SCORER]),
            (status, &"1".parse().unwrap())
        );
        let error: Value = response.json().await.unwrap();
        assert!(error["error"].as_str().unwrap().contains(why), "{error}");
    }
    let metrics = running.text("/metrics").await;
    for (reason, times) in [("unknown_pool", 1), ("unreadable", 2), ("too_large", 1), ("no_endpoint", 0)] {
        let line = format!("weir_scorer_refused_total{{reason=\"{reason}\"}} {times}");
        assert!(metrics.contains(&line), "{line} not in {metrics}");
    }
}

#[tokio::test]
async fn a_lease_that_nobody_ends_ends_by_itself() {
    let running = start(&config(&addresses(1..2), json!({"lease_ms": 50}))).await;
    running.reserve(1, 10, &[], vec![]).await;
    assert_eq!(running.loads().await, (1, vec![1]));
    running.eventually("expired", |loads| *loads == (0, vec![0])).await;
    assert!(running.text("/metrics").await.contains("weir_scorer_leases_expired_total{pool=\"a\"} 1"));
}

#[tokio::test]
async fn a_new_file_changes_endpoints_keeps_load_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scorer.yaml");
    let written = |config: &Value| std::fs::write(&file, config.to_string()).unwrap();
    let before = config(&addresses(1..3), json!({}));
    written(&before);
    let running = start(&before).await;
    let text = std::fs::read(&file).unwrap();
    let watch = Watch::new(&file, text.clone(), Config::read(&text).unwrap());
    tokio::spawn(watch.follow(Arc::clone(&running.scorer), Duration::from_millis(20)));
    running.reserve(1, 10, &[], vec![]).await;
    running.reserve(2, 10, &[], vec![]).await;

    written(&config(&addresses(2..5), json!({})));
    running.eventually("applied", |(leases, in_flight)| *leases == 1 && *in_flight == [1, 0, 0]).await;
    let metrics = running.text("/metrics").await;
    assert!(
        metrics.contains("weir_scorer_endpoint_in_flight{endpoint=\"10.0.0.1:2\",pool=\"a\"} 1"),
        "{metrics}"
    );
    assert!(!metrics.contains("10.0.0.1:1\""), "what left is still there: {metrics}");

    for bad in ["{pools: [", "pools: []", "{pools: [{name: a, models: [], endpoints: [nowhere]}]}"] {
        std::fs::write(&file, bad).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(running.loads().await, (1, vec![1, 0, 0]), "{bad}");
    }
    std::fs::remove_file(&file).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    written(&config(&addresses(2..3), json!({})));
    running.eventually("applied again", |(leases, in_flight)| *leases == 1 && *in_flight == [1]).await;
}

#[tokio::test]
async fn metrics_tell_the_book() {
    let running = start(&config(&addresses(1..2), json!({}))).await;
    running.reserve(1, 100, &[1, 2, 3], vec![]).await;
    let metrics = running.text("/metrics").await;
    let labels = "{endpoint=\"10.0.0.1:1\",pool=\"a\"}";
    for line in [
        "weir_scorer_reservations_total{pool=\"a\"} 1".to_owned(),
        "weir_scorer_leases{pool=\"a\"} 1".to_owned(),
        "weir_scorer_leases_expired_total{pool=\"a\"} 0".to_owned(),
        "weir_scorer_reserve_seconds_count 1".to_owned(),
        format!("weir_scorer_endpoint_in_flight{labels} 1"),
        format!("weir_scorer_endpoint_queued_tokens{labels} 100"),
        format!("weir_scorer_endpoint_index_tokens{labels} 48"),
    ] {
        assert!(metrics.lines().any(|own| own == line), "{line} not in {metrics}");
    }
    assert_eq!(running.text("/healthz").await, "ok");
}

#[tokio::test]
async fn it_stops_when_told_and_takes_no_more() {
    let running = start(&config(&addresses(1..2), json!({}))).await;
    running.reserve(1, 1, &[], vec![]).await;
    running.stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, running.server).await.unwrap().unwrap().unwrap();
    assert!(running.client.get(&running.base).send().await.is_err());
}

#[tokio::test]
async fn an_autoscaler_finds_what_the_documentation_names_in_its_units() {
    let running = start(&config(&addresses(1..3), json!({"prefill_tokens_per_s": 1000}))).await;
    running.reserve(1, 1_000, &[], vec![]).await;
    let signals = weir::policy::Signals { waiting: Some(4), kv_usage: Some(0.4), ..Default::default() };
    for address in addresses(1..3) {
        let at = weir::instant::Instant::from_millis(1);
        running.scorer.hear(&address, &weir::pool::Report { at, signals, ..Default::default() });
    }
    let metrics = running.text("/metrics").await;
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {metrics}")).parse::<f64>().unwrap()
    };
    assert_eq!(value("weir_scorer_queue_requests{pool=\"a\"}"), 1.0);
    assert_eq!(value("weir_scorer_queue_tokens{pool=\"a\"}"), 1_000.0);
    assert_eq!(value("weir_scorer_predicted_ttft_seconds{pool=\"a\"}"), 1.0, "the other endpoint is idle");
    assert_eq!(value("weir_scorer_saturation{pool=\"a\"}"), 0.8, "four of five queued in both engines");
    assert_eq!(value("weir_scorer_serving_endpoints{pool=\"a\"}"), 2.0);
    for llm_d in ["llm_d_epp_average_queue_size", "inference_pool_average_queue_size"] {
        assert_eq!(value(&format!("{llm_d}{{name=\"a\"}}")), 4.0);
    }
    assert_eq!(value("inference_pool_ready_pods{name=\"a\"}"), 2.0);
    assert_eq!(value("llm_d_epp_scheduler_e2e_duration_seconds_count"), 1.0);

    assert_eq!(value("weir_scorer_first_tokens_total{outcome=\"in_time\",pool=\"a\"}"), 0.0);
    running
        .report(&[Event::FirstToken { pool: "a".into(), lease: 1, served: addresses(1..2)[0].clone() }])
        .await;

    for address in addresses(1..3) {
        let outcome = weir::breaker::Outcome::of_status(429, Some(Duration::from_secs(20)));
        running.report(&[Event::Attempted { pool: "a".into(), lease: 1, endpoint: address, outcome }]).await;
    }
    let demand = Demand { prompt_tokens: 70, stream: true, ..Demand::default() };
    let ask =
        serde_json::to_string(&Reserve::of("a", 2, &Ask { blocks: &[], demand, prompt: None })).unwrap();
    let refused: Reserved = running.post(wire::RESERVE_PATH, ask).await.json().await.unwrap();
    assert_eq!(refused.shut.unwrap().status, 429);
    let metrics = running.text("/metrics").await;
    for line in [
        "weir_scorer_turned_away_total{pool=\"a\",reason=\"busy\"} 1",
        "weir_scorer_turned_away_total{pool=\"a\",reason=\"full\"} 0",
        "weir_scorer_turned_away_tokens_total{pool=\"a\"} 70",
        "weir_scorer_saturation{pool=\"a\"} 1",
        "weir_scorer_first_tokens_total{outcome=\"in_time\",pool=\"a\"} 1",
        "weir_scorer_first_tokens_total{outcome=\"late\",pool=\"a\"} 0",
        "weir_scorer_serving_endpoints{pool=\"a\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert!(!metrics.contains("predicted_ttft_seconds{"), "nothing can be said of it");

    // What is written about has to be there, and what is shown to be readable.
    let page = include_str!("../../docs/autoscaling.md");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for name in page.split(|c| !is_name(c)).filter(|word| word.starts_with("weir_scorer_")) {
        assert!(metrics.contains(&format!("# TYPE {name} ")) || name.contains("predicted_ttft"), "{name}");
    }
    for block in page.split("```yaml\n").skip(1) {
        let yaml: Value = serde_yaml_ng::from_str(block.split("```").next().unwrap()).unwrap();
        assert!(yaml.is_object());
    }
}
