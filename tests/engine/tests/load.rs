//! Queue, prefill and decode under load, and that a client that leaves frees what it held.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test panics to fail"
)]

#[allow(dead_code, unreachable_pub, reason = "each test uses a part")]
mod driver;

use std::time::Duration;

use driver::{chat, post, until};
use tokio::task::JoinHandle;
use weir_engine::{Config, Engine, Outcome};

/// One token an hour: whoever decodes stays there.
fn endless_decode() -> Config {
    Config { prefill_ms_per_ktoken: 0.0, decode_ms: 3_600_000.0, ..Config::default() }
}

/// Prefill that does not end.
fn endless_prefill() -> Config {
    Config { prefill_ms_per_ktoken: 3.6e9, decode_ms: 0.0, ..Config::default() }
}

/// Sends a chat in the background; aborting the task drops its connection.
fn background(engine: &Engine, text: &str, max_tokens: u64, stream: bool, http2: bool) -> JoinHandle<String> {
    let client = reqwest::Client::builder();
    let client = if http2 { client.http2_prior_knowledge() } else { client };
    let request = client.build().unwrap().post(format!("{}/v1/chat/completions", engine.url()));
    let request = request.json(&chat(text, max_tokens, stream));
    tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() })
}

async fn until_load(engine: &Engine, running: usize, waiting: usize) {
    let so = || (engine.state().running, engine.state().waiting) == (running, waiting);
    until(&format!("{running} running, {waiting} waiting"), so).await;
}

#[tokio::test]
async fn the_slot_limit_shows_as_waiting() {
    let engine = Engine::start(Config { slots: 2, ..endless_decode() }).await.unwrap();
    let tasks: Vec<_> = (0..5).map(|_| background(&engine, "hi", 2, true, false)).collect();
    until_load(&engine, 2, 3).await;
    let metrics = reqwest::get(format!("{}/metrics", engine.url())).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("vllm:num_requests_waiting{engine=\"0\",model_name=\"weir-toy\"} 3\n"));
    tasks.iter().for_each(JoinHandle::abort);
    until_load(&engine, 0, 0).await;
}

#[tokio::test]
async fn a_request_whose_kv_does_not_fit_waits() {
    let engine = Engine::start(Config { kv_tokens: 100, ..endless_decode() }).await.unwrap();
    let first = background(&engine, "hi", 60, true, false);
    until_load(&engine, 1, 0).await;
    assert_eq!(engine.state().kv_used, 62);
    let second = background(&engine, "hi", 60, true, false);
    until_load(&engine, 1, 1).await;
    first.abort();
    until_load(&engine, 1, 0).await;
    second.abort();
    until_load(&engine, 0, 0).await;
    assert_eq!(engine.state().kv_used, 0);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_makes_room() {
    for (stream, http2) in [(false, false), (true, false), (false, true), (true, true)] {
        let engine = Engine::start(Config { slots: 1, ..endless_decode() }).await.unwrap();
        let running = background(&engine, "hi", 2, stream, http2);
        until_load(&engine, 1, 0).await;
        let waiting = background(&engine, "hi", 2, stream, http2);
        until_load(&engine, 1, 1).await;
        waiting.abort();
        until_load(&engine, 1, 0).await;
        until("recorded", || engine.requests()[1].outcome == Outcome::Aborted).await;
        assert_eq!(engine.requests()[0].outcome, Outcome::Open);
        running.abort();
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_prefill_frees_the_lane() {
    for (stream, http2) in [(false, false), (true, false), (false, true), (true, true)] {
        let engine = Engine::start(endless_prefill()).await.unwrap();
        let first = background(&engine, "hi", 2, stream, http2);
        until_load(&engine, 1, 0).await;
        let second = background(&engine, "hi", 2, stream, http2);
        until_load(&engine, 1, 1).await;
        first.abort();
        until_load(&engine, 1, 0).await;
        second.abort();
        until_load(&engine, 0, 0).await;
        assert_eq!(engine.state().cached_blocks, 0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_decode_frees_slot_and_kv() {
    for (stream, http2) in [(false, false), (true, false), (false, true), (true, true)] {
        let engine = Engine::start(Config { slots: 1, ..endless_decode() }).await.unwrap();
        let text = "x".repeat(64);
        let first = background(&engine, &text, 9, stream, http2);
        // The prompt is in the cache once prefill is over.
        until("decoding", || engine.state().cached_blocks == 1).await;
        first.abort();
        until_load(&engine, 0, 0).await;
        assert_eq!(engine.state().kv_used, 0);
        until("recorded", || engine.requests()[0].outcome == Outcome::Aborted).await;
    }
}

#[tokio::test]
async fn a_cached_prompt_overtakes_an_uncached_one_elsewhere() {
    let config = Config { prefill_ms_per_ktoken: 500.0, decode_ms: 0.0, ..Config::default() };
    let warm = Engine::start(config.clone()).await.unwrap();
    let cold = Engine::start(config).await.unwrap();
    let text = "x".repeat(8000);
    background(&warm, &text, 1, false, false).await.unwrap();
    let slow = background(&cold, &text, 1, false, false);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let quick = background(&warm, &text, 1, false, false);
    tokio::select! {
        _ = slow => panic!("the uncached prompt came first"),
        text = quick => assert!(text.unwrap().contains("\"cached_tokens\":2000")),
    }
}

#[tokio::test]
async fn tokens_arrive_one_by_one() {
    let engine = Engine::start(endless_decode()).await.unwrap();
    let body = chat("hi", 2, true);
    let mut response = post(&engine, "/v1/chat/completions", &body).send().await.unwrap();
    let mut seen = String::new();
    while seen.matches("data:").count() < 2 {
        seen += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert_eq!(seen.matches("data:").count(), 2, "role and first token, the second is an hour away");
}
