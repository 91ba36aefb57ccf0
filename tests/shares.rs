//! Limits that several gateways share, through one scorer, and through several with a store.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use reqwest::{Response, StatusCode};
use rig::{
    Edit, Gateway, MODELS, Redis, Relay, Scorer, Setup, Way, chat, fields, lead_cluster, request_id,
    wait_until,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weir_engine::Config;

const CHAT: &str = "/v1/chat/completions";
const SOON: Duration = Duration::from_secs(30);
const KEY: &str = "sk-canary-4711";

/// 1,000 tokens per `per_s`, shared; `share` has more fields of that. Closed unless it says otherwise: where a machine is so
/// slow that nobody answers in time, fewer are admitted and not more. So that some are, the timeout is far above what is usual.
fn limit(per_s: u64, share: Value) -> Value {
    let mut own = json!({"cluster": "scorer", "id_seed": 7, "lease_ms": 1200, "timeout_ms": 3000, "failure_mode": "closed"});
    own.as_object_mut().unwrap().extend(share.as_object().unwrap().clone());
    let windows = json!([{"tokens": 1000, "per_s": per_s}]);
    json!({"limits": [{"name": "l", "key": ["api_key"], "windows": windows}], "share": own})
}

/// A gateway that asks the scorer at `scorer`.
fn setup(limit: &Value, chain: bool, scorer: &str, engine: Config) -> Setup {
    let address = scorer.trim_start_matches("http://").to_owned();
    let edit: Edit = Box::new(move |envoy| lead_cluster(envoy, "scorer", &address));
    Setup { chain, limit: Some(limit.clone()), engine, edit: Some(edit), ..Setup::default() }
}

/// Two gateways of two workers each, and one scorer, which belongs to the first.
async fn two(limit: &Value, chain: bool, engine: Config) -> [Gateway; 2] {
    let first =
        Setup { chain, limit: Some(limit.clone()), engine: engine.clone(), scorer: true, ..Setup::default() };
    let first = Gateway::start(first).await.unwrap();
    let scorer = first.scorer.as_ref().unwrap().url.clone();
    let second = Gateway::start(setup(limit, chain, &scorer, engine)).await.unwrap();
    // For the length of a lease a scorer that has just started only listens.
    sleep(Duration::from_millis(1_300)).await;
    [first, second]
}

/// Two gateways with a scorer each, which share a store that has `timeout_ms` to answer.
async fn two_with_store(limit: &Value, url: &str, mode: &'static str, timeout_ms: u64) -> [Gateway; 2] {
    let start = async |chain| {
        let url = url.to_owned();
        let store = json!({"url": url, "failure_mode": mode, "timeout_ms": timeout_ms});
        let store: Edit = Box::new(move |scorer| scorer["store"] = store.clone());
        let engine = Config::instant();
        let limit = Some(limit.clone());
        let setup =
            Setup { chain, limit, engine, scorer: true, edit_scorer: Some(store), ..Setup::default() };
        Gateway::start(setup).await.unwrap()
    };
    let both = [start(false).await, start(true).await];
    // The first call marks the store, and a lease later it grants.
    for gateway in &both {
        send(gateway, "warm", &small(0)).await;
    }
    sleep(Duration::from_millis(1_300)).await;
    for gateway in &both {
        until_admitted(gateway, "warm").await;
    }
    both
}

async fn until_admitted(gateway: &Gateway, key: &str) {
    let admitted = async || send(gateway, key, &small(0)).await.status() == 200;
    wait_until(&format!("{key} is admitted"), SOON, admitted).await.unwrap();
}

/// A request that is reserved 100 tokens, and uses about as many.
fn hundred(turn: usize) -> Value {
    let mut body = chat(MODELS[0], &format!("{turn:04} {}", "x".repeat(146)), 60);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    body
}

fn small(turn: usize) -> Value {
    chat(MODELS[0], &format!("{turn}"), 2)
}

async fn send(gateway: &Gateway, key: &str, body: &Value) -> Response {
    gateway.client.post(format!("{}{CHAT}", gateway.url)).bearer_auth(key).json(body).send().await.unwrap()
}

async fn send_hundred(gateway: &Gateway, turn: usize) -> StatusCode {
    let answer = send(gateway, KEY, &hundred(turn)).await;
    let status = answer.status();
    answer.text().await.unwrap();
    status
}

async fn stat(gateways: &[Gateway], name: &str) -> u64 {
    let mut sum = 0;
    for gateway in gateways {
        sum += gateway.stat(&format!("weir_limit_{name};limit=l")).await.unwrap();
    }
    sum
}

/// Tokens that the access logs say were used.
fn used(gateways: &[Gateway]) -> u64 {
    let usage = gateways.iter().flat_map(Gateway::access_log).map(|line| fields(&line, "usage"));
    usage
        .flat_map(|usage| [usage.get("input").cloned(), usage.get("output").cloned()])
        .flatten()
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

fn is_refused(answer: &Response) -> bool {
    [429, 503].contains(&answer.status().as_u16())
}

/// Sends `requests` at once, half of them through each; gives how many were admitted, and what the others were answered.
async fn burst(gateways: &[Gateway; 2], key: &str, requests: usize) -> (usize, Vec<Response>) {
    let answers = join_all((0..requests).map(|turn| {
        let gateway = &gateways[turn % 2];
        async move { send(gateway, key, &hundred(turn)).await }
    }))
    .await;
    let (good, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    let admitted = good.len();
    for answer in good {
        answer.text().await.unwrap();
    }
    (admitted, refused)
}

fn lines(log: &str, wanted: &str) -> usize {
    log.lines().filter(|line| line.contains(wanted)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hundred_at_once_through_two_gateways_ten_are_admitted_and_charged_what_they_used() {
    for chain in [false, true] {
        let engine = Config { decode_ms: 30.0, ..Config::default() };
        let gateways = two(&limit(600, json!({})), chain, engine).await;
        let (admitted, refused) = burst(&gateways, KEY, 200).await;
        // What one gateway is granted and does not use the other one lacks; how much that is depends on who asks when. As long as
        // somebody waits it is given to those, so it is less than half.
        assert!((5..=10).contains(&admitted), "chain {chain}: {admitted}");
        for answer in refused {
            assert!(is_refused(&answer));
            assert!(answer.headers().contains_key("retry-after"));
        }
        let received: usize = gateways.iter().map(|gateway| gateway.received(0).len()).sum();
        assert_eq!(received, admitted);
        wait_until("all are settled", SOON, async || stat(&gateways, "reserved_tokens").await == 0)
            .await
            .unwrap();
        wait_until("the access logs", SOON, async || {
            gateways.iter().map(|gateway| gateway.access_log().len()).sum::<usize>() == 200
        })
        .await
        .unwrap();
        assert_eq!(stat(&gateways, "charged_tokens_total").await, used(&gateways), "chain {chain}");
        // Whoever is asked next knows of both gateways' use.
        sleep(Duration::from_millis(800)).await;
        let other = send(&gateways[1], KEY, &small(0)).await;
        if other.status() == 200 {
            let left =
                other.headers()["x-ratelimit-remaining-tokens"].to_str().unwrap().parse::<u64>().unwrap();
            assert!(left <= 1000 - used(&gateways), "{left} left");
        }
        assert_eq!(send(&gateways[1], "another", &hundred(0)).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_gateway_does_not_use_the_other_one_can() {
    let gateways = two(&limit(4, json!({})), true, Config::instant()).await;
    let mut admitted = [0, 0];
    // All through one, then all through the other, for two windows each.
    for (place, gateway) in gateways.iter().enumerate() {
        let end = Instant::now() + Duration::from_secs(8);
        while Instant::now() < end {
            admitted[place] += usize::from(send(gateway, KEY, &hundred(0)).await.status() == 200);
            sleep(Duration::from_millis(40)).await;
        }
    }
    // Each reserves 100 and uses about that; 8 s are nearly two windows of ten each.
    assert!(admitted.iter().all(|admitted| (1..=30).contains(admitted)), "{admitted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_scorer_dies_hangs_and_returns_open_goes_on_alone_and_closed_refuses() {
    for mode in ["open", "closed"] {
        let limit = limit(2, json!({"failure_mode": mode, "timeout_ms": 100, "retry_ms": 300}));
        let mut gateways = two(&limit, mode == "open", Config::instant()).await;
        until_admitted(&gateways[1], KEY).await;
        let mut scorer = gateways[0].scorer.take().unwrap();
        for (round, how) in ["killed", "hung"].into_iter().enumerate() {
            match how {
                "killed" => scorer.process.kill(),
                _ => scorer.process.hang(),
            }
            // Longer than a lease: nothing that was granted holds.
            sleep(Duration::from_millis(1_500)).await;
            let mut statuses = Vec::new();
            for turn in 0..30 {
                let start = Instant::now();
                let answer = send(&gateways[1], &format!("{how}-{turn}"), &hundred(turn)).await;
                assert!(start.elapsed() < Duration::from_secs(5), "{mode}, {how}: {:?}", start.elapsed());
                if answer.status() == 503 {
                    assert!(answer.headers().contains_key("retry-after"));
                }
                statuses.push(answer.status());
            }
            let expected = if mode == "open" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            assert!(statuses.iter().all(|status| *status == expected), "{mode}, {how}: {statuses:?}");
            if mode == "open" {
                // Its own limit still bounds it.
                let all = join_all((0..40).map(|turn| {
                    let gateway = &gateways[1];
                    async move { send(gateway, how, &hundred(turn)).await.status() }
                }))
                .await;
                let good = all.iter().filter(|status| **status == 200).count();
                assert!((1..=10).contains(&good), "{how}: {good}");
            }
            match how {
                "killed" => scorer.restart().await.unwrap(),
                _ => scorer.process.go_on(),
            }
            let back = async || gateways[1].stat("weir_limit_share_up").await.unwrap() == 1;
            wait_until("the scorer is asked again", SOON, back).await.unwrap();
            sleep(Duration::from_millis(1_500)).await;
            until_admitted(&gateways[1], "back").await;
            let log = gateways[1].envoy_log();
            let gone = if mode == "open" { "counted by this proxy alone" } else { "what is granted lapses" };
            assert!((1..=2 * (round + 1)).contains(&lines(&log, gone)), "{mode}, {how}: {log}");
            assert!(lines(&log, "limits are shared") > round, "{mode}, {how}: {log}");
            sleep(Duration::from_millis(2_100)).await;
        }
        gateways[0].scorer = Some(scorer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scorers_share_a_store_which_forgets_idle_keys_and_knows_no_credential() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path()).await.unwrap();
    let gateways = two_with_store(&limit(3, json!({})), &redis.url, "closed", 2_000).await;
    let start = Instant::now();
    let (admitted, refused) = burst(&gateways, KEY, 200).await;
    // A slow machine takes more than one window for all of them.
    let windows = 1 + start.elapsed().as_secs() as usize / 3;
    assert!((1..=10 * windows).contains(&admitted), "{admitted} in {windows} windows");
    assert!(refused.iter().all(is_refused));
    let keys = redis.keys().unwrap();
    assert!(keys.len() > 1, "{keys:?}");
    for key in &keys {
        assert!(key.starts_with("weir:limit:1:"), "{key}");
        let value = redis.ask(&["GET", key]).unwrap();
        assert!(!key.contains("canary") && !value.contains("canary"), "{key}: {value}");
    }
    // A scorer's restart forgets nothing.
    let mut first = gateways.into_iter();
    let (mut one, other) = (first.next().unwrap(), first.next().unwrap());
    let mut scorer = one.scorer.take().unwrap();
    scorer.process.kill();
    scorer.restart().await.unwrap();
    one.scorer = Some(scorer);
    let gateways = [one, other];
    // Within two windows of idleness nothing is left but the mark.
    let idle = async || redis.keys().unwrap() == ["weir:limit:1:since"];
    wait_until("idle keys are gone", SOON, idle).await.unwrap();
    let start = Instant::now();
    let (admitted, _) = burst(&gateways, KEY, 40).await;
    let windows = 1 + start.elapsed().as_secs() as usize / 3;
    assert!((1..=10 * windows).contains(&admitted), "{admitted} in {windows} windows");
}

/// What a scorer answers to a proxy that wants 100 of 1,000 of each of these keys.
async fn claim(scorer: &Scorer, keys: std::ops::Range<u64>) -> Option<Value> {
    let part = json!({"limit": 1000, "window_ms": 60_000, "keep": 0, "used": 0, "reset_ms": 0, "want": 100});
    let claim = |key: u64| json!({"rule": 1, "key": key, "turn": 1, "parts": [part]});
    let claims = json!({"proxy": 9, "lease_ms": 500, "keys": keys.map(claim).collect::<Vec<_>>()});
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.post(format!("{}/v1/allowances", scorer.url)).json(&claims).send().await.unwrap();
    match answer.status() {
        StatusCode::OK => Some(answer.json().await.unwrap()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_in_the_store_is_nothing_to_other_keys_and_heals_within_a_lease() {
    const MARK: &str = "weir:limit:1:since";
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let redis = Redis::start(dirs[0].path()).await.unwrap();
    let store = json!({"url": redis.url, "timeout_ms": 100, "retry_ms": 50, "failure_mode": "closed"});
    let edit: Edit = Box::new(move |scorer| scorer["store"] = store.clone());
    let nobody = [vec!["127.0.1.1:9".to_owned()], vec!["127.0.2.1:9".to_owned()]];
    let scorer =
        Scorer::start(dirs[1].path(), "envoy/scorer.yaml", &nobody, Some(&edit), "info").await.unwrap();
    let mut key = 1_000;
    let mut granted = async |what: &str| {
        let granted = async || {
            key += 1;
            let granted = claim(&scorer, key..key + 1).await;
            granted.is_some_and(|granted| granted["keys"][0]["parts"][0]["amount"] == 100)
        };
        wait_until(what, SOON, granted).await.unwrap();
    };
    granted("it has settled").await;
    for odd in ["abc", "99999999999999999999999", "18446744073709551615"] {
        redis.ask(&["SET", MARK, odd]).unwrap();
        granted(odd).await;
    }
    redis.ask(&["DEL", MARK]).unwrap();
    redis.ask(&["HSET", MARK, "a", "b"]).unwrap();
    granted("a mark of another kind").await;
    redis.ask(&["HSET", "weir:limit:1:{0000000000000001.0000000000000002}", "a", "b"]).unwrap();
    redis
        .ask(&[
            "EVAL",
            "redis.call('SET', KEYS[1], '\\255')",
            "1",
            "weir:limit:1:{0000000000000001.0000000000000003}",
        ])
        .unwrap();
    let all = async || {
        let granted = claim(&scorer, 1..5).await;
        granted.is_some_and(|granted| (0..4).all(|at| granted["keys"][at]["parts"][0]["amount"] == 100))
    };
    wait_until("all keys are granted, broken or not", SOON, all).await.unwrap();
    // Far more than fit into one call's time.
    let many =
        async || claim(&scorer, 10_000..18_000).await.is_some_and(|all| all["keys"][7_999]["turn"] == 1);
    wait_until("many keys are granted", SOON, many).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_dies_hangs_and_is_flushed_nothing_hangs_and_it_recovers() {
    for mode in ["open", "closed"] {
        let dir = tempfile::tempdir().unwrap();
        let mut redis = Redis::start(dir.path()).await.unwrap();
        let limit = limit(2, json!({"failure_mode": mode, "retry_ms": 300}));
        let gateways = two_with_store(&limit, &redis.url, mode, 300).await;
        for how in ["killed", "hung"] {
            match how {
                "killed" => redis.process.kill(),
                _ => redis.process.hang(),
            }
            sleep(Duration::from_millis(1_500)).await;
            for turn in 0..20 {
                let start = Instant::now();
                let answer = send(&gateways[turn % 2], &format!("{how}-{turn}"), &hundred(turn)).await;
                assert!(start.elapsed() < Duration::from_secs(5), "{mode}, {how}: {:?}", start.elapsed());
                let expected = if mode == "open" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                assert_eq!(answer.status(), expected, "{mode}, {how}, {turn}");
            }
            match how {
                "killed" => redis.restart().await.unwrap(),
                _ => redis.process.go_on(),
            }
            let admitted = async || {
                let body = small(0);
                let answers = join_all(gateways.iter().map(|gateway| send(gateway, "back", &body))).await;
                answers.iter().all(|answer| answer.status() == 200) && !redis.keys().unwrap().is_empty()
            };
            wait_until("the store is used again", SOON, admitted).await.unwrap();
            for gateway in &gateways {
                let log = gateway.scorer_log();
                assert!(lines(&log, "store of shared limits fails") >= 1, "{mode}, {how}: {log}");
                assert!(lines(&log, "store of shared limits fails") <= 4, "a flood: {log}");
            }
        }
        // A flush loses what was granted: what proxies hold is heard before anything is granted anew.
        sleep(Duration::from_millis(2_500)).await;
        let before = burst(&gateways, "flushed", 40).await.0;
        redis.ask(&["FLUSHALL"]).unwrap();
        if mode == "closed" {
            let (after, refused) = burst(&gateways, "flushed", 40).await;
            assert!(before + after <= 10, "{before} and {after}");
            assert!(refused.iter().all(|answer| [429, 503].contains(&answer.status().as_u16())));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_slow_talks_nonsense_or_fails_over_never_lets_more_than_the_limit_through() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut primary = Redis::start(dirs[0].path()).await.unwrap();
    let replica = Redis::start(dirs[1].path()).await.unwrap();
    replica.ask(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]).unwrap();
    let relay = Relay::start(primary.port).await.unwrap();
    // Longer than the test: what is admitted with this key adds up.
    let limit = limit(3_600, json!({"retry_ms": 300}));
    let gateways = two_with_store(&limit, &relay.url, "closed", 1_000).await;
    let mut all = 0;
    let mut keys = 0;
    let mut works = async |when: &str| {
        let admitted = async || {
            keys += 1;
            send(&gateways[keys % 2], &format!("key-{keys}"), &small(0)).await.status() == 200
        };
        wait_until(when, SOON, admitted).await.unwrap();
    };
    let late = Duration::from_millis(20);
    for way in [Way::Straight, Way::Late(late), Way::Late(Duration::from_secs(3)), Way::Garbled] {
        relay.way(way);
        let start = Instant::now();
        let (admitted, refused) = burst(&gateways, KEY, 20).await;
        all += admitted;
        assert!(all <= 10, "{way:?}: {admitted} more, {all} in all");
        assert!(refused.iter().all(is_refused));
        assert!(start.elapsed() < Duration::from_secs(20), "{way:?} held requests for {:?}", start.elapsed());
        relay.way(Way::Straight);
        works(&format!("after {way:?}")).await;
    }
    assert!(all > 0);
    // What the primary knows is at the replica, which takes its place.
    let known = || [primary.keys(), replica.keys()].map(|keys| keys.unwrap().len());
    wait_until("the replica has all", SOON, async || known()[0] == known()[1]).await.unwrap();
    replica.ask(&["REPLICAOF", "NO", "ONE"]).unwrap();
    relay.lead(replica.port);
    primary.process.kill();
    works("after the fail-over").await;
    let (admitted, _) = burst(&gateways, KEY, 20).await;
    assert!(all + admitted <= 10, "{all}, and {admitted} after the fail-over");
    for gateway in &gateways {
        let log = gateway.scorer_log();
        // One line a change, and few changes.
        let (fails, answers) =
            (lines(&log, "store of shared limits fails"), lines(&log, "store of shared limits answers"));
        assert!(fails <= 12 && answers <= fails, "{fails} and {answers}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_within_the_allowance_waits_for_nobody() {
    let gateways = two(&limit(600, json!({})), true, Config::instant()).await;
    // Far below the limit.
    for turn in 0..20 {
        let answer = send(&gateways[0], KEY, &small(turn)).await;
        let id = request_id(&answer);
        assert_eq!(answer.status(), 200);
        assert_eq!(fields(&gateways[0].logged(&id).await.unwrap(), "limit")["verdict"], "admitted");
        sleep(Duration::from_millis(50)).await;
    }
    let asked = gateways[0].stat("weir_limit_share_asked_total").await.unwrap();
    assert!((1..=15).contains(&asked), "{asked} of 20 waited");
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_at_once_and_so_many_requests_over_two_gateways_and_no_more() {
    let mut limit = limit(600, json!({}));
    limit["limits"][0]["windows"] = json!([{"requests": 5, "per_s": 600}]);
    limit["limits"][0]["max_in_flight"] = 3.into();
    let gateways = two(&limit, false, Config { decode_ms: 20.0, ..Config::default() }).await;
    let (first, refused) = burst(&gateways, KEY, 30).await;
    assert!((1..=3).contains(&first), "{first} at once");
    assert!(refused.iter().all(is_refused));
    // What one gateway held in flight the other one may have when it is over.
    let mut second = 0;
    let some = async || {
        let answers = join_all((0..3).map(|turn| send_hundred(&gateways[1], turn))).await;
        second += answers.iter().filter(|status| **status == 200).count();
        second > 0
    };
    wait_until("the other one is admitted", SOON, some).await.unwrap();
    assert!(first + second <= 5, "five requests in all: {first}, {second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_that_died_held_is_free_after_its_lease_and_a_window() {
    let [mut first, second] = two(&limit(4, json!({})), true, Config::instant()).await;
    let mut admitted = 0;
    for turn in 0..12 {
        admitted += usize::from(send(&first, KEY, &hundred(turn)).await.status() == 200);
    }
    assert!((1..=10).contains(&admitted), "{admitted}");
    first.envoy.kill();
    assert!(is_refused(&send(&second, KEY, &hundred(0)).await));
    sleep(Duration::from_millis(2_000)).await;
    let meanwhile = send(&second, KEY, &hundred(0)).await;
    assert!(is_refused(&meanwhile), "the dead one's use counts for the window");
    // 1.2 s of lease and 4 s of window.
    let free = async || send(&second, KEY, &hundred(0)).await.status() == 200;
    wait_until("what it held is free", SOON, free).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_another_gateway_has_are_waited_for_and_its_line_does_not_keep_them() {
    let mut limit = limit(600, json!({}));
    let queue = json!({"size": 100, "timeout_ms": 60_000});
    limit["limits"][0] = json!({"name": "l", "key": ["api_key"], "max_in_flight": 2, "queue": queue});
    // Answers of about 150 ms: the first gateway's line takes three seconds at the least, and its part comes to the other within some
    // renewals of 150 ms.
    let gateways = two(&limit, true, Config { decode_ms: 2.5, ..Config::default() }).await;
    const LINE: usize = 40;
    let answered = std::sync::atomic::AtomicUsize::new(0);
    let first = join_all((0..LINE).map(|turn| {
        let (gateway, answered) = (&gateways[0], &answered);
        async move {
            let status = send_hundred(gateway, turn).await;
            answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            status
        }
    }));
    let second = async {
        wait_until("a line", SOON, async || stat(&gateways[..1], "queued_total").await > 0).await.unwrap();
        let statuses = join_all((0..2).map(|turn| send_hundred(&gateways[1], turn))).await;
        (statuses, answered.load(std::sync::atomic::Ordering::Relaxed))
    };
    let (first, (second, before)) = tokio::join!(first, second);
    assert!(first.iter().chain(&second).all(|status| *status == 200), "{first:?}, {second:?}");
    assert!(before < LINE, "the other gateway was served after the whole line");
}
