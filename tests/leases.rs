//! What is booked ends, however a request ends: nothing leaks at engines, `pick` or the scorer.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat, fields, request_id, wait_until};
use serde_json::{Value, json};
use std::time::Duration;
use weir_engine::{Fault, Kind};

const CHAT: &str = "/v1/chat/completions";
const TIMES: usize = 10;
/// Everything is known to have ended: a client's leaving, then a beat of `pick`, which sets its gauge.
const SOON: Duration = Duration::from_secs(5);

fn body(content: &str, max_tokens: u32, stream: bool) -> String {
    let mut body = chat(MODELS[0], content, max_tokens);
    body["stream"] = stream.into();
    body.to_string()
}

fn whole(body: &str) -> String {
    post(CHAT, &[&format!("content-length: {}", body.len())]) + body
}

/// Ends a connection, one time properly and one time not.
fn leave(connection: Raw, turn: usize) {
    match turn % 2 {
        0 => drop(connection),
        _ => connection.reset().unwrap(),
    }
}

async fn follows(gateway: &Gateway, after: &str) {
    gateway.quiet(SOON).await.expect(after);
    for model in MODELS {
        let answer = gateway.chat(&chat(model, "and then", 2)).await.unwrap();
        assert_eq!(answer.status(), 200, "{after}");
    }
    gateway.quiet(SOON).await.expect(after);
}

async fn clients_that_leave_leave_nothing(scorer: bool, chain: bool) {
    let engine = weir_engine::Config { prefill_ms_per_ktoken: 2000.0, decode_ms: 30.0, ..Default::default() };
    let gateway = Gateway::start(Setup { engine, scorer, chain, ..Setup::default() }).await.unwrap();
    let short = whole(&body("hello", 500, true));
    let head = post(CHAT, &["content-length: 100000"]);
    let chunked = post(CHAT, &["transfer-encoding: chunked"]);

    // Before its headers are complete, and while it sends its body.
    for (what, part) in [
        ("headers", &head[..60]),
        ("upload", &(head.clone() + "{\"model\"")),
        ("chunks", &(chunked + "5\r\nhello\r\n")),
    ] {
        for turn in 0..TIMES {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(part).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            leave(connection, turn);
        }
        assert!(gateway.received(0).is_empty(), "{what}");
        follows(&gateway, what).await;
        gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
    }

    // In prefill, which takes two seconds: stream or not.
    for stream in [false, true] {
        let mut connections = Vec::new();
        for turn in 0..TIMES {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection
                .send(whole(&body(&format!("{turn} {stream} {}", "long ".repeat(800)), 50, stream)))
                .await
                .unwrap();
            connections.push(connection);
        }
        wait_until("all are in the engines", SOON, async || gateway.in_engines() == TIMES).await.unwrap();
        let booked = async || gateway.leases().await.unwrap() == TIMES as u64;
        wait_until("all leases are seen", SOON, booked).await.unwrap();
        if scorer {
            assert_eq!(gateway.scorer_leases().await.unwrap(), TIMES as u64);
        }
        connections.into_iter().enumerate().for_each(|(turn, connection)| leave(connection, turn));
        follows(&gateway, "prefill").await;
    }

    // In mid-stream.
    for turn in 0..TIMES {
        let mut connection = Raw::connect(&gateway.url).await.unwrap();
        connection.send(&short).await.unwrap();
        connection.wait_for("\"delta\":{\"content\":\"").await.unwrap();
        leave(connection, turn);
    }
    follows(&gateway, "mid-stream").await;

    // At once, while `pick` may be asking the scorer.
    for turn in 0..5 * TIMES {
        let mut connection = Raw::connect(&gateway.url).await.unwrap();
        connection.send(&short).await.unwrap();
        tokio::time::sleep(Duration::from_micros(200 * turn as u64)).await;
        leave(connection, turn);
    }
    follows(&gateway, "at once").await;

    // Nobody is shunned for what was never served.
    gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
    let answers = (0..40).map(|turn| {
        let body = chat(MODELS[0], &format!("{turn} {}", "even ".repeat(50)), 1);
        let gateway = &gateway;
        async move { gateway.chat(&body).await.unwrap().status() }
    });
    let answers = futures_util::future::join_all(answers).await;
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    let at_the_first = gateway.received(0).iter().filter(|(place, _)| *place == 0).count();
    assert!((10..=30).contains(&at_the_first), "{at_the_first} of 40");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_leave_no_lease() {
    clients_that_leave_leave_nothing(false, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_leave_no_lease_with_a_scorer() {
    clients_that_leave_leave_nothing(true, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_fail_leave_no_lease() {
    // Without a breaker: endpoints that fail are to be chosen all the same.
    let off: rig::Edit = Box::new(|scorer| {
        scorer["choose"]["breaker"] = json!({"rules": [], "hold_off_ms": 0, "max_retry_after_ms": 0});
    });
    let setup =
        Setup { scorer: true, edit: Some(rig::no_breaker()), edit_scorer: Some(off), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let stream: Value = serde_json::from_str(&body("to be broken", 20, true)).unwrap();
    let faults = [
        (Fault::new(Kind::CutStream).after_tokens(3), 200, false),
        (Fault::new(Kind::Http503), 503, true),
        (Fault::new(Kind::Http429), 429, true),
        (Fault::new(Kind::Garbage), 200, true),
    ];
    for (fault, status, whole) in faults {
        gateway.engines[0].iter().for_each(|engine| engine.fault(fault.clone().count(5)));
        for _ in 0..5 {
            let answer = gateway.chat(&stream).await.unwrap();
            assert_eq!(answer.status(), status, "{fault:?}");
            assert_eq!(answer.text().await.is_ok(), whole, "{fault:?}");
        }
        gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(Kind::None)));
        follows(&gateway, &format!("{fault:?}")).await;
    }

    // One of two dies with a stream half way; what comes later goes to the other.
    gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(Kind::Die).after_tokens(3)));
    let answer = gateway.chat(&stream).await.unwrap();
    let id = request_id(&answer);
    assert!(answer.text().await.is_err());
    gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(Kind::None)));
    let dead = gateway.logged(&id).await.unwrap()["upstream"].clone();
    let mut retried = 0;
    for turn in 0..20 {
        let answer = gateway.chat(&chat(MODELS[0], &format!("{turn} after its death"), 4)).await.unwrap();
        assert_eq!(answer.status(), 200, "turn {turn}");
        let line = gateway.logged(&request_id(&answer)).await.unwrap();
        assert_ne!(line["upstream"], dead);
        if fields(&line, "pick")["endpoint"] == dead.as_str().unwrap() {
            retried += 1;
            assert!(line["attempts"].as_u64().unwrap() > 1, "{line}");
        }
    }
    assert!(retried > 0, "the dead one was never chosen, so nothing was shown");
    follows(&gateway, "death").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_leave_no_lease_with_the_filters_in_one_module() {
    clients_that_leave_leave_nothing(true, true).await;
}
