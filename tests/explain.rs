//! Why a request went where it did: told to whom Envoy's own rules allow it, and to nobody else.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::{Gateway, MODELS, Setup, chat, filter_config, find_all};
use serde_json::{Value, json};
use weir::wire;

/// `envoy/explain.yaml` and what it says belongs to it, for who has the key `operator`.
fn edit(envoy: &mut Value) {
    let mut rules = rig::shipped("envoy/explain.yaml").unwrap();
    rules["typed_config"]["shadow_rules"]["policies"]["operators"]["principals"] =
        json!([{"header": {"name": "authorization", "string_match": {"exact": "Bearer operator"}}}]);
    filter_config(envoy, "extract", |extract| {
        extract["explain"] = json!({"metadata": "envoy.filters.http.rbac",
            "key": "explain_shadow_engine_result", "value": "allowed"});
    });
    for filters in find_all(envoy, &|value| {
        value[0]["name"].as_str().is_some_and(|name| ["extract", "chain"].contains(&name))
    }) {
        filters.as_array_mut().unwrap().insert(0, rules.clone());
    }
}

async fn explanation(gateway: &Gateway, key: &str, asks: bool) -> Option<Value> {
    let request = gateway.client.post(format!("{}/v1/chat/completions", gateway.url)).bearer_auth(key);
    let request = if asks { request.header(wire::EXPLAIN, "1") } else { request };
    let answer = request.json(&chat(MODELS[0], &"word ".repeat(100), 2)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let header = answer.headers().get(wire::EXPLANATION).map(|header| header.to_str().unwrap().to_owned());
    answer.bytes().await.unwrap();
    header.map(|json| serde_json::from_str(&json).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_is_told_of_every_candidate_and_what_decided_and_others_are_told_nothing() {
    for (chain, scorer) in [(false, false), (true, true)] {
        // One worker, or another may have heard of nothing yet.
        let edit = Some(Box::new(edit) as rig::Edit);
        let setup = Setup { engines: [3, 1], workers: 1, chain, scorer, edit, ..Setup::default() };
        let gateway = Gateway::start(setup).await.unwrap();
        assert_eq!(explanation(&gateway, "operator", false).await, None, "nobody asked");
        assert_eq!(explanation(&gateway, "anybody", true).await, None, "who may not");
        // By now one engine has the prompt.
        let why = explanation(&gateway, "operator", true).await.unwrap();
        let candidates = why["candidates"].as_array().unwrap();
        assert_eq!((candidates.len(), &candidates[0]["endpoint"]), (3, &why["endpoint"]), "{why}");
        let is_warm = |candidate: &Value| candidate["cached_tokens"].as_u64() > Some(0);
        assert!(candidates.iter().any(is_warm), "{why}");
        assert!(why["because"].as_str().is_some_and(|because| !because.is_empty()), "{why}");
        let total = |candidate: &Value| candidate["total"].as_f64().unwrap();
        assert!(candidates.iter().all(|other| total(other) <= total(&candidates[0])), "{why}");
        assert_eq!(why["policy"], "least_prefill");
        let received = gateway.received(0);
        assert_eq!(received.len(), 3);
        for (_, record) in received {
            assert!(record.headers.iter().all(|(name, _)| name != wire::EXPLAIN), "no engine sees it");
        }
    }
}
