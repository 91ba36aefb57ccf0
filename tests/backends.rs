//! A provider serves what one's own engines cannot: under its own name for the model, with its own path and key, and with a word
//! to the client that it did.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::backend::Saying;
use rig::{Backend, Gateway, MODELS, Setup, filter_config, find_all, lead_cluster, place_pool};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const KEY: &str = "sk-provider-5e1f";
/// What the provider answers, with its own name for the model.
const ANSWER: &str = r#"{"id":"1","object":"chat.completion","model":"provider/chat-8b","choices":[{"index":0,"message":{"role":"assistant","content":"from afar"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;

/// How engines say that a prompt is too long, each in its API's shape.
const TOO_LONG: [&str; 3] = [
    r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.","type":"BadRequestError","param":"input_tokens","code":400}}"#,
    r#"{"object":"error","message":"The input (9000 tokens) is longer than the model's context length (4096 tokens).","type":"BadRequestError","param":null,"code":400}"#,
    r#"{"error":{"message":"too many","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
];

fn saying(status: u16, headers: &[(&str, &str)], body: &str) -> Saying {
    let headers = [("content-type", "application/json")].iter().chain(headers);
    let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Saying { status, headers, pieces: vec![body.as_bytes().to_vec()], pause: Duration::ZERO }
}

struct Place {
    gateway: Gateway,
    engines: [Backend; 2],
    provider: Backend,
}

impl Place {
    /// The shipped file, with endpoints by script; its provider speaks no TLS.
    async fn start(attributes: Value) -> Self {
        let well = saying(200, &[], &ANSWER.replace("provider/chat-8b", MODELS[0]));
        let engines = [Backend::start().await.unwrap(), Backend::start().await.unwrap()];
        engines.iter().for_each(|engine| engine.says(well.clone()));
        let provider = Backend::start().await.unwrap();
        provider.says(saying(200, &[], ANSWER));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let inner = format!("127.0.0.1:{port}");
        let (own, to) = (engines.each_ref().map(|engine| engine.address.clone()), provider.address.clone());
        let edit = move |envoy: &mut Value| {
            place_pool(envoy, 0, &own);
            let attributes = json!({
                &own[0]: attributes.clone(),
                &own[1]: attributes.clone(),
                &inner: {"priority": 1},
            });
            filter_config(envoy, "pick", |pick| {
                pick["pools"][0]["endpoints"] = json!([&own[0], &own[1], &inner]);
                pick["pools"][0]["attributes"] = attributes.clone();
            });
            for cluster in find_all(envoy, &|value| value["load_assignment"]["cluster_name"] == "small") {
                let behind = &mut cluster["load_assignment"]["endpoints"][1]["lb_endpoints"][0]["endpoint"];
                behind["address"]["socket_address"]["port_value"] = port.into();
            }
            envoy["static_resources"]["listeners"][1]["address"]["socket_address"]["port_value"] =
                port.into();
            let key = &mut envoy["static_resources"]["secrets"][0]["generic_secret"]["secret"];
            *key = json!({"inline_string": KEY});
            lead_cluster(envoy, "provider", &to);
            for cluster in find_all(envoy, &|value| value["transport_socket"].is_object()) {
                cluster.as_object_mut().unwrap().remove("transport_socket");
            }
        };
        let setup = Setup {
            file: "envoy/backends.yaml",
            engines: [0, 0],
            edit: Some(Box::new(edit)),
            ..Setup::default()
        };
        Self { gateway: Gateway::start(setup).await.unwrap(), engines, provider }
    }

    /// Asks; gives the status, why another group served, and the body.
    async fn ask(&self, body: &Value) -> (u16, Option<String>, Value) {
        let request = self.gateway.client.post(format!("{}/v1/chat/completions", self.gateway.url));
        let answer = request.bearer_auth("client-key").json(body).send().await.unwrap();
        let header = |name: &str| Some(answer.headers().get(name)?.to_str().unwrap().to_owned());
        let spilled = header("x-weir-spillover-reason").map(|reason| {
            let group = |side: &str| header(&format!("x-weir-spillover-{side}")).unwrap();
            format!("{} to {}: {reason}", group("from"), group("to"))
        });
        (answer.status().as_u16(), spilled, answer.json().await.unwrap())
    }
}

fn chat(text: &str) -> Value {
    json!({"model": MODELS[0], "max_tokens": 4, "messages": [{"role": "user", "content": text}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_serves_what_busy_engines_cannot_and_no_longer() {
    let place = Place::start(json!({})).await;
    for _ in 0..6 {
        let (status, spilled, answer) = place.ask(&chat("hello")).await;
        assert_eq!((status, spilled, &answer["model"]), (200, None, &json!(MODELS[0])));
    }
    assert_eq!(place.provider.heard().len(), 0);

    // The first request finds both engines busy and is served all the same; those after it do not try them.
    let busy =
        saying(429, &[("retry-after", "2")], r#"{"error":{"message":"full","type":"rate_limit_error"}}"#);
    place.engines.iter().for_each(|engine| engine.says(busy.clone()));
    place.engines.iter().for_each(|engine| drop(engine.heard()));
    let mut reasons = BTreeSet::new();
    for _ in 0..6 {
        let (status, spilled, answer) = place.ask(&chat("hello")).await;
        assert_eq!((status, answer["choices"][0]["message"]["content"].as_str()), (200, Some("from afar")));
        assert_eq!(answer["model"], MODELS[0], "the client's name for the model");
        reasons.insert(spilled.unwrap());
    }
    let asked: usize = place.engines.iter().map(|engine| engine.heard().len()).sum();
    assert!(asked <= 2, "each engine said once that it is busy");
    assert!(
        reasons.is_subset(&["0 to 1: busy".to_owned(), "0 to 1: status=429".to_owned()].into()),
        "{reasons:?}"
    );
    assert!(reasons.contains("0 to 1: busy"), "{reasons:?}");
    let heard = place.provider.heard();
    assert_eq!(heard.len(), 6);
    for one in &heard {
        assert_eq!(one.line, "POST /openai/v1/chat/completions HTTP/1.1");
        assert_eq!(one.values("authorization"), [format!("Bearer {KEY}")]);
        assert_eq!(one.values("host"), ["llm.provider.example"]);
        let body: Value = serde_json::from_slice(&one.body).unwrap();
        assert_eq!(body["model"], "provider/chat-8b");
        let own = one.headers.iter().map(|(name, _)| name);
        let told: Vec<_> = own.filter(|name| name.starts_with("x-")).collect();
        assert!(told.is_empty(), "{told:?}");
    }
    assert_eq!(place.gateway.stat("weir_pick_spillovers_total;pool=small").await.unwrap(), 6);

    // When their time is up the engines have all of it again.
    place.engines.iter().for_each(|engine| engine.says(saying(200, &[], ANSWER)));
    rig::wait_until("the engines serve again", Duration::from_secs(20), async || {
        place.ask(&chat("hello")).await.1.is_none()
    })
    .await
    .unwrap();
    drop(place.provider.heard());
    for _ in 0..6 {
        assert_eq!(place.ask(&chat("hello")).await.1, None);
    }
    assert_eq!(place.provider.heard().len(), 0);
    let written = place.gateway.envoy_log() + &format!("{:?}", place.gateway.access_log());
    assert!(!written.contains(KEY), "the key is in no log");
    place.gateway.quiet(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_serves_what_is_too_long_or_too_much_for_the_engines() {
    let place = Place::start(json!({"max_input_tokens": 200, "max_in_flight": 1})).await;
    let long = chat(&"word ".repeat(400));
    assert_eq!(place.ask(&long).await.1.as_deref(), Some("0 to 1: too_long"));
    let slow = Saying { pause: Duration::from_secs(2), ..saying(200, &[], "{") };
    let slow =
        Saying { pieces: [&ANSWER[..1], &ANSWER[1..]].map(|piece| piece.as_bytes().to_vec()).into(), ..slow };
    place.engines.iter().for_each(|engine| engine.says(slow.clone()));
    let hello = chat("hello");
    let answers = futures_util::future::join_all((0..6).map(|_| place.ask(&hello))).await;
    let spilled: Vec<_> = answers.iter().filter_map(|(_, spilled, _)| spilled.as_deref()).collect();
    assert!(answers.iter().all(|(status, ..)| *status == 200));
    assert!(spilled.iter().all(|reason| *reason == "0 to 1: full"), "{spilled:?}");
    // Two workers may each take the last place at the same moment.
    assert!((2..=4).contains(&spilled.len()), "{spilled:?}");
    place.gateway.quiet(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_serves_what_an_engine_itself_says_is_too_long() {
    let place = Place::start(json!({})).await;
    let say = |saying: &Saying| {
        place.engines.iter().for_each(|engine| {
            engine.says(saying.clone());
            engine.heard();
        });
    };
    let asked = || place.engines.iter().map(|engine| engine.heard().len()).collect::<Vec<_>>();
    for (turn, body) in TOO_LONG.into_iter().enumerate() {
        // The second comes in pieces.
        let pieces = body.as_bytes().chunks(if turn == 1 { 40 } else { 4096 }).map(<[u8]>::to_vec).collect();
        say(&Saying { pieces, pause: Duration::from_millis(20), ..saying(400, &[], "") });
        let (status, spilled, answer) = place.ask(&chat("a long story")).await;
        assert_eq!((status, spilled.as_deref()), (200, Some("0 to 1: too_long")), "{body}");
        assert_eq!(answer["choices"][0]["message"]["content"], "from afar");
        assert_eq!(asked(), [1, 1], "each was asked, once");
    }
    // As the first event of a stream, with a status that says nothing.
    let event = format!("data: {}\n\ndata: [DONE]\n\n", TOO_LONG[0]);
    let headers = vec![("content-type".to_owned(), "text/event-stream".to_owned())];
    say(&Saying { headers, ..saying(200, &[], &event) });
    let mut streamed = chat("a long story");
    streamed["stream"] = true.into();
    assert_eq!(place.ask(&streamed).await.1.as_deref(), Some("0 to 1: too_long"));
    // Any other 400 is the client's, and the provider's word on a long prompt is the last: once, and as it came.
    let others = [
        r#"{"error":{"message":"max_tokens must be at least 1","type":"BadRequestError","param":null,"code":400}}"#,
        r#"{"error":{"message":"1 validation error: {'input': 'prompt is too long: 5000 tokens > 4096 maximum'}","type":"BadRequestError","code":400}}"#,
    ];
    for other in others {
        say(&saying(400, &[], other));
        place.provider.heard();
        let (status, spilled, answer) = place.ask(&chat("hello")).await;
        assert_eq!((status, spilled, answer), (400, None, serde_json::from_str(other).unwrap()));
        assert_eq!((asked().iter().sum::<usize>(), place.provider.heard().len()), (1, 0));
    }
    say(&saying(400, &[], TOO_LONG[0]));
    place.provider.says(saying(400, &[], TOO_LONG[2]));
    let request = place.gateway.client.post(format!("{}/v1/chat/completions", place.gateway.url));
    let answer = request.json(&chat("a long story")).send().await.unwrap();
    assert_eq!(answer.status(), 400);
    assert!(!answer.headers().contains_key("x-weir-too-long"), "that is between filters");
    assert_eq!(answer.text().await.unwrap(), TOO_LONG[2]);
    let [trips, out] = [place.gateway.breaker("trips_total"), place.gateway.breaker("out")];
    assert_eq!((trips.await.unwrap(), out.await.unwrap()), (0, 0), "nobody is out for it");
    place.gateway.quiet(Duration::from_secs(10)).await.unwrap();
}
