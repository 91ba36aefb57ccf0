//! Where a request goes, and what goes nowhere.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use reqwest::Method;
use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use weir::wire;

const CHAT: &str = "/v1/chat/completions";
/// An answer that waits for nothing is there long before.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn gateway() -> Gateway {
    let engine = weir_engine::Config::instant();
    Gateway::start(Setup { engines: [1, 1], engine, ..Setup::default() }).await.unwrap()
}

/// No engine has received anything.
fn untouched(gateway: &Gateway) -> bool {
    gateway.received(0).is_empty() && gateway.received(1).is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_at_the_end_of_a_body_in_pieces_leads_to_its_pool_on_one_connection() {
    let gateway = gateway().await;
    let mut connection = Raw::connect(&gateway.url).await.unwrap();
    for turn in 0..20 {
        let model = MODELS[turn % 2];
        let other = format!("x-gateway-model-name: {}", MODELS[1 - turn % 2]);
        let head = post(CHAT, &["transfer-encoding: chunked", &other]);
        connection.send(head).await.unwrap();
        let (before, after) =
            ("{\"messages\":[{\"role\":\"user\",\"content\":\"", format!("{turn}\"}}],\"max_tokens\":1,"));
        for piece in [before, &after, &format!("\"model\":\"{model}\"}}"), ""] {
            sleep(Duration::from_millis(10)).await;
            connection.send_chunk(piece).await.unwrap();
        }
        let answer = connection.answer().await.unwrap();
        assert_eq!((answer.status, &answer.json().unwrap()["model"]), (200, &model.into()), "turn {turn}");
    }
    for (pool, model) in MODELS.iter().enumerate() {
        let received = gateway.received(pool);
        assert_eq!(received.len(), 10);
        for (_, record) in received {
            let names: Vec<_> = record.headers.iter().filter(|(name, _)| name == wire::MODEL).collect();
            assert_eq!(names, [&(wire::MODEL.to_owned(), (*model).to_owned())]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_routed_is_answered_in_the_clients_dialect_and_reaches_no_engine() {
    let gateway = gateway().await;
    let answer = gateway.chat(&chat("nobodys-model", "hello", 1)).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["content-type"].to_str().unwrap()),
        (404, "application/json")
    );
    let error = answer.json::<serde_json::Value>().await.unwrap();
    assert_eq!(error["error"]["code"], "model_not_found");
    assert!(error["error"]["message"].is_string());

    let long = format!(r#"{{"model":"{}","messages":[]}}"#, "m".repeat(257));
    let bodies: [(&[u8], u16, &str); 13] = [
        (b"", 400, "no body"),
        (b"{", 400, "JSON"),
        (b"[]", 400, "JSON"),
        (b"not json", 400, "JSON"),
        (b"\xff\xfe{}", 400, "UTF-8"),
        (br#"{"messages":[]}"#, 400, "model"),
        (br#"{"model":7}"#, 400, "model"),
        (br#"{"model":null}"#, 400, "model"),
        (br#"{"model":""}"#, 400, "model"),
        (br#"{"model":"a\nb"}"#, 400, "model"),
        (br#"{"model":"demo-small","model":"demo-large"}"#, 400, "more than once"),
        (br#"{"model":"demo-small"} {"model":"demo-large"}"#, 400, "JSON"),
        (long.as_bytes(), 400, "256"),
    ];
    for (body, status, word) in bodies {
        for (path, anthropic) in [(CHAT, false), ("/v1/messages", true), ("/v1/completions", false)] {
            let request = gateway
                .client
                .post(format!("{}{path}", gateway.url))
                .header("content-type", "application/json");
            let answer = request.body(body.to_vec()).send().await.unwrap();
            let case = format!("{path} {}", String::from_utf8_lossy(body));
            assert_eq!(answer.status(), status, "{case}");
            assert_eq!(answer.headers()["content-type"], "application/json", "{case}");
            let error: serde_json::Value = answer.json().await.unwrap();
            assert_eq!(error["type"] == "error", anthropic, "{case}: {error}");
            assert_eq!(error["error"].get("param").is_some(), !anthropic, "{case}: {error}");
            assert_eq!(error["error"]["type"], "invalid_request_error", "{case}");
            assert!(error["error"]["message"].as_str().unwrap().contains(word), "{case}: {error}");
        }
    }
    for (name, value) in [("content-encoding", "gzip"), ("content-type", "multipart/form-data; boundary=x")] {
        let request = gateway.client.post(format!("{}{CHAT}", gateway.url)).header(name, value);
        assert_eq!(request.body("x").send().await.unwrap().status(), 415, "{value}");
    }
    assert!(untouched(&gateway));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_inference_request_is_not_held() {
    let gateway = gateway().await;
    let models = gateway.client.get(format!("{}/v1/models", gateway.url)).send().await.unwrap();
    assert_eq!(
        (models.status().as_u16(), models.headers()["content-type"].to_str().unwrap()),
        (200, "application/json")
    );
    let models: serde_json::Value = models.json().await.unwrap();
    let names: Vec<_> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, MODELS);

    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::DELETE, Method::PUT, Method::POST] {
        for path in [CHAT, "/", "/v1/models/demo-small"] {
            if method == Method::POST && path == CHAT {
                continue;
            }
            let request = gateway.client.request(method.clone(), format!("{}{path}", gateway.url));
            let answer =
                timeout(AT_ONCE, request.header("content-length", "0").send()).await.unwrap().unwrap();
            assert_eq!(answer.status(), 404, "{method} {path}");
            assert_eq!(answer.headers()["content-type"], "application/json", "{method} {path}");
            if method != Method::HEAD {
                assert!(answer.json::<serde_json::Value>().await.unwrap()["error"]["message"].is_string());
            }
        }
    }

    // Not even one whose body never comes, nor one that asks for another protocol.
    let held = [
        format!("GET {CHAT} HTTP/1.1\r\nhost: weir\r\ncontent-length: 5\r\n\r\n"),
        format!("DELETE {CHAT} HTTP/1.1\r\nhost: weir\r\ntransfer-encoding: chunked\r\n\r\n"),
        post("/v1/files", &["content-length: 5"]),
        "GET /v1/realtime HTTP/1.1\r\nhost: weir\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
            .to_owned(),
        post(CHAT, &["connection: upgrade", "upgrade: websocket", "content-length: 5"]),
    ];
    for request in held {
        let mut connection = Raw::connect(&gateway.url).await.unwrap();
        connection.send(&request).await.unwrap();
        let answer = timeout(AT_ONCE, connection.answer()).await.expect(&request).unwrap();
        assert!([400, 403, 404].contains(&answer.status), "{request}: {}", answer.status);
    }
    assert!(untouched(&gateway));
    assert_eq!(gateway.stat("weir_extract_read_total").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_understood_as_an_engine_would() {
    let gateway = gateway().await;
    for path in [
        "/v1//chat/completions",
        "/v1/./chat/completions",
        "/v1/x/../chat/completions",
        "/v1/chat/completions?a=b",
    ] {
        let mut connection = Raw::connect(&gateway.url).await.unwrap();
        let body = chat(MODELS[0], path, 1).to_string();
        connection.send(post(path, &[&format!("content-length: {}", body.len())]) + &body).await.unwrap();
        assert_eq!(connection.answer().await.unwrap().status, 200, "{path}");
    }
    assert_eq!(gateway.received(0).len(), 4);
    assert!(gateway.received(0).iter().all(|(_, record)| record.path == CHAT));
    let mut connection = Raw::connect(&gateway.url).await.unwrap();
    let body = chat(MODELS[0], "escaped", 1).to_string();
    let head = post("/v1%2fchat%2fcompletions", &[&format!("content-length: {}", body.len())]);
    connection.send(head + &body).await.unwrap();
    assert_eq!(connection.answer().await.unwrap().status, 400);
    assert_eq!(gateway.received(0).len(), 4);
}
