//! What an answer used, as the access log and the stats tell it; and what they never tell.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::{Gateway, MODELS, Setup, chat, fields, get, request_id, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/messages"];

/// A body that all three dialects read.
fn ask(content: &str, stream: bool) -> Value {
    let mut body = chat(MODELS[0], content, 12);
    body["prompt"] = content.into();
    body["stream"] = stream.into();
    body["stream_options"] = json!({"include_usage": true});
    body
}

/// Sends a request; gives the answer's text and what the access log says was used.
async fn used(gateway: &Gateway, path: &str, body: &Value) -> (String, BTreeMap<String, String>) {
    let answer = gateway.client.post(format!("{}{path}", gateway.url)).json(body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let id = request_id(&answer);
    let text = answer.text().await.unwrap();
    (text, fields(&gateway.logged(&id).await.unwrap(), "usage"))
}

/// Input, cached and output tokens as the client reads them from an answer.
fn told(path: &str, text: &str, stream: bool) -> (u64, u64, u64) {
    let events =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let events: Vec<Value> =
        if stream { events.collect() } else { vec![serde_json::from_str(text).unwrap()] };
    if path != PATHS[2] {
        let usage = events.iter().rev().map(|event| &event["usage"]).find(|usage| usage.is_object()).unwrap();
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        let [input, cached, output] =
            [&usage["prompt_tokens"], cached, &usage["completion_tokens"]].map(|n| n.as_u64().unwrap());
        return (input, cached, output);
    }
    let start = if stream { &events[0]["message"]["usage"] } else { &events[0]["usage"] };
    let [fresh, cached] = ["input_tokens", "cache_read_input_tokens"].map(|key| start[key].as_u64().unwrap());
    let end =
        events.iter().rev().map(|event| &event["usage"]).find(|usage| usage.is_object()).unwrap_or(start);
    (fresh + cached, cached, end["output_tokens"].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_and_the_stats_say_what_the_engine_said() {
    let gateway = Gateway::start(Setup { engines: [1, 1], ..Setup::default() }).await.unwrap();
    let (mut requests, mut sums) = (0, [0, 0, 0]);
    for path in PATHS {
        for stream in [false, true] {
            let body = ask(&format!("{path} {stream} {}", "a long story. ".repeat(30)), stream);
            for again in [false, true] {
                let (text, usage) = used(&gateway, path, &body).await;
                let case = format!("{path}, stream: {stream}, again: {again}: {usage:?}");
                let (input, cached, output) = told(path, &text, stream);
                assert_eq!((cached > 0, output), (again, 12), "{case}");
                assert_eq!(usage["status"], "complete", "{case}");
                let logged = ["input", "cached", "output"].map(|key| usage[key].parse::<u64>().unwrap());
                assert_eq!(logged, [input, cached, output], "{case}");
                assert!(usage["ttft_ms"].parse::<f64>().unwrap() > 0.0, "{case}");
                // It may be zero: on a busy machine all tokens can arrive at once.
                assert_eq!(usage.contains_key("tpot_ms"), stream, "{case}");
                assert_eq!(usage["finish"], if path == PATHS[2] { "max_tokens" } else { "length" }, "{case}");
                requests += 1;
                sums = [sums[0] + input, sums[1] + cached, sums[2] + output];
            }
        }
    }
    // A client that does not ask for usage gets a stream without it.
    let mut body = ask("no usage", true);
    body.as_object_mut().unwrap().remove("stream_options");
    let (_, usage) = used(&gateway, PATHS[0], &body).await;
    assert_eq!((&usage["status"][..], &usage["deltas"][..]), ("missing", "12"), "{usage:?}");

    let stat = async |name: &str| gateway.stat(&format!("weir_{name};model=demo-small")).await.unwrap();
    assert_eq!(stat("requests_total").await, requests + 1);
    assert_eq!((stat("usage_missing_total").await, stat("errors_total").await), (1, 0));
    let counted = [
        stat("input_tokens_total").await,
        stat("cached_tokens_total").await,
        stat("output_tokens_total").await,
    ];
    assert_eq!(counted, sums);

    let prometheus = get(&gateway.admin, "/stats/prometheus").await.unwrap();
    for (name, value) in [("weir_requests_total", requests + 1), ("weir_output_tokens_total", sums[2])] {
        let labelled = |line: &&str| line.contains(&format!("{name}{{model=\"demo-small\"}}"));
        let line = prometheus.lines().find(labelled).unwrap_or_else(|| panic!("no {name} in\n{prometheus}"));
        assert!(line.ends_with(&format!(" {value}")), "{line}");
    }
    assert!(prometheus.lines().any(|line| line.contains("weir_ttft_ms_count{model=\"demo-small\"}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_is_logged_as_such() {
    let engine = weir_engine::Config { decode_ms: 30.0, ..Default::default() };
    let gateway = Gateway::start(Setup { engines: [1, 1], engine, ..Setup::default() }).await.unwrap();
    for (path, status) in [(PATHS[0], "missing"), (PATHS[1], "missing"), (PATHS[2], "partial")] {
        let mut body = ask("a client that leaves", true);
        body["max_tokens"] = 1000.into();
        let mut answer =
            gateway.client.post(format!("{}{path}", gateway.url)).json(&body).send().await.unwrap();
        let id = request_id(&answer);
        let mut text = Vec::new();
        while text.len() < 2000 {
            text.extend(answer.chunk().await.unwrap().unwrap());
        }
        drop(answer);
        let line = gateway.logged(&id).await.unwrap();
        let usage = fields(&line, "usage");
        assert_eq!(usage["status"], status, "{path}: {line}");
        assert!(usage.contains_key("ttft_ms"), "{path}: {line}");
    }
    // The engine breaks off.
    gateway.engines[0][0]
        .fault(weir_engine::Fault::new(weir_engine::Kind::CutStream).after_tokens(3).count(1));
    let mut answer = gateway.chat(&ask("an engine that breaks off", true)).await.unwrap();
    let id = request_id(&answer);
    while let Ok(Some(_)) = answer.chunk().await {}
    let usage = fields(&gateway.logged(&id).await.unwrap(), "usage");
    assert_eq!((&usage["status"][..], &usage["deltas"][..]), ("missing", "3"), "{usage:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_holds_a_word_of_a_prompt_or_a_secret() {
    const CANARY: &str = "kanarienvogel";
    let setup = Setup { engines: [1, 1], scorer: true, log_level: "info", ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    let (mut lines, mut denied) = (0, 0);
    for path in PATHS {
        let mut body = ask(&format!("{CANARY} in the prompt {}", CANARY.repeat(40)), false);
        body["cache_salt"] = CANARY.into();
        body["user"] = CANARY.into();
        body["system"] = CANARY.into();
        let broken = [
            body.to_string().replace("}]", "}]]"),
            format!("{{\"model\":\"{CANARY}\\n\"}}"),
            format!("\"{CANARY}\""),
        ];
        for text in broken.into_iter().chain([body.to_string()]) {
            let request = gateway
                .client
                .post(format!("{}{path}?key={CANARY}", gateway.url))
                .header("content-type", "application/json");
            let answer =
                request.bearer_auth(CANARY).header("x-api-key", CANARY).body(text).send().await.unwrap();
            (lines, denied) = (lines + 1, denied + usize::from(answer.status() == 400));
            gateway.logged(&request_id(&answer)).await.unwrap();
        }
    }
    assert_eq!((lines, denied), (12, 9));
    wait_until("the log", Duration::from_secs(5), async || gateway.access_log().len() == lines)
        .await
        .unwrap();
    let engines = gateway.received(0);
    assert!(engines.iter().all(|(_, record)| record.header("authorization").unwrap().contains(CANARY)));
    for (name, text) in [
        ("access log", gateway.access_log().iter().map(Value::to_string).collect::<Vec<_>>().join("\n")),
        ("Envoy's log", gateway.envoy_log()),
        ("the scorer's log", gateway.scorer_log()),
        ("the stats", get(&gateway.admin, "/stats").await.unwrap()),
    ] {
        let line = text.lines().find(|line| line.to_lowercase().contains(CANARY));
        assert_eq!(line, None, "in {name}");
    }
    assert!(gateway.envoy_log().len() > 1000, "the log is there");
}
