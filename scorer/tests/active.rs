//! Endpoints that are out are tried by the scorer, and no client is sent there before they have answered.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "tests")]

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use weir::breaker::{Outcome, Reason};
use weir::policy::Demand;
use weir::pool::Ask;
use weir::wire::{Event, Reserve};
use weir_scorer::scorer::{Config, Scorer, probe};

/// An engine that is healthy, and computes when it is well.
#[derive(Clone, Default)]
struct Engine {
    well: Arc<AtomicBool>,
    healths: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Engine {
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (health, small) = (self.clone(), self.clone());
        let router = Router::new()
            .route(
                "/health",
                get(async move || {
                    health.healths.fetch_add(1, Ordering::Relaxed);
                }),
            )
            .route(
                "/v1/completions",
                post(async move |body: String| {
                    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["max_tokens"], 1);
                    small.requests.fetch_add(1, Ordering::Relaxed);
                    if small.well.load(Ordering::Relaxed) {
                        StatusCode::OK
                    } else {
                        StatusCode::INTERNAL_SERVER_ERROR
                    }
                }),
            );
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

fn reserve(scorer: &Scorer, lease: u64) -> Vec<String> {
    let ask = Ask { blocks: &[], demand: Demand { prompt_tokens: 64, ..Demand::default() }, prompt: None };
    let reserved = scorer.reserve(&Reserve::of("p", lease, &ask)).unwrap();
    assert!(!reserved.probe);
    scorer.report(&[Event::End { pool: "p".into(), lease, answered: None }]);
    reserved.endpoints
}

#[tokio::test]
async fn an_endpoint_comes_back_without_a_clients_request() {
    let engine = Engine::default();
    let out = engine.start().await;
    let config = json!({
        "listen": "127.0.0.1:0",
        "pools": [{"name": "p", "models": ["m"], "endpoints": [out, "127.0.0.1:9"]}],
        "choose": {"breaker": {
            "rules": [{"name": "r", "trip_duration_ms": 300, "failure_condition":
                {"count": 1, "interval_ms": 10_000, "error_reasons": ["connect", "timeout"],
                 "status_code_ranges": [{"min": 500, "max": 599}]}}],
            "max_trip_duration_ms": 300,
            "ramp_ms": 0,
            "active_probe": {"request": {"path": "/v1/completions", "body": {"model": "m", "max_tokens": 1}}},
        }},
    });
    let scorer = Arc::new(Scorer::new(&Config::read(config.to_string().as_bytes()).unwrap()).unwrap());
    tokio::spawn(probe(Arc::clone(&scorer)));
    let outcome = Outcome::failed(Reason::Connect);
    scorer.report(&[Event::Attempted { pool: "p".into(), lease: 1, endpoint: out.clone(), outcome }]);
    let mut lease = 100;
    let mut until = async |holds: &dyn Fn(&[String]) -> bool| {
        for _ in 0..600 {
            lease += 1;
            if holds(&reserve(&scorer, lease)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("waited in vain");
    };
    // It is asked again and again, and fails; nobody is sent there.
    until(&|endpoints| {
        assert!(!endpoints.contains(&out));
        engine.requests.load(Ordering::Relaxed) >= 2
    })
    .await;
    assert!(engine.healths.load(Ordering::Relaxed) >= 2);
    engine.well.store(true, Ordering::Relaxed);
    until(&|endpoints| endpoints.contains(&out)).await;
    let loads = scorer.loads();
    assert_eq!((loads[0].leases, loads[0].probes, loads[0].out.len()), (0, 0, 0));
}
