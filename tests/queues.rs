//! Lines for slots, priorities and budgets, as clients and engines see them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use reqwest::Response;
use rig::raw::post;
use rig::{Gateway, MODELS, Raw, Setup, chat, fields, request_id, wait_until};
use serde_json::{Value, json};
use std::time::Duration;
use weir_engine::Config;

const CHAT: &str = "/v1/chat/completions";
const SOON: Duration = Duration::from_secs(30);
const LAYOUTS: [bool; 2] = [false, true];
const TENANT: &str = "x-llm-d-inference-fairness-id";

/// So many at once, over all; the others wait, for so long.
fn pool(slots: u32, size: u32, timeout_ms: u64) -> Value {
    let queue = json!({"size": size, "timeout_ms": timeout_ms});
    json!({"limits": [{"name": "l", "max_in_flight": slots, "queue": queue}], "objectives": {"batch": -1, "urgent": 5}})
}

/// One engine, so that what it received is in order.
async fn gateway(chain: bool, limit: Value, decode_ms: f64) -> Gateway {
    let engine = Config { decode_ms, prefill_ms_per_ktoken: 1.0, ..Config::default() };
    let setup = Setup { chain, limit: Some(limit), engine, engines: [1, 1], ..Setup::default() };
    Gateway::start(setup).await.unwrap()
}

async fn send(gateway: &Gateway, path: &str, header: (&str, &str), body: &Value) -> Response {
    let request = gateway.client.post(format!("{}{path}", gateway.url)).header(header.0, header.1);
    request.json(body).send().await.unwrap()
}

async fn stat(gateway: &Gateway, name: &str) -> u64 {
    gateway.stat(&format!("weir_limit_{name};limit=l")).await.unwrap()
}

async fn reaches(gateway: &Gateway, name: &str, value: u64) {
    wait_until(&format!("{name} is {value}"), SOON, async || stat(gateway, name).await == value)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_of_forty_sub_requests_cannot_take_a_pool() {
    for chain in LAYOUTS {
        let gateway = gateway(chain, pool(4, 100, 120_000), 20.0).await;
        let mut long = chat(MODELS[0], "long", 2_000);
        long["stream"] = true.into();
        let holders = join_all((0..4).map(|_| send(&gateway, CHAT, (TENANT, "fan-out"), &long))).await;
        let ask = |tenant: &'static str, turn: usize| {
            let (gateway, body) = (&gateway, chat(MODELS[0], &format!("{turn}"), 10));
            async move {
                let answer = send(gateway, CHAT, (TENANT, tenant), &body).await;
                let status = answer.status();
                answer.text().await.unwrap();
                status
            }
        };
        let fan_out = join_all((0..36).map(|turn| ask("fan-out", turn)));
        // Comes when all of the fan-out is in line; and the slots are freed when it is, too.
        let modest = async {
            reaches(&gateway, "waiting", 36).await;
            join_all((100..103).map(|turn| ask("modest", turn))).await
        };
        let free = async {
            reaches(&gateway, "waiting", 39).await;
            drop(holders);
        };
        let (statuses, modest, ()) = tokio::join!(fan_out, modest, free);
        assert!(statuses.iter().chain(&modest).all(|status| *status == 200), "{statuses:?}, {modest:?}");
        let mut received: Vec<_> = gateway.received(0).into_iter().map(|(_, record)| record).collect();
        received.sort_by_key(|record| record.id);
        let is_modest = |record: &weir_engine::Record| record.header(TENANT) == Some("modest");
        let places: Vec<usize> = (0..received.len()).filter(|place| is_modest(&received[*place])).collect();
        // Its turn is every second one at least; what is called together may arrive in any order.
        assert_eq!(places.len(), 3);
        assert!(places[2] < 4 + 6 + 4, "chain {chain}: at {places:?} of 43");
        for gauge in ["waiting", "in_flight"] {
            reaches(&gateway, gauge, 0).await;
        }
        assert_eq!(stat(&gateway, "admitted_total").await, 43);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_served_in_turn_refused_in_time_or_forgotten_when_it_leaves() {
    for chain in LAYOUTS {
        let gateway = gateway(chain, pool(1, 2, 1_500), 30.0).await;
        let long = chat(MODELS[0], "long", 2_000);
        let holder = {
            let mut body = long.clone();
            body["stream"] = true.into();
            send(&gateway, CHAT, (TENANT, "a"), &body).await
        };
        assert_eq!(holder.status(), 200);
        // Two wait, one of them with a body that comes in many pieces; there is no room for more of the same tenant.
        let large = chat(MODELS[0], &"large ".repeat(50_000), 2);
        let (text, small) = (large.to_string(), chat(MODELS[0], "small", 2));
        let waiting = async {
            let first = send(&gateway, CHAT, (TENANT, "b"), &large);
            let second = send(&gateway, "/v1/messages", (TENANT, "b"), &small);
            let third = async {
                reaches(&gateway, "waiting", 2).await;
                send(&gateway, CHAT, (TENANT, "b"), &small).await
            };
            tokio::join!(first, second, third)
        };
        let (first, second, third) = waiting.await;
        assert_eq!(
            (third.status().as_u16(), &third.headers()["x-llm-d-request-dropped-reason"]),
            (429, &"rejected-saturated".parse().unwrap())
        );
        for answer in [first, second] {
            assert_eq!(answer.status(), 503, "chain {chain}");
            assert!(answer.headers().contains_key("retry-after"));
            assert_eq!(answer.headers()["x-llm-d-request-dropped-reason"], "rejected-ttl-expired");
            let anthropic = !answer.headers().contains_key("retry-after-ms");
            let body: Value = answer.json().await.unwrap();
            assert_eq!(body["type"] == "error", anthropic, "{body}");
        }
        // Clients that leave while they wait leave no place taken.
        let raw = |tenant: &str| {
            let body = small.to_string();
            let (tenant, length) = (format!("{TENANT}: {tenant}"), format!("content-length: {}", body.len()));
            post(CHAT, &[&tenant, &length]) + &body
        };
        for turn in 0..2 {
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            connection.send(raw("c")).await.unwrap();
            reaches(&gateway, "waiting", 1).await;
            match turn {
                0 => drop(connection),
                _ => connection.reset().unwrap(),
            }
            reaches(&gateway, "waiting", 0).await;
        }
        // The slot is freed while one waits: it gets it, whole.
        let gateway = &gateway;
        let (answer, ()) = tokio::join!(send(gateway, CHAT, (TENANT, "b"), &large), async {
            wait_until("it waits", SOON, async || stat(gateway, "waiting").await == 1).await.unwrap();
            drop(holder);
        });
        let id = request_id(&answer);
        assert_eq!(answer.status(), 200, "chain {chain}: {}", answer.text().await.unwrap());
        answer.text().await.unwrap();
        let line = fields(&gateway.logged(&id).await.unwrap(), "limit");
        assert!(line["verdict"] == "admitted" && line.contains_key("waited_ms"), "{line:?}");
        assert!(gateway.received(0).iter().any(|(_, record)| record.body_len == text.len()));
        for gauge in ["waiting", "in_flight"] {
            reaches(gateway, gauge, 0).await;
        }
        assert_eq!((stat(gateway, "expired_total").await, stat(gateway, "admitted_total").await), (2, 2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_priority_is_shed_at_once_and_higher_goes_first() {
    let gateway = gateway(true, pool(1, 10, 60_000), 30.0).await;
    let mut body = chat(MODELS[0], "long", 2_000);
    body["stream"] = true.into();
    let holder = send(&gateway, CHAT, (TENANT, "a"), &body).await;
    let ask =
        |objective: &'static str| send(&gateway, CHAT, ("x-llm-d-inference-objective", objective), &body);
    let shed = ask("batch").await;
    assert_eq!((shed.status().as_u16(), shed.headers().contains_key("retry-after")), (429, true));
    let small = chat(MODELS[0], "small", 2);
    let wait = async |objective: &'static str, after: u64| {
        wait_until("its turn to ask", SOON, async || stat(&gateway, "waiting").await >= after).await.unwrap();
        let answer = send(&gateway, CHAT, ("x-llm-d-inference-objective", objective), &small).await;
        assert_eq!(answer.status(), 200);
        answer.text().await.unwrap();
    };
    let free = async {
        reaches(&gateway, "waiting", 3).await;
        drop(holder);
    };
    tokio::join!(wait("chat", 0), wait("chat", 1), wait("urgent", 2), free);
    let mut received: Vec<_> = gateway.received(0).into_iter().map(|(_, record)| record).collect();
    received.sort_by_key(|record| record.id);
    let objectives: Vec<_> =
        received.iter().map(|record| record.header("x-llm-d-inference-objective")).collect();
    assert_eq!(objectives, [None, Some("urgent"), Some("chat"), Some("chat")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_warns_demotes_and_ends_in_the_clients_own_words() {
    for chain in LAYOUTS {
        // Each costs about 20 hundredths of a cent; ten fit, half of them are past the soft stage.
        let limit = json!({"limits": [{"name": "l", "key": ["api_key"], "windows": [
                {"money": 0.02, "per_s": 86400, "soft_percent": 50, "demote": "batch"}, {"money": 1, "total": true}]}],
            "objectives": {"batch": -1},
            "cost": {"prices": {"other": {"input": 0, "output": 200}}}});
        let gateway = gateway(chain, limit, 0.0).await;
        let body = chat(MODELS[0], "hello", 10);
        let mut seen = Vec::new();
        for _ in 0..10 {
            let answer = send(&gateway, CHAT, ("authorization", "Bearer k"), &body).await;
            let id = request_id(&answer);
            assert_eq!(answer.status(), 200);
            let said = answer.headers().get("x-weir-budget").map(|value| value.to_str().unwrap().to_owned());
            answer.text().await.unwrap();
            let line = gateway.logged(&id).await.unwrap();
            let (limit, output) =
                (fields(&line, "limit"), fields(&line, "usage")["output"].parse::<u64>().unwrap());
            assert_eq!(limit["charged_nanos"], (output * 200_000).to_string(), "{line}");
            seen.push(said);
        }
        assert!(
            seen[0].is_none() && seen[9].as_deref().is_some_and(|said| said.starts_with("l; used=")),
            "{seen:?}"
        );
        let warned = seen.iter().flatten().count();
        let demoted = |(_, record): &(usize, weir_engine::Record)| {
            let [budget, objective] =
                ["x-weir-budget", "x-llm-d-inference-objective"].map(|name| record.header(name));
            assert_eq!(budget.is_some(), objective == Some("batch"));
            objective.is_some()
        };
        assert_eq!(gateway.received(0).iter().filter(|received| demoted(received)).count(), warned);
        // Used up: what it may cost no longer fits.
        let over = chat(MODELS[0], "hello", 90);
        for (path, kind) in [(CHAT, "insufficient_quota"), ("/v1/messages", "permission_error")] {
            let answer = send(&gateway, path, ("authorization", "Bearer k"), &over).await;
            assert_eq!(answer.status(), 403, "chain {chain}");
            let body: Value = answer.json().await.unwrap();
            assert_eq!(body["error"]["type"], kind);
            assert!(body["error"]["message"].as_str().unwrap().contains("0.02 USD"), "{body}");
        }
    }
}
