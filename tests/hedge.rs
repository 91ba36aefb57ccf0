//! What happens before the first token: copies of requests that are late, and answers that begin before there is one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::backend::Saying;
use rig::{
    Backend, Edit, Gateway, MODELS, Raw, Setup, breaker, chat, fields, no_breaker, place_pool, request_id,
    wait_until, with_opening,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use weir_engine::{Fault, Kind};

const SOON: Duration = Duration::from_secs(20);

fn stream(content: &str) -> Value {
    let mut body = chat(MODELS[0], content, 4);
    body["stream"] = true.into();
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_hangs_is_answered_by_a_copy_and_its_endpoint_let_go() {
    for chain in [false, true] {
        // A second, and money for all copies: what waits without one waits as long as the route has it.
        let hedge = json!({"hedge": {"percentile": 95, "min_ms": 1_000, "min_requests": 20},
                           "retry_budget": {"percent": 100, "per_s": 10, "most": 100}});
        let setup = Setup { chain, engines: [3, 1], edit: Some(breaker(hedge)), ..Setup::default() };
        let gateway = Gateway::start(setup).await.unwrap();
        let told = async |turn: usize| {
            let answer = gateway.chat(&stream(&format!("{turn} {}", "x".repeat(200)))).await.unwrap();
            assert_eq!(answer.status(), 200);
            let (id, attempts) = (request_id(&answer), answer.headers()["x-envoy-attempt-count"].clone());
            let text = answer.text().await.unwrap();
            assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
            assert_eq!(text.matches("[DONE]").count(), 1, "one answer");
            (id, attempts.to_str().unwrap().parse::<usize>().unwrap())
        };
        // Both workers hear of all of them, each in its time; but one that nobody asked anything hears of none.
        for turn in 0..60 {
            told(turn).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        gateway.engines[0][0].fault(Fault::new(Kind::Hang));
        let mut copies = 0;
        for turn in 100..130 {
            if copies == 2 {
                break;
            }
            // Whom such a worker sends to the one that hangs gets no copy, and is left.
            let Ok((id, attempts)) = tokio::time::timeout(Duration::from_secs(5), told(turn)).await else {
                continue;
            };
            if attempts > 1 {
                let line = gateway.logged(&id).await.unwrap();
                assert!(fields(&line, "pick")["hedge_ms"].parse::<u64>().unwrap() >= 1_000, "{line}");
                copies += 1;
            }
        }
        assert!(copies > 0);
        assert!(gateway.breaker("hedges_total").await.unwrap() >= 1);
        assert_eq!(gateway.breaker("retries_total").await.unwrap(), 0, "nothing has failed");
        // The one that hangs was told to stop, and nobody holds anything.
        gateway.quiet(SOON).await.unwrap();
    }
}

/// Sends a stream's headers at once, as engines do, and then nothing but the end of the connection.
async fn dies_in_prefill() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let mut connection = Raw::accepted(connection);
                connection.message().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
                connection.send(head).await.unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
            });
        }
    });
    (address, asked)
}

const EVENTS: [&str; 2] = [
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\ndata: [DONE]\n\n",
];

fn says(backend: &Backend, pieces: &[&str]) {
    backend.says(Saying {
        status: 200,
        headers: vec![("content-type".into(), "text/event-stream".into())],
        pieces: pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(),
        pause: Duration::from_millis(20),
    });
}

fn pool(addresses: Vec<String>) -> Edit {
    Box::new(move |envoy| {
        with_opening(envoy);
        place_pool(envoy, 0, &addresses);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_between_headers_and_first_token_costs_a_retry_and_no_stream() {
    let (dead, asked) = dies_in_prefill().await;
    let well = Backend::start().await.unwrap();
    says(&well, &EVENTS);
    let edit = pool(vec![dead, well.address.clone()]);
    let gateway =
        Gateway::start(Setup { engines: [0, 1], edit: Some(edit), ..Setup::default() }).await.unwrap();
    for turn in 0..8 {
        let answer = gateway.chat(&stream(&format!("{turn} {}", "x".repeat(300)))).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.text().await.unwrap(), EVENTS.concat());
    }
    assert!(asked.load(Ordering::Relaxed) >= 1, "it was asked");
    assert!(gateway.breaker("retries_total").await.unwrap() >= 1);
    gateway.quiet(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_as_the_first_event_is_retried_and_one_behind_a_token_is_not() {
    let error = "data: {\"error\":{\"message\":\"x\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n";
    let [ill, well] = [Backend::start().await.unwrap(), Backend::start().await.unwrap()];
    says(&well, &EVENTS);
    let edit = pool(vec![ill.address.clone(), well.address.clone()]);
    let gateway =
        Gateway::start(Setup { engines: [0, 1], edit: Some(edit), ..Setup::default() }).await.unwrap();
    for turn in 0..8 {
        // It comes in two pieces.
        let (first, rest) = error.split_at(1 + turn * 10);
        says(&ill, &[first, rest, "data: [DONE]\n\n"]);
        let answer = gateway.chat(&stream(&format!("{turn} {}", "x".repeat(300)))).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.text().await.unwrap()), (200, EVENTS.concat()));
    }
    assert!(!ill.heard().is_empty(), "it was asked");
    let late = [EVENTS[0], error];
    [&ill, &well].into_iter().for_each(|backend| says(backend, &late));
    let answer = gateway.chat(&stream("and now")).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap()), (200, late.concat()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_announces_an_answer_or_says_nothing_is_no_beginning() {
    const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
    const CREATED: &str =
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\n";
    const FAILED: &str =
        "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}\n\n";
    const OVERLOADED: &str =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let [ill, well] = [Backend::start().await.unwrap(), Backend::start().await.unwrap()];
    let with_role = [ROLE, EVENTS[0], EVENTS[1]];
    says(&well, &with_role);
    let (place, trust_all) = (pool(vec![ill.address.clone(), well.address.clone()]), no_breaker());
    let edit: Edit = Box::new(move |envoy| {
        place(envoy);
        trust_all(envoy);
    });
    let gateway =
        Gateway::start(Setup { engines: [0, 1], edit: Some(edit), ..Setup::default() }).await.unwrap();
    for pieces in
        [&[ROLE, OVERLOADED][..], &[CREATED, CREATED, FAILED], &[CREATED, "data: [DONE]\n\n"], &[ROLE], &[]]
    {
        says(&ill, pieces);
        let mut turn = 0;
        wait_until("it is asked", SOON, async || {
            turn += 1;
            let answer = gateway.chat(&stream(&format!("{turn} {}", "x".repeat(300)))).await.unwrap();
            let read = (answer.status().as_u16(), answer.text().await.unwrap());
            assert_eq!(read, (200, with_role.concat()), "{pieces:?}");
            !ill.heard().is_empty()
        })
        .await
        .unwrap();
    }
    // Nobody else is left: the client gets the status, and what there was.
    [&ill, &well].into_iter().for_each(|backend| says(backend, &[ROLE]));
    let answer = gateway.chat(&stream("and now")).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (502, ROLE));
    gateway.quiet(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_without_its_end_is_closed_by_an_error() {
    let one = Backend::start().await.unwrap();
    says(&one, &EVENTS[..1]);
    let address = one.address.clone();
    let edit: Edit = Box::new(move |envoy| place_pool(envoy, 0, std::slice::from_ref(&address)));
    let setup = Setup { chain: true, engines: [0, 1], edit: Some(edit), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let answer = gateway.chat(&stream("hello")).await.unwrap();
    let id = request_id(&answer);
    let text = answer.text().await.unwrap();
    let rest = text.strip_prefix(EVENTS[0]).unwrap();
    assert!(rest.contains("\"code\":\"broken_off\"") && !rest.contains("[DONE]"), "{rest}");
    assert_eq!(fields(&gateway.logged(&id).await.unwrap(), "usage")["error"], "broken_off");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_deadline_bounds_all_attempts_and_trips_nothing() {
    let setup = Setup { engines: [3, 1], ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let asks = async |name: &str, value: &str, stream: bool| {
        let mut body = chat(MODELS[0], "hello", 4);
        body["stream"] = stream.into();
        let request = gateway.client.post(format!("{}/v1/chat/completions", gateway.url)).json(&body);
        request.header(name, value).timeout(SOON).send().await.unwrap()
    };
    for nonsense in ["0", "-5", "soon", "99999999999999999999"] {
        assert_eq!(asks("x-request-timeout-ms", nonsense, false).await.status(), 200, "{nonsense}");
    }
    let answer = asks("x-stainless-timeout", "600", false).await;
    let line = gateway.logged(&request_id(&answer)).await.unwrap();
    let left: u64 = fields(&line, "pick")["timeout_ms"].parse().unwrap();
    assert!((540_000..=600_000).contains(&left), "less what has passed: {left}");
    gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(Kind::Hang)));
    // Long enough to be sent on however slow the machine is.
    let hurried = [("x-request-timeout-ms", "2500"), ("grpc-timeout", "2500m"), ("x-stainless-timeout", "3")];
    for answer in join_all(hurried.map(|(name, value)| asks(name, value, false))).await {
        assert_eq!(answer.status(), 504);
        let line = gateway.logged(&request_id(&answer)).await.unwrap();
        assert_eq!(line["attempts"], 1, "{line}");
    }
    assert_eq!(gateway.breaker("trips_total").await.unwrap(), 0, "they were in a hurry");
    gateway.quiet(SOON).await.unwrap();
}
