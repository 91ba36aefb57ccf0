//! A worker's VM dies while a request in it waits for something: whoever would have let it go on is gone, and its client hears of it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::raw::post;
use rig::{Edit, Gateway, MODELS, Raw, Setup, chat, filter_config, find_all, lead_cluster, trap, wait_until};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use weir_engine::Config;

const PATIENCE: Duration = Duration::from_secs(30);

/// How long a request may wait before it is on its way to an endpoint, instead of the minute that is shipped.
fn bound(envoy: &mut serde_json::Value, most: &str) {
    for manager in find_all(envoy, &|value| value["stream_idle_timeout"].is_string()) {
        manager["stream_idle_timeout"] = most.into();
    }
}

/// A scorer that takes calls and never answers; counts those that knock.
async fn silent_scorer() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let knocks = Arc::new(AtomicUsize::new(0));
    let own = knocks.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            own.fetch_add(1, Ordering::Relaxed);
            open.push(stream);
        }
    });
    (address, knocks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_vm_dies_while_it_waits_for_a_call_or_its_turn_is_answered() {
    let (address, knocks) = silent_scorer().await;
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("chain.wasm");
    trap::write_mortal("dist/chain.wasm", &module).unwrap();
    let edit: Edit = Box::new(move |envoy| {
        trap::run_mortal(envoy, "chain.wasm", &module);
        bound(envoy, "4s");
        lead_cluster(envoy, "scorer", &address);
        filter_config(envoy, "pick", |pick| {
            pick["scorer"] = json!({"cluster": "scorer", "timeout_ms": 10_000})
        });
    });
    let limit =
        json!({"name": "slots", "key": ["model"], "max_in_flight": 1, "queue": {"timeout_ms": 60_000}});
    let setup = Setup {
        chain: true,
        workers: 1,
        limit: Some(json!({"limits": [limit]})),
        edit: Some(edit),
        ..Setup::default()
    };
    let gateway = Gateway::start(setup).await.unwrap();
    let body = chat(MODELS[0], "hello", 2).to_string();
    let head = post("/v1/chat/completions", &[&format!("content-length: {}", body.len())]);
    // The first waits for the scorer, the second for the first one's slot.
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut client = Raw::connect(&gateway.url).await.unwrap();
        client.send(format!("{head}{body}")).await.unwrap();
        waiting.push(client);
        wait_until("it asks the scorer", PATIENCE, async || knocks.load(Ordering::Relaxed) == 1)
            .await
            .unwrap();
    }
    wait_until("it waits for its turn", PATIENCE, async || {
        gateway
            .stats()
            .await
            .unwrap()
            .iter()
            .any(|(name, held)| name.contains("weir_limit_waiting") && *held == 1)
    })
    .await
    .unwrap();
    trap::end_a_vm(&gateway.url).await.unwrap();
    for mut client in waiting {
        let answer = client.answer().await.unwrap();
        assert!([503, 504].contains(&answer.status), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_may_take_longer_for_its_first_token_than_the_way_to_it_may() {
    let engine = Config { prefill_ms_per_ktoken: 4_000.0, decode_ms: 1.0, ..Config::default() };
    let edit: Edit = Box::new(|envoy| bound(envoy, "2s"));
    let setup = Setup { engines: [1, 1], engine, edit: Some(edit), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let answer = gateway.chat(&chat(MODELS[0], &"word ".repeat(1_000), 2)).await.unwrap();
    assert_eq!(answer.status(), 200);
}
