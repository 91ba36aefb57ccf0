//! The scorer as an endpoint picker behind a real Envoy's `ext_proc`, which runs none of our filters.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::raw::post;
use rig::{
    Edit, Gateway, MODELS, Raw, Setup, chat, fields, find_all, free_port, lead_cluster, place_pool,
    request_id, wait_until,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use weir_engine::Config;
use xxhash_rust::xxh64::xxh64;

const CHAT: &str = "/v1/chat/completions";
const SOON: Duration = Duration::from_secs(20);
const REASON: &str = "x-llm-d-request-dropped-reason";

/// A gateway as it is shipped, but for what is changed in `ext_proc` and in the scorer's configuration.
async fn gateway(
    setup: Setup,
    ext_proc: impl Fn(&mut Value) + Send + Sync + 'static,
    more: impl Fn(&mut Value) + Send + Sync + 'static,
    scorer: impl Fn(&mut Value) + Send + Sync + 'static,
) -> Gateway {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let own = address.clone();
    let edit: Edit = Box::new(move |envoy| {
        lead_cluster(envoy, "picker", &own);
        for filter in find_all(envoy, &|value| value["name"] == "envoy.filters.http.ext_proc") {
            // The slowness of a machine for tests is no picker's failure.
            filter["typed_config"]["message_timeout"] = "20s".into();
            ext_proc(&mut filter["typed_config"]);
        }
        more(envoy);
    });
    let edit_scorer: Edit = Box::new(move |config| {
        config["picker"] = json!({"listen": address});
        config.as_object_mut().unwrap().remove("signals");
        scorer(config);
    });
    let setup = Setup {
        file: "envoy/picker.yaml",
        scorer: true,
        edit: Some(edit),
        edit_scorer: Some(edit_scorer),
        ..setup
    };
    Gateway::start(setup).await.unwrap()
}

/// How bodies of requests and answers go to the picker.
fn modes(request: &'static str, response: &'static str) -> impl Fn(&mut Value) + Send + Sync + 'static {
    move |filter| {
        let mode = &mut filter["processing_mode"];
        mode["request_body_mode"] = request.into();
        mode["response_body_mode"] = response.into();
        if request == "FULL_DUPLEX_STREAMED" {
            mode["request_trailer_mode"] = "SEND".into();
        }
        if request == "STREAMED" {
            filter["send_body_without_waiting_for_header_response"] = true.into();
        }
    }
}

fn nothing(_: &mut Value) {}

fn roomy() -> Config {
    Config { kv_tokens: 1 << 30, ..Config::instant() }
}

/// A chat request of exactly `size` bytes.
fn body_of(size: usize) -> String {
    let (before, after) =
        (r#"{"messages":[{"role":"user","content":""#, r#""}],"max_tokens":1,"model":"demo-small"}"#);
    let text: String =
        (0..size - before.len() - after.len()).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
    format!("{before}{text}{after}")
}

#[tokio::test(flavor = "multi_thread")]
async fn in_every_mode_requests_go_where_the_picker_says_and_bodies_arrive_as_they_were() {
    for [request, response] in
        [["BUFFERED", "NONE"], ["FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"], ["STREAMED", "STREAMED"]]
    {
        let gateway = gateway(
            Setup { engine: roomy(), ..Setup::default() },
            modes(request, response),
            nothing,
            nothing,
        )
        .await;
        for size in [1 << 10, 128 << 10, 1 << 20] {
            let body = body_of(size);
            let sent = gateway.client.post(format!("{}{CHAT}", gateway.url)).body(body.clone());
            let answer = sent.header("content-type", "application/json").send().await.unwrap();
            assert_eq!(answer.status(), 200, "{request} {size}");
            let id = request_id(&answer);
            let answer: Value = answer.json().await.unwrap();
            assert_eq!(answer["usage"]["completion_tokens"], 1, "{answer}");
            let line = gateway.logged(&id).await.unwrap();
            let pick = fields(&line, "pick");
            assert_eq!(
                (&pick["by"][..], &pick["endpoint"][..]),
                ("picker", line["upstream"].as_str().unwrap())
            );
            let (_, record) = gateway.received(0).pop().unwrap();
            assert_eq!(
                (record.body_len, record.body_xxh64),
                (size, format!("{:016x}", xxh64(body.as_bytes(), 0))),
                "{request}"
            );
            // Where the answer comes here its usage is read.
            let usage = fields(&line, "usage");
            assert_eq!(usage.get("status").map(String::as_str), (response != "NONE").then_some("complete"));
            gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
        }
        // The other model's pool, by the body alone; what nobody serves is said by the picker.
        let answer = gateway.chat(&chat(MODELS[1], "hi", 1)).await.unwrap();
        assert_eq!((answer.status().as_u16(), gateway.received(1).len()), (200, 1));
        let answer = gateway.chat(&chat("nobody's", "hi", 1)).await.unwrap();
        assert_eq!(answer.status(), 404);
        assert!(answer.text().await.unwrap().contains("no pool serves the model"));
        gateway.quiet(SOON).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_prompt_stays_and_many_are_spread() {
    let engine = Config { prefill_ms_per_ktoken: 100.0, decode_ms: 1.0, ..Config::default() };
    let gateway =
        gateway(Setup { engines: [4, 1], engine, ..Setup::default() }, nothing, nothing, nothing).await;
    let shared = "a long system prompt ".repeat(200);
    let mut places = BTreeSet::new();
    for turn in 0..8 {
        let answer = gateway.chat(&chat(MODELS[0], &format!("{shared} {turn}"), 1)).await.unwrap();
        places.insert(gateway.logged(&request_id(&answer)).await.unwrap()["upstream"].to_string());
    }
    assert_eq!(places.len(), 1, "{places:?}");
    gateway.engines[0].iter().for_each(|engine| engine.clear_requests());
    // Sixteen at once, each of them as long: booking is what spreads them.
    let bodies: Vec<Value> =
        (0..16).map(|n| chat(MODELS[0], &format!("{n} {}", "other words ".repeat(500)), 40)).collect();
    for answer in join_all(bodies.iter().map(|body| gateway.chat(body))).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    let counts: Vec<usize> = gateway.engines[0].iter().map(|engine| engine.requests().len()).collect();
    assert!(counts.iter().all(|count| *count >= 2), "{counts:?}");
    gateway.quiet(SOON).await.unwrap();
}

/// A filter before `ext_proc` that says which endpoints there may be, as a test's header has it.
fn hinting(envoy: &mut Value) {
    let code = r#"
        function envoy_on_request(handle)
          local metadata, headers = handle:streamInfo():dynamicMetadata(), handle:headers()
          local key, namespace = "x-gateway-destination-endpoint-subset", "envoy.lb.subset_hint"
          local text, list = headers:get("x-text"), headers:get("x-list")
          if text then metadata:set(namespace, key, text) end
          if list then
            local all = {}
            for one in string.gmatch(list, "[^,]+") do table.insert(all, one) end
            metadata:set(namespace, key, all)
          end
        end"#;
    let filter = json!({"name": "hint", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua", "default_source_code": {"inline_string": code}}});
    for manager in find_all(envoy, &|value| value["http_filters"].is_array()) {
        manager["http_filters"].as_array_mut().unwrap().insert(0, filter.clone());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_hint_is_kept_to_and_one_that_nobody_meets_is_503() {
    let gateway = gateway(Setup { engines: [4, 1], ..Setup::default() }, nothing, hinting, nothing).await;
    let all: Vec<String> = gateway.engines[0].iter().map(|engine| engine.addr.to_string()).collect();
    let two = format!("{},{}", all[1], all[3]);
    let ask = async |header: &str, hint: &str, turn: usize| {
        let body = chat(MODELS[0], &format!("{turn} of {hint}"), 1);
        gateway
            .client
            .post(format!("{}{CHAT}", gateway.url))
            .header(header, hint)
            .json(&body)
            .send()
            .await
            .unwrap()
    };
    for header in ["x-text", "x-list"] {
        for turn in 0..10 {
            let answer = ask(header, &two, turn).await;
            assert_eq!(answer.status(), 200);
            let line = gateway.logged(&request_id(&answer)).await.unwrap();
            assert!([&all[1][..], &all[3]].contains(&line["upstream"].as_str().unwrap()), "{header}: {line}");
        }
        let answer = ask(header, "10.0.0.1:1", 0).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()[REASON]),
            (503, &"rejected-no-endpoints".parse().unwrap())
        );
    }
    // A client's own copies of what steers a gateway steer nothing.
    let body = chat(MODELS[0], "forged", 1);
    let sent = gateway.client.post(format!("{}{CHAT}", gateway.url)).json(&body);
    let sent = sent.header("x-gateway-destination-endpoint", gateway.engines[1][0].addr.to_string());
    let answer = sent.header("x-gateway-model-name", MODELS[1]).send().await.unwrap();
    let line = gateway.logged(&request_id(&answer)).await.unwrap();
    assert!(all.contains(&line["upstream"].as_str().unwrap().to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_answer_is_followed_by_the_next_and_soon_left_out() {
    let dead = format!("127.0.0.1:{}", free_port().unwrap());
    let engine =
        weir_engine::Engine::start(Config { models: vec![MODELS[0].into()], ..roomy() }).await.unwrap();
    let live = engine.addr.to_string();
    let both = vec![dead.clone(), live.clone()];
    let own = both.clone();
    let gateway = gateway(
        Setup { engines: [0, 1], ..Setup::default() },
        nothing,
        move |envoy| place_pool(envoy, 0, &own),
        move |scorer| scorer["pools"][0]["endpoints"] = both.clone().into(),
    )
    .await;
    let scorer = gateway.scorer.as_ref().unwrap().url.clone();
    let out = async || {
        let loads: Value = serde_json::from_str(&rig::get(&scorer, "/v1/loads").await.unwrap()).unwrap();
        loads["pools"][0]["out"].as_array().unwrap().iter().any(|out| out["address"] == dead)
    };
    let mut retried = 0;
    for turn in 0..40 {
        let answer = gateway.chat(&chat(MODELS[0], &format!("{turn} to whom"), 1)).await.unwrap();
        assert_eq!(answer.status(), 200);
        let line = gateway.logged(&request_id(&answer)).await.unwrap();
        assert_eq!(line["upstream"], live);
        retried += u64::from(line["attempts"].as_u64().unwrap() > 1);
        if out().await {
            break;
        }
    }
    assert!(out().await && retried > 0, "{retried} were retried");
    gateway.quiet(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_full_is_429_and_says_when_to_come_again() {
    let slow = Config { prefill_ms_per_ktoken: 1.0, decode_ms: 30.0, ..Config::default() };
    let limits = |scorer: &mut Value| {
        let only = scorer["pools"][0]["endpoints"][0].as_str().unwrap().to_owned();
        scorer["pools"][0]["attributes"] = json!({only: {"max_in_flight": 1}});
    };
    let gateway =
        gateway(Setup { engines: [1, 1], engine: slow, ..Setup::default() }, nothing, nothing, limits).await;
    let mut stream = chat(MODELS[0], "a long story", 100_000);
    stream["stream"] = true.into();
    let mut first = gateway.chat(&stream).await.unwrap();
    first.chunk().await.unwrap();
    for _ in 0..3 {
        let answer = gateway.chat(&stream).await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()[REASON]),
            (429, &"rejected-saturated".parse().unwrap())
        );
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "rate_limit_exceeded");
    }
    drop(first);
    gateway.quiet(SOON).await.unwrap();
    assert_eq!(gateway.chat(&chat(MODELS[0], "now", 1)).await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_leaves_no_lease_and_a_stream_holds_one_to_its_end() {
    const TIMES: usize = 6;
    for [request, response] in
        [["BUFFERED", "NONE"], ["FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"], ["BUFFERED", "STREAMED"]]
    {
        let slow = Config { prefill_ms_per_ktoken: 2000.0, decode_ms: 20.0, ..Config::default() };
        let mut gateway =
            gateway(Setup { engine: slow, ..Setup::default() }, modes(request, response), nothing, nothing)
                .await;
        let leases = async |gateway: &Gateway, wanted: u64| {
            let waited = wait_until("the leases are as many", SOON, async || {
                gateway.scorer_leases().await.unwrap() == wanted
            })
            .await;
            waited.unwrap_or_else(|error| panic!("{request} {response}, {wanted}: {error:#}"));
        };
        let whole = |turn: usize, words: usize, stream: bool| {
            let mut body = chat(MODELS[0], &format!("{turn} {}", "long ".repeat(words)), 10_000);
            body["stream"] = stream.into();
            let body = body.to_string();
            post(CHAT, &[&format!("content-length: {}", body.len())]) + &body
        };
        // Half a body, then gone.
        for turn in 0..TIMES {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(&whole(turn, 10, true).as_bytes()[..150]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            connection.reset().unwrap();
        }
        // In prefill, in mid-stream, properly and not.
        for (words, wait) in [(800, false), (1, true)] {
            let mut connections = Vec::new();
            for turn in 0..TIMES {
                let mut connection = Raw::connect(&gateway.url).await.unwrap();
                connection.send(whole(turn, words, turn % 2 == 0 || wait)).await.unwrap();
                if wait {
                    connection.wait_for("\"delta\":{\"content\":\"").await.unwrap();
                }
                connections.push(connection);
            }
            leases(&gateway, TIMES as u64).await;
            for (turn, connection) in connections.into_iter().enumerate() {
                if turn % 2 == 0 { drop(connection) } else { connection.reset().unwrap() }
            }
            leases(&gateway, 0).await;
        }
        // An Envoy that is killed says no goodbye.
        let mut connections = Vec::new();
        for turn in 0..TIMES {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(whole(turn, 1, true)).await.unwrap();
            connection.wait_for("\"delta\":{\"content\":\"").await.unwrap();
            connections.push(connection);
        }
        leases(&gateway, TIMES as u64).await;
        gateway.envoy.kill();
        leases(&gateway, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picker_that_is_away_leaves_requests_to_envoy_or_has_them_refused() {
    for open in [true, false] {
        let allow = move |filter: &mut Value| filter["failure_mode_allow"] = open.into();
        let one_pool = |envoy: &mut Value| {
            for route in find_all(envoy, &|value| value["direct_response"].is_object()) {
                *route = json!({"match": {"prefix": "/"}, "route": {"cluster": "small", "timeout": "0s"}});
            }
        };
        let mut gateway = gateway(Setup::default(), allow, one_pool, nothing).await;
        let ask = async |gateway: &Gateway| {
            gateway.chat(&chat(MODELS[0], "who is there", 1)).await.unwrap().status()
        };
        assert_eq!(ask(&gateway).await, 200);
        gateway.scorer.as_mut().unwrap().process.kill();
        for _ in 0..5 {
            assert_eq!(ask(&gateway).await, if open { 200 } else { 500 });
        }
        gateway.scorer.as_mut().unwrap().restart().await.unwrap();
        let chosen = async || {
            let answer = gateway.chat(&chat(MODELS[0], "and now", 1)).await.unwrap();
            let line = gateway.logged(&request_id(&answer)).await.unwrap();
            answer.status() == 200 && line["pick"].is_string()
        };
        wait_until("the picker chooses again", SOON, chosen).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_sent_is_answered_and_the_picker_lives() {
    for [request, response] in [["BUFFERED", "STREAMED"], ["FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"]] {
        let large = |envoy: &mut Value| {
            for manager in find_all(envoy, &|value| value["http_filters"].is_array()) {
                manager["max_request_headers_kb"] = 8192.into();
                manager["common_http_protocol_options"] = json!({"max_headers_count": 20_000});
            }
        };
        let gateway = gateway(
            Setup { engine: roomy(), ..Setup::default() },
            modes(request, response),
            large,
            |scorer| {
                scorer["picker"]["request"] = json!({"max_body_bytes": 1 << 20});
            },
        )
        .await;
        let good = chat(MODELS[0], "hi", 1).to_string();
        let nested = format!(
            r#"{{"model":"demo-small","messages":[],"x":{}1{}}}"#,
            "[".repeat(50_000),
            "]".repeat(50_000)
        );
        let noise: Vec<u8> = (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let long = format!("x-session-id: {}", "x".repeat(2 << 20));
        let many: Vec<String> = (0..10_000).map(|n| format!("x-header-{n}: {n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (what, headers, body, allowed) in [
            ("garbage", &[][..], &noise[..], &[400][..]),
            ("nothing", &[], b"", &[400]),
            ("half of it", &[], &good.as_bytes()[..20], &[400]),
            ("nested", &[], nested.as_bytes(), &[200, 400]),
            ("too large", &[], &vec![b' '; 3 << 20], &[413]),
            ("a bomb", &["content-encoding: gzip"], b"\x1f\x8b\x08\0not", &[415]),
            // What the engine makes of such a head is its own.
            ("a huge header", &[&long[..]], good.as_bytes(), &[200, 431, 503]),
            ("many headers", &many, good.as_bytes(), &[200, 431, 503]),
        ] {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            let length = format!("content-length: {}", body.len());
            let head = post(CHAT, &[headers, &[&length]].concat());
            // It may be answered before all of it is sent.
            let _ = connection.send([head.as_bytes(), body].concat()).await;
            let answer =
                connection.answer().await.unwrap_or_else(|error| panic!("{request} {what}: {error:#}"));
            assert!(allowed.contains(&answer.status), "{request} {what}: {}", answer.status);
            assert_eq!(
                gateway.chat(&chat(MODELS[0], "still there", 1)).await.unwrap().status(),
                200,
                "after {what}"
            );
        }
        gateway.quiet(SOON).await.unwrap();
        assert!(!gateway.scorer_log().contains("panicked"), "{}", gateway.scorer_log());
    }
}
