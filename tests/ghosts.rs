//! Fault 18: an endpoint that holds a hot prefix is gone, by whatever way. It keeps no requests, behind two gateways that
//! share a scorer.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::{Edit, Gateway, MODELS, Second, Setup, chat, fields, request_id, wait_until};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use weir_engine::{Fault, Kind};

/// The rest of the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// What one gateway sees of an endpoint the other one knows by then.
const HEARD: Duration = Duration::from_millis(150);

/// Two gateways, and an engine that holds the prompt's prefix for both.
struct Fans {
    gateway: Gateway,
    second: Second,
    prompt: String,
    place: String,
}

impl Fans {
    async fn start(edit_scorer: Option<Edit>) -> Self {
        let setup = Setup { engines: [3, 1], scorer: true, edit_scorer, ..Setup::default() };
        let gateway = Gateway::start(setup).await.unwrap();
        let second = gateway.second().await.unwrap();
        let prompt = "the same long prompt ".repeat(300);
        let mut fans = Self { gateway, second, prompt, place: String::new() };
        for turn in 0..2 {
            wait_until("an engine holds the prefix", PATIENCE, async || {
                let sent = fans.ask(turn).await.sent;
                let known = sent.is_some();
                assert!(turn == 0 || sent.as_ref().is_none_or(|sent| *sent == fans.place));
                fans.place = sent.unwrap_or_default();
                known
            })
            .await
            .unwrap();
        }
        fans
    }

    /// Asks for the prompt through one of the two.
    async fn ask(&self, turn: usize) -> Asked {
        let url = [&self.gateway.url, &self.second.url][turn % 2];
        let answer = self.gateway.chat_at(url, &chat(MODELS[0], &self.prompt, 2)).await.unwrap();
        assert_eq!(answer.status(), 200, "turn {turn}");
        let retried = answer.headers()["x-envoy-attempt-count"] != "1";
        let line = self.gateway.logged(&request_id(&answer)).await.unwrap();
        let pick = fields(&line, "pick");
        let sent = (pick["by"] == "scorer").then(|| pick["endpoint"].clone());
        Asked { sent, retried, upstream: line["upstream"].as_str().unwrap().to_owned() }
    }

    /// Six requests of which the scorer spoke go elsewhere.
    async fn go_elsewhere(&self) {
        let (mut told, mut turn) = (0, 0);
        while told < 6 {
            turn += 1;
            let Some(sent) = self.ask(turn).await.sent else { continue };
            assert_ne!(sent, self.place);
            told += 1;
        }
    }
}

/// What came of one request.
struct Asked {
    /// The first of the scorer's list, where it was in time.
    sent: Option<String>,
    retried: bool,
    /// Who served it.
    upstream: String,
}

/// Listens where an engine has died, and drops whatever knocks: its queue is full.
async fn swallow(address: &str) -> (TcpListener, Vec<JoinHandle<std::io::Result<TcpStream>>>) {
    let address: SocketAddr = address.parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let listener = socket.listen(1).unwrap();
    let queue = (0..8).map(|_| tokio::spawn(TcpStream::connect(address))).collect();
    sleep(Duration::from_millis(200)).await;
    (listener, queue)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_dies_or_swallows_packets_costs_two_tries_and_loses_its_fans() {
    for swallows in [false, true] {
        let edit_scorer: Edit = Box::new(|scorer| {
            scorer["choose"]["breaker"] = json!({"rules": [{"name": "r", "trip_duration_ms": 60_000, "failure_condition":
                {"count": 2, "interval_ms": 60_000, "error_reasons": ["connect", "reset", "timeout"]}}]});
        });
        let fans = Fans::start(Some(edit_scorer)).await;
        let engine = fans.gateway.engines[0].iter().find(|engine| engine.addr.to_string() == fans.place);
        engine.unwrap().fault(Fault::new(Kind::Die));
        let mut held = None;
        if swallows {
            wait_until("its port is free", PATIENCE, async || TcpStream::connect(&fans.place).await.is_err())
                .await
                .unwrap();
            held = Some(swallow(&fans.place).await);
        }
        let mut retried = 0;
        for turn in 0..12 {
            let asked = fans.ask(turn).await;
            assert_ne!(asked.upstream, fans.place);
            retried += usize::from(asked.retried);
            sleep(HEARD).await;
        }
        // Where the scorer is late, a gateway chooses by what it has seen itself.
        assert!((1..=4).contains(&retried), "swallows: {swallows}, {retried}");
        fans.go_elsewhere().await;
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_leaves_the_list_keeps_its_streams_and_comes_back_without_its_fans() {
    let fans = Fans::start(None).await;
    let (gateway, place) = (&fans.gateway, &fans.place);
    let scorer = gateway.scorer.as_ref().unwrap();

    // A stream that is open there while the endpoint is taken off the list.
    let mut body = chat(MODELS[0], &fans.prompt, 1_500);
    body["stream"] = true.into();
    let mut stream = gateway.chat(&body).await.unwrap();
    let mut read = stream.chunk().await.unwrap().unwrap().to_vec();
    let whole = std::fs::read_to_string(&scorer.config).unwrap();
    let mut without: Value = serde_json::from_str(&whole).unwrap();
    without["pools"][0]["endpoints"].as_array_mut().unwrap().retain(|endpoint| *endpoint != **place);
    let listed = async |wanted: bool| {
        let what = format!("the scorer has it: {wanted}");
        let is_so = async || {
            rig::get(&scorer.url, "/v1/loads").await.is_ok_and(|loads| loads.contains(place) == wanted)
        };
        wait_until(&what, PATIENCE, is_so).await.unwrap();
    };
    let replace = |text: &str| {
        let new = scorer.config.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &scorer.config).unwrap();
    };
    replace(&without.to_string());
    listed(false).await;
    fans.go_elsewhere().await;
    while let Some(piece) = stream.chunk().await.unwrap() {
        read.extend_from_slice(&piece);
    }
    assert!(read.ends_with(b"data: [DONE]\n\n"), "the stream ends well");

    // It is back, at the same address: what was believed of its cache has gone with it.
    replace(&whole);
    listed(true).await;
    fans.go_elsewhere().await;
    gateway.quiet(PATIENCE).await.unwrap();
}
