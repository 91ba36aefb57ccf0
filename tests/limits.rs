//! Limits, as clients and engines see them: how much gets through, what it is charged, and what is said.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use reqwest::{Response, header::HeaderMap};
use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat, fields, request_id, wait_until};
use serde_json::{Value, json};
use std::time::Duration;
use weir_engine::{Fault, Kind};

const CHAT: &str = "/v1/chat/completions";
const SOON: Duration = Duration::from_secs(10);
const LAYOUTS: [bool; 2] = [false, true];

/// A limit `l` per credential.
fn limit(windows: Value) -> Value {
    json!({"limits": [{"name": "l", "key": ["api_key"], "windows": windows, "max_in_flight": 1000}]})
}

fn tokens(tokens: u64, per_s: u64) -> Value {
    limit(json!([{"tokens": tokens, "per_s": per_s}]))
}

async fn gateway(chain: bool, limit: Value, engine: weir_engine::Config) -> Gateway {
    let setup = Setup { chain, limit: Some(limit), engine, ..Setup::default() };
    Gateway::start(setup).await.unwrap()
}

/// A request whose prompt is estimated at 40 tokens and whose output is bounded to 60.
fn hundred(turn: usize) -> Value {
    let mut body = chat(MODELS[0], &format!("{turn:04} {}", "x".repeat(146)), 60);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    body
}

async fn send(gateway: &Gateway, path: &str, key: &str, body: &Value) -> Response {
    let request = gateway.client.post(format!("{}{path}", gateway.url)).bearer_auth(key);
    request.json(body).send().await.unwrap()
}

async fn stat(gateway: &Gateway, name: &str) -> u64 {
    gateway.stat(&format!("weir_limit_{name};limit=l")).await.unwrap()
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    let value = headers.get(name).unwrap_or_else(|| panic!("no {name} in {headers:?}"));
    value.to_str().unwrap().parse().unwrap_or_else(|_| panic!("{name}: {value:?}"))
}

/// Waits until nothing is held any more.
async fn settled(gateway: &Gateway, what: &str) {
    let settled =
        async || stat(gateway, "in_flight").await == 0 && stat(gateway, "reserved_tokens").await == 0;
    wait_until(what, SOON, settled).await.unwrap();
}

/// Tokens that the access log says were used, over all requests.
fn used(gateway: &Gateway) -> u64 {
    let log = gateway.access_log();
    let usage = log.iter().map(|line| fields(line, "usage"));
    usage
        .flat_map(|usage| [usage.get("input").cloned(), usage.get("output").cloned()])
        .flatten()
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_at_once_ten_get_through_and_are_charged_what_they_used() {
    for chain in LAYOUTS {
        let engine = weir_engine::Config { decode_ms: 40.0, ..Default::default() };
        let gateway = gateway(chain, tokens(1000, 600), engine).await;
        let answers = join_all((0..50).map(|turn| {
            let body = hundred(turn);
            let gateway = &gateway;
            async move { send(gateway, CHAT, "k", &body).await }
        }))
        .await;
        let mut admitted = 0;
        for answer in answers {
            if answer.status() == 200 {
                admitted += 1;
                assert!(number(answer.headers(), "x-ratelimit-remaining-tokens") <= 900);
                answer.text().await.unwrap();
            } else {
                assert_eq!(answer.status(), 429);
                assert!(number(answer.headers(), "retry-after") > 0);
                let body: Value = answer.json().await.unwrap();
                assert_eq!(body["error"]["code"], "rate_limit_exceeded");
            }
        }
        assert_eq!((admitted, gateway.received(0).len()), (10, 10), "chain: {chain}");
        settled(&gateway, "all are settled").await;
        wait_until("the access log", SOON, async || gateway.access_log().len() == 50).await.unwrap();
        let charged = stat(&gateway, "charged_tokens_total").await;
        assert_eq!(charged, used(&gateway), "chain: {chain}");
        assert!((900..=1000).contains(&charged), "chain: {chain}: {charged}");
        assert_eq!(stat(&gateway, "limited_total").await, 40);
        // Another key is another count.
        assert_eq!(send(&gateway, CHAT, "k", &hundred(50)).await.status(), 429);
        assert_eq!(send(&gateway, CHAT, "other", &hundred(51)).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_can_be_used_again() {
    // Without a breaker: the engines are to be asked each time.
    let setup = Setup {
        limit: Some(tokens(1000, 600)),
        engine: weir_engine::Config::instant(),
        edit: Some(rig::no_breaker()),
        ..Setup::default()
    };
    let gateway = Gateway::start(setup).await.unwrap();
    // Each reserves 900 and gets nothing.
    let body = chat(MODELS[0], "hello", 890);
    gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(Kind::Http503)));
    for turn in 0..3 {
        let answer = send(&gateway, CHAT, "k", &body).await;
        let line = gateway.logged(&request_id(&answer)).await.unwrap();
        assert_eq!(answer.status(), 503, "turn {turn}: {line}");
        assert_eq!(fields(&line, "limit")["charged"], "0", "{line}");
    }
    gateway.engines[0].iter().for_each(|engine| engine.fault(Fault::new(Kind::None)));
    let answer = send(&gateway, CHAT, "k", &chat(MODELS[0], "hello", 8)).await;
    let remaining = number(answer.headers(), "x-ratelimit-remaining-tokens");
    assert!(remaining > 970, "{remaining}");
    let line = gateway.logged(&request_id(&answer)).await.unwrap();
    let (limit, usage) = (fields(&line, "limit"), fields(&line, "usage"));
    let sum = usage["input"].parse::<u64>().unwrap() + usage["output"].parse::<u64>().unwrap();
    assert_eq!((&limit["verdict"], &limit["charged"]), (&"admitted".to_owned(), &sum.to_string()), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn steady_light_use_is_never_refused_and_the_quota_comes_back() {
    let gateway = gateway(true, tokens(1000, 4), weir_engine::Config::instant()).await;
    let body = chat(MODELS[0], "hi", 8);
    let mut least = u64::MAX;
    for turn in 0..100 {
        let answer = send(&gateway, CHAT, "k", &body).await;
        assert_eq!(answer.status(), 200, "turn {turn}, {least} were left before");
        least = least.min(number(answer.headers(), "x-ratelimit-remaining-tokens"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(least < 900, "nothing was counted");
    tokio::time::sleep(Duration::from_millis(4_100)).await;
    let answer = send(&gateway, CHAT, "k", &body).await;
    assert!(number(answer.headers(), "x-ratelimit-remaining-tokens") > 980);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_as_told_is_admitted() {
    for chain in LAYOUTS {
        let gateway = gateway(chain, tokens(120, 3), weir_engine::Config::instant()).await;
        let mut refused = 0;
        for turn in 0..4 {
            let answer = send(&gateway, CHAT, "k", &hundred(turn)).await;
            if answer.status() == 429 {
                refused += 1;
                let wait = number(answer.headers(), "retry-after");
                let millis = number(answer.headers(), "retry-after-ms");
                assert!(millis <= wait * 1000 && wait <= 4, "{wait} s, {millis} ms");
                tokio::time::sleep(Duration::from_millis(millis)).await;
                assert_eq!(send(&gateway, CHAT, "k", &hundred(turn)).await.status(), 200, "turn {turn}");
            }
        }
        assert!(refused > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_leave_nothing_reserved() {
    for chain in LAYOUTS {
        let engine =
            weir_engine::Config { prefill_ms_per_ktoken: 2000.0, decode_ms: 30.0, ..Default::default() };
        let gateway = gateway(chain, tokens(1_000_000, 600), engine).await;
        let whole = |content: &str, stream: bool| {
            let mut body = chat(MODELS[0], content, 500);
            body["stream"] = stream.into();
            let body = body.to_string();
            let length = format!("content-length: {}", body.len());
            post(CHAT, &["authorization: Bearer k", &length]) + &body
        };
        let leave = |connection: Raw, turn: usize| match turn % 2 {
            0 => drop(connection),
            _ => connection.reset().unwrap(),
        };
        // Before its headers are complete, and in upload: nothing is admitted yet.
        for part in [&whole("hello", true)[..50], &whole("hello", true)[..200]] {
            for turn in 0..4 {
                let mut connection = Raw::connect(&gateway.url).await.unwrap();
                connection.send(part).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
                leave(connection, turn);
            }
        }
        settled(&gateway, "after uploads").await;
        assert_eq!(stat(&gateway, "admitted_total").await, 0);
        // In prefill: refunded.
        let mut connections = Vec::new();
        for turn in 0..8 {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(whole(&format!("{turn} {}", "long ".repeat(1200)), false)).await.unwrap();
            connections.push(connection);
        }
        wait_until("all are in the engines", SOON, async || gateway.in_engines() == 8).await.unwrap();
        assert_eq!(stat(&gateway, "in_flight").await, 8);
        connections.into_iter().enumerate().for_each(|(turn, connection)| leave(connection, turn));
        settled(&gateway, "after prefill").await;
        assert_eq!(stat(&gateway, "charged_tokens_total").await, 0, "chain: {chain}");
        // In mid-stream: what came through is charged, though meter says so only at the very end.
        for turn in 0..4 {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(whole("hello", true)).await.unwrap();
            connection.wait_for("\"delta\":{\"content\":\"").await.unwrap();
            leave(connection, turn);
        }
        settled(&gateway, "after mid-stream").await;
        let charged = stat(&gateway, "charged_tokens_total").await;
        assert_eq!(stat(&gateway, "estimated_total").await, 4, "chain: {chain}");
        assert!((4 * 3..4 * 60).contains(&charged), "chain: {chain}: {charged}");
        // An engine that breaks off, too.
        gateway.engines[0]
            .iter()
            .for_each(|engine| engine.fault(Fault::new(Kind::CutStream).after_tokens(3)));
        let mut answer = send(&gateway, CHAT, "k", &hundred(0)).await;
        while let Ok(Some(_)) = answer.chunk().await {}
        settled(&gateway, "after an engine broke off").await;
        assert_eq!(stat(&gateway, "charged_tokens_total").await, charged + 43, "chain: {chain}");
        assert_eq!(stat(&gateway, "admitted_total").await, 13);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_usage_is_charged_by_what_was_delivered() {
    let gateway = gateway(false, tokens(10_000, 600), weir_engine::Config::instant()).await;
    let mut body = hundred(0);
    body.as_object_mut().unwrap().remove("stream_options");
    let answer = send(&gateway, CHAT, "k", &body).await;
    let id = request_id(&answer);
    answer.text().await.unwrap();
    let line = gateway.logged(&id).await.unwrap();
    assert_eq!(fields(&line, "usage")["status"], "missing");
    let limit = fields(&line, "limit");
    assert_eq!((&limit["charged"][..], &limit["estimated"][..]), ("100", "1"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_charged_once() {
    let gateway = gateway(false, tokens(100_000, 600), weir_engine::Config::instant()).await;
    gateway.engines[0][0].fault(Fault::new(Kind::Die));
    let mut retried = 0;
    for turn in 0..20 {
        let answer = send(&gateway, CHAT, "k", &hundred(turn)).await;
        let id = request_id(&answer);
        assert_eq!(answer.status(), 200);
        answer.text().await.unwrap();
        let line = gateway.logged(&id).await.unwrap();
        retried += u64::from(line["attempts"].as_u64().unwrap() > 1);
    }
    assert!(retried > 0, "the dead one was never chosen, so nothing was shown");
    settled(&gateway, "all are settled").await;
    assert_eq!(stat(&gateway, "admitted_total").await, 20);
    assert_eq!(stat(&gateway, "charged_tokens_total").await, used(&gateway));
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_at_once_and_no_more() {
    for chain in LAYOUTS {
        let engine = weir_engine::Config { decode_ms: 30.0, ..Default::default() };
        let limit =
            json!({"limits": [{"name": "l", "key": [{"header": "x-session-id"}], "max_in_flight": 3}]});
        let gateway = gateway(chain, limit, engine).await;
        let ask = async |session: &str, turn| {
            let request =
                gateway.client.post(format!("{}{CHAT}", gateway.url)).header("x-session-id", session);
            request.json(&hundred(turn)).send().await.unwrap()
        };
        let answers = join_all((0..20).map(|turn| ask("s", turn))).await;
        let (good, refused): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.status() == 200);
        assert_eq!((good.len(), refused.len()), (3, 17));
        for answer in refused {
            assert_eq!((answer.status().as_u16(), number(answer.headers(), "retry-after")), (429, 1));
        }
        assert_eq!(ask("another", 0).await.status(), 200);
        drop(good);
        settled(&gateway, "the clients have left").await;
        assert_eq!(ask("s", 1).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_is_told_in_its_own_words() {
    for chain in LAYOUTS {
        let windows = json!([
            {"tokens": 400, "per_s": 60}, {"requests": 3, "per_s": 60}, {"tokens": 500, "per_s": 86400, "quota": true}
        ]);
        let gateway = gateway(chain, limit(windows), weir_engine::Config::instant()).await;
        let small = chat(MODELS[0], "hello", 2);
        // OpenAI.
        let answer = send(&gateway, CHAT, "a", &small).await;
        let headers = answer.headers().clone();
        assert_eq!((answer.status().as_u16(), number(&headers, "x-ratelimit-limit-tokens")), (200, 400));
        assert_eq!(number(&headers, "x-ratelimit-limit-requests"), 3);
        assert_eq!(number(&headers, "x-ratelimit-remaining-requests"), 2);
        let reset = headers["x-ratelimit-reset-tokens"].to_str().unwrap();
        assert!(reset.starts_with("1m") && reset.ends_with('s'), "{reset}");
        assert!(!headers.contains_key("anthropic-ratelimit-tokens-limit"));
        // Anthropic.
        let answer = send(&gateway, "/v1/messages", "b", &small).await;
        let headers = answer.headers().clone();
        assert_eq!(answer.status(), 200);
        assert_eq!(number(&headers, "anthropic-ratelimit-tokens-limit"), 400);
        assert_eq!(number(&headers, "anthropic-ratelimit-requests-remaining"), 2);
        let reset = headers["anthropic-ratelimit-tokens-reset"].to_str().unwrap();
        let now = std::process::Command::new("date").args(["-u", "+%Y-%m-%dT%H"]).output().unwrap().stdout;
        let now = String::from_utf8(now).unwrap();
        assert!(reset.ends_with('Z') && reset[..10] >= now[..10], "{reset}");
        // What never fits.
        for (path, kind) in [(CHAT, "error"), ("/v1/messages", "type")] {
            let answer = send(&gateway, path, "c", &chat(MODELS[0], "hello", 400)).await;
            assert_eq!(answer.status(), 400);
            assert!(!answer.headers().contains_key("retry-after"));
            let body: Value = answer.json().await.unwrap();
            assert_eq!(body["error"]["type"], "invalid_request_error");
            assert!(
                !body[kind].is_null()
                    && body["error"]["message"].as_str().unwrap().contains("400 tokens in 60 s")
            );
        }
        // Too many requests.
        let statuses = join_all((0..5).map(|_| send(&gateway, "/v1/messages", "d", &small))).await;
        let refused: Vec<_> = statuses.into_iter().filter(|answer| answer.status() == 429).collect();
        assert_eq!(refused.len(), 2);
        for answer in refused {
            assert!(number(answer.headers(), "retry-after") >= 50);
            assert_eq!(number(answer.headers(), "anthropic-ratelimit-requests-remaining"), 0);
            let body: Value = answer.json().await.unwrap();
            assert_eq!(
                (&body["type"], &body["error"]["type"]),
                (&json!("error"), &json!("rate_limit_error"))
            );
        }
        // The quota of the day.
        let big = chat(MODELS[0], "hello", 300);
        assert_eq!(send(&gateway, CHAT, "e", &big).await.status(), 200);
        let answer = send(&gateway, CHAT, "e", &big).await;
        assert_eq!(answer.status(), 403);
        assert!(number(answer.headers(), "retry-after") > 3600);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], "insufficient_quota");
        // Traffic without a model is not counted and not refused.
        let models =
            gateway.client.get(format!("{}/v1/models", gateway.url)).bearer_auth("e").send().await.unwrap();
        assert_eq!(models.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_and_no_stat_holds_a_key() {
    const CANARY: &str = "kanarienvogel";
    let setup = Setup { limit: Some(tokens(150, 600)), log_level: "debug", ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let mut said = String::new();
    for turn in 0..3 {
        let request = gateway.client.post(format!("{}{CHAT}", gateway.url)).header("x-api-key", CANARY);
        let answer = request.json(&hundred(turn)).send().await.unwrap();
        said += &format!("{:?}", answer.headers());
        said += &answer.text().await.unwrap();
    }
    assert!(said.contains("rate_limit_exceeded"), "{said}");
    said += &rig::get(&gateway.admin, "/stats").await.unwrap();
    said += &format!("{:?}", gateway.access_log());
    // Envoy itself prints headers at this level; ours are the lines of the filter.
    said += &gateway.envoy_log().lines().filter(|line| line.contains("wasm log")).collect::<String>();
    assert!(!said.contains(CANARY), "{said}");
}
