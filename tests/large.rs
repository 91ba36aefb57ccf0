//! Large bodies: all up to the limit pass, and a burst of them hurts nobody else and leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat};
use std::time::Duration;
use xxhash_rust::xxh64::xxh64;

const CHAT: &str = "/v1/chat/completions";
const KB: usize = 1 << 10;
const MB: usize = 1 << 20;
/// As shipped.
const LIMIT: usize = 32 * MB;

async fn gateway(chain: bool) -> Gateway {
    let engine = weir_engine::Config { kv_tokens: 1 << 30, ..weir_engine::Config::instant() };
    Gateway::start(Setup { engines: [2, 1], engine, chain, ..Setup::default() }).await.unwrap()
}

/// A chat request of exactly `size` bytes, its model at one end or the other.
fn body(size: usize, model_first: bool, salt: usize) -> Vec<u8> {
    let model = format!(r#""model":"{}""#, MODELS[0]);
    let (before, after) = match model_first {
        true => (
            format!("{{{model},\"messages\":[{{\"role\":\"user\",\"content\":\""),
            "\"}],\"max_tokens\":1}".to_owned(),
        ),
        false => (
            r#"{"messages":[{"role":"user","content":""#.to_owned(),
            format!("\"}}],\"max_tokens\":1,{model}}}"),
        ),
    };
    let text = (0..size - before.len() - after.len()).map(|n| b'a' + ((n / 7 + n * salt) % 26) as u8);
    before.into_bytes().into_iter().chain(text).chain(after.into_bytes()).collect()
}

/// Sends a body, in pieces with a pause between them; gives the status.
async fn upload(gateway: &Gateway, body: &[u8], chunked: bool, piece: usize, pause: Duration) -> u16 {
    let mut connection = Raw::connect(&gateway.url).await.unwrap();
    let length = format!("content-length: {}", body.len());
    connection
        .send(post(CHAT, &[if chunked { "transfer-encoding: chunked" } else { &length }]))
        .await
        .unwrap();
    for piece in body.chunks(piece) {
        // One that is refused may find the connection closed.
        let sent = if chunked { connection.send_chunk(piece).await } else { connection.send(piece).await };
        if sent.is_err() {
            break;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    if chunked {
        let _ = connection.send_chunk("").await;
    }
    let answer = connection.answer().await.unwrap();
    if answer.status == 413 {
        let error = answer.json().unwrap();
        let said = error["error"]["message"].as_str().unwrap();
        assert!(said.contains(&format!("{LIMIT} bytes (max_body_bytes)")), "{said}");
    }
    answer.status
}

/// Lengths and hashes of what the engines of the first pool received.
fn arrived(gateway: &Gateway) -> Vec<(usize, String)> {
    let all = gateway.received(0).into_iter();
    let mut all: Vec<_> = all.map(|(_, record)| (record.body_len, record.body_xxh64)).collect();
    all.sort();
    all
}

fn print(body: &[u8]) -> (usize, String) {
    (body.len(), format!("{:016x}", xxh64(body, 0)))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_up_to_the_limit_arrive_and_what_is_over_it_is_refused_by_name() {
    let gateway = gateway(false).await;
    let sizes = [30 * KB, 200 * KB, MB, 5 * MB, LIMIT - 1, LIMIT, LIMIT + 1];
    for (size, model_first) in sizes.into_iter().flat_map(|size| [(size, true), (size, false)]) {
        let body = body(size, model_first, 1);
        for chunked in [false, true] {
            gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
            let status = upload(&gateway, &body, chunked, 256 * KB, Duration::ZERO).await;
            let expected = if size > LIMIT { (413, vec![]) } else { (200, vec![print(&body)]) };
            assert_eq!(
                (status, arrived(&gateway)),
                expected,
                "{size}, model first: {model_first}, chunked: {chunked}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_upload_arrives_and_others_pass_it_by() {
    for chain in [false, true] {
        let gateway = gateway(chain).await;
        let slow = body(200 * KB, false, 1);
        let others = async {
            for turn in 0..20 {
                let answer = gateway.chat(&chat(MODELS[1], &format!("{turn}"), 1)).await.unwrap();
                assert_eq!(answer.status(), 200);
            }
            assert!(arrived(&gateway).is_empty(), "the slow one was to take longer");
        };
        let (status, ()) =
            tokio::join!(upload(&gateway, &slow, true, 5 * KB, Duration::from_millis(100)), others);
        assert_eq!(status, 200);
        assert_eq!(arrived(&gateway), [print(&slow)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_uploads_at_once_arrive_and_the_memory_they_took_is_used_again() {
    for chain in [false, true] {
        let gateway = gateway(chain).await;
        let bodies: Vec<Vec<u8>> = (0..50).map(|salt| body(5 * MB, salt % 2 == 0, salt)).collect();
        let mut expected: Vec<_> = bodies.iter().map(|body| print(body)).collect();
        expected.sort();
        let allocated = async || gateway.stats().await.unwrap()["server.memory_allocated"] as usize;
        let before = allocated().await;
        let mut resident = Vec::new();
        for _ in 0..6 {
            gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
            let uploads = bodies.iter().map(|body| upload(&gateway, body, false, 64 * KB, Duration::ZERO));
            let others = async {
                for turn in 0..20 {
                    let answer = gateway.chat(&chat(MODELS[1], &format!("{turn}"), 1)).await.unwrap();
                    assert_eq!(answer.status(), 200);
                }
            };
            let (statuses, ()) = tokio::join!(join_all(uploads), others);
            assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
            assert!(arrived(&gateway) == expected, "not the bytes that were sent");
            resident.push(resident_bytes(gateway.envoy.id()));
        }
        // Envoy's own memory falls back; a filter's does not shrink, but is used again.
        rig::wait_until("the buffers are free", Duration::from_secs(10), async || {
            allocated().await < before + 64 * MB
        })
        .await
        .unwrap();
        // Which worker gets how many at a time differs, so it takes some bursts until nothing new is needed.
        let most = |bursts: &[usize]| bursts.iter().copied().max().unwrap();
        assert!(
            most(&resident[4..]) < most(&resident[..4]) + 96 * MB,
            "it grows with each burst: {resident:?}"
        );
    }
}

fn resident_bytes(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * KB
}
