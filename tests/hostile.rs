//! What a hostile client may send: it gets an answer, and nobody else notices.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat, filter_config, find_all};
use serde_json::{Value, json};
use weir::random::Random;

const CHAT: &str = "/v1/chat/completions";
const MB: usize = 1 << 20;

/// A gateway that lets through to `extract` what Envoy itself would refuse by default.
async fn gateway(chain: bool) -> Gateway {
    let edit = move |envoy: &mut Value| {
        filter_config(envoy, "extract", |extract| extract["request"]["max_body_bytes"] = (80 * MB).into());
        for listener in find_all(envoy, &|value| value["per_connection_buffer_limit_bytes"].is_number()) {
            listener["per_connection_buffer_limit_bytes"] = (128 * MB).into();
            for manager in find_all(listener, &|value| value["http_filters"].is_array()) {
                manager["max_request_headers_kb"] = 8192.into();
                manager["common_http_protocol_options"] = json!({"max_headers_count": 20_000});
            }
        }
    };
    let engine = weir_engine::Config { kv_tokens: 1 << 30, ..weir_engine::Config::instant() };
    let setup = Setup { engines: [1, 1], engine, chain, edit: Some(Box::new(edit)), ..Setup::default() };
    Gateway::start(setup).await.unwrap()
}

/// Head and body.
fn request(headers: &[&str], body: &[u8]) -> Vec<u8> {
    let length = format!("content-length: {}", body.len());
    [post(CHAT, &[headers, &[&length]].concat()).as_bytes(), body].concat()
}

fn named(before: &str, middle: &str, after: &str) -> Vec<u8> {
    format!(r#"{{"model":"{}",{before}{middle}{after}}}"#, MODELS[0]).into_bytes()
}

/// Requests, and the statuses that they may get.
fn attacks() -> Vec<(&'static str, Vec<u8>, &'static [u16])> {
    let deep = |open: &str, close: &str| {
        named(r#""messages":[],"metadata":"#, &(open.repeat(100_000) + "1" + &close.repeat(100_000)), "")
    };
    let mut random = Random::new(7);
    let noise: Vec<u8> = (0..MB).map(|_| random.next() as u8).collect();
    let many: Vec<String> = (0..10_000).map(|n| format!("x-header-{n}: {n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = format!("x-long: {}", "x".repeat(2 * MB));
    let small = chat(MODELS[0], "hi", 1).to_string();
    let twice = |key: &str| named(&format!(r#""messages":[],"{key}":1,"#), &format!(r#""{key}":"#), "2");
    vec![
        ("deep lists", request(&[], &deep("[", "]")), &[200]),
        ("deep objects", request(&[], &deep("{\"a\":", "}")), &[200]),
        (
            "deep content",
            request(
                &[],
                &named(r#""messages":[{"role":"user","content":"#, &"[{\"content\":".repeat(50_000), ""),
            ),
            &[400],
        ),
        (
            "a string of 64 MB",
            request(&[], &named(r#""messages":[{"role":"user","content":""#, &"x".repeat(64 * MB), "\"}]")),
            &[200, 400],
        ),
        ("a key of 64 MB", request(&[], &named(r#""messages":[],""#, &"k".repeat(64 * MB), "\":1")), &[200]),
        (
            "a model of 8 MB",
            request(&[], format!(r#"{{"model":"{}"}}"#, "m".repeat(8 * MB)).as_bytes()),
            &[400],
        ),
        (
            "escapes",
            request(
                &[],
                &named(r#""messages":[{"role":"user","content":""#, &"\\ud83d\\ude00".repeat(MB), "\"}]"),
            ),
            &[200, 400],
        ),
        (
            "2 M messages",
            request(&[], &named(r#""messages":["#, &"{},".repeat(2 * MB), "{}]")),
            &[200, 400, 422],
        ),
        (
            "5 M numbers",
            request(&[], &named(r#""messages":["#, &"7,".repeat(5 * MB), "7]")),
            &[200, 400, 422],
        ),
        (
            "200,000 images",
            request(
                &[],
                &named(
                    r#""messages":[{"role":"user","content":["#,
                    &r#"{"image_url":"u"},"#.repeat(200_000),
                    "{}]}]",
                ),
            ),
            &[400],
        ),
        // An engine that takes no such head may be heard to say so before it ends the connection, or not.
        ("10,000 headers", request(&many, small.as_bytes()), &[200, 431, 503]),
        ("a header of 2 MB", request(&[&long], small.as_bytes()), &[200, 431, 503]),
        (
            "a session of 2 MB",
            request(&[&long.replace("x-long", "x-session-id")], small.as_bytes()),
            &[200, 431, 503],
        ),
        ("random bytes", request(&[], &noise), &[400]),
        ("NULs", request(&[], &vec![0; MB]), &[400]),
        ("nothing but spaces", request(&[], &vec![b' '; 4 * MB]), &[400]),
        ("a key twice", request(&[], &twice("max_tokens")), &[400]),
        (
            "a huge number",
            request(&[], &named(r#""messages":[],"max_tokens":"#, &"9".repeat(MB), "")),
            &[200, 400],
        ),
        (
            "a bomb",
            request(&["content-encoding: gzip"], b"\x1f\x8b\x08\0\0\0\0\0\0\x03not gzip at all"),
            &[415],
        ),
    ]
}

/// Twenty requests to each worker; which one got a connection, its counters tell.
async fn expect_well(gateway: &Gateway, after: &str) {
    let accepted = async || {
        let stats = gateway.stats().await.unwrap();
        let of = |worker: usize| {
            let suffix = format!("worker_{worker}.downstream_cx_total");
            stats
                .iter()
                .filter(|(name, _)| name.starts_with("listener.127") && name.ends_with(&suffix))
                .map(|(_, n)| n)
                .sum::<u64>()
        };
        [of(0), of(1)]
    };
    let before = accepted().await;
    let body = chat(MODELS[0], "still there?", 1).to_string();
    for _ in 0..100 {
        let batch = (0..20).map(async |_| {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(request(&["connection: close"], body.as_bytes())).await.unwrap();
            assert_eq!(connection.answer().await.unwrap().status, 200, "after {after}");
        });
        futures_util::future::join_all(batch).await;
        let now = accepted().await;
        if (0..2).all(|worker| now[worker] >= before[worker] + 20) {
            return;
        }
    }
    panic!("a worker gets no connections after {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_sent_is_answered_and_the_next_requests_on_every_worker_succeed() {
    for chain in [false, true] {
        let gateway = gateway(chain).await;
        for (name, bytes, allowed) in attacks() {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            // It may be answered before all of it is sent.
            let _ = connection.send(&bytes).await;
            let answer = connection.answer().await.unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(
                allowed.contains(&answer.status),
                "{name}: {} {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            );
            expect_well(&gateway, name).await;
        }
        let log = gateway.envoy_log();
        assert!(
            !log.contains("in-VM backtrace") && !log.contains("Plugin is reloading"),
            "a filter trapped: {log}"
        );
        gateway.quiet(std::time::Duration::from_secs(10)).await.unwrap();
    }
}
