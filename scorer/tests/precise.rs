//! The precise index, from outside: a request goes where an engine said that its prompt is, and where that is not known
//! by what was sent before, visibly.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "tests")]

use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use weir::kv::{Batch, Event, News, Stored};
use weir::policy::Demand;
use weir::pool::Ask;
use weir::wire::{self, Reserve, Reserved};
use weir_scorer::scorer::{Config, Scorer, serve};
use weir_scorer::tokens::{self, Model};

const ENDPOINTS: [&str; 2] = ["10.0.0.1:8000", "10.0.0.2:8000"];

struct Running {
    scorer: Arc<Scorer>,
    base: String,
    client: reqwest::Client,
    _stop: tokio::sync::oneshot::Sender<()>,
}

fn tokens() -> Value {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokens"));
    json!({"tokenizer": folder.join("tokenizer.json"), "config": folder.join("tokenizer_config.json"), "timeout_ms": 60_000,
           "max_bytes": 2 << 20})
}

async fn start() -> Running {
    let config = json!({
        "pools": [{"name": "a", "models": ["m"], "endpoints": ENDPOINTS}],
        "precise": {"a": {"tokens": tokens()}},
    });
    let scorer = Arc::new(Scorer::new(&Config::read(config.to_string().as_bytes()).unwrap()).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(serve(listener, Arc::clone(&scorer), async move {
        let _ = stopped.await;
    }));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    Running { scorer, base, client, _stop: stop }
}

fn chat(question: &str) -> Vec<u8> {
    let system = "You are the one who answers. ".repeat(20);
    let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": question}]);
    json!({"model": "m", "messages": messages}).to_string().into_bytes()
}

impl Running {
    async fn reserve(&self, lease: u64, body: &[u8]) -> Reserved {
        let demand = Demand { prompt_tokens: 99, prompt_units: 6, stream: true, ..Demand::default() };
        let events =
            vec![wire::Event::End { pool: "a".into(), lease: lease.wrapping_sub(1), answered: None }];
        let ask = Ask { blocks: &[1, 2, 3, 4, 5, 6], demand, prompt: None };
        let ask = Reserve { explain: true, events, ..Reserve::of("a", lease, &ask) };
        let url = format!("{}{}", self.base, wire::RESERVE_PATH);
        let answer = self.client.post(url).body(ask.write(body)).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.json().await.unwrap()
    }

    /// The engine of `endpoint` says that it holds these tokens.
    fn holds(&self, endpoint: &str, ids: &[u32]) {
        let say = |news: &News| self.scorer.told("a", endpoint, 0, news);
        say(&News::Linked(true));
        say(&News::Anew { whole: true });
        let blocks = ids.len() / 16;
        let stored = Stored {
            blocks: (0..blocks as u64).collect(),
            tokens: ids[..blocks * 16].to_vec(),
            block_tokens: 16,
            whole: true,
            ..Stored::default()
        };
        say(&News::Batch(Batch { at: 0.0, events: vec![Event::Stored(stored)], odd: 0 }));
    }

    fn counts(&self, line: &str) -> bool {
        self.scorer.metrics().unwrap().lines().any(|own| own == line)
    }
}

/// As the engine would have them.
fn ids(body: &[u8]) -> Vec<u32> {
    let model = Model::read(&serde_json::from_value(tokens()).unwrap()).unwrap();
    tokens::of_body(&model, body).unwrap().ids
}

fn word(reserved: &Reserved) -> &str {
    reserved.why.as_ref().unwrap()["candidates"][0]["index"].as_str().unwrap()
}

#[tokio::test]
async fn a_request_goes_where_an_engine_said_that_its_prompt_is_and_hits_what_it_said() {
    let running = start().await;
    let (first, second) = (chat("one"), chat("another"));
    let held = ids(&first);
    running.holds(ENDPOINTS[1], &held);
    running.holds(ENDPOINTS[0], &[]);
    let same = held.iter().zip(&ids(&second)).take_while(|(a, b)| a == b).count();
    for lease in 1..10 {
        let reserved = running.reserve(lease, &second).await;
        assert_eq!(reserved.endpoints[0], ENDPOINTS[1]);
        // From the second time on the prompt's own end counts as well: it was sent there.
        let cached = if lease == 1 { same } else { ids(&second).len() - 1 } / 16 * 16;
        assert_eq!((reserved.cached_tokens as usize, word(&reserved)), (cached, "whole"));
    }
    assert!(running.counts("weir_scorer_index_total{index=\"whole\",pool=\"a\"} 9"));
    assert!(running.counts("weir_scorer_tokens_total{outcome=\"read\",pool=\"a\"} 9"));
}

#[tokio::test]
async fn what_is_not_known_falls_back_and_says_so() {
    let running = start().await;
    let body = chat("one");
    let silent = running.reserve(1, &body).await;
    assert_eq!((silent.cached_tokens, word(&silent)), (0, "silent"));
    let again = running.reserve(2, &body).await;
    assert_eq!(again.endpoints[0], silent.endpoints[0], "where it was sent before");
    assert!(again.cached_tokens > 0);
    ENDPOINTS.iter().for_each(|endpoint| running.holds(endpoint, &[]));
    let image = br#"{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}"#;
    for (lease, body, outcome) in [(3, &b""[..], "absent"), (4, image, "media"), (5, b"{", "body")] {
        let reserved = running.reserve(lease, body).await;
        assert_eq!((word(&reserved), &reserved.endpoints[0]), ("no_tokens", &silent.endpoints[0]));
        assert!(
            running.counts(&format!("weir_scorer_tokens_total{{outcome=\"{outcome}\",pool=\"a\"}} 1")),
            "{outcome}"
        );
    }
    assert!(running.counts("weir_scorer_index_total{index=\"no_tokens\",pool=\"a\"} 3"));
    assert!(running.counts("weir_scorer_index_total{index=\"silent\",pool=\"a\"} 2"));
}

#[tokio::test]
async fn a_body_may_be_longer_than_a_message_and_a_message_may_not() {
    let running = start().await;
    let long = json!({"prompt": vec![7; 600_000]}).to_string();
    running.reserve(1, long.as_bytes()).await;
    assert!(running.counts("weir_scorer_tokens_total{outcome=\"read\",pool=\"a\"} 1"));
    let post = |body: Vec<u8>| {
        let url = format!("{}{}", running.base, wire::RESERVE_PATH);
        let sent = running.client.post(url).body(body).send();
        async { sent.await.unwrap().status().as_u16() }
    };
    let padded = [&[b' '; (1 << 20) + 1], &b"{}"[..]].concat();
    assert_eq!(post(padded).await, 400, "a message without a pool");
    assert_eq!(post(vec![b' '; 4 << 20]).await, 413);
    let mut trailing = serde_json::to_vec(&Reserve::of("a", 9, &Ask::default())).unwrap();
    trailing.extend(b" {}");
    assert_eq!(post(trailing).await, 400, "a body comes behind a line feed");
}
