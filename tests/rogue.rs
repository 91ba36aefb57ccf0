//! What a broken or hostile engine may answer: its client hears of it, nobody else does, and nothing is left over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test")]

use rig::{Edit, Gateway, MODELS, Raw, Setup, chat, no_breaker, place_pool, with_opening};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// No answer may take as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// An endpoint that answers each request with these bytes and closes.
async fn rogue() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let says = Arc::new(Mutex::new(Vec::new()));
    let own = says.clone();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let own = own.clone();
            tokio::spawn(async move {
                let mut connection = Raw::accepted(connection);
                if connection.message().await.is_ok() {
                    let bytes = own.lock().unwrap().clone();
                    let _ = connection.send(bytes).await;
                }
            });
        }
    });
    (address, says)
}

const JSON: &str = "content-type: application/json\r\n";
const SSE: &str = "content-type: text/event-stream\r\n";
const WHOLE: &str = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// What it answers, and the statuses that the client may see; 0: an answer that breaks off.
fn answers() -> Vec<(&'static str, Vec<u8>, &'static [u16])> {
    // It says so when it closes: a request on a connection that is about to close would be lost for that alone.
    let ok = "HTTP/1.1 200 OK\r\nconnection: close\r\n";
    let length = format!("content-length: {}\r\n", WHOLE.len());
    let steer =
        "x-weir-too-long: 1\r\nx-gateway-destination-endpoint: 1.2.3.4:5\r\nx-weir-spillover-to: 7\r\n";
    let bytes = |parts: &[&str]| parts.concat().into_bytes();
    vec![
        ("no content", bytes(&["HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"]), &[204]),
        ("nothing in a 200", bytes(&[ok, JSON, "content-length: 0\r\n\r\n"]), &[200]),
        ("a stream without an event", bytes(&[ok, SSE, "content-length: 0\r\n\r\n"]), &[502]),
        (
            "early hints and more of 1xx",
            bytes(&[
                "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
                ok,
                JSON,
                &length,
                "\r\n",
                WHOLE,
            ]),
            &[200],
        ),
        (
            "a change of protocol nobody asked for",
            bytes(&["HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"]),
            &[101, 502, 503],
        ),
        (
            "trailers",
            bytes(&[
                ok,
                SSE,
                "transfer-encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\n1\r\n\n\r\n0\r\nx-weir-too-long: 1\r\nretry-after: 9\r\n\r\n",
            ]),
            &[200],
        ),
        (
            "a piece of a field, and no more",
            bytes(&[ok, SSE, "transfer-encoding: chunked\r\n\r\n4\r\ndata\r\n0\r\n\r\n"]),
            &[502],
        ),
        ("headers that steer gateways", bytes(&[ok, JSON, steer, &length, "\r\n", WHOLE]), &[200]),
        ("a length that is a lie", bytes(&[ok, JSON, "content-length: 9999\r\n\r\n{"]), &[0, 502, 503]),
        ("two lengths", bytes(&[ok, JSON, "content-length: 1\r\ncontent-length: 2\r\n\r\n{}"]), &[502, 503]),
        (
            "a chunk without an end",
            bytes(&[ok, SSE, "transfer-encoding: chunked\r\n\r\nffffffff\r\ndata: "]),
            &[0, 502, 503],
        ),
        (
            "gzip that is none",
            bytes(&[ok, SSE, "content-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope"]),
            &[502],
        ),
        (
            "a refusal that is gzip and none",
            bytes(&[
                "HTTP/1.1 400 Bad\r\nconnection: close\r\n",
                JSON,
                "content-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope",
            ]),
            &[400],
        ),
        ("not HTTP", bytes(&["SSH-2.0-OpenSSH_9.9\r\n"]), &[502, 503]),
        ("nothing at all", Vec::new(), &[502, 503]),
        ("a status of its own", bytes(&["HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n"]), &[999, 502, 503]),
        (
            "an end in a refusal",
            bytes(&["HTTP/1.1 422 Bad\r\n", JSON, "content-length: 50\r\n\r\n{\"error\":"]),
            &[0, 422, 502, 503],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_engine_answers_its_client_hears_of_it_and_nobody_else() {
    let (address, says) = rogue().await;
    let trust_all = no_breaker();
    let edit: Edit = Box::new(move |envoy| {
        with_opening(envoy);
        place_pool(envoy, 0, std::slice::from_ref(&address));
        trust_all(envoy);
    });
    let gateway =
        Gateway::start(Setup { chain: true, engines: [0, 1], edit: Some(edit), ..Setup::default() })
            .await
            .unwrap();
    for (what, bytes, allowed) in answers() {
        *says.lock().unwrap() = bytes;
        for stream in [false, true] {
            let mut body = chat(MODELS[0], "hello", 2);
            body["stream"] = json!(stream);
            let answer = timeout(PATIENCE, async {
                let answer = gateway.chat(&body).await.ok()?;
                let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
                answer.bytes().await.ok()?;
                Some((status, headers))
            });
            let answer = answer.await.expect(what);
            let status = answer.as_ref().map_or(0, |(status, _)| *status);
            assert!(allowed.contains(&status), "{what}, stream {stream}: {status}");
            let own = answer.iter().flat_map(|(_, headers)| headers.keys());
            assert!(!own.into_iter().any(|name| name.as_str().starts_with("x-weir-")), "{what}");
        }
        let other = gateway.chat(&chat(MODELS[1], "and you", 2)).await.unwrap();
        assert_eq!(other.status(), 200, "{what}: somebody else");
    }
    gateway.quiet(PATIENCE).await.unwrap();
    let reloads = gateway.stats().await.unwrap();
    assert!(reloads.iter().all(|(name, count)| !name.contains("vm_reload") || *count == 0), "no VM died");
}
