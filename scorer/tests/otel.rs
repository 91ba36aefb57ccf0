//! What a collector of OpenTelemetry gets, and that nobody notices one that is dead.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;
use weir::policy::Demand;
use weir::pool::Ask;
use weir::wire::{self, Event, Reserve, Reserved, Went};
use weir_scorer::otel;
use weir_scorer::scorer::{Config, Scorer, serve};

const PATIENCE: Duration = Duration::from_secs(20);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

type Got = Arc<Mutex<Vec<(&'static str, Value)>>>;

/// A collector on a port of its own, and what it has got.
async fn collector() -> (String, Got) {
    let got = Got::default();
    let take = |kind: &'static str, got: &Got| {
        let got = Arc::clone(got);
        post(move |Json(body): Json<Value>| async move {
            got.lock().unwrap().push((kind, body));
            Json(json!({}))
        })
    };
    let router =
        Router::new().route("/v1/traces", take("traces", &got)).route("/v1/metrics", take("metrics", &got));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, got)
}

/// A scorer that exports there, as gateways see it.
async fn scorer(endpoint: &str) -> String {
    let config = json!({
        "pools": [{"name": "a", "models": ["m"], "endpoints": ["10.0.0.1:80"]}],
        "otel": {"endpoint": endpoint, "interval_ms": 100, "timeout_ms": 300},
    });
    let config = Config::read(config.to_string().as_bytes()).unwrap();
    let scorer = Arc::new(Scorer::new(&config).unwrap());
    tokio::spawn(otel::follow(scorer.telemetry().unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, scorer, std::future::pending()));
    url
}

async fn send(url: &str, path: &str, body: String) -> reqwest::Response {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.post(format!("{url}{path}")).body(body).send().await.unwrap()
}

async fn reserve(url: &str, lease: u64, trace: Option<String>) -> Reserved {
    let demand = Demand { prompt_tokens: 700, stream: true, ..Demand::default() };
    let ask = Reserve { trace, ..Reserve::of("a", lease, &Ask { blocks: &[], demand, prompt: None }) };
    send(url, wire::RESERVE_PATH, serde_json::to_string(&ask).unwrap()).await.json().await.unwrap()
}

fn went(lease: u64, model: &str, status: u16, trace: Option<String>) -> Event {
    let usage =
        "status=complete input=700 cached=640 output=9 reasoning=0 ttft_ms=20.000 tpot_ms=30.000 finish=stop";
    let went = Went {
        dialect: "chat".into(),
        model: model.into(),
        status,
        ms: 300.0,
        served: Some("10.0.0.1:80".into()),
        usage: Some(usage.into()),
        trace,
    };
    Event::Went { pool: "a".into(), lease, went: Box::new(went) }
}

/// The attributes of a span or of a data point.
fn attributes(of: &Value) -> Value {
    let pairs = of["attributes"].as_array().unwrap().iter().map(|pair| {
        let value = pair["value"].as_object().unwrap().values().next().unwrap().clone();
        (pair["key"].as_str().unwrap().to_owned(), value)
    });
    Value::Object(pairs.collect())
}

/// Waits for something in what has come.
async fn wait_for<T>(got: &Got, what: &str, find: impl Fn(&[(&'static str, Value)]) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find(&got.lock().unwrap()) {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not come: {:?}", got.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn spans(got: &[(&'static str, Value)]) -> Vec<Value> {
    let spans = got.iter().filter(|(kind, _)| *kind == "traces");
    spans
        .flat_map(|(_, body)| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone())
        .collect()
}

/// The last word on a metric.
fn metric(got: &[(&'static str, Value)], name: &str) -> Option<Value> {
    let metrics = got.iter().rev().find(|(kind, _)| *kind == "metrics")?;
    let all = metrics.1["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array()?;
    all.iter().find(|metric| metric["name"] == name).cloned()
}

#[tokio::test]
async fn a_request_is_a_span_of_the_trace_it_came_with_and_its_choice_one_within() {
    let (collector, got) = collector().await;
    let url = scorer(&collector).await;
    let trace = Some(format!("00-{TRACE}-{PARENT}-01"));
    assert_eq!(reserve(&url, 7, trace.clone()).await.endpoints, ["10.0.0.1:80"]);
    let events = [went(7, "m", 200, trace), Event::End { pool: "a".into(), lease: 7, answered: None }];
    send(&url, wire::REPORT_PATH, serde_json::to_string(&events).unwrap()).await;
    // Of these nobody wants to see anything.
    reserve(&url, 8, Some(format!("00-{TRACE}-{PARENT}-00"))).await;
    reserve(&url, 9, Some("nonsense".into())).await;
    reserve(&url, 10, None).await;

    let all = wait_for(&got, "both spans", |got| Some(spans(got)).filter(|all| all.len() >= 2)).await;
    assert_eq!(all.len(), 2);
    let named = |name: &str| {
        all.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{name}: {all:?}"))
    };
    let (request, choice) = (named("chat m"), named("weir.reserve"));
    assert!(all.iter().all(|span| span["traceId"] == TRACE));
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!(PARENT), &json!(3)));
    assert_eq!(choice["parentSpanId"], request["spanId"]);
    let time = |span: &Value, field: &str| span[field].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(time(request, "endTimeUnixNano") - time(request, "startTimeUnixNano"), 300_000_000);
    assert_eq!(
        attributes(request),
        json!({
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m",
            "gen_ai.response.time_to_first_chunk": 0.02, "gen_ai.response.finish_reasons": {"values": [{"stringValue": "stop"}]},
            "gen_ai.usage.input_tokens": "700", "gen_ai.usage.cache_read.input_tokens": "640",
            "gen_ai.usage.output_tokens": "9", "gen_ai.usage.reasoning.output_tokens": "0",
            "server.address": "10.0.0.1", "server.port": "80", "http.response.status_code": "200", "weir.pool": "a",
        })
    );
    let choice = attributes(choice);
    assert_eq!(
        (&choice["weir.endpoint"], &choice["weir.policy"]),
        (&json!("10.0.0.1:80"), &json!("least_prefill"))
    );
    assert_eq!((&choice["weir.prompt_tokens"], &choice["weir.queued_tokens"]), (&json!("700"), &json!("0")));
}

#[tokio::test]
async fn metrics_have_the_conventions_names_units_buckets_and_attributes_and_no_names_of_clients() {
    let (collector, got) = collector().await;
    let url = scorer(&collector).await;
    let mut events = vec![went(1, "m", 200, None), went(2, "m", 200, None), went(3, "m", 503, None)];
    events.extend((0..50).map(|n| went(10 + n, &format!("made-up-{n}"), 200, None)));
    send(&url, wire::REPORT_PATH, serde_json::to_string(&events).unwrap()).await;
    let points = async |name: &str| -> (Value, Vec<Value>) {
        let found = wait_for(&got, name, |got| metric(got, name)).await;
        let points = found["histogram"]["dataPoints"].as_array().unwrap().clone();
        (found, points)
    };
    let base = json!({"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m", "weir.pool": "a"});
    for (name, unit, first, last, bounds, seconds) in [
        ("gen_ai.server.time_to_first_token", "s", 0.001, 10.0, 16, 0.02),
        ("gen_ai.server.time_per_output_token", "s", 0.01, 2.5, 13, 0.03),
    ] {
        let (metric, points) = points(name).await;
        assert_eq!(
            (&metric["unit"], points.len()),
            (&json!(unit), 2),
            "the pool's model, and all others together"
        );
        let point = points.iter().find(|point| attributes(point) == base).unwrap();
        let edges = point["explicitBounds"].as_array().unwrap();
        assert_eq!((edges.len(), &edges[0], &edges[bounds - 1]), (bounds, &json!(first), &json!(last)));
        assert_eq!(point["bucketCounts"].as_array().unwrap().len(), bounds + 1);
        assert_eq!(point["count"], "3");
        assert!((point["sum"].as_f64().unwrap() - 3.0 * seconds).abs() < 1e-9);
    }
    let (_, durations) = points("gen_ai.server.request.duration").await;
    let failed = durations.iter().find(|point| attributes(point)["error.type"] == "503").unwrap();
    assert_eq!((durations.len(), &failed["count"]), (3, &json!("1")));
    let (metric, tokens) = points("gen_ai.client.token.usage").await;
    assert_eq!((&metric["unit"], tokens.len()), (&json!("{token}"), 4), "input and output");
    let others = tokens.iter().find(|point| attributes(point)["gen_ai.request.model"] == "_OTHER").unwrap();
    assert_eq!(others["count"], "50");
    let all = serde_json::to_string(&got.lock().unwrap().last().unwrap().1).unwrap();
    assert!(!all.contains("made-up"), "{all}");
    assert!(all.contains(r#""key":"service.name","value":{"stringValue":"weir-scorer"}"#), "{all}");
}

#[tokio::test]
async fn a_collector_that_hangs_or_is_not_there_costs_what_did_not_fit_and_nothing_else() {
    // It accepts connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for endpoint in [silent.local_addr().unwrap(), free] {
        let url = scorer(&format!("http://{endpoint}")).await;
        // More than the queue and what is on its way hold.
        let trace = Some(format!("00-{TRACE}-{PARENT}-01"));
        for part in 0..8 {
            let events: Vec<Event> =
                (0..500).map(|n| went(part * 500 + n, "m", 200, trace.clone())).collect();
            let told = send(&url, wire::REPORT_PATH, serde_json::to_string(&events).unwrap()).await;
            assert_eq!(told.status(), 204);
        }
        assert_eq!(reserve(&url, 9_999, trace).await.endpoints, ["10.0.0.1:80"], "it goes on choosing");
        let start = Instant::now();
        let dropped = |metrics: &str| {
            let name = "weir_scorer_otel_total{outcome=\"dropped\"} ";
            metrics.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok()).unwrap_or(0)
        };
        loop {
            let metrics = reqwest::get(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
            if dropped(&metrics) >= 4_000 - 2_048 && !metrics.contains("otel_total{outcome=\"failed\"} 0") {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{metrics}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
