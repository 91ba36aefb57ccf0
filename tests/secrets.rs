//! Nothing that is a secret of a client's gets into a log, a metric, an error or the scorer.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::{Gateway, MODELS, Setup, chat, get};
use serde_json::{Value, json};
use std::time::Duration;

/// Words that stand for secrets: each is searched for wherever something is written.
const CANARIES: [&str; 10] = [
    "canaryauthorization",
    "canaryxapikey",
    "canaryapikey",
    "canaryquerykey",
    "canarycachesalt",
    "canaryprompt",
    "canarytenant",
    "canarysession",
    "canaryuser",
    "canarycookie",
];

/// Requests that fare differently, all full of secrets.
async fn send(gateway: &Gateway) -> Vec<(u16, String)> {
    let [auth, x_api_key, api_key, query, salt, prompt, tenant, session, user, cookie] = CANARIES;
    let with = |model: &str| {
        let mut body = chat(model, &format!("{prompt} {}", "word ".repeat(40)), 2);
        body["cache_salt"] = salt.into();
        body["user"] = user.into();
        body["prompt_cache_key"] = session.into();
        body
    };
    let good = with(MODELS[0]).to_string();
    let mut stream = with(MODELS[0]);
    stream["stream"] = true.into();
    let mut wrong = with(MODELS[0]);
    wrong["model"] = json!([prompt]);
    let bodies: [(&str, String); 8] = [
        ("/v1/chat/completions", good.clone()),
        ("/v1/chat/completions", stream.to_string()),
        ("/v1/messages", with(MODELS[1]).to_string()),
        ("/v1/chat/completions", with("nobodys").to_string()),
        ("/v1/chat/completions", wrong.to_string()),
        ("/v1/chat/completions", good[..good.len() - 9].to_owned()),
        ("/v1/chat/completions", format!("{{\"{prompt}\":\"\\u0000{prompt}")),
        ("/v1/elsewhere", good),
    ];
    let mut answers = Vec::new();
    for (path, body) in bodies {
        let request = gateway.client.post(format!("{}{path}?key={query}", gateway.url)).bearer_auth(auth);
        let headers = [
            ("x-api-key", x_api_key),
            ("api-key", api_key),
            ("x-llm-d-inference-fairness-id", tenant),
            ("x-session-id", session),
            ("x-llm-d-inference-objective", tenant),
            ("cookie", cookie),
            ("content-type", "application/json"),
        ];
        let request = headers
            .iter()
            .filter(|(name, _)| *name != "x-llm-d-inference-objective")
            .fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = request.body(body).send().await.unwrap();
        let status = answer.status().as_u16();
        let headers = format!("{:?}", answer.headers());
        answers.push((status, headers + &answer.text().await.unwrap()));
    }
    answers
}

fn expect_none(text: &str, of: &str) {
    assert!(!text.is_empty() || of.contains("log"), "{of} is empty");
    for canary in CANARIES {
        if let Some(at) = text.find(canary) {
            panic!("{canary} is in {of}: {}", &text[at.saturating_sub(200)..(at + 60).min(text.len())]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_client_is_written_anywhere() {
    // One request is admitted in a minute, so that the others see what a refused one sees.
    let limit = json!({"identity": {"key_headers": ["authorization"]}, "limits": [{"name": "l", "key": ["api_key", "tenant", "session", "user"], "windows": [{"requests": 4, "per_s": 3600}]}]});
    for chain in [false, true] {
        let setup = Setup {
            chain,
            scorer: true,
            limit: Some(limit.clone()),
            own_log_level: "trace",
            ..Setup::default()
        };
        let mut gateway = Gateway::start(setup).await.unwrap();
        let mut answers = send(&gateway).await;
        let seen: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
        assert_eq!(seen, [200, 200, 200, 404, 400, 400, 400, 404]);
        // A scorer that hangs, and then is gone, is complained of.
        gateway.scorer.as_ref().unwrap().process.hang();
        answers.extend(send(&gateway).await);
        gateway.scorer.as_mut().unwrap().process.kill();
        tokio::time::sleep(Duration::from_millis(1200)).await;
        answers.extend(send(&gateway).await);
        assert!(answers.iter().any(|(status, _)| *status == 429), "the limit was not reached");
        gateway.scorer.as_mut().unwrap().restart().await.unwrap();
        let metrics = get(&gateway.scorer.as_ref().unwrap().url, "/metrics").await.unwrap();
        // Engines of the test answer with the beginning of no prompt.
        for (_, answer) in &answers {
            expect_none(answer, "an answer");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let access: Vec<Value> = gateway.access_log();
        assert!(access.len() >= 24, "{}", access.len());
        expect_none(&serde_json::to_string(&access).unwrap(), "the access log");
        expect_none(&gateway.envoy_log(), "Envoy's log");
        expect_none(&gateway.scorer_log(), "the scorer's log");
        expect_none(&metrics, "the scorer's metrics");
        expect_none(&get(&gateway.admin, "/stats").await.unwrap(), "Envoy's stats");
    }
}
