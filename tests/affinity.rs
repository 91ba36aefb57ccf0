//! A conversation stays where its prefix is cached, and one prefix that all share does not pile up.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::{Gateway, MODELS, Setup};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use tokio::sync::Mutex;
use xxhash_rust::xxh64::xxh64;

/// These tests are about load: they take turns.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Text of so many bytes that no other number gives.
fn text(number: u64, bytes: usize) -> String {
    let words = (0..).map(|word: u64| format!("{:08x} ", xxh64(&word.to_le_bytes(), number) >> 32));
    words.take(bytes / 9 + 1).collect::<String>()[..bytes].to_owned()
}

/// Asks, on a connection of its own, and reads the answer to its end; gives the body sent, by which engines know the
/// request.
async fn send(gateway: &Gateway, messages: &[Value], stream: bool) -> String {
    let body =
        json!({"model": MODELS[0], "messages": messages, "max_tokens": 4, "stream": stream}).to_string();
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    let request = client.post(format!("{}/v1/chat/completions", gateway.url));
    let answer = request.header("content-type", "application/json").body(body.clone()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.text().await.unwrap().ends_with("data: [DONE]\n\n"), stream);
    body
}

/// Which engine of the first pool received a body.
fn places(gateway: &Gateway) -> HashMap<String, usize> {
    gateway.received(0).into_iter().map(|(place, record)| (record.body_xxh64, place)).collect()
}

fn place_of(places: &HashMap<String, usize>, body: &str) -> usize {
    places[&format!("{:016x}", xxh64(body.as_bytes(), 0))]
}

async fn conversations_stay(scorer: bool, chain: bool) {
    let _alone = ALONE.lock().await;
    let gateway = Gateway::start(Setup { engines: [4, 1], scorer, chain, ..Setup::default() }).await.unwrap();
    // What some conversations share must not decide where the others go.
    let system = |number: u64| json!({"role": "system", "content": text(number % 10, 600)});
    let user = |number: u64, bytes: usize| json!({"role": "user", "content": text(number, bytes)});
    let first = |number: u64| user(number, 400 + number as usize);
    for (stream, numbers) in [(true, 1..=100), (false, 401..=500)] {
        // One request at a time, so that no queue weighs more than the cache; between a conversation's turns those of nine
        // others, and any worker may get either.
        let mut turns = Vec::new();
        for ten in numbers.collect::<Vec<u64>>().chunks(10) {
            let mut ones = Vec::new();
            for &number in ten {
                ones.push((number, send(&gateway, &[system(number), first(number)], stream).await));
            }
            for (number, one) in ones.into_iter().rev() {
                let said = json!({"role": "assistant", "content": text(2000 + number, 40)});
                let messages = [system(number), first(number), said, user(1000 + number, 100)];
                turns.push((one, send(&gateway, &messages, stream).await));
            }
        }
        let places = places(&gateway);
        let kept = turns.iter().filter(|(one, two)| place_of(&places, one) == place_of(&places, two)).count();
        assert!(kept >= 95, "stream {stream}: {kept} of 100 second turns went to the engine of the first");
        let used: BTreeSet<_> = places.values().collect();
        assert!(used.len() > 1, "one engine did all the work");
    }
}

async fn a_shared_prefix_spreads(scorer: bool) {
    let _alone = ALONE.lock().await;
    let engine = weir_engine::Config { prefill_ms_per_ktoken: 20.0, decode_ms: 10.0, ..Default::default() };
    let gateway =
        Gateway::start(Setup { engines: [8, 1], engine, scorer, ..Setup::default() }).await.unwrap();
    let shared = json!({"role": "system", "content": text(7, 6 << 10)});
    let one = async |number: u64| {
        send(&gateway, &[shared.clone(), json!({"role": "user", "content": text(number, 80)})], true).await
    };
    for (state, first) in [("cold", 1), ("warm", 1000)] {
        gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
        join_all((first..first + 80).map(one)).await;
        let mut counts: Vec<_> = gateway.engines[0].iter().map(|engine| engine.requests().len()).collect();
        counts.sort_unstable();
        assert_eq!(counts.iter().sum::<usize>(), 80);
        assert!(counts.iter().filter(|count| **count > 0).count() >= 6, "{state}: {counts:?}");
        assert!(counts[7] <= 40, "{state}: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_goes_where_the_first_went() {
    conversations_stay(false, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_goes_where_the_first_went_with_a_scorer() {
    conversations_stay(true, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_all_share_uses_most_engines() {
    a_shared_prefix_spreads(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_all_share_uses_most_engines_with_a_scorer() {
    a_shared_prefix_spreads(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_goes_where_the_first_went_with_the_filters_in_one_module() {
    conversations_stay(true, true).await;
}
