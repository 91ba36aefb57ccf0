//! What has no JSON body passes at once: WebSockets frame by frame, and requests for anything but inference.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::{Backend, Gateway, MODELS, Raw, Setup};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use weir::wire;

/// A gateway whose first pool is an endpoint by script; requests to these prefixes go there without a model.
async fn gateway(chain: bool, prefixes: &'static [&'static str]) -> (Gateway, Arc<Backend>) {
    let backend = Arc::new(Backend::start().await.unwrap());
    let placed = backend.clone();
    let edit = move |envoy: &mut Value| placed.place(envoy, 0, &MODELS[..1], prefixes);
    let setup = Setup { engines: [0, 1], chain, edit: Some(Box::new(edit)), ..Setup::default() };
    (Gateway::start(setup).await.unwrap(), backend)
}

/// A masked frame of a client, as RFC 6455 has it; `op`: 1 text, 2 binary, 8 close.
fn frame(op: u8, text: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [7, 3, 9, 5];
    let mut frame = vec![0x80 | op];
    match text.len() {
        length @ ..126 => frame.push(0x80 | length as u8),
        length @ ..0x1_0000 => frame.extend([&[0x80 | 126][..], &(length as u16).to_be_bytes()].concat()),
        length => frame.extend([&[0x80 | 127][..], &(length as u64).to_be_bytes()].concat()),
    }
    frame.extend(MASK);
    frame.extend(text.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_opens_at_once_and_its_frames_pass_untouched_in_both_directions() {
    for chain in [false, true] {
        let (gateway, backend) = gateway(chain, &[]).await;
        let mut connection = Raw::connect(&gateway.url).await.unwrap();
        let head = format!(
            "GET /v1/realtime?model={} HTTP/1.1\r\nhost: weir\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{}: forged\r\n\r\n",
            MODELS[0],
            wire::MODEL
        );
        connection.send(head).await.unwrap();
        let (line, _) = connection.message().await.unwrap();
        assert!(line.starts_with("HTTP/1.1 101"), "{line}");
        // The endpoint speaks first, before the client has sent anything.
        assert_eq!(connection.bytes(Backend::GREETING.len()).await.unwrap(), Backend::GREETING);
        for frame in [frame(1, b"hi"), frame(2, &vec![0xa5; 1 << 20]), frame(1, "ü".as_bytes())] {
            connection.send(&frame).await.unwrap();
            assert!(connection.bytes(frame.len()).await.unwrap() == frame, "a frame came back changed");
        }
        // Longer than extract's timer waits for a body.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let close = frame(8, &[0x0f, 0xa1]);
        connection.send(&close).await.unwrap();
        assert_eq!(connection.bytes(close.len()).await.unwrap(), close, "code 4001");
        let heard = backend.heard();
        assert_eq!(heard.len(), 1);
        assert_eq!(heard[0].line, format!("GET /v1/realtime?model={} HTTP/1.1", MODELS[0]));
        assert!(heard[0].values(wire::MODEL).is_empty(), "the client's own header passed");
        assert_eq!(gateway.stat("weir_extract_misconfigured_total").await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_body_or_for_anything_else_pass_without_a_model() {
    for chain in [false, true] {
        let (gateway, backend) = gateway(chain, &["/"]).await;
        let lines = [
            ("GET", "/v1/models", ""),
            ("GET", "/v1/models", "content-length: 0\r\n"),
            ("HEAD", "/v1/models", ""),
            (
                "OPTIONS",
                "/v1/chat/completions",
                "origin: http://a\r\naccess-control-request-method: POST\r\n",
            ),
            ("GET", "/v1/responses/resp_1", ""),
            ("DELETE", "/v1/responses/resp_1", ""),
            ("POST", "/v1/responses/resp_1/cancel", "content-length: 0\r\n"),
            ("POST", "/v1/files", "content-length: 3\r\ncontent-type: text/plain\r\n"),
        ];
        for (method, path, more) in lines {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            let forged = format!("{}: {}\r\n{}: 6.6.6.6:6\r\n", wire::MODEL, MODELS[1], wire::DESTINATION);
            let body = if more.contains("length: 3") { "abc" } else { "" };
            let head = format!("{method} {path} HTTP/1.1\r\nhost: weir\r\n{forged}{more}\r\n{body}");
            connection.send(head).await.unwrap();
            if method == "HEAD" {
                // Its answer has the length of a body that does not come.
                connection.wait_for("\r\n\r\n").await.unwrap();
            } else {
                let answer = connection.answer().await.unwrap();
                assert_eq!((answer.status, &*answer.body), (200, &b"{}"[..]), "{method} {path}");
            }
            let heard = backend.heard();
            assert_eq!(heard.len(), 1, "{method} {path}");
            assert_eq!(heard[0].line, format!("{method} {path} HTTP/1.1"));
            assert_eq!(heard[0].body, body.as_bytes());
            let ours = [wire::MODEL, wire::DESTINATION];
            assert!(ours.iter().all(|name| heard[0].values(name).is_empty()), "{:?}", heard[0].headers);
        }
        assert_eq!(gateway.stat("weir_extract_passed_total").await.unwrap(), lines.len() as u64);
        assert_eq!(gateway.stat("weir_extract_read_total").await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_models_has_every_model_that_is_routed() {
    let gateway = Gateway::start(Setup::default()).await.unwrap();
    let list: Value = serde_json::from_str(&rig::get(&gateway.url, "/v1/models").await.unwrap()).unwrap();
    let named: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(named, MODELS);
}
