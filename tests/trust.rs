//! Nobody but the gateway says where a request goes: not the client, and not the scorer either.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use reqwest::header::{HeaderMap, HeaderName};
use rig::{Gateway, MODELS, Setup, chat, filter_config, find_all};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use weir::wire;

const CHAT: &str = "/v1/chat/completions";

/// A place where no request may ever go: it counts those who come.
struct Canary {
    address: String,
    visits: Arc<AtomicUsize>,
}

impl Canary {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let visits = Arc::new(AtomicUsize::new(0));
        let counter = visits.clone();
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { address, visits }
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::Relaxed)
    }
}

/// Header sets of a client that wants to steer.
fn attacks(gateway: &Gateway, canary: &Canary) -> Vec<HeaderMap> {
    let foreign = canary.address.clone();
    let other = gateway.engines[1][0].addr.to_string();
    let sets = [
        vec![(wire::DESTINATION, foreign.clone())],
        vec![(wire::DESTINATION, other.clone())],
        vec![(wire::DESTINATION, foreign.clone()), (wire::DESTINATION, other.clone())],
        vec![(wire::DESTINATION, format!("{foreign},{other}"))],
        vec![(wire::MODEL, MODELS[1].to_owned()), (wire::MODEL, MODELS[1].to_owned())],
        vec![("x-weir-anything", foreign.clone()), ("x-weir-scorer", "1".to_owned())],
        vec![("x-prefiller-host-port", foreign.clone()), ("x-data-parallel-host-port", foreign.clone())],
        wire::CONTROL.iter().map(|name| (*name, foreign.clone())).collect(),
    ];
    let headers = |set: Vec<(&str, String)>| {
        let mut headers = HeaderMap::new();
        for (name, value) in set {
            headers.append(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        headers
    };
    sets.into_iter().map(headers).collect()
}

/// Every attack on every kind of request, over both versions of HTTP.
async fn attack(gateway: &Gateway, canary: &Canary) {
    gateway.engines.iter().flatten().for_each(|engine| engine.clear_requests());
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let attacks = attacks(gateway, canary);
    for (client, headers) in
        [&gateway.client, &http2].into_iter().flat_map(|c| attacks.iter().map(move |h| (c, h)))
    {
        let url = |path: &str| format!("{}{path}", gateway.url);
        let good = client.post(url(CHAT)).headers(headers.clone()).json(&chat(MODELS[0], "hello", 2));
        let refused = client.post(url(CHAT)).headers(headers.clone()).body("{");
        let unknown = client.post(url(CHAT)).headers(headers.clone()).json(&chat("nobodys", "hello", 2));
        let models = client.get(url("/v1/models")).headers(headers.clone());
        let passing = client.get(url("/metrics")).headers(headers.clone());
        let other_post = client.post(url("/v1/files")).headers(headers.clone()).body("hello");
        for (request, status) in
            [(good, 200), (refused, 400), (unknown, 404), (models, 200), (passing, 404), (other_post, 404)]
        {
            assert_eq!(request.send().await.unwrap().status(), status, "{headers:?}");
        }
    }
    expect_unsteered(gateway, canary, 2 * attacks.len());
}

/// So many requests came, all to the first pool, and with the gateway's own values only.
fn expect_unsteered(gateway: &Gateway, canary: &Canary, requests: usize) {
    assert_eq!(canary.visits(), 0);
    assert!(gateway.received(1).is_empty());
    let received = gateway.received(0);
    assert_eq!(received.len(), requests);
    let pool: Vec<String> = gateway.engines[0].iter().map(|engine| engine.addr.to_string()).collect();
    for (place, record) in received {
        let values = |name: &str| -> Vec<&str> {
            record.headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!(values(wire::MODEL), [MODELS[0]]);
        let [destination] = values(wire::DESTINATION)[..] else {
            panic!("not one destination: {:?}", record.headers)
        };
        let named: Vec<&str> = destination.split(',').collect();
        assert!(named.iter().all(|address| pool.contains(&(*address).to_owned())), "{destination}");
        assert_eq!(named[0], pool[place], "went elsewhere");
        let strange = |name: &str| {
            let ours = [wire::MODEL, wire::DESTINATION].contains(&name);
            !ours && (wire::CONTROL.contains(&name) || name.starts_with(wire::CONTROL_PREFIX))
        };
        assert!(!record.headers.iter().any(|(name, _)| strange(name)), "{:?}", record.headers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_steer_a_gateway_without_a_scorer() {
    let canary = Canary::start().await;
    for chain in [false, true] {
        attack(&Gateway::start(Setup { chain, ..Setup::default() }).await.unwrap(), &canary).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_steer_a_gateway_with_a_scorer_be_it_up_hung_or_gone() {
    let canary = Canary::start().await;
    let mut gateway = Gateway::start(Setup { scorer: true, ..Setup::default() }).await.unwrap();
    attack(&gateway, &canary).await;
    assert!(gateway.stat("weir_pick_scorer_total").await.unwrap() > 0);
    gateway.scorer.as_ref().unwrap().process.hang();
    attack(&gateway, &canary).await;
    assert!(gateway.stat("weir_pick_fallback_total").await.unwrap() > 0);
    gateway.scorer.as_mut().unwrap().process.kill();
    attack(&gateway, &canary).await;
}

/// What stands in the scorer's place: answers every call with the same bytes.
struct Liar {
    port: u16,
    answer: Arc<Mutex<Vec<u8>>>,
    /// It closes the connection behind its answer.
    closes: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Liar {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (answer, asked) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let closes = Arc::new(AtomicBool::new(false));
        let (lie, close, count) = (answer.clone(), closes.clone(), asked.clone());
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(Self::serve(connection, lie.clone(), close.clone(), count.clone()));
            }
        });
        Self { port, answer, closes, asked }
    }

    async fn serve(
        connection: TcpStream,
        answer: Arc<Mutex<Vec<u8>>>,
        closes: Arc<AtomicBool>,
        asked: Arc<AtomicUsize>,
    ) -> std::io::Result<()> {
        let mut connection = BufReader::new(connection);
        loop {
            let (mut reserve, mut length, mut line) = (false, 0, String::new());
            while connection.read_line(&mut line).await? > 2 {
                reserve |= line.starts_with(&format!("POST {}", wire::RESERVE_PATH));
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            if line.is_empty() {
                return Ok(());
            }
            connection.read_exact(&mut vec![0; length]).await?;
            asked.fetch_add(usize::from(reserve), Ordering::Relaxed);
            let answer = answer.lock().unwrap().clone();
            connection.write_all(&answer).await?;
            if closes.load(Ordering::Relaxed) {
                return connection.shutdown().await;
            }
        }
    }

    /// From now on it says this, with the scorer's signature.
    fn says(&self, status: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {status}\r\nx-weir-scorer: 1\r\ncontent-length: {}\r\n\r\n", body.len());
        *self.answer.lock().unwrap() = [head.as_bytes(), body].concat();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scorer_that_lies_cannot_send_a_request_out_of_its_pool() {
    let (canary, liar) = (Canary::start().await, Liar::start().await);
    let port = liar.port;
    let edit = move |envoy: &mut Value| {
        for cluster in
            find_all(envoy, &|value| value["load_assignment"].is_object() && value["name"] == "scorer")
        {
            let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
            cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] = address;
        }
        filter_config(envoy, "pick", |pick| {
            pick["scorer"] = json!({"cluster": "scorer", "timeout_ms": 5000, "retry_ms": 1})
        });
    };
    let gateway = Gateway::start(Setup { edit: Some(Box::new(edit)), ..Setup::default() }).await.unwrap();
    let (small, large) = (gateway.engines[0][1].addr.to_string(), gateway.engines[1][0].addr.to_string());
    let foreign = canary.address.clone();
    let reserved = |endpoints: Value| {
        json!({"endpoints": endpoints, "cached_tokens": 0, "queued_tokens": 0, "in_flight": 0, "policy": "lies"}).to_string()
    };
    let many: Vec<String> = (0..5000).map(|n| format!("127.0.0.1:{}", n + 1)).collect();
    let lies: Vec<(&str, String)> = vec![
        ("200 OK", reserved(json!([foreign]))),
        ("200 OK", reserved(json!([foreign, small]))),
        ("200 OK", reserved(json!([large]))),
        ("200 OK", reserved(json!([format!("{small},{foreign}")]))),
        ("200 OK", reserved(json!([format!("{small}\r\n{}: {foreign}", wire::DESTINATION)]))),
        ("200 OK", reserved(json!([""]))),
        ("200 OK", reserved(json!([]))),
        ("200 OK", reserved(json!(many))),
        ("200 OK", reserved(json!("not a list"))),
        ("200 OK", "garbage \0 {[".to_owned()),
        ("200 OK", String::new()),
        ("200 OK", "[".repeat(100_000)),
        ("404 Not Found", reserved(json!([foreign]))),
        ("503 Service Unavailable", String::new()),
    ];
    for (status, body) in &lies {
        liar.says(status, body.as_bytes());
        let before = liar.asked.load(Ordering::Relaxed);
        for _ in 0..3 {
            let answer = gateway.chat(&chat(MODELS[0], "hello", 2)).await.unwrap();
            assert_eq!(answer.status(), 200, "{}", &body[..body.len().min(200)]);
        }
        assert_eq!(liar.asked.load(Ordering::Relaxed), before + 3, "it was not asked");
    }
    assert!(gateway.stat("weir_pick_foreign_endpoint_total").await.unwrap() >= 3);
    // An honest answer is still heard.
    liar.says("200 OK", reserved(json!([small])).as_bytes());
    let answer = gateway.chat(&chat(MODELS[0], "hello", 2)).await.unwrap();
    let line = gateway.logged(&rig::request_id(&answer)).await.unwrap();
    assert_eq!(
        (line["upstream"].as_str(), &rig::fields(&line, "pick")["by"][..]),
        (Some(&small[..]), "scorer")
    );
    // What is no HTTP at all, and what lacks the signature, is no answer.
    for noise in
        [&b"\x16\x03\x01 no HTTP at all \r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
    {
        *liar.answer.lock().unwrap() = noise.to_vec();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(gateway.chat(&chat(MODELS[0], "hello", 2)).await.unwrap().status(), 200);
    }
    // Nor is what breaks off: within the head, behind it, and a byte before the end of a good answer.
    let whole = reserved(json!([small]));
    let head = format!("HTTP/1.1 200 OK\r\nx-weir-scorer: 1\r\ncontent-length: {}\r\n\r\n", whole.len());
    let good = [head.as_bytes(), whole.as_bytes()].concat();
    liar.closes.store(true, Ordering::Relaxed);
    let lengths = [10, head.len() - 2, head.len(), good.len() - 1];
    for length in lengths {
        *liar.answer.lock().unwrap() = good[..length].to_vec();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let answer = gateway.chat(&chat(MODELS[0], "hello", 2)).await.unwrap();
        assert_eq!(answer.status(), 200, "{length}");
        let line = gateway.logged(&rig::request_id(&answer)).await.unwrap();
        assert_eq!(rig::fields(&line, "pick")["by"], "fallback", "{length}");
    }
    expect_unsteered(&gateway, &canary, 3 * lies.len() + 3 + lengths.len());
}

/// One model is all that a key may use, as `envoy/access.yaml` has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_one_model_never_reaches_another_whatever_its_headers_say() {
    let access = rig::shipped("envoy/access.yaml").unwrap();
    for chain in [false, true] {
        let access = access.clone();
        let edit = move |envoy: &mut Value| {
            for filters in find_all(envoy, &|value| value[0]["name"] == "extract") {
                filters.as_array_mut().unwrap().insert(1, access.clone());
            }
        };
        let limit = json!({"limits": [{"name": "l", "key": ["model"], "windows": [{"tokens": 1_000_000, "per_s": 60}]}]});
        let setup = Setup { chain, limit: Some(limit), edit: Some(Box::new(edit)), ..Setup::default() };
        let gateway = Gateway::start(setup).await.unwrap();
        let [small, large] = MODELS;
        let forged: [&[(&str, &str)]; 7] = [
            &[],
            &[(wire::MODEL, small)],
            &[(wire::MODEL, large)],
            &[(wire::MODEL, small), (wire::MODEL, small)],
            &[(wire::MODEL, large), (wire::MODEL, small)],
            &[("X-Gateway-Model-Name", large), ("x-gateway-MODEL-name", small)],
            &[(wire::MODEL, "")],
        ];
        for (number, headers) in forged.into_iter().enumerate() {
            let send = async |key: &str, request: reqwest::RequestBuilder| {
                let request =
                    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
                request.bearer_auth(key).send().await.unwrap()
            };
            let ask = |model: &str| {
                gateway.client.post(format!("{}{CHAT}", gateway.url)).json(&chat(model, "hi", 2))
            };
            let allowed = send("small-only", ask(small)).await;
            assert_eq!(allowed.status(), 200, "{headers:?}");
            let limited = rig::fields(&gateway.logged(&rig::request_id(&allowed)).await.unwrap(), "facts");
            assert_eq!(limited["model"], small);
            assert_eq!(send("small-only", ask(large)).await.status(), 403, "{headers:?}");
            assert_eq!(send("another", ask(large)).await.status(), 200, "{headers:?}");
            let list = gateway.client.get(format!("{}/v1/models", gateway.url));
            assert_eq!(send("small-only", list).await.status(), 200, "{headers:?}");
            let received = [0, 1].map(|pool| gateway.received(pool));
            assert_eq!([received[0].len(), received[1].len()], [number + 1; 2], "{headers:?}");
            for (pool, records) in received.iter().enumerate() {
                let sent = records.iter().flat_map(|(_, record)| &record.headers);
                let values: Vec<&str> =
                    sent.filter(|(name, _)| name == wire::MODEL).map(|(_, value)| value.as_str()).collect();
                assert_eq!(values, vec![MODELS[pool]; number + 1], "one header, and ours");
            }
        }
        let charged = gateway.stat("weir_limit_charged_tokens_total;limit=l").await.unwrap();
        assert!(charged > 0);
        gateway.quiet(Duration::from_secs(5)).await.unwrap();
    }
}
