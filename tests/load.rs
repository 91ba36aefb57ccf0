//! `weir load` through a real Envoy: what it sends, what it counts, and that its report is the lab's.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

#[path = "reality/reality.rs"]
mod reality;

use reality::{gateway, measure, predict};
use rig::measure::engine;
use serde_json::{Value, json};
use weir_engine::{Config, Engine, Fault, Kind};

/// Engines that take a fifth of the time and less.
fn quick() -> Config {
    Config { prefill_ms_per_ktoken: 20.0, decode_ms: 0.2, ..engine() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompts_of_a_workload_are_sent_as_they_are_shared_and_reported_as_the_lab_reports() {
    let gateway = gateway(json!("round_robin"), 2, &quick()).await.unwrap();
    let log = gateway.dir().join("log.csv").display().to_string();
    let traffic = ["--trace", "agents", "--requests", "40", "--rate", "20"];
    let (said, measured) = measure(&gateway, &[&traffic[..], &["--log", &log]].concat()).await.unwrap();
    let (_, predicted) = predict(gateway.dir(), &json!("round_robin"), 2, &quick(), &traffic).await.unwrap();
    let keys = |figures: &Value| figures.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&measured), keys(&predicted), "one report for both");
    assert_eq!(measured["failed"], 0, "{said}");
    assert_eq!(measured["offered"], predicted["offered"]);
    assert_eq!(measured["ceiling"], predicted["ceiling"]);

    let requests: Vec<_> = gateway.engines[0].iter().flat_map(Engine::requests).collect();
    assert_eq!(requests.len() as u64, measured["offered"].as_u64().unwrap());
    let count = |name: &str| measured[name].as_u64().unwrap() as usize;
    assert_eq!(count("most") + count("least"), requests.len(), "the endpoint header is read");
    assert!(count("most") - count("least") <= 1, "turns were taken: {measured}");
    let (cached, prompts) =
        requests.iter().fold((0, 0), |sums, one| (sums.0 + one.cached_tokens, sums.1 + one.prompt_tokens));
    let hit = cached as f64 / prompts as f64;
    assert!((measured["hit"].as_f64().unwrap() - hit).abs() < 1e-3, "as engines say: {hit} {measured}");
    // What answers add to a prompt, these engines do not keep.
    let ceiling = measured["ceiling"].as_f64().unwrap();
    assert!(hit > 0.3 * ceiling, "steps share what the workload says: {hit} of {ceiling}");

    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().count(), requests.len() + 1);
    assert!(said.contains("client late: p99 "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_counted_by_its_reason_and_waits_for_ever() {
    let gateway = gateway(json!("round_robin"), 1, &quick()).await.unwrap();
    let burst = ["--trace", "hot-prefix", "--requests", "30", "--rate", "300"];
    let (said, measured) = measure(&gateway, &[&burst[..], &["--concurrency", "2"]].concat()).await.unwrap();
    let failed = measured["failed"].as_u64().unwrap();
    assert!((1..30).contains(&failed), "{said}");
    assert!(said.contains(&format!("failed: {failed} x over --concurrency")), "{said}");
    assert_eq!(measured["ttft_ms"]["max"], Value::Null, "no token, no time: {measured}");

    gateway.engines[0][0].fault(Fault::new(Kind::CutStream).after_tokens(3));
    let error =
        measure(&gateway, &["--trace", "hot-prefix", "--requests", "5"]).await.unwrap_err().to_string();
    assert!(error.contains("no request was answered"), "{error}");
}
