//! Failures are contained, as clients and endpoints see it: who is asked, how often, and what is said.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use axum::Router;
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::future::join_all;
use rig::backend::Saying;
use rig::raw::post;
use rig::{
    Backend, Edit, Gateway, MODELS, Raw, Setup, breaker, chat, fields, filter_config, find_all, place_pool,
    request_id, wait_until,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use weir_engine::{Config, Engine, Fault, Kind};

const SOON: Duration = Duration::from_secs(10);
/// What one worker sees the others know by then.
const HEARD: Duration = Duration::from_millis(100);
const LAYOUTS: [bool; 2] = [false, true];

/// What `acceptance/` has engines say.
const E400_OLD: &str = include_str!("acceptance/responses/e400_vllm_old.json");
const E400_NEW: &str = include_str!("acceptance/responses/e400_vllm_new.json");
const E404: &str = include_str!("acceptance/responses/e404_openai_model.json");
const E422: &str = include_str!("acceptance/responses/e422_validation.json");

fn says(status: u16, headers: &[(&str, &str)], body: &str) -> Saying {
    let headers = [("content-type", "application/json")].iter().chain(headers);
    Saying {
        status,
        headers: headers.map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        pieces: vec![body.as_bytes().to_vec()],
        pause: Duration::ZERO,
    }
}

const ANSWER: &str = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// Scripted endpoints in the place of the first pool's engines; `edit` comes after.
async fn scripted<const N: usize>(setup: Setup, edit: Option<Edit>) -> (Gateway, [Backend; N]) {
    let backends = join_all((0..N).map(|_| Backend::start())).await.into_iter().map(Result::unwrap);
    let backends: [Backend; N] = backends.collect::<Vec<_>>().try_into().unwrap();
    backends.iter().for_each(|backend| backend.says(says(200, &[], ANSWER)));
    let addresses: Vec<String> = backends.iter().map(|backend| backend.address.clone()).collect();
    let place: Edit = Box::new(move |envoy| {
        place_pool(envoy, 0, &addresses);
        if let Some(edit) = &edit {
            edit(envoy);
        }
    });
    let gateway = Gateway::start(Setup { engines: [0, 1], edit: Some(place), ..setup }).await.unwrap();
    (gateway, backends)
}

fn heard(backends: &[Backend]) -> Vec<usize> {
    backends.iter().map(|backend| backend.heard().len()).collect()
}

/// A short cooldown, and all of the traffic right after it.
fn quick(trip_duration_ms: u64) -> Edit {
    breaker(json!({
        "rules": [
            {"name": "unreachable", "trip_duration_ms": trip_duration_ms, "failure_condition":
                {"count": 2, "interval_ms": 10_000, "error_reasons": ["connect", "reset", "timeout"]}},
            {"name": "failing", "trip_duration_ms": trip_duration_ms, "failure_condition": {"count": 5,
                "interval_ms": 10_000, "status_code_ranges": [{"min": 500, "max": 599}], "error_reasons": ["cut", "error", "garbage"]}},
        ],
        "ramp_ms": 0,
    }))
}

fn retry_after(answer: &reqwest::Response) -> u64 {
    answer.headers()["retry-after"].to_str().unwrap().parse().unwrap()
}

/// Starts an engine again where one has died.
async fn again(dead: &Engine, fault: Fault) -> Engine {
    let models = vec![MODELS[0].to_owned()];
    Engine::start(Config { port: dead.addr.port(), models, fault, ..Config::instant() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_faults_pass_through_once_and_trip_nothing() {
    for chain in LAYOUTS {
        let setup = Setup { chain, ..Setup::default() };
        let (gateway, [one]) = scripted(setup, None).await;
        for (status, body) in [(400, E400_OLD), (400, E400_NEW), (404, E404), (422, E422)] {
            one.says(says(status, &[], body));
            for _ in 0..5 {
                let answer = gateway.chat(&chat(MODELS[0], "too long", 8)).await.unwrap();
                assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (status, body));
            }
            assert_eq!(one.heard().len(), 5, "once each");
        }
        one.says(says(200, &[], ANSWER));
        let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(gateway.breaker("trips_total").await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_reaches_the_client_and_when_all_are_busy_it_is_told_at_once() {
    let (gateway, [one]) = scripted(Setup::default(), None).await;
    one.says(says(429, &[("retry-after", "30")], "{}"));
    let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
    assert_eq!((answer.status().as_u16(), retry_after(&answer)), (429, 30));
    sleep(HEARD).await;
    let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
    assert_eq!(answer.status(), 429);
    assert!((28..=30).contains(&retry_after(&answer)));
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(one.heard().len(), 1, "it was left alone");

    for chain in LAYOUTS {
        let (gateway, backends) = scripted::<2>(Setup { chain, ..Setup::default() }, None).await;
        backends[0].says(says(429, &[("retry-after", "4")], "{}"));
        backends[1].says(says(503, &[("retry-after", "30")], "{}"));
        let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
        assert!([429, 503].contains(&answer.status().as_u16()));
        let held = Instant::now();
        assert_eq!(heard(&backends), [1, 1], "one retry; both are busy");
        // The other worker hears of it.
        sleep(HEARD).await;
        backends.iter().for_each(|backend| backend.says(says(200, &[], ANSWER)));
        let mut waits = Vec::new();
        for _ in 0..2 {
            let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
            assert_eq!(answer.status(), 429, "one of them said so");
            waits.push(retry_after(&answer));
            sleep(Duration::from_millis(1_500)).await;
        }
        assert!(waits[0] <= 4 && waits[1] < waits[0], "{waits:?}");
        assert_eq!(heard(&backends), [0, 0], "nobody was asked");
        tokio::time::sleep_until(held + Duration::from_millis(4_100)).await;
        let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
        assert_eq!(answer.status(), 200, "chain: {chain}");
        assert_eq!(heard(&backends), [1, 0], "the one whose time is up");
        assert_eq!(gateway.breaker("trips_total").await.unwrap(), 0, "a full queue is no failure");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_says_that_an_endpoint_is_busy_or_broken_is_answered_by_another() {
    for status in [429, 500, 502, 503, 504, 520, 522, 524, 529] {
        let (gateway, [one, two]) = scripted::<2>(Setup::default(), None).await;
        one.says(says(status, &[], "{}"));
        let (mut asked, mut turn) = (0, 0);
        wait_until("it is asked", SOON, async || {
            turn += 1;
            let answer = gateway.chat(&chat(MODELS[0], &format!("{turn} ").repeat(400), 8)).await.unwrap();
            assert_eq!(answer.status(), 200, "{status}");
            asked += one.heard().len();
            asked > 0
        })
        .await
        .unwrap();
        assert_eq!((asked, two.heard().len()), (1, turn), "{status}");
    }
}

/// Whatever an endpoint writes beside its refusal: another one serves the request, and it is believed no more than its own.
#[tokio::test(flavor = "multi_thread")]
async fn no_header_of_an_endpoint_keeps_a_request_from_another() {
    for chain in LAYOUTS {
        for own in ["x-envoy-ratelimited", "x-weir-too-long", "x-envoy-overloaded", "x-envoy-attempt-count"] {
            let (gateway, backends) = scripted::<2>(Setup { chain, ..Setup::default() }, None).await;
            let hints = [(own, "1"), ("retry-after", "3"), ("retry-after", "30")];
            backends[0].says(says(429, &hints, "{}"));
            for _ in 0..4 {
                let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
                assert_eq!(answer.status(), 200, "{own}");
            }
            assert!(heard(&backends)[0] <= 2, "{own}: once by each worker");
            // The only one that is left: of two hints the later end.
            backends[1].says(says(429, &hints, "{}"));
            let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
            assert_eq!(answer.status(), 429, "{own}");
            sleep(HEARD).await;
            let answer = gateway.chat(&chat(MODELS[0], "hello", 8)).await.unwrap();
            assert!((25..=30).contains(&retry_after(&answer)), "{own}: {answer:?}");
            assert_eq!(gateway.breaker("trips_total").await.unwrap(), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_endpoint_costs_two_retries_and_is_used_again_when_it_is_back() {
    for (chain, scorer) in [(false, false), (true, false), (false, true)] {
        let edit_scorer: Edit = Box::new(|scorer| {
            scorer["choose"]["breaker"] = json!({"rules": [{"name": "r", "trip_duration_ms": 1_000, "failure_condition":
                {"count": 2, "interval_ms": 10_000, "error_reasons": ["connect", "reset"]}}], "ramp_ms": 0});
        });
        let setup = Setup {
            chain,
            scorer,
            engines: [4, 1],
            edit: Some(quick(1_000)),
            edit_scorer: Some(edit_scorer),
            ..Setup::default()
        };
        let gateway = Gateway::start(setup).await.unwrap();
        let dead = &gateway.engines[0][0];
        dead.fault(Fault::new(Kind::Die));
        let (mut retried, start) = (0, Instant::now());
        for turn in 0..60 {
            let answer =
                gateway.chat(&chat(MODELS[0], &format!("{turn} {}", "x".repeat(300)), 2)).await.unwrap();
            assert_eq!(answer.status(), 200, "turn {turn}");
            retried += usize::from(answer.headers()["x-envoy-attempt-count"] != "1");
        }
        let probes = start.elapsed().as_secs() as usize;
        // Two end it; the other worker may choose once more before it hears of that.
        assert!((1..=3 + probes).contains(&retried), "chain {chain}, scorer {scorer}: {retried}");
        let back = again(dead, Fault::new(Kind::None)).await;
        let used = async || {
            let answer = gateway.chat(&chat(MODELS[0], "and now", 2)).await.unwrap();
            assert_eq!(answer.status(), 200);
            !back.requests().is_empty()
        };
        wait_until("it is used again", SOON, used).await.unwrap();
        gateway.quiet(SOON).await.unwrap();
        wait_until("it is in", SOON, async || gateway.breaker("out").await.unwrap() == 0).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_swallows_packets_costs_two_connect_timeouts() {
    // A listener that accepts nothing and whose queue is full: the system drops what else knocks.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = socket.listen(1).unwrap();
    let address = silent.local_addr().unwrap();
    let mut queue = Vec::new();
    for _ in 0..8 {
        queue.push(tokio::spawn(tokio::net::TcpStream::connect(address)));
    }
    sleep(Duration::from_millis(200)).await;
    let one = Backend::start().await.unwrap();
    one.says(says(200, &[], ANSWER));
    let addresses = vec![address.to_string(), one.address.clone()];
    let edit: Edit = Box::new(move |envoy| place_pool(envoy, 0, &addresses));
    let gateway =
        Gateway::start(Setup { engines: [0, 1], edit: Some(edit), ..Setup::default() }).await.unwrap();
    let mut slow = 0;
    for turn in 0..30 {
        let start = Instant::now();
        let answer = gateway.chat(&chat(MODELS[0], &format!("{turn} {}", "x".repeat(300)), 2)).await.unwrap();
        assert_eq!(answer.status(), 200);
        slow += usize::from(start.elapsed() > Duration::from_millis(900));
    }
    assert!((1..=3).contains(&slow), "{slow} waited for a connection: two, and a probe");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_cooldown_one_probe_goes_out_however_many_come() {
    for (chain, scorer) in [(false, false), (true, false), (false, true)] {
        let edit_scorer: Edit = Box::new(|scorer| {
            scorer["choose"]["breaker"] = json!({"rules": [{"name": "r", "trip_duration_ms": 2_000, "failure_condition":
                {"count": 2, "interval_ms": 10_000, "error_reasons": ["connect", "reset"]}}], "ramp_ms": 0});
        });
        let setup = Setup {
            chain,
            scorer,
            engines: [2, 1],
            edit: Some(quick(2_000)),
            edit_scorer: Some(edit_scorer),
            ..Setup::default()
        };
        let gateway = Gateway::start(setup).await.unwrap();
        let what = format!("chain {chain}, scorer {scorer}");
        gateway.engines[0][0].fault(Fault::new(Kind::Die));
        let out = async || {
            // Another prompt each time, or they would stay where the first one was.
            gateway.chat(&chat(MODELS[0], &format!("{:?}", Instant::now()).repeat(9), 2)).await.unwrap();
            match &gateway.scorer {
                Some(scorer) => rig::get(&scorer.url, "/v1/loads").await.unwrap().contains("cooldown"),
                None => gateway.breaker("trips_total").await.unwrap() > 0,
            }
        };
        wait_until("it is out", SOON, out).await.unwrap();
        let hangs = again(&gateway.engines[0][0], Fault::new(Kind::Hang)).await;
        sleep(Duration::from_millis(2_100)).await;
        // All at once, at the moment when the cooldown is over.
        let requests = (0..200).map(|turn| {
            let (client, url) = (gateway.client.clone(), gateway.url.clone());
            tokio::spawn(async move {
                let body = chat(MODELS[0], &format!("{turn}"), 2);
                client.post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap().status()
            })
        });
        let requests: Vec<_> = requests.collect();
        sleep(Duration::from_millis(1_500)).await;
        let (done, hanging): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| request.is_finished());
        for request in done {
            assert_eq!(request.await.unwrap(), 200, "{what}");
        }
        assert_eq!((hanging.len(), hangs.requests().len()), (1, 1), "{what}: one probe touches it");
        // The client of the probe leaves: its slot comes back, and the next probe finds it well.
        hangs.fault(Fault::new(Kind::None));
        hanging.iter().for_each(tokio::task::JoinHandle::abort);
        drop(hanging);
        let served = async || {
            let answer = gateway.chat(&chat(MODELS[0], "and now", 2)).await.unwrap();
            assert_eq!(answer.status(), 200);
            hangs.requests().iter().any(|record| record.status == 200)
        };
        wait_until("a probe succeeds", SOON, served).await.unwrap();
        gateway.quiet(SOON).await.unwrap();
        wait_until("it is in", SOON, async || gateway.breaker("out").await.unwrap() == 0).await.unwrap();
    }
}

/// Whoever carries a probe may leave, before its answer or in the middle of it, by any version of HTTP: that says nothing of the endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_whose_client_leaves_gives_its_slot_back() {
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let setup = Setup { engines: [2, 1], edit: Some(quick(1_000)), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let (mut engine, mut trips) = (None, 0);
    for (version, tokens) in [(1, 0), (1, 3), (2, 0), (2, 3)] {
        let what = format!("HTTP/{version}, after {tokens} tokens");
        engine.as_ref().unwrap_or(&gateway.engines[0][0]).fault(Fault::new(Kind::Die));
        wait_until("it is out", SOON, async || {
            gateway.chat(&chat(MODELS[0], &format!("{:?}", Instant::now()).repeat(9), 2)).await.unwrap();
            gateway.breaker("trips_total").await.unwrap() > trips
        })
        .await
        .unwrap();
        let hangs = again(&gateway.engines[0][0], Fault::new(Kind::Hang).after_tokens(tokens)).await;
        sleep(Duration::from_millis(1_100)).await;
        let mut body = chat(MODELS[0], "who is there", 9);
        body["stream"] = true.into();
        let client = if version == 2 { &http2 } else { &gateway.client };
        let mut asked = Vec::new();
        wait_until("the probe is there", SOON, async || {
            let request = client.post(format!("{}/v1/chat/completions", gateway.url)).json(&body);
            asked.push(tokio::spawn(async move {
                let mut answer = request.send().await.unwrap();
                while answer.chunk().await.unwrap().is_some() {}
            }));
            sleep(HEARD).await;
            !hangs.requests().is_empty()
        })
        .await
        .expect(&what);
        sleep(Duration::from_millis(300)).await;
        asked.retain(|request| !request.is_finished());
        assert_eq!((asked.len(), hangs.requests().len()), (1, 1), "{what}: one carries it");
        hangs.fault(Fault::new(Kind::None));
        asked.iter().for_each(tokio::task::JoinHandle::abort);
        let served = async || {
            let answer = gateway.chat(&chat(MODELS[0], "and now", 2)).await.unwrap();
            assert_eq!(answer.status(), 200, "{what}");
            hangs.requests().len() > 1
        };
        wait_until("the next probe succeeds", SOON, served).await.expect(&what);
        wait_until("it is in", SOON, async || gateway.breaker("out").await.unwrap() == 0).await.expect(&what);
        gateway.quiet(SOON).await.expect(&what);
        trips = gateway.breaker("trips_total").await.unwrap();
        engine = Some(hangs);
    }
    assert_eq!(trips, 4, "nobody was put out for a client that left");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_tried_elsewhere_once_bytes_have_reached_the_client() {
    let idle: Edit = Box::new(|envoy| {
        for route in find_all(envoy, &|value| value["cluster"].is_string() && value["timeout"].is_string()) {
            route["idle_timeout"] = "2s".into();
        }
    });
    let setup = Setup { engines: [2, 1], edit: Some(idle), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let mut body = chat(MODELS[0], "a long answer", 60);
    body["stream"] = true.into();
    for kind in [Kind::CutStream, Kind::Hang] {
        gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(kind).after_tokens(20)));
        gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
        let answer = gateway.chat(&body).await.unwrap();
        let id = request_id(&answer);
        assert_eq!(answer.status(), 200);
        let mut text = String::new();
        let mut answer = answer;
        let ended = loop {
            match answer.chunk().await {
                Ok(Some(chunk)) => text += &String::from_utf8_lossy(&chunk),
                ended => break ended,
            }
        };
        assert!(ended.is_err(), "{kind:?}: the end is an error");
        assert!(text.contains("data: ") && !text.contains("[DONE]"), "{kind:?}");
        assert_eq!(gateway.received(0).len(), 1, "{kind:?}: no replay");
        let line = gateway.logged(&id).await.unwrap();
        assert_eq!(line["attempts"], 1, "{line}");
        assert!(fields(&line, "usage")["deltas"].parse::<u64>().unwrap() >= 10, "{line}");
        gateway.quiet(SOON).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_break_off_and_garbage_are_failures_but_one_broken_event_is_none() {
    let mut body = chat(MODELS[0], &"x".repeat(300), 20);
    body["stream"] = true.into();
    for fault in [Fault::new(Kind::CutStream).after_tokens(3), Fault::new(Kind::Garbage)] {
        let setup = Setup { engines: [2, 1], edit: Some(quick(60_000)), ..Setup::default() };
        let gateway = Gateway::start(setup).await.unwrap();
        gateway.engines[0].iter().for_each(|engine| engine.fault(fault.clone()));
        for turn in 0..5 {
            assert_eq!(gateway.breaker("trips_total").await.unwrap(), 0, "{fault:?}: after {turn}");
            let _ = gateway.chat(&body).await.unwrap().text().await;
        }
        for _ in 0..4 {
            let _ = gateway.chat(&body).await.unwrap().text().await;
        }
        let out = async || gateway.breaker("trips_total").await.unwrap() > 0;
        wait_until("one is out", SOON, out).await.unwrap();
    }
    let (gateway, [one]) = scripted(Setup::default(), None).await;
    let delta = |text: &str| {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
    };
    let broken = "data: {\"choices\":[{\"del\n\n".to_owned();
    let last = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\ndata: [DONE]\n\n";
    let pieces = [delta("a"), broken, delta("b"), last.to_owned()];
    one.says(Saying {
        status: 200,
        headers: vec![("content-type".into(), "text/event-stream".into())],
        pieces: pieces.iter().map(|piece| piece.clone().into_bytes()).collect(),
        pause: Duration::from_millis(5),
    });
    for _ in 0..10 {
        let answer = gateway.chat(&body).await.unwrap();
        let id = request_id(&answer);
        assert_eq!(answer.text().await.unwrap(), pieces.concat());
        assert_eq!(fields(&gateway.logged(&id).await.unwrap(), "usage")["output"], "2");
    }
    assert_eq!(gateway.breaker("trips_total").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_end_with_the_list_each_endpoint_is_tried_once_and_charged_is_one_admission() {
    for chain in LAYOUTS {
        let limit = json!({"limits": [{"name": "l", "key": ["api_key"], "max_in_flight": 1000}]});
        let setup = Setup { chain, limit: Some(limit), ..Setup::default() };
        let (gateway, backends) = scripted::<4>(setup, Some(breaker(json!({"rules": []})))).await;
        backends.iter().for_each(|backend| backend.says(says(503, &[], r#"{"error":"the last word"}"#)));
        // A client's own retry headers are nobody's business.
        let request = gateway.client.post(format!("{}/v1/chat/completions", gateway.url));
        let request = request.header("x-envoy-max-retries", "50").header("x-envoy-retry-on", "5xx");
        let answer = request.json(&chat(MODELS[0], "hello", 2)).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["x-envoy-attempt-count"]),
            (503, &"3".parse().unwrap())
        );
        assert_eq!(answer.text().await.unwrap(), r#"{"error":"the last word"}"#);
        let heard = heard(&backends);
        assert_eq!(
            (heard.iter().sum::<usize>(), heard.iter().max()),
            (3, Some(&1)),
            "chain {chain}: {heard:?}"
        );
        assert_eq!(gateway.stat("weir_limit_admitted_total;limit=l").await.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_full_outage_attempts_per_request_stay_below_the_budget() {
    for when_all_are_out in ["least_bad", "refuse"] {
        let edit = breaker(json!({"when_all_are_out": when_all_are_out}));
        let (gateway, backends) = scripted::<4>(Setup::default(), Some(edit)).await;
        for turn in 0..100 {
            assert_eq!(gateway.chat(&chat(MODELS[0], &format!("{turn}"), 2)).await.unwrap().status(), 200);
        }
        heard(&backends);
        backends.iter().for_each(|backend| backend.says(says(500, &[], "{}")));
        let (mut refused, requests) = (0, 300);
        for turn in 0..requests {
            let answer = gateway.chat(&chat(MODELS[0], &format!("out {turn}"), 2)).await.unwrap();
            assert!(answer.status().is_server_error());
            if answer.status() == 503 {
                assert!((1..=5).contains(&retry_after(&answer)));
                refused += 1;
            }
        }
        let attempts: usize = heard(&backends).iter().sum();
        assert!(attempts <= requests * 12 / 10, "{when_all_are_out}: {attempts}");
        assert_eq!(refused > 200, when_all_are_out == "refuse", "{refused}");
    }
}

/// A router before an engine that knows no measure: it tries the engine up to three times. Its address.
async fn stubborn(engine: &Backend) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (client, url) = (reqwest::Client::new(), format!("http://{}/v1/chat/completions", engine.address));
    let forward = async move |body: Bytes| {
        let mut status = StatusCode::BAD_GATEWAY;
        for _ in 0..3 {
            let answer = client.post(&url).body(body.clone()).send().await.unwrap();
            status = answer.status();
            if !status.is_server_error() {
                break;
            }
        }
        (status, "{}")
    };
    tokio::spawn(axum::serve(listener, Router::new().fallback(forward)).into_future());
    address
}

/// A library that tries 3 times, over a proxy that tries 4 times, over this gateway, which may try 4, over a router at each endpoint
/// that tries 3 times: 144 attempts of each request.
#[tokio::test(flavor = "multi_thread")]
async fn layers_that_retry_do_not_multiply_attempts() {
    const REQUESTS: usize = 40;
    let engines = join_all((0..4).map(|_| async { Backend::start().await.unwrap() })).await;
    engines.iter().for_each(|engine| engine.says(says(500, &[], "{}")));
    let routers = join_all(engines.iter().map(stubborn)).await;
    let edit: Edit = Box::new(move |envoy| {
        place_pool(envoy, 0, &routers);
        filter_config(envoy, "pick", |pick| pick["choose"]["attempts"] = json!(4));
    });
    let gateway =
        Gateway::start(Setup { engines: [0, 1], edit: Some(edit), ..Setup::default() }).await.unwrap();
    let began = Instant::now();
    let mut told = 0;
    for _ in 0..REQUESTS {
        for (library, proxy) in (0..3).flat_map(|library| (1..=4).map(move |proxy| (library, proxy))) {
            let request = gateway.client.post(format!("{}/v1/chat/completions", gateway.url));
            let request =
                request.header("x-stainless-retry-count", library).header("x-envoy-attempt-count", proxy);
            let answer = request.json(&chat(MODELS[0], "hello", 8)).send().await.unwrap();
            assert!([500, 503].contains(&answer.status().as_u16()), "{}", answer.status());
            told += usize::from(answer.headers().contains_key("retry-after"));
        }
    }
    let attempts: usize = heard(&engines).iter().sum();
    // One for each request; those that tripped the endpoints; what each of two workers had saved for retries, and gets a second.
    // What a router does with each is its own.
    let most = REQUESTS + 4 * 5 + 2 * (20 + began.elapsed().as_secs() as usize);
    assert!(
        attempts <= 3 * most,
        "{attempts} attempts of {REQUESTS} requests, {most} by the gateway at the most"
    );
    assert!(attempts * 10 < REQUESTS * 144, "{attempts}");
    assert!(told >= REQUESTS * 6, "{told} times somebody was told when to come again");
    gateway.quiet(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trip_that_one_gateway_sees_is_acted_on_by_the_other() {
    let edit_scorer: Edit = Box::new(|scorer| {
        scorer["choose"]["breaker"] = json!({"rules": [{"name": "r", "trip_duration_ms": 60_000, "failure_condition":
            {"count": 2, "interval_ms": 10_000, "error_reasons": ["connect", "reset"]}}]});
    });
    let setup = Setup { scorer: true, engines: [2, 1], edit_scorer: Some(edit_scorer), ..Setup::default() };
    let one = Gateway::start(setup).await.unwrap();
    let two = one.second().await.unwrap();
    let dead = one.engines[0][0].addr.to_string();
    one.engines[0][0].fault(Fault::new(Kind::Die));
    let retried = async |url: &str, turn: usize| {
        let body = chat(MODELS[0], &format!("{turn} {}", "x".repeat(300)), 2);
        let answer = one.chat_at(url, &body).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.headers()["x-envoy-attempt-count"] != "1"
    };
    let mut failed = 0;
    for turn in 0..30 {
        failed += usize::from(retried(&one.url, turn).await);
    }
    assert_eq!(failed, 2, "the first gateway finds out");
    // What it has seen travels with its next request, or with a report after 20 ms.
    sleep(Duration::from_millis(100)).await;
    let lines = one.access_log().len();
    for turn in 100..130 {
        assert!(!retried(&two.url, turn).await, "the second one knows");
    }
    wait_until("all is logged", SOON, async || one.access_log().len() >= lines + 30).await.unwrap();
    assert!(one.access_log()[lines..].iter().all(|line| line["upstream"] != dead.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_while_a_request_is_retried_leave_nothing() {
    let setup = Setup { engines: [2, 1], edit: Some(quick(300)), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    gateway.engines[0][0].fault(Fault::new(Kind::Die));
    gateway.engines[0][1].fault(Fault::new(Kind::Hang));
    let body = chat(MODELS[0], "hello", 2).to_string();
    let request = post("/v1/chat/completions", &[&format!("content-length: {}", body.len())]) + &body;
    for turn in 0..100 {
        let mut connection = Raw::connect(&gateway.url).await.unwrap();
        connection.send(&request).await.unwrap();
        sleep(Duration::from_millis(turn % 20)).await;
        match turn % 2 {
            0 => drop(connection),
            _ => connection.reset().unwrap(),
        }
    }
    gateway.quiet(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_out_is_tried_by_the_gateway_itself_and_by_no_client() {
    let config = json!({
        "rules": [{"name": "r", "trip_duration_ms": 500, "failure_condition":
            {"count": 2, "interval_ms": 10_000, "error_reasons": ["connect", "reset"]}}],
        "max_trip_duration_ms": 500,
        "ramp_ms": 0,
        "active_probe": {"timeout_ms": 500, "request":
            {"path": "/v1/completions", "body": {"model": MODELS[0], "prompt": "are you well?", "max_tokens": 1}}},
    });
    for (chain, scorer) in [(true, false), (false, true)] {
        let of_scorer = config.clone();
        let edit_scorer: Edit = Box::new(move |scorer| scorer["choose"]["breaker"] = of_scorer.clone());
        let (edit, edit_scorer) = (Some(breaker(config.clone())), Some(edit_scorer));
        let setup = Setup { chain, scorer, engines: [2, 1], edit, edit_scorer, ..Setup::default() };
        let gateway = Gateway::start(setup).await.unwrap();
        let asks = async || {
            let body = chat(MODELS[0], &format!("{:?}", Instant::now()).repeat(9), 2);
            assert_eq!(gateway.chat(&body).await.unwrap().status(), 200);
        };
        let dead = &gateway.engines[0][0];
        dead.fault(Fault::new(Kind::Die));
        let out = async || {
            asks().await;
            match &gateway.scorer {
                Some(scorer) => {
                    !scorer.loads().await.unwrap()["pools"][0]["out"].as_array().unwrap().is_empty()
                }
                None => gateway.breaker("trips_total").await.unwrap() > 0,
            }
        };
        wait_until("it is out", SOON, out).await.unwrap();
        // It is back, says that it is well, and computes nothing: that is still out.
        let stuck = again(dead, Fault::new(Kind::Hang)).await;
        let tried = async || {
            asks().await;
            stuck.requests().len() >= 2
        };
        wait_until("it is tried twice", SOON * 2, tried).await.unwrap();
        let all_are_probes = || stuck.requests().iter().all(|record| record.path == "/v1/completions");
        assert!(all_are_probes(), "chain {chain}, scorer {scorer}: no client was sent there");
        stuck.fault(Fault::new(Kind::None));
        let serves = async || {
            asks().await;
            !all_are_probes()
        };
        wait_until("it serves clients again", SOON * 2, serves).await.unwrap();
        let probed = stuck.requests().into_iter().find(|record| record.status == 200).unwrap();
        assert_eq!(probed.path, "/v1/completions", "a probe succeeded first");
        gateway.quiet(SOON).await.unwrap();
    }
}
