//! Bodies and answers pass byte for byte, and in time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use bytes::Bytes;
use futures_util::stream;
use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat, filter_config};
use serde_json::{Value, json};
use std::time::Duration;
use weir_engine::Outcome;
use xxhash_rust::xxh64::xxh64;

const CHAT: &str = "/v1/chat/completions";
const MB: usize = 1 << 20;

fn roomy() -> weir_engine::Config {
    weir_engine::Config { kv_tokens: 1 << 30, ..weir_engine::Config::instant() }
}

/// A chat request of exactly `size` bytes, its model at the end; different for each size.
fn body_of(size: usize) -> Bytes {
    let (before, after) =
        (r#"{"messages":[{"role":"user","content":""#, r#""}],"max_tokens":1,"model":"demo-small"}"#);
    let mut state = size as u64 | 1;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + ((state >> 59) % 26) as u8)
    };
    let text: String = (0..size - before.len() - after.len()).map(|_| letter()).collect();
    format!("{before}{text}{after}").into()
}

/// In chunks of unequal sizes, without a content-length.
fn chunked(body: &Bytes) -> reqwest::Body {
    let (mut rest, mut size) = (body.clone(), 100);
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        pieces.push(Ok::<_, std::io::Error>(rest.split_to(rest.len().min(size))));
        size = (size * 7 + 1) % 300_000 + 1;
    }
    reqwest::Body::wrap_stream(stream::iter(pieces))
}

fn hash(body: &[u8]) -> String {
    format!("{:016x}", xxh64(body, 0))
}

/// The length and the hash of the last body that the engine received.
fn arrived(gateway: &Gateway) -> (usize, String) {
    let (_, record) = gateway.received(0).pop().unwrap();
    (record.body_len, record.body_xxh64)
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_any_size_and_framing_arrive_byte_for_byte() {
    let gateway =
        Gateway::start(Setup { engines: [1, 1], engine: roomy(), ..Setup::default() }).await.unwrap();
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    for size in [1 << 10, 128 << 10, MB, 8 * MB] {
        let body = body_of(size);
        for (version, client) in [("1.1", &gateway.client), ("2", &http2)] {
            for (framing, sent) in [("content-length", body.clone().into()), ("chunked", chunked(&body))] {
                let request =
                    client.post(format!("{}{CHAT}", gateway.url)).header("content-type", "application/json");
                let answer = request.body(sent).send().await.unwrap();
                let case = format!("{size} bytes, HTTP/{version}, {framing}");
                assert_eq!(answer.status(), 200, "{case}: {}", answer.text().await.unwrap());
                assert_eq!(arrived(&gateway), (size, hash(&body)), "{case}");
            }
        }
    }
    assert_eq!(gateway.received(0).len(), 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_in_trailers_arrives() {
    let gateway =
        Gateway::start(Setup { engines: [1, 1], engine: roomy(), ..Setup::default() }).await.unwrap();
    let address = gateway.url.trim_start_matches("http://");
    let (mut client, connection) =
        h2::client::handshake(tokio::net::TcpStream::connect(address).await.unwrap()).await.unwrap();
    let connection = tokio::spawn(connection);
    for size in [200, 200_000] {
        let body = body_of(size);
        let request =
            http::Request::post(format!("{}{CHAT}", gateway.url)).header("content-type", "application/json");
        let (answer, mut sender) = client.send_request(request.body(()).unwrap(), false).unwrap();
        sender.send_data(body.clone(), false).unwrap();
        let trailers =
            http::HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), "1".parse().unwrap())]);
        sender.send_trailers(trailers).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200, "{size} bytes");
        assert_eq!(arrived(&gateway), (size, hash(&body)));
    }
    connection.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_limit_is_413_and_at_the_limit_is_not() {
    let edit = |envoy: &mut Value| {
        filter_config(envoy, "extract", |extract| extract["request"]["max_body_bytes"] = MB.into())
    };
    let setup = Setup { engines: [1, 1], engine: roomy(), edit: Some(Box::new(edit)), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    for (size, status) in [(MB - 1, 200), (MB, 200), (MB + 1, 413), (3 * MB, 413)] {
        let body = body_of(size);
        for framing in ["content-length", "chunked"] {
            let length = format!("content-length: {size}");
            let length = if framing == "chunked" { "transfer-encoding: chunked" } else { &length };
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(post(CHAT, &[length])).await.unwrap();
            for piece in body.chunks(100_000) {
                // The rest of a refused body may find the connection closed.
                let sent = match framing {
                    "chunked" => connection.send_chunk(piece).await,
                    _ => connection.send(piece).await,
                };
                if sent.is_err() {
                    break;
                }
            }
            if framing == "chunked" {
                let _ = connection.send_chunk("").await;
            }
            let answer = connection.answer().await.unwrap();
            assert_eq!(answer.status, status, "{size} bytes, HTTP/1.1, {framing}");
            expect_named(status, &answer.json().unwrap());

            let sent = if framing == "chunked" { chunked(&body) } else { body.clone().into() };
            let request =
                http2.post(format!("{}{CHAT}", gateway.url)).header("content-type", "application/json");
            let answer = request.body(sent).send().await.unwrap();
            assert_eq!(answer.status(), status, "{size} bytes, HTTP/2, {framing}");
            expect_named(status, &answer.json().await.unwrap());
        }
    }
    assert_eq!(gateway.received(0).len(), 8);
}

fn expect_named(status: u16, answer: &Value) {
    if status == 413 {
        assert_eq!(answer["error"]["type"], "request_too_large");
        assert!(answer["error"]["message"].as_str().unwrap().contains("max_body_bytes"), "{answer}");
    }
}

/// What differs between two answers of one engine to one request: ids and times.
fn without_ids(answer: &str) -> String {
    let mut text = answer.to_owned();
    for key in ["\"id\":\"", "\"created\":"] {
        let pieces = text.split(key).enumerate();
        let strip = |(place, piece): (usize, &str)| match place {
            0 => piece.to_owned(),
            _ => piece.split_once(',').unwrap().1.to_owned(),
        };
        text = pieces.map(strip).collect::<Vec<_>>().join(key);
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_the_engines_to_the_byte() {
    let gateway = Gateway::start(Setup { engines: [1, 1], ..Setup::default() }).await.unwrap();
    let engine = &gateway.engines[0][0];
    for path in [CHAT, "/v1/completions", "/v1/messages"] {
        for stream in [false, true] {
            let mut body = chat(MODELS[0], "Tell me the same story twice.", 40);
            body["prompt"] = "Tell me the same story twice.".into();
            body["stream"] = stream.into();
            body["stream_options"] = json!({"include_usage": true});
            let mut answers = Vec::new();
            for url in [engine.url(), gateway.url.clone()] {
                engine.reset_prefix_cache();
                let answer = gateway.client.post(format!("{url}{path}")).json(&body).send().await.unwrap();
                assert_eq!(answer.status(), 200);
                answers.push(answer.text().await.unwrap());
            }
            let [direct, through] = &answers[..] else { panic!() };
            assert!(direct.len() > 300, "{direct}");
            assert_eq!(without_ids(through), without_ids(direct), "{path}, stream: {stream}");
            assert_ne!(through, direct, "both came from one request");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_token_arrives_before_the_last_is_generated() {
    let engine = weir_engine::Config { decode_ms: 60.0, prefill_ms_per_ktoken: 1.0, ..Default::default() };
    let gateway = Gateway::start(Setup { engines: [1, 1], engine, ..Setup::default() }).await.unwrap();
    let mut body = chat(MODELS[0], "slowly", 30);
    body["stream"] = true.into();
    let mut answer = gateway.chat(&body).await.unwrap();
    let first = answer.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: {"));
    assert_eq!(gateway.received(0)[0].1.outcome, Outcome::Open);
    let mut chunks = 1;
    let mut last = first;
    while let Some(chunk) = answer.chunk().await.unwrap() {
        (chunks, last) = (chunks + 1, chunk);
    }
    assert!(last.ends_with(b"data: [DONE]\n\n"));
    assert!(chunks > 10, "30 tokens, 60 ms apart, came in {chunks} pieces");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(gateway.received(0)[0].1.outcome, Outcome::Done);
}
