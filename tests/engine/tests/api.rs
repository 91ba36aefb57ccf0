//! Answers, streams, errors and the small endpoints, as a client sees them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test panics to fail"
)]

#[allow(dead_code, unreachable_pub, reason = "each test uses a part")]
mod driver;

use driver::{ask_chat, chat, events, post, send_chat};
use serde_json::{Value, json};
use weir_engine::{Config, Engine, Outcome};
use xxhash_rust::xxh64::xxh64;

async fn engine() -> Engine {
    let models = vec!["a".into(), "b".into()];
    Engine::start(Config { models, ..Config::instant() }).await.unwrap()
}

async fn get(engine: &Engine, path: &str) -> String {
    reqwest::get(format!("{}{path}", engine.url())).await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn a_second_identical_prompt_is_cached_until_reset() {
    let engine = engine().await;
    let body = chat(&"x".repeat(640), 3, false);
    let first = ask_chat(&engine, &body).await;
    let second = ask_chat(&engine, &body).await;
    assert_eq!(first["usage"]["prompt_tokens"], 161);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 160);
    assert_eq!(second["usage"]["completion_tokens"], 3);
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!(engine.state().cached_blocks, 10);

    post(&engine, "/reset_prefix_cache", &json!({})).send().await.unwrap();
    let third = ask_chat(&engine, &body).await;
    assert_eq!(third["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn an_openai_stream_gives_role_tokens_finish_usage_and_done() {
    let engine = engine().await;
    let text = send_chat(&engine, &chat("hi", 3, true)).await.text().await.unwrap();
    let events = events(&text);
    assert_eq!(events.len(), 7);
    assert_eq!(events[6].1, "[DONE]");
    let chunks: Vec<Value> =
        events[..6].iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String =
        chunks[1..4].iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(chunks[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[5]["choices"], json!([]));
    assert_eq!(chunks[5]["usage"]["completion_tokens"], 3);

    let whole = ask_chat(&engine, &chat("hi", 3, false)).await;
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[tokio::test]
async fn a_completion_streams_text_and_no_usage_unless_asked() {
    let engine = engine().await;
    let body = json!({"model": "b", "prompt": "hello", "max_tokens": 2, "stream": true});
    let text = post(&engine, "/v1/completions", &body).send().await.unwrap().text().await.unwrap();
    let events = events(&text);
    assert_eq!(events.len(), 4);
    let first: Value = serde_json::from_str(&events[0].1).unwrap();
    assert_eq!(first["choices"][0]["text"].as_str().unwrap().len(), 4);
    assert_eq!(first["model"], "b");
    assert!(!text.contains("usage"));
}

#[tokio::test]
async fn an_anthropic_stream_has_all_its_events_and_splits_cached_input() {
    let engine = engine().await;
    let body = json!({"model": "a", "max_tokens": 2, "stream": true, "system": "y".repeat(640),
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]});
    for cached in [0, 160] {
        let text = post(&engine, "/v1/messages", &body).send().await.unwrap().text().await.unwrap();
        let events = events(&text);
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "message_start",
                "content_block_start",
                "ping",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        let data: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
        assert!(data.iter().zip(&names).all(|(data, name)| data["type"] == *name));
        let usage = &data[0]["message"]["usage"];
        assert_eq!(usage["cache_read_input_tokens"], cached);
        assert_eq!(usage["input_tokens"], 162 - cached);
        assert_eq!(data[6]["usage"]["output_tokens"], 2);
        assert_eq!(data[6]["delta"]["stop_reason"], "max_tokens");
    }
}

#[tokio::test]
async fn errors_have_vllms_shapes() {
    let engine = engine().await;
    let path = "/v1/chat/completions";
    let unknown = post(&engine, path, &json!({"model": "c", "messages": []})).send().await.unwrap();
    assert_eq!(unknown.status(), 404);
    let error: Value = unknown.json().await.unwrap();
    assert_eq!(error["error"]["type"], "NotFoundError");
    assert_eq!((&error["error"]["param"], &error["error"]["code"]), (&json!("model"), &json!(404)));

    let bad = post(&engine, path, &json!({})).body("{\"model\":").send().await.unwrap();
    assert_eq!(bad.status(), 400);
    assert_eq!(bad.json::<Value>().await.unwrap()["error"]["code"], 400);
    assert_eq!(post(&engine, path, &json!({})).send().await.unwrap().status(), 400);
    assert_eq!(send_chat(&engine, &chat("hi", 1 << 40, false)).await.status(), 400);

    let anthropic = post(&engine, "/v1/messages", &json!({"model": "c", "messages": []})).send().await;
    assert_eq!(anthropic.unwrap().json::<Value>().await.unwrap()["type"], "error");
    assert_eq!(get(&engine, "/nothing").await, r#"{"detail":"Not Found"}"#);
    assert_eq!(get(&engine, path).await, r#"{"detail":"Method Not Allowed"}"#);
}

#[tokio::test]
async fn metrics_have_vllms_names_and_count() {
    let engine = engine().await;
    let body = chat(&"x".repeat(640), 3, false);
    ask_chat(&engine, &body).await;
    ask_chat(&engine, &body).await;
    let text = get(&engine, "/metrics").await;
    let labels = r#"{engine="0",model_name="a"}"#;
    for (name, value) in [
        ("num_requests_running", 0),
        ("num_requests_waiting", 0),
        ("kv_cache_usage_perc", 0),
        ("prefix_cache_queries_total", 322),
        ("prefix_cache_hits_total", 160),
        ("prompt_tokens_total", 322),
        ("generation_tokens_total", 6),
    ] {
        assert!(text.contains(&format!("vllm:{name}{labels} {value}\n")), "{name} in {text}");
    }
    let info = text.lines().find(|line| line.starts_with("vllm:cache_config_info")).unwrap();
    assert!(info.contains(r#"block_size="16""#) && info.contains(r#"num_gpu_blocks="8192""#));
}

#[tokio::test]
async fn requests_are_recorded_as_received() {
    let engine = engine().await;
    let body = "{\"messages\" : [],\"model\":\"b\"}";
    let request =
        post(&engine, "/v1/chat/completions?beta=true", &json!({})).header("X-Test", "1").body(body);
    request.send().await.unwrap();
    let records: Value = serde_json::from_str(&get(&engine, "/requests").await).unwrap();
    assert_eq!(records[0]["path"], "/v1/chat/completions");
    assert_eq!(records[0]["outcome"], "done");
    let record = engine.requests().remove(0);
    assert_eq!(record.header("x-test"), Some("1"));
    assert_eq!((record.model.as_str(), record.status, record.outcome), ("b", 200, Outcome::Done));
    assert_eq!(record.body_xxh64, format!("{:016x}", xxh64(body.as_bytes(), 0)));

    reqwest::Client::new().delete(format!("{}/requests", engine.url())).send().await.unwrap();
    assert!(engine.requests().is_empty());
}

#[tokio::test]
async fn echo_tells_length_hash_framing_and_version() {
    let engine = engine().await;
    let url = format!("{}/echo/some/where", engine.url());
    let big = vec![b'x'; 3 << 20];
    let hash = format!("{:016x}", xxh64(&big, 0));
    let http1 = reqwest::Client::new();
    let known: Value = http1.post(&url).body(big.clone()).send().await.unwrap().json().await.unwrap();
    assert_eq!(
        known,
        json!({"len": 3 << 20, "xxh64": hash, "framing": "content-length", "version": "HTTP/1.1"})
    );

    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let pieces = big.chunks(1 << 20).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect::<Vec<_>>();
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let streamed: Value = http2.post(&url).body(body).send().await.unwrap().json().await.unwrap();
    assert_eq!(streamed, json!({"len": 3 << 20, "xxh64": hash, "framing": "chunked", "version": "HTTP/2"}));
}

#[tokio::test]
async fn models_health_and_version_answer() {
    let engine = engine().await;
    let models: Value = serde_json::from_str(&get(&engine, "/v1/models").await).unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("a"), &json!("b")));
    assert_eq!(get(&engine, "/health").await, "");
    assert!(get(&engine, "/version").await.contains("version"));
}
