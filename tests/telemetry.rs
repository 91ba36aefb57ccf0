//! A request's trace goes through the gateway to the engine, and the scorer's spans are part of it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use rig::{Gateway, MODELS, Setup, chat, filter_config, find_all};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

type Got = Arc<Mutex<Vec<Bytes>>>;

/// Takes whatever it is sent.
async fn collector() -> (u16, Got) {
    let got = Got::default();
    let take = async |State(got): State<Got>, body: Bytes| {
        got.lock().unwrap().push(body);
    };
    let router = Router::new().fallback(take).with_state(Arc::clone(&got));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (port, got)
}

/// `envoy/tracing.yaml` and what it says belongs to it.
fn tracing(envoy: &mut Value, collector: u16) {
    let text = std::fs::read_to_string(rig::repository().join("envoy/tracing.yaml")).unwrap();
    let shipped: Vec<Value> = serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .collect();
    for own in find_all(envoy, &|value| value["route_config"].is_object()) {
        own["tracing"] = shipped[0]["typed_config"]["tracing"].clone();
    }
    let mut cluster = shipped[1]["resources"][0].clone();
    cluster.as_object_mut().unwrap().remove("@type");
    envoy["static_resources"]["clusters"].as_array_mut().unwrap().push(cluster);
    rig::lead_cluster(envoy, "otel", &format!("127.0.0.1:{collector}"));
}

fn telemetry(envoy: &mut Value) {
    filter_config(envoy, "pick", |pick| pick["scorer"]["telemetry"] = true.into());
}

/// Asks with a trace, and gives the trace that the engine was told of.
async fn ask(gateway: &Gateway) -> String {
    let mut body = chat(MODELS[0], &"word ".repeat(100), 4);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let request = gateway.client.post(format!("{}/v1/chat/completions", gateway.url));
    let request = request.header("traceparent", format!("00-{TRACE}-{PARENT}-01")).json(&body);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.bytes().await.unwrap();
    let received = gateway.received(0);
    let (_, record) = received.last().unwrap();
    record.headers.iter().find(|(name, _)| name == "traceparent").unwrap().1.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_and_the_scorer_see_the_trace_that_the_client_began() {
    let (port, got) = collector().await;
    let edit_scorer = move |scorer: &mut Value| {
        scorer["otel"] = json!({"endpoint": format!("http://127.0.0.1:{port}"), "interval_ms": 200});
    };
    for chain in [false, true] {
        got.lock().unwrap().clear();
        let setup = Setup {
            scorer: true,
            chain,
            edit: Some(Box::new(telemetry)),
            edit_scorer: Some(Box::new(edit_scorer)),
            ..Setup::default()
        };
        let gateway = Gateway::start(setup).await.unwrap();
        assert_eq!(ask(&gateway).await, format!("00-{TRACE}-{PARENT}-01"), "Envoy adds no span of its own");
        let bodies = || -> Vec<Value> {
            got.lock().unwrap().iter().filter_map(|body| serde_json::from_slice(body).ok()).collect()
        };
        let spans = || -> Vec<Value> {
            let of = |body: &Value| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().cloned();
            bodies().iter().filter_map(of).flatten().collect()
        };
        let metrics = || bodies().into_iter().rev().find(|body| body["resourceMetrics"].is_array());
        let come = async || spans().len() >= 2 && metrics().is_some();
        rig::wait_until("spans and metrics", Duration::from_secs(20), come).await.unwrap();
        let spans = spans();
        let request = spans.iter().find(|span| span["name"] == format!("chat {}", MODELS[0])).unwrap();
        let choice = spans.iter().find(|span| span["name"] == "weir.reserve").unwrap();
        assert_eq!((&request["traceId"], &request["parentSpanId"]), (&json!(TRACE), &json!(PARENT)));
        assert_eq!((&choice["traceId"], &choice["parentSpanId"]), (&json!(TRACE), &request["spanId"]));
        let text = request.to_string();
        for attribute in
            ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "time_to_first_chunk", "server.port"]
        {
            assert!(text.contains(attribute), "{attribute}: {text}");
        }
        let metrics = metrics().unwrap().to_string();
        for name in [
            "server.request.duration",
            "server.time_to_first_token",
            "server.time_per_output_token",
            "client.token.usage",
        ] {
            assert!(metrics.contains(&format!("\"gen_ai.{name}\"")), "{name}: {metrics}");
        }
        gateway.quiet(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn envoys_own_span_stands_between_the_client_and_the_engine_and_has_what_the_filters_found() {
    let (port, got) = collector().await;
    let edit = move |envoy: &mut Value| tracing(envoy, port);
    let gateway = Gateway::start(Setup { edit: Some(Box::new(edit)), ..Setup::default() }).await.unwrap();
    let at_engine = ask(&gateway).await;
    let fields: Vec<&str> = at_engine.split('-').collect();
    assert_eq!((fields[1], fields[3]), (TRACE, "01"), "the same trace");
    assert_ne!(fields[2], PARENT, "and a span of Envoy's in it");
    let trace: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&TRACE[2 * at..2 * at + 2], 16).unwrap()).collect();
    let has = |body: &[u8], part: &[u8]| body.windows(part.len()).any(|window| window == part);
    let come = async || got.lock().unwrap().iter().any(|body| has(body, &trace));
    rig::wait_until("Envoy's span", Duration::from_secs(20), come).await.unwrap();
    let bodies = got.lock().unwrap().clone();
    let span = bodies.iter().find(|body| has(body, &trace)).unwrap();
    // And its histograms have the conventions' bounds.
    let stats = rig::get(&gateway.admin, "/stats/prometheus").await.unwrap();
    for bound in [
        "weir_ttft_ms_bucket{model=\"demo-small\",le=\"7500\"}",
        "weir_tpot_us_bucket{model=\"demo-small\",le=\"25000\"}",
    ] {
        assert!(stats.contains(bound), "{bound}");
    }
    for part in ["gen_ai.request.model", MODELS[0], "weir.pick", "by=local", "weir.usage", "ttft_ms="] {
        assert!(has(span, part.as_bytes()), "{part}: {}", String::from_utf8_lossy(span));
    }
}
