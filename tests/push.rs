//! Mode `push`: three proxies choose by what one scorer keeps telling them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::{
    Burst, Edit, Gateway, MODELS, Scorer, Setup, burst, chat, fields, filter_config, lead_cluster,
    place_pool, request_id, wait_until,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use weir_engine::{Config, Engine};

const SOON: Duration = Duration::from_secs(30);
const ENGINES: usize = 8;

/// Three proxies of one worker each, one scorer, eight engines.
struct Three {
    gateways: Vec<Gateway>,
    engines: Vec<Engine>,
    scorer: Scorer,
    _dir: TempDir,
}

impl Three {
    async fn start() -> Self {
        let engine = Config { prefill_ms_per_ktoken: 20.0, decode_ms: 30.0, ..Config::default() };
        let mut engines = Vec::new();
        for pool in 0..=ENGINES {
            let models = vec![MODELS[pool / ENGINES].to_owned()];
            engines.push(Engine::start(Config { models, ..engine.clone() }).await.unwrap());
        }
        let all: Vec<String> = engines.iter().map(|engine| engine.addr.to_string()).collect();
        let addresses = [all[..ENGINES].to_vec(), all[ENGINES..].to_vec()];
        engines.truncate(ENGINES);
        let dir = tempfile::tempdir().unwrap();
        let scorer = Scorer::start(dir.path(), "envoy/scorer.yaml", &addresses, None, "info").await.unwrap();
        let mut gateways = Vec::new();
        for nth in 0..3 {
            let (url, addresses) = (scorer.url.clone(), addresses.clone());
            let edit: Edit = Box::new(move |envoy| {
                (0..2).for_each(|pool| place_pool(envoy, pool, &addresses[pool]));
                lead_cluster(envoy, "scorer", url.trim_start_matches("http://"));
                filter_config(envoy, "pick", |pick| {
                    pick["scorer"] = json!({"cluster": "scorer", "mode": "push", "trust_ms": 2_000,
                        "timeout_ms": 2_000, "retry_ms": 300});
                });
            });
            // Envoy's configuration has a scorer's cluster whether or not the rig starts one.
            let setup =
                Setup { engines: [0, 0], edit: Some(edit), chain: nth == 1, workers: 1, ..Setup::default() };
            gateways.push(Gateway::start(setup).await.unwrap());
        }
        let three = Self { gateways, engines, scorer, _dir: dir };
        three.trusted(1).await;
        three
    }

    /// Waits until each proxy trusts, or does not trust, what it was told. A worker begins to listen with its first request.
    async fn trusted(&self, trusted: u64) {
        for gateway in &self.gateways {
            let says = async || {
                let answer = gateway.chat(&chat(MODELS[0], "who is there", 1)).await.unwrap();
                assert_eq!(answer.status(), 200);
                gateway.stat("weir_pick_push_trusted").await.unwrap() == trusted
            };
            wait_until(&format!("trusted is {trusted}"), SOON, says).await.unwrap_or_else(|why| {
                panic!("{why}: {}", gateway.envoy_log());
            });
        }
        self.quiet().await;
    }

    /// Waits until nobody has a lease out.
    async fn quiet(&self) {
        let none = async || {
            let mut leases = self.scorer.leases().await.unwrap_or(u64::MAX);
            for gateway in &self.gateways {
                leases = leases.saturating_add(gateway.leases().await.unwrap());
            }
            leases == 0
        };
        wait_until("no lease is out", SOON, none).await.unwrap();
    }
}

fn stream(text: &str, tokens: u32) -> Value {
    let mut body = chat(MODELS[0], text, tokens);
    body["stream"] = true.into();
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_that_choose_themselves_share_out_evenly_know_each_others_prefixes_and_outlive_the_scorer() {
    let mut three = Three::start().await;
    a_burst_is_even(&three).await;
    a_second_turn_finds_its_endpoint_through_another_proxy(&three).await;
    a_scorer_that_dies_under_load_costs_no_request_and_leaves_no_lease(&mut three).await;
}

/// Each proxy shares its own out evenly, and at worst none has heard of the others': 22, 21 and 21 requests give an endpoint at
/// least 2 of each and at most 3, and one more either way for what was heard in part.
async fn a_burst_is_even(three: &Three) {
    let Burst { each, by } = burst(&three.gateways, &three.engines, 64, "cold").await.unwrap();
    assert!(each.iter().all(|n| (5..=10).contains(n)), "{each:?}");
    assert!(by.get("push").is_some_and(|n| *n > 32), "{by:?}");
    three.quiet().await;
}

async fn a_second_turn_finds_its_endpoint_through_another_proxy(three: &Three) {
    for turn in 0..4 {
        let text = format!("{turn} {}", "a long beginning ".repeat(200));
        // Long enough for any machine; it is left as soon as the other has heard of it.
        let mut first = three.gateways[0].chat(&stream(&text, 1_000)).await.unwrap();
        first.chunk().await.unwrap();
        // The other has heard of it when it counts the lease.
        let other = &three.gateways[1 + turn % 2];
        let heard = async || other.leases().await.unwrap() == 1;
        wait_until("the other has heard of it", SOON, heard).await.unwrap();
        drop(first);
        three.quiet().await;
        let second = other.chat(&stream(&text, 2)).await.unwrap();
        let line = other.logged(&request_id(&second)).await.unwrap();
        let cached: u32 = fields(&line, "pick")["cached_tokens"].parse().unwrap();
        assert!(cached > 500, "{line}");
        second.bytes().await.unwrap();
        three.quiet().await;
    }
}

async fn a_scorer_that_dies_under_load_costs_no_request_and_leaves_no_lease(three: &mut Three) {
    const REQUESTS: usize = 160;
    let Three { gateways, scorer, .. } = three;
    let done = AtomicUsize::new(0);
    let client = async |number: usize| {
        for turn in (number..REQUESTS).step_by(8) {
            let mut answer = gateways[turn % 3].chat(&stream(&format!("{number} {turn}"), 6)).await.unwrap();
            assert_eq!(answer.status(), 200);
            match turn % 10 {
                // Leaves with its first piece.
                3 => drop(answer.chunk().await.unwrap()),
                _ => drop(answer.bytes().await.unwrap()),
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let dies = async {
        let some = async || done.load(Ordering::Relaxed) >= REQUESTS / 4;
        wait_until("a part is served", SOON, some).await.unwrap();
        scorer.process.kill();
    };
    tokio::join!(join_all((0..8).map(client)), dies);
    assert_eq!(done.load(Ordering::Relaxed), REQUESTS);
    for gateway in &three.gateways {
        let gone = async || {
            let answer = gateway.chat(&chat(MODELS[0], "who is there", 1)).await.unwrap();
            assert_eq!(answer.status(), 200);
            let line = gateway.logged(&request_id(&answer)).await.unwrap();
            fields(&line, "pick")["by"] == "fallback"
        };
        wait_until("what was told is not trusted any more", SOON, gone).await.unwrap();
        let said = gateway.envoy_log().matches("is not trusted any more").count();
        assert!((1..=5).contains(&said), "{said}");
    }
    three.scorer.restart().await.unwrap();
    three.trusted(1).await;
}
