//! Every policy through Envoy; bursts on old metrics, and one prefix that all share, through two gateways and a scorer.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::{Gateway, MODELS, Second, Setup, chat, filter_config, get, wait_until};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::Mutex;
use weir::policy::Policy;
use xxhash_rust::xxh64::xxh64;

/// These tests are about load: they take turns.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Text of so many bytes that no other number gives.
fn text(number: u64, bytes: usize) -> String {
    let words = (0..).map(|word: u64| format!("{:08x} ", xxh64(&word.to_le_bytes(), number) >> 32));
    words.take(bytes / 9 + 1).collect::<String>()[..bytes].to_owned()
}

/// How many requests each engine of the first pool got since this was asked last.
fn counts(gateway: &Gateway) -> Vec<usize> {
    let counts = gateway.engines[0].iter().map(|engine| engine.requests().len()).collect();
    gateway.engines[0].iter().for_each(weir_engine::Engine::clear_requests);
    counts
}

/// llm-d's default, as a policy.
fn epp() -> Value {
    json!({"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": []})
}

/// What ten requests of one prompt, one after the other, show of a policy.
enum Promise {
    /// All go to the endpoint that has the prompt.
    Stays,
    /// Each endpoint gets its part.
    TakesTurns,
    /// More than one endpoint is used.
    Spreads,
}

fn promise(policy: &str) -> Promise {
    match policy {
        "least_prefill" | "cache_aware" | "dynamo" | "lmetric" | "consistent_hash" | "prefix_hash"
        | "epp" => Promise::Stays,
        "round_robin"
        | "weighted_round_robin"
        | "weighted_least_requests"
        | "client_side_weighted_round_robin"
        | "usage_based" => Promise::TakesTurns,
        _ => Promise::Spreads,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_policy_serves_and_does_what_it_promises() {
    let _alone = ALONE.lock().await;
    // A pool for each policy, of the same four engines; the model's name is the policy's.
    let names: Vec<&str> = Policy::names().chain(["epp"]).collect();
    let edit = {
        let names = names.clone();
        move |envoy: &mut Value| {
            let route = rig::find_all(envoy, &|value| {
                value["match"]["headers"][0]["string_match"]["exact"] == MODELS[0]
            });
            for route in route {
                let header = &mut route["match"]["headers"][0];
                header.as_object_mut().unwrap().remove("string_match");
                header["present_match"] = true.into();
            }
            filter_config(envoy, "pick", |pick| {
                let endpoints = pick["pools"][0]["endpoints"].clone();
                let pool = |name: &&str| {
                    let policy = if *name == "epp" { epp() } else { json!(name) };
                    json!({"name": name, "models": [name], "endpoints": endpoints, "choose": {"policy": policy}})
                };
                pick["pools"] = names.iter().map(pool).collect();
            });
        }
    };
    let setup = Setup {
        engines: [4, 1],
        also: names.clone(),
        // Each worker takes turns of its own.
        workers: 1,
        edit: Some(Box::new(edit)),
        ..Setup::default()
    };
    let gateway = Gateway::start(setup).await.unwrap();
    let prompt = text(1, 4_000);
    for name in names {
        let mut ids = Vec::new();
        for _ in 0..10 {
            let answer = gateway.chat(&chat(name, &prompt, 4)).await.unwrap();
            assert_eq!(answer.status(), 200, "{name}");
            ids.push(rig::request_id(&answer));
            answer.bytes().await.unwrap();
        }
        let counts = counts(&gateway);
        assert_eq!(counts.iter().sum::<usize>(), 10, "{name}");
        let used = counts.iter().filter(|count| **count > 0).count();
        match promise(name) {
            Promise::Stays => assert_eq!(used, 1, "{name}: {counts:?}"),
            Promise::TakesTurns => {
                assert!(counts.iter().all(|count| (2..=3).contains(count)), "{name}: {counts:?}");
            }
            Promise::Spreads => assert!(used > 1, "{name}: {counts:?}"),
        }
        let line = gateway.logged(&ids[9]).await.unwrap();
        let said = if name == "epp" { "endpoint_picker" } else { name };
        assert_eq!(rig::fields(&line, "pick")["policy"], said);
    }
    gateway.quiet(Duration::from_secs(10)).await.unwrap();
}

/// Eight engines behind two gateways that share a scorer, which scrapes them.
async fn eight(policy: Value, engine: weir_engine::Config) -> (Gateway, Second, [String; 2]) {
    let own = policy.clone();
    let setup = Setup {
        engines: [8, 1],
        engine,
        scorer: true,
        edit: Some(Box::new(move |envoy| {
            filter_config(envoy, "pick", |pick| pick["choose"]["policy"] = own.clone())
        })),
        edit_scorer: Some(Box::new(move |scorer| {
            scorer["choose"]["policy"] = policy.clone();
            scorer["signals"] = json!({"interval_ms": 1000});
        })),
        ..Setup::default()
    };
    let gateway = Gateway::start(setup).await.unwrap();
    let second = gateway.second().await.unwrap();
    let urls = [gateway.url.clone(), second.url.clone()];
    (gateway, second, urls)
}

/// Sends these prompts at once, in turns through both gateways.
async fn burst(gateway: &Gateway, urls: &[String; 2], prompts: impl Iterator<Item = String>) {
    let one = async |(number, prompt): (usize, String)| {
        let answer = gateway.chat_at(&urls[number % 2], &chat(MODELS[0], &prompt, 8)).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.bytes().await.unwrap();
    };
    join_all(prompts.enumerate().map(one)).await;
}

fn frozen(waiting: u32) -> String {
    format!(
        "vllm:num_requests_waiting {waiting}\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.1\n"
    )
}

/// Fault 16: a burst between two scrapes sees one engine idle, or all alike. A policy that goes by prefixes first cannot be
/// made to have one everywhere.
async fn bursts_spread(policy: Value, prefix_first: bool) {
    let _alone = ALONE.lock().await;
    let engine = weir_engine::Config { prefill_ms_per_ktoken: 50.0, decode_ms: 10.0, ..Default::default() };
    let (gateway, _second, urls) = eight(policy.clone(), engine).await;
    let say = async |waiting: [u32; 8]| {
        gateway.engines[0].iter().zip(waiting).for_each(|(engine, n)| engine.say(Some(&frozen(n))));
        let scorer = &gateway.scorer.as_ref().unwrap().url;
        let heard = async || {
            let loads: Value = serde_json::from_str(&get(scorer, "/v1/loads").await.unwrap()).unwrap();
            let engines = loads["pools"][0]["engines"].as_array().unwrap().clone();
            let said = |said: &Value| said["waiting"].as_u64();
            let mut all: Vec<_> = engines.iter().filter_map(said).collect();
            let mut expected = waiting.map(u64::from);
            all.sort_unstable();
            expected.sort_unstable();
            all == expected
        };
        wait_until("the scorer has heard it", Duration::from_secs(10), heard).await.unwrap();
    };
    let within = |counts: Vec<usize>, run: &str| {
        assert_eq!(counts.iter().sum::<usize>(), 80, "{run}");
        assert!(counts.iter().all(|count| (3..=20).contains(count)), "{run}, {policy}: {counts:?}");
    };
    say([1; 8]).await;
    burst(&gateway, &urls, (0..80).map(|number| text(100 + number, 1_000))).await;
    within(counts(&gateway), "no prefix is shared");
    if !prefix_first {
        // Warm everywhere: the prefix alone, more at once than any affinity holds.
        let shared = text(7, 1_000);
        burst(&gateway, &urls, (0..160).map(|_| shared.clone())).await;
        counts(&gateway);
        burst(&gateway, &urls, (0..80).map(|number| format!("{shared}{}", text(300 + number, 200)))).await;
        within(counts(&gateway), "the prefix is warm everywhere");
    }
    say([1, 1, 1, 0, 1, 1, 1, 1]).await;
    burst(&gateway, &urls, (0..80).map(|number| text(500 + number, 1_000))).await;
    within(counts(&gateway), "one engine says that nothing waits");
    gateway.quiet(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_frozen_metrics_spreads_by_default() {
    bursts_spread(json!("least_prefill"), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_frozen_metrics_spreads_with_llm_ds_default() {
    bursts_spread(epp(), true).await;
}

/// How many of the requests of 32 clients, three each, one after the other, each engine served.
async fn hot(gateway: &Gateway, urls: &[String; 2], shared: &str) -> Vec<usize> {
    let client = async |client: u64| {
        for turn in 0..3 {
            let prompt = format!("{shared}{}", text(1_000 * client + turn, 80));
            let mut body = chat(MODELS[0], &prompt, 16);
            body["stream"] = true.into();
            let answer = gateway.chat_at(&urls[client as usize % 2], &body).await.unwrap();
            assert_eq!(answer.status(), 200);
            answer.bytes().await.unwrap();
        }
    };
    join_all((0..32).map(client)).await;
    counts(gateway)
}

/// Fault 17: one common system prompt.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_prefix_stays_on_one_engine_alone_and_on_none_under_load() {
    let _alone = ALONE.lock().await;
    let engine = weir_engine::Config {
        slots: 4,
        prefill_ms_per_ktoken: 50.0,
        decode_ms: 20.0,
        decode_batch_slope: 0.0,
        ..Default::default()
    };
    let shared = text(7, 6 << 10);
    let (gateway, _second, urls) = eight(json!("least_prefill"), engine).await;
    for number in 0..20 {
        burst(&gateway, &urls, std::iter::once(format!("{shared}{}", text(number, 80)))).await;
    }
    let alone = counts(&gateway);
    assert!(alone.iter().max().unwrap() * 20 >= 19 * 20, "{alone:?}");
    // Four slots each are just enough for 32 clients: nobody may have much more than its part, or they wait for slots.
    let spread = hot(&gateway, &urls, &shared).await;
    assert!(spread.iter().filter(|count| **count > 0).count() >= 6, "{spread:?}");
    assert!(spread.iter().all(|count| *count <= 2 * 96 / 8), "more than twice its part: {spread:?}");
}
