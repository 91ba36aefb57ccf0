//! The scorer may die, hang and come back; requests are answered all the same.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::{Edit, Gateway, MODELS, Setup, chat, fields, filter_config, get, repository, request_id};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What one request met.
struct Seen {
    start: Instant,
    end: Instant,
    id: String,
}

/// Eight clients that ask until they are told to stop; every request must be answered.
async fn load(gateway: &Gateway, stop: &AtomicBool) -> Vec<Seen> {
    let client = async |number: usize| {
        let mut seen = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let answer =
                gateway.chat(&chat(MODELS[0], &format!("{number} {}", seen.len()), 8)).await.unwrap();
            assert_eq!(answer.status(), 200, "{:?}", answer.headers());
            let id = request_id(&answer);
            assert!(answer.json::<serde_json::Value>().await.unwrap()["usage"].is_object());
            seen.push(Seen { start, end: Instant::now(), id });
            sleep(Duration::from_millis(10)).await;
        }
        seen
    };
    join_all((0..8).map(client)).await.into_iter().flatten().collect()
}

/// A stretch of time that requests may lie wholly within.
struct Phase {
    name: &'static str,
    from: Instant,
    to: Instant,
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_while_the_scorer_dies_hangs_and_returns() {
    const UP: Duration = Duration::from_millis(1500);
    const DOWN: Duration = Duration::from_millis(2500);
    // Left alone for 1 s after a failure, the shipped default; by then it is asked again.
    const BACK: Duration = Duration::from_millis(3000);
    let mut gateway = Gateway::start(Setup { scorer: true, ..Setup::default() }).await.unwrap();
    let mut scorer = gateway.scorer.take().unwrap();
    let stop = AtomicBool::new(false);
    let mut phases = Vec::new();
    let mut phase = async |name, length| {
        let from = Instant::now();
        sleep(length).await;
        phases.push(Phase { name, from, to: Instant::now() });
    };
    let events = async {
        phase("first", UP).await;
        scorer.process.kill();
        phase("killed", DOWN).await;
        scorer.restart().await.unwrap();
        phase("restarted", BACK).await;
        scorer.process.hang();
        phase("hung", DOWN).await;
        scorer.process.go_on();
        phase("continued", BACK).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (seen, ()) = tokio::join!(load(&gateway, &stop), events);

    gateway.logged(&seen.last().unwrap().id).await.unwrap();
    let log: std::collections::HashMap<String, _> = gateway
        .access_log()
        .into_iter()
        .map(|line| (line["request_id"].as_str().unwrap().to_owned(), line))
        .collect();
    for Phase { name, from, to } in phases {
        let within: Vec<&Seen> = seen.iter().filter(|seen| seen.start > from && seen.end < to).collect();
        let by: BTreeSet<String> =
            within.iter().map(|seen| fields(&log[&seen.id], "pick")["by"].clone()).collect();
        assert!(within.len() > 20, "{name}: {} requests", within.len());
        match name {
            "killed" | "hung" => assert_eq!(by, BTreeSet::from(["fallback".to_owned()]), "{name}"),
            _ => assert!(by.contains("scorer"), "{name}: {by:?}"),
        }
        let slowest = within.iter().map(|seen| seen.end - seen.start).max().unwrap();
        assert!(slowest < Duration::from_secs(2), "{name}: {slowest:?}");
        println!("{name}: {} requests, slowest {slowest:?}, by {by:?}", within.len());
    }
    // At the end of the last phase everybody asks it again.
    let last = seen.iter().max_by_key(|seen| seen.start).unwrap();
    assert_eq!(fields(&log[&last.id], "pick")["by"], "scorer");

    gateway.scorer = Some(scorer);
    gateway.quiet(Duration::from_secs(3)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_a_hung_scorer_did_not_hear_is_told_again() {
    let engine = weir_engine::Config { decode_ms: 50.0, ..Default::default() };
    let gateway = Gateway::start(Setup { scorer: true, engine, ..Setup::default() }).await.unwrap();
    let scorer = gateway.scorer.as_ref().unwrap();
    let mut body = chat(MODELS[0], "a long story", 500);
    body["stream"] = true.into();
    let mut streams = join_all((0..20).map(|_| gateway.chat(&body))).await;
    for stream in &mut streams {
        stream.as_mut().unwrap().chunk().await.unwrap();
    }
    let booked = async || gateway.scorer_leases().await.is_ok_and(|leases| leases > 10);
    rig::wait_until("the scorer has booked them", Duration::from_secs(5), booked).await.unwrap();
    scorer.process.hang();
    // All end now, and are reported while nobody knows yet that the scorer hangs.
    drop(streams);
    sleep(Duration::from_millis(500)).await;
    scorer.process.go_on();
    // Left alone for a second after a failure; then a request of each worker finds that it is back.
    let back = async || {
        assert_eq!(gateway.chat(&chat(MODELS[1], "are you back", 1)).await.unwrap().status(), 200);
        gateway.scorer_leases().await.is_ok_and(|leases| leases == 0)
    };
    let waited = rig::wait_until("the scorer has heard of all ends", Duration::from_secs(10), back).await;
    let left = gateway.scorer_leases().await.unwrap();
    waited.unwrap_or_else(|_| panic!("{left} leases are left"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scorer_that_reads_prompts_gets_them_through_the_filters_and_the_engine_gets_them_as_they_were() {
    for chain in [false, true] {
        let edit: Edit = Box::new(move |envoy| {
            filter_config(envoy, "pick", |pick| {
                pick["scorer"]["max_body_bytes"] = (1 << 20).into();
                pick["scorer"]["timeout_ms"] = 5_000.into();
            });
            if !chain {
                filter_config(envoy, "extract", |extract| extract["publish_body_bytes"] = (1 << 20).into());
            }
        });
        let edit_scorer: Edit = Box::new(|scorer| {
            let folder = repository().join("scorer/tests/data/tokens");
            let (tokenizer, config) = (folder.join("tokenizer.json"), folder.join("tokenizer_config.json"));
            let tokens = json!({"tokenizer": tokenizer, "config": config, "timeout_ms": 4_000});
            scorer["precise"] = json!({"small": {"tokens": tokens}});
        });
        let setup = Setup {
            scorer: true,
            chain,
            edit: Some(edit),
            edit_scorer: Some(edit_scorer),
            ..Setup::default()
        };
        let gateway = Gateway::start(setup).await.unwrap();
        let body = chat(MODELS[0], &"canary ".repeat(20_000), 2);
        for _ in 0..3 {
            let answer = gateway.chat(&body).await.unwrap();
            assert_eq!(answer.status(), 200);
            let line = gateway.logged(&request_id(&answer)).await.unwrap();
            assert_eq!(fields(&line, "pick")["by"], "scorer", "{line}");
            assert!(!line.to_string().contains("canary"));
        }
        let metrics = get(&gateway.scorer.as_ref().unwrap().url, "/metrics").await.unwrap();
        let read = r#"weir_scorer_tokens_total{outcome="read",pool="small"} 3"#;
        assert!(metrics.lines().any(|line| line == read), "chain {chain}: {metrics}");
        for (_, record) in gateway.received(0) {
            assert_eq!(record.body_len, serde_json::to_vec(&body).unwrap().len());
        }
    }
}
