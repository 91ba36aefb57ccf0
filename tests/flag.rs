//! The one Envoy field that `extract` cannot do without, and cannot see.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat, find_all};
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const CHAT: &str = "/v1/chat/completions";
const FLAG: &str = "allow_on_headers_stop_iteration";
/// Found out after a quarter of a second; without the look a request would hang for ever.
const SOON: Duration = Duration::from_secs(5);

fn setup() -> Setup {
    Setup { engines: [1, 1], engine: weir_engine::Config::instant(), workers: 1, ..Setup::default() }
}

fn remove_flag(envoy: &mut Value) {
    for plugin in find_all(envoy, &|value| value["name"] == "extract" && value["vm_config"].is_object()) {
        assert_eq!(plugin.as_object_mut().unwrap().remove(FLAG), Some(true.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_flag_the_first_request_names_it_and_the_next_ones_fail_at_once() {
    let gateway = Gateway::start(Setup { edit: Some(Box::new(remove_flag)), ..setup() }).await.unwrap();
    // Held together, answered together.
    let ask = async |content: &str| {
        let (start, answer) = (Instant::now(), gateway.chat(&chat(MODELS[0], content, 1)).await.unwrap());
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (500, &"application/json".parse().unwrap())
        );
        let error: Value = answer.json().await.unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(FLAG), "{error}");
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    };
    futures_util::join!(ask("one"), ask("two"), ask("three"));
    for turn in 0..10 {
        ask(&format!("turn {turn}")).await;
        let models = gateway.client.get(format!("{}/v1/models", gateway.url)).send().await.unwrap();
        assert_eq!(models.status(), 200);
    }
    assert_eq!(gateway.stat("weir_extract_misconfigured_total").await.unwrap(), 13);
    let log = gateway.envoy_log();
    assert_eq!(
        log.lines().filter(|line| line.contains("weir-extract") && line.contains(FLAG)).count(),
        1,
        "{log}"
    );
    assert!(gateway.received(0).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_flag_a_slow_first_client_is_no_alarm() {
    let gateway = Gateway::start(setup()).await.unwrap();
    let body = chat(MODELS[0], "slowly, please", 1).to_string();
    let (half, rest) = body.split_at(body.len() / 2);
    let head = post(CHAT, &[&format!("content-length: {}", body.len())]);
    let pause = Duration::from_millis(1500);
    let mut connections = Vec::new();
    for _ in 0..3 {
        let mut connection = Raw::connect(&gateway.url).await.unwrap();
        connection.send(&head).await.unwrap();
        connections.push(connection);
    }
    // One gives up before anything of its body came.
    drop(connections.pop());
    sleep(pause).await;
    for connection in &mut connections {
        connection.send(half).await.unwrap();
    }
    sleep(pause).await;
    for connection in &mut connections {
        connection.send(rest).await.unwrap();
        assert_eq!(connection.answer().await.unwrap().status, 200);
    }
    assert_eq!(gateway.stat("weir_extract_misconfigured_total").await.unwrap(), 0);
    assert!(!gateway.envoy_log().contains(FLAG));
}
