//! Each fault, as a client sees it.

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

use driver::{ask_chat, chat, post, send_chat, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_engine::{Config, Engine, Fault, Kind, Outcome};

async fn engine_with(fault: Fault) -> Engine {
    Engine::start(Config { fault, ..Config::instant() }).await.unwrap()
}

/// The raw bytes of a streamed answer, and whether the connection ended with an error.
async fn raw_stream(engine: &Engine) -> (String, bool) {
    let body = chat("hi", 8, true).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
    let mut socket = TcpStream::connect(engine.addr).await.unwrap();
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let end = socket.read_to_end(&mut bytes).await;
    (String::from_utf8(bytes).unwrap(), end.is_err())
}

#[tokio::test]
async fn faults_by_status_carry_retry_after_and_end_with_their_count() {
    let engine = engine_with(Fault::default()).await;
    for (kind, status) in [("http_503", 503), ("http_429", 429)] {
        let fault = json!({"kind": kind, "retry_after_s": 7, "count": 1});
        assert_eq!(post(&engine, "/fault", &fault).send().await.unwrap().status(), 200);
        let hit = send_chat(&engine, &chat("hi", 1, true)).await;
        assert_eq!((hit.status().as_u16(), hit.headers()["retry-after"].to_str().unwrap()), (status, "7"));
        assert_eq!(hit.json::<Value>().await.unwrap()["error"]["code"], status);
        assert_eq!(send_chat(&engine, &chat("hi", 1, true)).await.status(), 200);
    }
}

#[tokio::test]
async fn an_unknown_fault_is_refused() {
    let engine = engine_with(Fault::default()).await;
    for fault in [json!({"kind": "earthquake"}), json!({"kind": "slow", "after": 1})] {
        assert_eq!(post(&engine, "/fault", &fault).send().await.unwrap().status(), 422);
    }
}

#[tokio::test]
async fn cut_stream_ends_without_terminator_after_its_tokens() {
    let engine = engine_with(Fault::new(Kind::CutStream).after_tokens(2)).await;
    let (text, _) = raw_stream(&engine).await;
    assert_eq!(text.matches("data:").count(), 3, "{text}");
    assert!(!text.ends_with("\r\n0\r\n\r\n") && !text.contains("[DONE]"));
    let whole = send_chat(&engine, &chat("hi", 8, false)).await;
    assert_eq!(whole.status(), 200);
    assert!(whole.bytes().await.is_err());
    until("aborted", || engine.requests().iter().all(|r| r.outcome == Outcome::Aborted)).await;
    assert_eq!(engine.state().running, 0);
}

#[tokio::test]
async fn hang_takes_the_request_and_never_answers() {
    let engine = engine_with(Fault::new(Kind::Hang)).await;
    let body = chat("hi", 1, false);
    let wait = Duration::from_millis(100);
    assert!(timeout(wait, send_chat(&engine, &body)).await.is_err());
    until("recorded as aborted", || engine.requests()[0].outcome == Outcome::Aborted).await;
    let health = reqwest::get(format!("{}/health", engine.url())).await.unwrap();
    assert_eq!(health.status(), 200);
    engine.fault(Fault::default());
    assert_eq!(ask_chat(&engine, &body).await["usage"]["completion_tokens"], 1);
}

#[tokio::test]
async fn hang_after_tokens_stalls_the_stream() {
    let engine = engine_with(Fault::new(Kind::Hang).after_tokens(1)).await;
    let mut response = send_chat(&engine, &chat("hi", 8, true)).await;
    let mut seen = String::new();
    while let Ok(Ok(Some(piece))) = timeout(Duration::from_millis(200), response.chunk()).await {
        seen += std::str::from_utf8(&piece).unwrap();
    }
    assert_eq!(seen.matches("data:").count(), 2);
    assert_eq!(engine.state().running, 1);
}

#[tokio::test]
async fn garbage_is_neither_json_nor_sse() {
    let engine = engine_with(Fault::new(Kind::Garbage)).await;
    let response = send_chat(&engine, &chat("hi", 1, false)).await;
    assert_eq!(response.status(), 200);
    let bytes = response.bytes().await.unwrap();
    assert!(serde_json::from_slice::<Value>(&bytes).is_err());
    assert!(!bytes.windows(5).any(|window| window == b"data:"));
}

#[tokio::test]
async fn slow_lets_another_engine_overtake() {
    let config = Config { prefill_ms_per_ktoken: 5000.0, decode_ms: 5.0, ..Config::default() };
    let slow = Engine::start(Config { fault: Fault::new(Kind::Slow), ..config.clone() }).await.unwrap();
    let quick = Engine::start(config).await.unwrap();
    let body = chat(&"x".repeat(100), 4, false);
    tokio::select! {
        _ = ask_chat(&slow, &body) => panic!("the slow engine came first"),
        _ = ask_chat(&quick, &body) => {}
    }
}

#[tokio::test]
async fn die_refuses_connections_and_resets_open_ones() {
    let mut engine = engine_with(Fault::default()).await;
    let mut idle = TcpStream::connect(engine.addr).await.unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(idle.read(&mut [0; 1024]).await.unwrap() > 0);
    // Whether the answer still arrives is a matter of luck.
    let _ = post(&engine, "/fault", &json!({"kind": "die"})).send().await;
    engine.ended().await;
    let error = idle.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(TcpStream::connect(engine.addr).await.is_err());
}

#[tokio::test]
async fn die_after_tokens_resets_in_the_middle_of_a_stream() {
    let mut engine = engine_with(Fault::new(Kind::Die).after_tokens(3)).await;
    let (_, reset) = timeout(Duration::from_secs(10), raw_stream(&engine)).await.unwrap();
    assert!(reset);
    engine.ended().await;
}

#[tokio::test]
async fn a_stopped_engine_frees_its_port() {
    let engine = engine_with(Fault::new(Kind::Hang)).await;
    let (addr, body) = (engine.addr, chat("hi", 1, false));
    let open = tokio::spawn(post(&engine, "/v1/chat/completions", &body).send());
    until("received", || engine.requests().len() == 1).await;
    engine.stop().await;
    assert!(open.await.unwrap().is_err());
    let again = Engine::start(Config { port: addr.port(), ..Config::instant() }).await.unwrap();
    assert_eq!(again.addr, addr);
}
