//! What the tests share: bodies, a client, events of a stream, and waiting for a condition.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use weir_engine::Engine;

/// A chat of one user message.
pub fn chat(text: &str, max_tokens: u64, stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "stream": stream,
        "stream_options": {"include_usage": true}})
}

/// A POST on a connection of its own.
pub fn post(engine: &Engine, path: &str, body: &Value) -> RequestBuilder {
    Client::new().post(format!("{}{path}", engine.url())).json(body)
}

/// Sends a chat and waits for the head of the answer.
pub async fn send_chat(engine: &Engine, body: &Value) -> Response {
    post(engine, "/v1/chat/completions", body).send().await.unwrap()
}

/// Sends a chat and gives its JSON.
pub async fn ask_chat(engine: &Engine, body: &Value) -> Value {
    send_chat(engine, body).await.json().await.unwrap()
}

/// The events of a stream: name (empty in OpenAI's) and data. Every event must end with an empty line.
pub fn events(text: &str) -> Vec<(String, String)> {
    let body = text.strip_suffix("\n\n").expect("a stream ends with an empty line");
    let event = |event: &str| match event.split_once("\ndata: ") {
        Some((name, data)) => (name.strip_prefix("event: ").unwrap().to_owned(), data.to_owned()),
        None => (String::new(), event.strip_prefix("data: ").unwrap().to_owned()),
    };
    body.split("\n\n").map(event).collect()
}

/// Waits until something is so, at most ten seconds.
pub async fn until(what: &str, so: impl Fn() -> bool) {
    for _ in 0..2000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("still not so: {what}");
}
