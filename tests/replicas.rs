//! Several scorers keep each other's books: what one books the others know, and one that dies takes nothing along.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use reqwest::Response;
use rig::{
    Burst, Edit, Gateway, MODELS, Redis, Relay, Scorer, Setup, Way, burst, chat, chosen_by, get, place_pool,
    request_id, wait_until, with_replicas,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;
use weir_engine::Config;

const SOON: Duration = Duration::from_secs(20);

/// Two scorers and their store.
struct Pair {
    scorers: Vec<Scorer>,
    redis: Redis,
    /// Between them and the store.
    relay: Relay,
    dirs: Vec<TempDir>,
    addresses: [Vec<String>; 2],
    edit: Value,
}

impl Pair {
    /// Of engines that need not be there; `edit` is merged into the scorers' configuration.
    async fn start(addresses: [Vec<String>; 2], edit: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let redis = Redis::start(dir.path()).await.unwrap();
        let relay = Relay::start(redis.port).await.unwrap();
        let mut pair = Self { scorers: vec![], redis, relay, dirs: vec![dir], addresses, edit };
        for _ in 0..2 {
            pair.add().await;
        }
        pair.ready().await;
        pair
    }

    async fn add(&mut self) {
        let (url, own) = (self.relay.url.clone(), self.edit.clone());
        let edit: Edit = Box::new(move |scorer| {
            let store = json!({"url": url, "timeout_ms": 1_000, "retry_ms": 200, "failure_mode": "open"});
            scorer["store"] = store;
            scorer.as_object_mut().unwrap().remove("signals");
            for (key, value) in own.as_object().unwrap() {
                let Some(fields) = value.as_object() else { continue };
                scorer[key].as_object_mut().unwrap().extend(fields.clone());
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let scorer =
            Scorer::start(dir.path(), "envoy/replica.yaml", &self.addresses, Some(&edit), "info").await;
        self.scorers.push(scorer.unwrap());
        self.dirs.push(dir);
    }

    async fn ready(&self) {
        for scorer in &self.scorers {
            let ready = async || get(&scorer.url, "/readyz").await.is_ok();
            wait_until("a scorer is ready", SOON, ready).await.unwrap();
        }
    }

    fn urls(&self) -> [String; 2] {
        [0, 1].map(|at| self.scorers[at].url.clone())
    }

    /// Waits until every scorer that runs counts so many leases.
    async fn count(&self, scorers: &[usize], leases: u64, most: Duration) {
        for at in scorers {
            let scorer = &self.scorers[*at];
            let counts = async || scorer.leases().await.is_ok_and(|counted| counted == leases);
            let waited = wait_until("a scorer counts the leases", most, counts).await;
            let counted = scorer.leases().await;
            waited.unwrap_or_else(|_| panic!("scorer {at}: {counted:?} for {leases}: {}", scorer.log()));
        }
    }
}

/// Addresses that nobody answers at: for scorers that are asked and not followed.
fn nowhere(endpoints: usize) -> [Vec<String>; 2] {
    [1, 2].map(|pool| (0..endpoints).map(|n| format!("127.0.{pool}.{}:9", n + 1)).collect())
}

async fn post(scorer: &Scorer, path: &str, body: &Value) -> Response {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.post(format!("{}{path}", scorer.url)).json(body).send().await.unwrap()
}

/// Reserves as a proxy does; gives the endpoints and the tokens that are cached there.
async fn reserve(scorer: &Scorer, lease: u64, prompt: u64, blocks: u64) -> (String, u64) {
    let hashes: String = (0..blocks).map(|block| format!("{:016x}", prompt * 10_000 + block + 1)).collect();
    let demand =
        json!({"prompt_tokens": blocks * 16, "prompt_units": blocks, "output_tokens": 8, "stream": true});
    let ask = json!({"pool": "small", "lease": lease, "demand": demand, "blocks": hashes});
    let answer = post(scorer, "/v1/reserve", &ask).await;
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    (answer["endpoints"][0].as_str().unwrap().to_owned(), answer["cached_tokens"].as_u64().unwrap())
}

async fn end(scorer: &Scorer, leases: impl IntoIterator<Item = u64>) {
    let events: Vec<Value> =
        leases.into_iter().map(|lease| json!({"event": "end", "pool": "small", "lease": lease})).collect();
    assert_eq!(post(scorer, "/v1/report", &events.into()).await.status(), 204);
}

fn lines(log: &str, wanted: &str) -> usize {
    log.lines().filter(|line| line.contains(wanted)).count()
}

/// What a scorer believes of each endpoint.
async fn books(scorer: &Scorer) -> Vec<Value> {
    let loads = scorer.loads().await.unwrap();
    loads["pools"].as_array().unwrap().iter().map(|pool| pool["endpoints"].clone()).collect()
}

/// A metric of a scorer's.
async fn metric(scorer: &Scorer, name: &str) -> f64 {
    let text = get(&scorer.url, "/metrics").await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_books_the_other_knows_and_either_may_be_told_of_its_end() {
    let pair = Pair::start(nowhere(4), json!({})).await;
    let [a, b] = [&pair.scorers[0], &pair.scorers[1]];
    for lease in 1..=40 {
        reserve(if lease % 2 == 0 { a } else { b }, lease, lease, 30).await;
    }
    pair.count(&[0, 1], 40, SOON).await;
    assert_eq!(books(a).await, books(b).await, "endpoint by endpoint");
    assert_eq!(metric(a, "weir_scorer_replicas").await, 1.0);
    // Who holds a prefix is known to both.
    let (place, _) = reserve(a, 100, 7_000, 200).await;
    pair.count(&[0, 1], 41, SOON).await;
    assert_eq!(reserve(b, 101, 7_000, 200).await, (place, 3_199));
    end(b, (1..=20).chain([100])).await;
    end(a, (21..=40).chain([101])).await;
    pair.count(&[0, 1], 0, SOON).await;
    for key in pair.redis.keys().unwrap() {
        assert!(key.starts_with("weir:replicas:1:{default}"), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_joins_is_not_ready_before_it_knows_what_the_others_know() {
    let mut pair = Pair::start(nowhere(4), json!({"replicas": {"join_ms": 30_000}})).await;
    for lease in 1..=30 {
        reserve(&pair.scorers[0], lease, lease, 30).await;
    }
    // As long as the others stand still it is not ready, and says so to who asks.
    pair.scorers.iter().for_each(|scorer| scorer.process.hang());
    pair.add().await;
    assert!(get(&pair.scorers[2].url, "/readyz").await.is_err());
    let refused = post(&pair.scorers[2], "/v1/reserve", &json!({})).await;
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["x-weir-scorer"].to_str().unwrap()),
        (503, "joining")
    );
    pair.scorers[..2].iter().for_each(|scorer| scorer.process.go_on());
    pair.ready().await;
    assert_eq!(books(&pair.scorers[2]).await, books(&pair.scorers[0]).await);
    // So does one that died and comes back; and one that was alone in the end.
    for scorer in &mut pair.scorers[..2] {
        scorer.process.kill();
    }
    pair.scorers[1].restart().await.unwrap();
    pair.scorers[0].restart().await.unwrap();
    pair.ready().await;
    pair.count(&[0, 1, 2], 30, SOON).await;
    end(&pair.scorers[1], 1..=30).await;
    pair.count(&[0, 1, 2], 0, SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_each_goes_on_with_what_it_knows_and_they_agree_afterwards() {
    let mut pair = Pair::start(nowhere(4), json!({"store": {"timeout_ms": 200}})).await;
    let mut lease = 0;
    let mut rounds = 0;
    for how in ["killed", "hung", "garbled", "slow"] {
        let known = lease + 1..=lease + 10;
        for lease in known.clone() {
            reserve(&pair.scorers[0], lease, lease, 30).await;
        }
        pair.count(&[0, 1], 10, SOON).await;
        match how {
            "killed" => pair.redis.process.kill(),
            "hung" => pair.redis.process.hang(),
            "garbled" => pair.relay.way(Way::Garbled),
            _ => pair.relay.way(Way::Late(Duration::from_secs(2))),
        }
        rounds += 1;
        for scorer in &pair.scorers {
            let noticed = async || lines(&scorer.log(), "each goes on with what it knows") == rounds;
            wait_until("the log says so once", SOON, noticed)
                .await
                .unwrap_or_else(|e| panic!("{how}: {e}: {}", scorer.log()));
            assert_eq!(metric(scorer, "weir_scorer_replicas_up").await, 0.0, "{how}");
            assert!(get(&scorer.url, "/readyz").await.is_ok(), "{how}");
        }
        // Nobody waits for the store; an end of what both know is told to one, and each books one that the other cannot know.
        let start = Instant::now();
        end(&pair.scorers[1], known).await;
        for at in [0, 1] {
            reserve(&pair.scorers[at], lease + 11 + at as u64, 1, 30).await;
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{how}: {:?}", start.elapsed());
        pair.count(&[0], 11, SOON).await;
        pair.count(&[1], 1, SOON).await;
        match how {
            "killed" => pair.redis.restart().await.unwrap(),
            "hung" => pair.redis.process.go_on(),
            _ => pair.relay.way(Way::Straight),
        }
        pair.count(&[0, 1], 2, SOON).await;
        for scorer in &pair.scorers {
            assert_eq!(
                lines(&scorer.log(), "that scorers share answers again"),
                rounds,
                "{how}: {}",
                scorer.log()
            );
        }
        end(&pair.scorers[0], [lease + 11, lease + 12]).await;
        pair.count(&[0, 1], 0, SOON).await;
        lease += 12;
    }
}

/// Another store may take over with another clock, and who else uses the store may write what is not meant for scorers.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_stands_in_the_store_they_hear_each_other_again() {
    const TOLD: &str = "weir:replicas:1:{default}:told";
    const LIVING: &str = "weir:replicas:1:{default}:living";
    let pair = Pair::start(nowhere(4), json!({"replicas": {"beat_ms": 200}})).await;
    let nonsense = "for n = 1, 2000 do redis.call('XADD', KEYS[1], '*', 'f', 'nonsense') end";
    let mut lease = 0;
    for (what, commands) in [
        ("nonsense", vec![vec!["EVAL", nonsense, "1", TOLD]]),
        ("a clock that is hours ahead", vec![vec!["XADD", TOLD, "9999999999999-0", "f", "x"]]),
        ("its last number", vec![vec!["XADD", TOLD, "18446744073709551615-18446744073709551615", "f", "x"]]),
        ("another kind of key", vec![vec!["DEL", TOLD], vec!["SET", TOLD, "x"]]),
        ("another kind of list", vec![vec!["DEL", LIVING], vec!["SET", LIVING, "x"]]),
        ("one that lives for ever", vec![vec!["ZADD", LIVING, "9e18", "00000000deadbeef"]]),
        ("nothing", vec![vec!["FLUSHALL"]]),
    ] {
        commands.iter().for_each(|command| drop(pair.redis.ask(command).unwrap()));
        for scorer in &pair.scorers {
            lease += 1;
            reserve(scorer, lease, 1, 30).await;
        }
        pair.count(&[0, 1], 2, SOON).await;
        end(&pair.scorers[0], [lease - 1, lease]).await;
        pair.count(&[0, 1], 0, SOON).await;
        for scorer in &pair.scorers {
            let both = async || {
                metric(scorer, "weir_scorer_replicas").await == 1.0
                    && metric(scorer, "weir_scorer_replicas_up").await == 1.0
            };
            wait_until("the link is up", SOON, both).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        assert_eq!(pair.redis.ask(&["TYPE", TOLD]).unwrap(), "stream", "{what}");
    }
    for scorer in &pair.scorers {
        let said = lines(&scorer.log(), "makes no sense");
        assert!((1..20).contains(&said), "{said} lines: {}", scorer.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_the_store_passes_a_narrow_way_to_it() {
    let pair = Pair::start(nowhere(4), json!({"store": {"timeout_ms": 200}})).await;
    pair.redis.process.hang();
    for scorer in &pair.scorers {
        let noticed = async || metric(scorer, "weir_scorer_replicas_up").await == 0.0;
        wait_until("the store is away", SOON, noticed).await.unwrap();
    }
    // 32 KB each: half a second's worth of the way, and no call may take that long.
    for lease in 1..=40 {
        reserve(&pair.scorers[0], lease, lease, 4_000).await;
    }
    pair.relay.way(Way::Narrow(2 << 20));
    pair.redis.process.go_on();
    pair.count(&[0, 1], 40, SOON).await;
    end(&pair.scorers[1], 1..=40).await;
    pair.count(&[0, 1], 0, SOON).await;
}

/// Two gateways, or three, of the engines of the first, and what each of them asks.
async fn gateways(
    number: usize,
    engines: usize,
    engine: Config,
    pick: Value,
    scorers: Value,
) -> (Vec<Gateway>, Pair) {
    let [small, large]: [Vec<_>; 2] = [vec![], vec![]];
    let mut own = [small, large];
    for (pool, number) in own.iter_mut().zip([engines, 1]) {
        for _ in 0..number {
            let models = MODELS.map(str::to_owned).to_vec();
            let config = Config { models, ..engine.clone() };
            pool.push(weir_engine::Engine::start(config).await.unwrap());
        }
    }
    let addresses =
        [0, 1].map(|pool: usize| own[pool].iter().map(|e| e.addr.to_string()).collect::<Vec<_>>());
    let pair = Pair::start(addresses.clone(), scorers).await;
    let mut started = Vec::new();
    for nth in 0..number {
        let (urls, pick, addresses) = (pair.urls(), pick.clone(), addresses.clone());
        let edit: Edit = Box::new(move |envoy| {
            with_replicas(envoy, &urls, &pick["scorer"]);
            (0..2).for_each(|pool| place_pool(envoy, pool, &addresses[pool]));
            if let Some(choose) = pick["choose"].as_object() {
                rig::filter_config(envoy, "pick", |own| {
                    own["choose"].as_object_mut().unwrap().extend(choose.clone());
                });
            }
        });
        let setup = Setup { engines: [0, 0], edit: Some(edit), chain: nth % 2 == 1, ..Setup::default() };
        started.push(Gateway::start(setup).await.unwrap());
    }
    started[0].engines = own;
    (started, pair)
}

#[tokio::test(flavor = "multi_thread")]
async fn cold_requests_at_once_through_three_proxies_and_two_scorers_share_out_evenly() {
    let engine = Config { prefill_ms_per_ktoken: 20.0, decode_ms: 100.0, ..Config::default() };
    // Nobody may give up on a scorer because the machine is slow.
    let pick = json!({"scorer": {"timeout_ms": 10_000}});
    let (gateways, pair) = gateways(3, 8, engine, pick, json!({})).await;
    for round in 0..3 {
        let Burst { each, by } =
            burst(&gateways, &gateways[0].engines[0], 64, &format!("round {round}")).await.unwrap();
        assert!(each.iter().all(|n| (7..=9).contains(n)), "round {round}: {each:?}");
        assert_eq!(by, BTreeMap::from([("scorer".to_owned(), 64)]));
        pair.count(&[0, 1], 0, SOON).await;
    }
}

/// Sends so many requests through all gateways, some at a time; gives those that were not answered with 200, and the slowest.
async fn send(
    gateways: &[Gateway],
    requests: usize,
    name: &str,
) -> (Vec<Response>, Vec<(usize, String)>, Duration) {
    let (mut refused, mut ids, mut slowest) = (Vec::new(), Vec::new(), Duration::ZERO);
    for turn in 0..requests.div_ceil(8) {
        let answers = join_all((0..8).map(|n| {
            let at = n % gateways.len();
            let body = chat(MODELS[n % 2], &format!("{name} {turn} {n}"), 2);
            async move {
                let start = Instant::now();
                let answer = gateways[at].chat(&body).await.unwrap();
                (at, answer, start.elapsed())
            }
        }))
        .await;
        for (at, answer, took) in answers {
            slowest = slowest.max(took);
            match answer.status().as_u16() {
                200 => ids.push((at, request_id(&answer))),
                _ => refused.push(answer),
            }
        }
    }
    (refused, ids, slowest)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_scorer_that_dies_or_hangs_costs_no_request_and_without_both_open_serves_and_closed_refuses() {
    for mode in ["open", "closed"] {
        let pick = json!({"scorer": {"failure_mode": mode, "timeout_ms": 2_000, "retry_ms": 500}});
        let (gateways, mut pair) = gateways(2, 3, Config::instant(), pick, json!({})).await;
        let requests = 40;
        let (refused, ids, _) = send(&gateways, requests, "first").await;
        assert_eq!(
            (refused.len(), chosen_by(&gateways, &ids).await.unwrap()),
            (0, BTreeMap::from([("scorer".to_owned(), 40)]))
        );
        for (at, how) in [(0, "kill"), (1, "hang")] {
            let stop = |scorer: &mut Scorer| match how {
                "kill" => scorer.process.kill(),
                _ => scorer.process.hang(),
            };
            stop(&mut pair.scorers[at]);
            let (refused, ids, slowest) = send(&gateways, requests, how).await;
            let by = chosen_by(&gateways, &ids).await.unwrap();
            assert!(refused.is_empty(), "{mode}, {how}: {refused:?}");
            assert_eq!(
                by,
                BTreeMap::from([("scorer".to_owned(), requests)]),
                "{mode}, {how}: the other one chose"
            );
            assert!(slowest < Duration::from_secs(8), "{mode}, {how}: {slowest:?}");
            stop(&mut pair.scorers[1 - at]);
            let (refused, ids, _) = send(&gateways, requests, "none").await;
            match mode {
                "open" => {
                    assert!(refused.is_empty(), "{how}: {refused:?}");
                    let by = chosen_by(&gateways, &ids).await.unwrap();
                    assert_eq!(by, BTreeMap::from([("fallback".to_owned(), requests)]), "{how}");
                }
                _ => {
                    assert!(ids.is_empty(), "{how}: {ids:?}");
                    for answer in refused {
                        assert_eq!(
                            (answer.status().as_u16(), &answer.headers()["retry-after"]),
                            (503, &"1".parse().unwrap())
                        );
                        assert!(answer.json::<Value>().await.unwrap()["error"]["message"].is_string());
                    }
                    assert!(gateways[0].stat("weir_pick_no_scorer_total").await.unwrap() > 0);
                }
            }
            for scorer in &mut pair.scorers {
                match how {
                    "kill" => scorer.restart().await.unwrap(),
                    _ => scorer.process.go_on(),
                }
            }
            let back = async || {
                let (refused, ids, _) = send(&gateways, 8, "back").await;
                refused.is_empty() && chosen_by(&gateways, &ids).await.unwrap().contains_key("scorer")
            };
            wait_until("scorers are asked again", SOON, back).await.unwrap();
            // Each worker that lost one has found it again.
            let found = async || {
                let said = |gateway: &Gateway, what| lines(&gateway.envoy_log(), what);
                let all = |g: &Gateway| said(g, "choosing without scorer") == said(g, " answers again");
                gateways.iter().all(all)
            };
            wait_until("both are up for all", SOON, found).await.unwrap();
        }
        let settled = async || {
            let (_, ids, _) = send(&gateways, 16, "settled").await;
            chosen_by(&gateways, &ids).await.unwrap() == BTreeMap::from([("scorer".to_owned(), 16)])
        };
        wait_until("all is as before", SOON, settled).await.unwrap();
        for gateway in &gateways {
            // A line a worker and change, and no flood.
            let said = lines(&gateway.envoy_log(), "choosing without scorer");
            assert!((2..=40).contains(&said), "{said}: {}", gateway.envoy_log());
        }
        pair.count(&[0, 1], 0, SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_outlives_its_period_though_clients_leave_and_a_scorer_dies() {
    let requests: usize = std::env::var("WEIR_REQUESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(800);
    let engine = Config { prefill_ms_per_ktoken: 2.0, decode_ms: 2.0, ..Config::default() };
    const PERIOD: Duration = Duration::from_secs(10);
    let lease = json!({"lease_ms": PERIOD.as_millis() as u64});
    let pick = json!({"scorer": {"timeout_ms": 2_000, "retry_ms": 300}, "choose": lease});
    let (gateways, mut pair) = gateways(2, 4, engine, pick, json!({"choose": lease})).await;
    let client = async |number: usize| {
        let mut failed = 0;
        for turn in (number..requests).step_by(16) {
            let mut body = chat(MODELS[0], &format!("{number} {turn} {}", "words ".repeat(turn % 200)), 10);
            body["stream"] = true.into();
            let Ok(mut answer) = gateways[turn % 2].chat(&body).await else {
                failed += 1;
                continue;
            };
            failed += usize::from(answer.status() != 200);
            match turn % 10 {
                // Leaves with its first piece.
                3 => drop(answer.chunk().await),
                _ => failed += usize::from(answer.bytes().await.is_err()),
            }
        }
        failed
    };
    let dies = async {
        let served = || gateways[0].engines[0].iter().map(|engine| engine.requests().len()).sum::<usize>();
        wait_until("a part is served", SOON, async || served() > requests / 4).await.unwrap();
        // The one that is asked for this pool.
        let booked = async |at: usize| {
            metric(&pair.scorers[at], "weir_scorer_reservations_total{pool=\"small\"}").await
        };
        let home = usize::from(booked(1).await > booked(0).await);
        pair.scorers[home].process.kill();
        home
    };
    let (failed, home) = tokio::join!(join_all((0..16).map(client)), dies);
    assert_eq!(failed.iter().sum::<usize>(), 0, "the death of a scorer costs no request");
    let over = Instant::now();
    pair.count(&[1 - home], 0, PERIOD + SOON).await;
    println!("{requests} requests: no lease left after {:?}", over.elapsed());
    assert!(over.elapsed() < PERIOD + Duration::from_secs(5), "{:?}", over.elapsed());
    // The dead one comes back and knows of none.
    pair.scorers[home].restart().await.unwrap();
    pair.ready().await;
    pair.count(&[0, 1], 0, SOON).await;
    for gateway in &gateways {
        let none = async || gateway.leases().await.is_ok_and(|leases| leases == 0);
        wait_until("pick holds none either", PERIOD + SOON, none).await.unwrap();
    }
}
