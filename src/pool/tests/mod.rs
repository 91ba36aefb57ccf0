mod hot;

use super::*;
use crate::block;
use crate::breaker::{Moved, Reason};
use crate::policy::Signals;
use serde_json::{Value, json};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const NOW: Instant = Instant::from_millis(1_000);

fn addresses(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("10.0.0.{i}:8000")).collect()
}

fn pool(n: usize) -> Pool {
    Pool::new(&Config::default(), &addresses(n), 9).unwrap()
}

/// A prompt of `n` units that is nobody else's.
fn blocks(of: u64, n: usize) -> Vec<u64> {
    let mut random = Random::new(of);
    (0..block::within(n)).map(|_| random.next()).collect()
}

fn ask(blocks: &[u64]) -> Ask<'_> {
    let prompt_units = block::units(blocks.len()) as u32;
    let demand = Demand {
        prompt_tokens: prompt_units * 16 + 5,
        prompt_units,
        output_tokens: 64,
        stream: true,
        ..Demand::default()
    };
    Ask { blocks, demand, prompt: None }
}

fn idle(pool: &Pool) -> bool {
    pool.leases() == 0
        && pool.due.is_empty()
        && pool.loads().iter().all(|load| load.in_flight == 0 && load.queued_tokens == 0)
}

#[test]
fn a_conversation_stays_where_its_prefix_is() {
    let mut pool = pool(8);
    for conversation in 0..100 {
        let all = blocks(conversation, 40);
        let first = pool.reserve(1, &ask(&all[..20]), NOW).unwrap();
        pool.first_token(1, Some(&first.order[0]), NOW);
        pool.end(1);
        let second = pool.reserve(2, &ask(&all), NOW).unwrap();
        assert_eq!(second.order[0], first.order[0]);
        assert_eq!(second.candidate.cached_tokens, 322, "half of its 645 tokens");
        pool.end(2);
    }
    assert!(idle(&pool));
}

#[test]
fn a_burst_that_shares_a_prefix_spreads() {
    for (prefix, warm) in [(100, false), (100, true), (1_000, true)] {
        let mut pool = pool(8);
        let shared = blocks(1, prefix);
        if warm {
            pool.reserve(0, &ask(&shared), NOW);
            pool.first_token(0, None, NOW);
            pool.end(0);
        }
        let mut used = HashMap::new();
        for id in 1..=80 {
            *used.entry(pool.reserve(id, &ask(&shared), NOW).unwrap().order[0].clone()).or_insert(0) += 1;
        }
        assert!(used.len() >= 6, "{prefix} units, warm {warm}: {used:?}");
        assert!(used.values().all(|n| *n <= 40), "{used:?}");
    }
}

#[test]
fn cold_requests_at_once_share_out_evenly() {
    let mut pool = pool(8);
    for id in 0..64 {
        pool.reserve(id, &ask(&blocks(id, 30)), NOW);
    }
    assert!(pool.loads().iter().all(|load| load.in_flight == 8), "{:?}", pool.loads());
}

#[test]
fn a_lease_ends_once_and_by_itself_when_nobody_ends_it() {
    let mut pool = pool(2);
    pool.reserve(1, &ask(&blocks(1, 4)), NOW);
    pool.reserve(2, &ask(&blocks(2, 4)), NOW);
    assert!(pool.end(1));
    assert!(!pool.end(1), "once");
    let later = NOW + Duration::from_millis(400_000);
    pool.first_token(2, None, later);
    assert_eq!(pool.expire(NOW + Duration::from_millis(600_000)), 0, "the first token renewed it");
    assert_eq!(pool.expire(later + Duration::from_millis(600_000)), 1);
    assert!(idle(&pool));
    assert_eq!(pool.expire(later + Duration::from_millis(6_000_000)), 0);
}

#[test]
fn an_end_that_overtakes_its_booking_still_ends_it() {
    let mut pool = pool(2);
    assert!(!pool.end(5));
    let choice = pool.reserve(5, &ask(&blocks(1, 4)), NOW).unwrap();
    assert_eq!((choice.order.len(), pool.leases()), (2, 0), "an answer, but nothing booked");
    assert!(!(100..10_000).any(|id| pool.end(id)));
    pool.reserve(5, &ask(&blocks(1, 4)), NOW);
    assert_eq!(pool.leases(), 1, "remembered for a while only");
}

#[test]
fn a_prompt_whose_first_token_will_not_be_seen_is_taken_to_be_computed_in_time() {
    let mut pool = pool(1);
    let prompt = blocks(1, 100);
    let mut plain = ask(&prompt);
    plain.demand.stream = false;
    pool.reserve(1, &plain, NOW);
    pool.reserve(2, &ask(&blocks(2, 100)), NOW);
    let queued = |pool: &Pool| pool.loads()[0].queued_tokens;
    assert_eq!(queued(&pool), 2 * 1_605);
    // 1,605 tokens at the assumed 5,000 a second.
    pool.expire(NOW + Duration::from_millis(320));
    assert_eq!(queued(&pool), 2 * 1_605);
    pool.expire(NOW + Duration::from_millis(322));
    assert_eq!(queued(&pool), 1_605, "the stream's still waits for its token");
    assert_eq!(pool.leases(), 2);
    pool.first_token(1, None, NOW + Duration::from_millis(400));
    pool.end(1);
    assert_eq!(queued(&pool), 1_605);
    pool.end(2);
    assert!(idle(&pool));
}

#[test]
fn how_fast_prompts_are_computed_is_learned_from_streams() {
    let mut pool = pool(1);
    for id in 1..=50 {
        pool.reserve(id, &ask(&blocks(id, 100)), NOW);
        pool.first_token(id, None, NOW + Duration::from_millis(80));
        pool.end(id);
    }
    let prompt = blocks(99, 100);
    let mut plain = ask(&prompt);
    plain.demand.stream = false;
    pool.reserve(99, &plain, NOW);
    pool.expire(NOW + Duration::from_millis(79));
    assert_eq!(pool.loads()[0].queued_tokens, 1_605);
    pool.expire(NOW + Duration::from_millis(82));
    assert_eq!(pool.loads()[0].queued_tokens, 0, "1,605 tokens in 80 ms, as the streams had it");
}

#[test]
fn a_repeated_booking_counts_once() {
    let mut pool = pool(2);
    let (address, prompt) = (addresses(2)[1].clone(), blocks(1, 4));
    for _ in 0..3 {
        pool.book(7, &address, &ask(&prompt), NOW);
    }
    assert_eq!((pool.leases(), pool.loads()[1].in_flight), (1, 1));
    pool.book(8, "10.9.9.9:1", &ask(&prompt), NOW);
    assert_eq!(pool.leases(), 1, "an unknown address books nothing");
    pool.end(7);
    assert!(idle(&pool));
}

#[test]
fn after_a_retry_the_lease_is_where_it_was_served_and_the_failed_one_is_forgotten() {
    let mut pool = pool(2);
    let prompt = blocks(1, 4);
    let chosen = pool.reserve(1, &ask(&prompt), NOW).unwrap().order;
    pool.first_token(1, Some(&chosen[1]), NOW);
    let load =
        |pool: &Pool, address: &str| pool.loads().into_iter().find(|load| load.address == address).unwrap();
    assert_eq!((load(&pool, &chosen[0]).in_flight, load(&pool, &chosen[0]).index_tokens), (0, 0));
    assert_eq!(load(&pool, &chosen[1]).in_flight, 1);
    pool.end(1);
    assert!(idle(&pool));
}

#[test]
fn an_endpoint_that_goes_takes_its_leases_and_prefixes_along() {
    let mut pool = pool(3);
    let prompt = blocks(1, 4);
    for (id, address) in (0..).zip(addresses(3)) {
        pool.book(id, &address, &ask(&prompt), NOW);
    }
    let left = vec![addresses(3)[2].clone(), addresses(3)[0].clone()];
    pool.set_endpoints(&left).unwrap();
    assert_eq!(pool.leases(), 2);
    assert!(pool.end(2) && !pool.end(1) && pool.end(0));
    assert!(idle(&pool));
    pool.set_endpoints(&addresses(3)).unwrap();
    let tokens: Vec<u64> = pool.loads().iter().map(|load| load.index_tokens).collect();
    assert_eq!(tokens, [64, 0, 64], "the one that came back is empty");
}

#[test]
fn random_use_never_leaks() {
    let mut pool = pool(5);
    let mut random = Random::new(4);
    let mut now = NOW;
    for step in 0..20_000_u64 {
        now = now + Duration::from_millis(random.below(300) as u64);
        let id = step / 50 + random.below(100) as u64;
        let before = pool.leases();
        match random.below(5) {
            0 | 1 => drop(pool.reserve(id, &ask(&blocks(random.below(30) as u64, random.below(40))), now)),
            2 => pool.first_token(id, addresses(6).get(random.below(7)).map(String::as_str), now),
            3 => assert_eq!(pool.end(id), pool.leases() < before),
            _ if step % 500 == 0 => pool.set_endpoints(&addresses(3 + random.below(4))).unwrap(),
            _ => {}
        }
        let in_flight: u32 = pool.loads().iter().map(|load| load.in_flight).sum();
        assert_eq!((in_flight as usize, pool.due.len()), (pool.leases(), pool.leases()));
    }
    pool.expire(now + Duration::from_millis(600_001));
    assert!(idle(&pool));
}

#[test]
fn wrong_configuration_is_refused_with_its_place() {
    let message = |config: Value, endpoints: &[&str]| {
        let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        match crate::invalid::read_value(config).and_then(|config| Pool::new(&config, &endpoints, 1)) {
            Ok(_) => panic!("accepted"),
            Err(invalid) => invalid.to_string(),
        }
    };
    assert!(message(json!({"lease_ms": 0}), &[]).starts_with("lease_ms: "));
    assert!(
        message(json!({"policy": "fastest"}), &[])
            .starts_with("policy: unknown policy `fastest`, expected one of `least_prefill`, ")
    );
    assert!(
        message(json!({}), &["10.0.0.1:80", "engine:80"])
            .starts_with("endpoints[1]: \"engine:80\" is not an IP")
    );
    assert!(
        message(json!({}), &["10.0.0.1:80", "10.0.0.1:80"])
            .starts_with("endpoints[1]: 10.0.0.1:80 is listed twice")
    );
    for nobody in ["10.0.0.1:0", "0.0.0.0:80", "[::]:80", "224.0.0.1:9", "[ff02::1]:9", "255.255.255.255:1"] {
        let refused = message(json!({}), &["10.0.0.1:80", nobody]);
        assert!(refused.starts_with(&format!("endpoints[1]: {nobody}: ")), "{refused}");
    }
    let many: Vec<String> =
        (0..=MOST_ENDPOINTS).map(|i| format!("10.0.{}.{}:80", i / 256, i % 256)).collect();
    let refused = Pool::new(&Config::default(), &many, 9).unwrap_err().to_string();
    assert_eq!(refused, "endpoints: 4097 endpoints; a pool has at most 4096");
    assert!(Pool::new(&Config::default(), &many[1..], 9).is_ok());
    assert!(message(json!({}), &["10.0.0.1:080"]).contains("10.0.0.1:80"));
    assert_eq!(pool(0).reserve(1, &ask(&[]), NOW), None);
}

#[test]
fn pools_are_told_apart_by_name_and_model() {
    let spec = |name: &str, model: &str, endpoint: &str| Spec {
        name: name.into(),
        models: vec![model.into()],
        endpoints: vec![endpoint.into()],
        choose: None,
        cluster: None,
        attributes: BTreeMap::new(),
    };
    let make =
        |specs: &[Spec]| Pools::new(specs, &Config::default(), 1).map_err(|invalid| invalid.to_string());
    let (a, b) = (spec("a", "m", "10.0.0.1:1"), spec("b", "n", "10.0.0.2:1"));
    let mut pools = make(&[a.clone(), b]).unwrap();
    assert_eq!((pools.of_model("n"), pools.of_name("a"), pools.of_model("x")), (Some(1), Some(0), None));
    assert!(pools.get(1).is_some_and(|(name, pool)| name == "b" && pool.contains("10.0.0.2:1")));
    assert!(make(&[a.clone(), spec("a", "n", "10.0.0.2:1")]).unwrap_err().starts_with("pools[1].name: "));
    assert!(
        make(&[a.clone(), spec("b", "m", "10.0.0.2:1")]).unwrap_err().starts_with("pools[1].models[0]: ")
    );
    assert!(make(&[a.clone(), spec("b", "n", "host:1")]).unwrap_err().starts_with("pools[1].endpoints[0]: "));
    assert!(make(&[Spec { endpoints: vec![], ..a }]).unwrap_err().starts_with("pools[0].endpoints: empty"));
}

#[test]
fn two_pools_of_the_same_endpoints_may_choose_by_different_policies() {
    let spec = |name: &str, choose: Value| -> Spec {
        let spec = json!({"name": name, "models": [name], "endpoints": ["10.0.0.1:1", "10.0.0.2:1"], "choose": choose});
        crate::invalid::read_value(spec).unwrap()
    };
    let specs = [spec("common", Value::Null), spec("own", json!({"policy": "round_robin"}))];
    let mut pools = Pools::new(&specs, &Config::default(), 1).unwrap();
    let mut policy =
        |at| pools.get(at).and_then(|(_, pool)| pool.reserve(1, &ask(&[]), NOW)).unwrap().policy.into_owned();
    assert_eq!([policy(0), policy(1)], ["least_prefill", "round_robin"]);
    let wrong = [spec("own", json!({"policy": "fastest"}))];
    let said = Pools::new(&wrong, &Config::default(), 1).unwrap_err().to_string();
    assert!(said.starts_with("pools[0].choose.policy: unknown policy"), "{said}");
}

#[test]
fn who_is_out_is_neither_chosen_nor_named_and_keeps_no_prefix() {
    let (bad, good) = (Outcome::failed(Reason::Connect), Outcome::of_status(200, None));
    let mut pool = pool(3);
    let prompt = blocks(1, 40);
    let dead = pool.reserve(1, &ask(&prompt), NOW).unwrap().order[0].clone();
    assert_eq!(pool.attempted(1, &dead, &bad, NOW), None);
    assert_eq!(pool.attempted(1, &dead, &bad, NOW), None, "told twice, counted once");
    assert_eq!(pool.attempted(2, &dead, &bad, NOW), Some(Moved::Out));
    pool.end(1);
    for id in 10..40 {
        let order = pool.reserve(id, &ask(&prompt), NOW).unwrap().order;
        assert!(order.len() == 2 && !order.contains(&dead), "{order:?}");
        pool.end(id);
    }
    let later = NOW + Duration::from_secs(5);
    let probe = pool.reserve(50, &ask(&prompt), later).unwrap();
    assert!(probe.probe && probe.order[0] == dead && probe.order.len() == 3, "{probe:?}");
    assert_eq!(probe.candidate.cached_tokens, 0, "it may have come back empty");
    assert!(!pool.reserve(51, &ask(&prompt), later).unwrap().order.contains(&dead));
    assert_eq!(pool.attempted(50, &dead, &good, later), Some(Moved::Back));
    assert!(pool.end(50) && pool.end(51));
    assert!(idle(&pool) && pool.probing() == 0);
}

#[test]
fn a_probes_slot_comes_back_with_its_lease_wherever_that_has_gone() {
    let bad = Outcome::failed(Reason::Connect);
    for how in 0..4 {
        let mut pool = pool(2);
        let first = "10.0.0.0:8000";
        for id in 1..=2 {
            pool.attempted(id, first, &bad, NOW);
        }
        let later = NOW + Duration::from_secs(5);
        let probe = pool.reserve(1, &ask(&blocks(1, 4)), later).unwrap();
        assert_eq!((probe.probe, pool.probing()), (true, 1));
        match how {
            0 => assert!(pool.end(1)),
            1 => {
                pool.first_token(1, Some("10.0.0.1:8000"), later);
                pool.end(1);
            }
            2 => assert_eq!(pool.expire(later + Duration::from_secs(601)), 1),
            _ => {
                // It has moved to the other, which leaves the pool.
                pool.first_token(1, Some("10.0.0.1:8000"), later);
                pool.set_endpoints(&addresses(1)).unwrap();
            }
        }
        assert_eq!(pool.probing(), 0, "{how}");
    }
}

fn with(policy: Value, n: usize) -> Pool {
    let config = Config { policy, ..Config::default() };
    Pool::new(&config, &addresses(n), 9).unwrap()
}

fn report(at: Instant, waiting: u32, kv_usage: f64) -> Report {
    let signals = crate::policy::Signals {
        waiting: Some(waiting),
        kv_usage: Some(kv_usage),
        ..crate::policy::Signals::default()
    };
    Report { at, signals, ..Report::default() }
}

fn queue() -> Value {
    json!({"kind": "EndpointPickerConfig", "plugins": [{"type": "queue-scorer"}],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}]})
}

/// How many leases each endpoint gets of so many at once.
fn burst(pool: &mut Pool, from: u64, count: u64, now: Instant) -> Vec<u32> {
    for id in from..from + count {
        pool.reserve(id, &ask(&blocks(id, 4)), now).unwrap();
    }
    pool.loads().iter().map(|load| load.in_flight).collect()
}

#[test]
fn a_burst_on_frozen_metrics_spreads_and_the_one_that_looked_idle_gets_little_more() {
    let mut pool = with(queue(), 8);
    for (place, address) in addresses(8).iter().enumerate() {
        pool.hear(address, &report(NOW, u32::from(place != 3), 0.0));
    }
    let counts = burst(&mut pool, 0, 80, NOW + Duration::from_millis(1));
    assert!(counts.iter().all(|count| (3..=20).contains(count)), "{counts:?}");
    assert!(counts[3] > 10, "it was less busy: {counts:?}");
}

#[test]
fn what_was_sent_since_counts_until_it_ends_or_the_engine_has_seen_it() {
    let mut pool = with(queue(), 2);
    let all = addresses(2);
    let unseen =
        |pool: &Pool| pool.endpoints.iter().map(|endpoint| endpoint.heard.unseen).collect::<Vec<_>>();
    let later = |ms| NOW + Duration::from_millis(ms);
    pool.book(1, &all[0], &ask(&[]), NOW);
    pool.hear(&all[0], &report(later(10), 1, 0.0));
    for (id, ms) in [(2, 20), (3, 30), (4, 40)] {
        pool.book(id, &all[0], &ask(&[]), later(ms));
    }
    assert_eq!(unseen(&pool), [3, 0], "but not what came before");
    pool.end(3);
    assert_eq!(unseen(&pool), [2, 0]);
    pool.hear(&all[0], &report(later(25), 2, 0.0));
    assert_eq!(unseen(&pool), [1, 0], "asked between the second and the fourth");
    pool.hear(&all[0], &report(later(15), 9, 0.0));
    assert_eq!(unseen(&pool), [1, 0], "an older answer that comes late is let go");
    [1, 2, 4].iter().for_each(|id| assert!(pool.end(*id)));
    assert_eq!(unseen(&pool), [0, 0]);
    let tokens: u64 =
        pool.endpoints.iter().map(|endpoint| endpoint.heard.unseen_tokens + endpoint.held_tokens).sum();
    assert_eq!(tokens, 0);
}

#[test]
fn old_metrics_are_forgotten_and_no_metrics_are_no_idleness() {
    let mut pool = with(queue(), 3);
    let all = addresses(3);
    pool.hear(&all[0], &report(NOW, 0, 0.0));
    pool.hear(&all[1], &report(NOW, 10, 0.0));
    let choose = |pool: &mut Pool, id, now| {
        let chosen = pool.reserve(id, &ask(&[]), now).unwrap();
        pool.end(id);
        chosen.order[0].clone()
    };
    let fresh: Vec<String> = (0..20).map(|id| choose(&mut pool, id, NOW)).collect();
    assert!(fresh.iter().all(|address| *address == all[0]), "the silent one is taken for the mean");
    let stale = NOW + Duration::from_millis(10_001);
    let then: std::collections::HashSet<String> = (0..40).map(|id| choose(&mut pool, id, stale)).collect();
    assert_eq!(then.len(), 3, "what was sent there decides");
}

#[test]
fn an_engine_that_started_anew_holds_nothing() {
    let mut pool = pool(1);
    let (address, prompt) = (addresses(1)[0].clone(), blocks(1, 4));
    let totals = |at: u64, total: Option<f64>, started| Report {
        totals: total.map(|total| (1, total)).into_iter().collect(),
        started,
        ..report(NOW + Duration::from_secs(at), 0, 0.0)
    };
    let held = |pool: &Pool| pool.loads()[0].index_tokens > 0;
    pool.hear(&address, &totals(1, Some(500.0), Some(100.0)));
    pool.hold(&address, &prompt);
    pool.hear(&address, &totals(2, Some(900.0), Some(100.0)));
    assert!(held(&pool));
    pool.hear(&address, &totals(3, None, None));
    assert!(held(&pool), "that it does not say is no word of a restart");
    pool.hear(&address, &totals(4, Some(20.0), None));
    assert!(!held(&pool), "its counters began anew, and were not there at first");
    pool.hold(&address, &prompt);
    pool.hear(&address, &totals(5, Some(30.0), Some(170.0)));
    assert!(!held(&pool), "its process did");
}

#[test]
fn no_more_is_believed_to_be_cached_than_the_engine_has_memory_for() {
    let mut pool = pool(1);
    let (address, prompts) = (addresses(1)[0].clone(), [1, 2, 3].map(|of| blocks(of, 40)));
    let says = |at: u64, kv_tokens| {
        let report = report(NOW + Duration::from_secs(at), 0, 0.0);
        Report { signals: Signals { kv_tokens, ..report.signals }, ..report }
    };
    let hold = |pool: &mut Pool| prompts.iter().for_each(|prompt| pool.hold(&address, prompt));
    let held = |pool: &Pool| pool.loads()[0].index_tokens;
    hold(&mut pool);
    assert_eq!(held(&pool), 3 * 640);
    pool.hear(&address, &says(1, Some(1_000)));
    hold(&mut pool);
    assert!((600..=1_000).contains(&held(&pool)), "{}", held(&pool));
    pool.hear(&address, &says(2, None));
    hold(&mut pool);
    assert!(held(&pool) <= 1_000, "what it does not say again stays true: {}", held(&pool));
    pool.hear(&address, &says(3, Some(u64::MAX)));
    hold(&mut pool);
    assert_eq!(held(&pool), 3 * 640, "the configured bound holds all the same");
}

#[test]
fn an_adapter_goes_where_the_engine_has_it_or_has_room() {
    let mut pool = with(json!("lora_affinity"), 3);
    let all = addresses(3);
    let adapters = |resident: &[&str], most| Report {
        adapters: Some(Adapters {
            running: Some(resident.iter().map(|name| wire::name_hash(name)).collect()),
            waiting: vec![],
            most: Some(most),
            listed: None,
        }),
        ..report(NOW, 0, 0.0)
    };
    pool.hear(&all[0], &adapters(&["x"], 1));
    pool.hear(&all[1], &adapters(&["y"], 1));
    pool.hear(&all[2], &adapters(&["x"], 2));
    let mut choose = |id, name: &str| {
        let mut asked = ask(&[]);
        asked.demand.adapter = Some(wire::name_hash(name));
        let order = pool.reserve(id, &asked, NOW).unwrap().order;
        pool.end(id);
        all.iter().position(|address| *address == order[0]).unwrap()
    };
    assert_eq!(choose(1, "y"), 1);
    assert_eq!(choose(2, "z"), 2, "a slot is free there");
    assert_eq!(choose(3, "z"), 2, "and it was sent there");
}

#[test]
fn what_an_engine_does_not_list_it_does_not_serve_and_what_runs_is_loaded_whatever_it_lists() {
    use super::Heard;
    use crate::policy::Adapter::{Absent, Resident, Room, Unknown};
    let hash = wire::name_hash;
    let stands = |running: Option<&str>, listed: Option<&[&str]>, wanted: &str| {
        let adapters = Adapters {
            running: running.map(|name| vec![hash(name)]),
            most: Some(2),
            listed: listed.map(|names| names.iter().map(|name| hash(name)).collect()),
            ..Adapters::default()
        };
        let mut heard = Heard::default();
        heard.hear(&Report { adapters: Some(adapters), ..report(NOW, 0, 0.0) }, |_| true);
        heard.adapter(Some(hash(wanted)))
    };
    assert_eq!(stands(None, None, "a"), Room, "nothing runs, as far as is known");
    assert_eq!(stands(None, Some(&["a", "b"]), "a"), Resident, "without metrics the list is all there is");
    assert_eq!(stands(None, Some(&["b"]), "a"), Absent);
    assert_eq!(stands(Some("a"), Some(&[]), "a"), Resident, "the list is the older word");
    assert_eq!(stands(Some("b"), Some(&["a", "b"]), "a"), Room);
    assert_eq!(stands(Some("b"), Some(&["b"]), "a"), Absent, "a free slot is of no use to it");
    assert_eq!(Heard::default().adapter(Some(1)), Unknown);
}

#[test]
fn a_new_endpoint_gets_its_part_slowly_and_then_whole() {
    let epp = json!({"kind": "EndpointPickerConfig", "plugins": []});
    let names = [
        "least_prefill",
        "least_requests",
        "p2c",
        "weighted_least_requests",
        "random",
        "round_robin",
        "weighted_round_robin",
        "peak_ewma",
        "least_kv",
        "least_load",
        "cache_aware",
        "dynamo",
        "lmetric",
        "simple_shuffle",
        "usage_based",
        "latency_based",
    ];
    for policy in names.into_iter().map(|name| json!(name)).chain([epp]) {
        let mut pool = with(policy.clone(), 4);
        // Four that are warm and busy, then a fifth.
        let mut id = 0;
        let mut open = VecDeque::new();
        let mut life = |pool: &mut Pool, now: Instant, count: usize| {
            let mut to_new = 0;
            for _ in 0..count {
                id += 1;
                // Half of the prompts are known to the four, half are new to all.
                let prompt = if id % 2 == 0 { id % 50 } else { 1_000 + id };
                let chosen = pool.reserve(id, &ask(&blocks(prompt, 30)), now).unwrap();
                pool.first_token(id, None, now);
                to_new += usize::from(chosen.order[0] == addresses(5)[4]);
                open.push_back(id);
                if open.len() > 40 {
                    open.pop_front().map(|id| pool.end(id));
                }
            }
            to_new
        };
        life(&mut pool, NOW, 500);
        pool.set_endpoints(&addresses(5)).unwrap();
        let second = |n| NOW + Duration::from_secs(n);
        let early: usize = (0..10).map(|n| life(&mut pool, second(n), 50)).sum();
        assert!((25..=200).contains(&early), "{policy}: {early} of 500 in ten seconds");
        let late: usize = (60..70).map(|n| life(&mut pool, second(n), 50)).sum();
        assert!((50..=200).contains(&late), "{policy}: {late} of 500 after a minute");
    }
}

#[test]
fn a_pool_of_new_endpoints_alone_is_not_held_back() {
    let mut pool = pool(1);
    pool.set_endpoints(&[]).unwrap();
    pool.set_endpoints(&addresses(3)).unwrap();
    let counts = burst(&mut pool, 0, 30, NOW);
    assert!(counts.iter().all(|count| *count == 10), "{counts:?}");
}

fn disagg(no_prefill: &str) -> Pool {
    let policy = json!({
        "kind": "EndpointPickerConfig",
        "plugins": [
            {"type": "prefill-filter"}, {"type": "decode-filter"}, {"type": "token-load-scorer"}, {"type": "active-request-scorer"}, {"type": "prefix-cache-scorer"},
            {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 100}},
            {"type": "disagg-profile-handler", "parameters": {
                "deciders": {"prefill": "prefix-based-pd-decider"}, "onNoPrefill": no_prefill}},
        ],
        "schedulingProfiles": [
            {"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}, {"pluginRef": "token-load-scorer"}]},
            {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, {"pluginRef": "active-request-scorer"}, {"pluginRef": "prefix-cache-scorer"}]},
        ],
    });
    let mut pool = with(policy, 4);
    let role = |role: &str| Attributes {
        labels: BTreeMap::from_iter([("llm-d.ai/role".to_owned(), role.to_owned())]),
        ..Attributes::default()
    };
    let roles = ["prefill", "prefill", "decode", "decode"].map(role);
    pool.describe(addresses(4).into_iter().zip(roles).collect());
    pool
}

#[test]
fn a_prompt_computed_elsewhere_waits_there_and_nowhere_else() {
    let mut pool = disagg("decode-only");
    let queued = |pool: &Pool| pool.loads().iter().map(|load| load.queued_tokens > 0).collect::<Vec<_>>();
    let prompts: Vec<_> = (0..4).map(|id| blocks(id, 30)).collect();
    for (id, prompt) in (0..).zip(&prompts) {
        let choice = pool.reserve(id, &ask(prompt), NOW).unwrap();
        assert!(addresses(4)[2..].contains(&choice.order[0]));
        assert_eq!(choice.order.len(), 2, "who only computes prompts is no fallback");
        assert!(addresses(4)[..2].contains(&choice.prefill.unwrap()));
    }
    assert_eq!(queued(&pool), [true, true, false, false]);
    assert!(pool.loads().iter().all(|load| load.in_flight == 2), "each has two: {:?}", pool.loads());
    (0..4).for_each(|id| pool.first_token(id, None, NOW));
    assert_eq!(queued(&pool), [false; 4]);
    assert_eq!(pool.loads().iter().map(|load| load.in_flight).sum::<u32>(), 4, "the prompts are computed");
    let again = pool.reserve(9, &ask(&prompts[0]), NOW).unwrap();
    assert_eq!(again.prefill, None, "it holds the prompt now");
    pool.end(9);
    (0..4).for_each(|id| assert!(pool.end(id)));
    assert!(idle(&pool));
    pool.reserve(10, &ask(&blocks(10, 30)), NOW);
    assert!(pool.end(10), "before its first token");
    assert!(idle(&pool));
}

#[test]
fn with_nobody_to_compute_a_prompt_the_configuration_decides() {
    let decode: Vec<String> = addresses(4)[2..].to_vec();
    let prompt = blocks(1, 30);
    let mut pool = disagg("decode-only");
    pool.set_endpoints(&decode).unwrap();
    assert_eq!(pool.reserve(1, &ask(&prompt), NOW).unwrap().prefill, None);
    let mut pool = disagg("refuse");
    pool.set_endpoints(&decode).unwrap();
    assert_eq!(pool.reserve(1, &ask(&prompt), NOW), None);
    assert_eq!(pool.shut(&ask(&[]).demand, NOW).map(|shut| shut.status), Some(503));
    assert!(pool.reserve(2, &ask(&blocks(2, 2)), NOW).is_some(), "a short one needs nobody");
    assert_eq!(pool.shut(&ask(&[]).demand, NOW), None);
    let mut pool = disagg("decode-only");
    pool.set_endpoints(&addresses(2)).unwrap();
    assert_eq!(pool.reserve(1, &ask(&prompt), NOW), None);
    assert_eq!(pool.shut(&ask(&[]).demand, NOW).map(|shut| shut.status), Some(503), "nobody to answer");
}

#[test]
fn an_endpoint_that_cannot_hold_the_prompt_is_no_candidate_and_none_is_a_fallback() {
    let mut pool = pool(3);
    let limits =
        json!({"10.0.0.0:8000": {"max_input_tokens": 50}, "10.0.0.1:8000": {"max_input_tokens": 200}});
    let describe = |pool: &mut Pool, limits: Value| pool.describe(serde_json::from_value(limits).unwrap());
    describe(&mut pool, limits.clone());
    let all = addresses(3);
    let order = |pool: &mut Pool, id, prompt_tokens| {
        let demand = Demand { prompt_tokens, ..ask(&[]).demand };
        assert_eq!(pool.too_long(&demand), None);
        let order = pool.reserve(id, &Ask { blocks: &[], demand, prompt: None }, NOW).unwrap().order;
        pool.end(id);
        order
    };
    for id in 0..20 {
        assert_eq!(order(&mut pool, id, 50).len(), 3, "as many as fit");
        assert!(!order(&mut pool, id, 51).contains(&all[0]));
        assert_eq!(order(&mut pool, id, 201), [all[2].as_str()], "whose length is unknown takes any");
    }
    // The one that could hold it is out: the others do not become the least bad.
    let gone = crate::breaker::Outcome::failed(Reason::Connect);
    for id in 0..2 {
        pool.reserve(id, &ask(&[]), NOW);
        pool.attempted(id, &all[2], &gone, NOW);
        pool.end(id);
    }
    assert_eq!(order(&mut pool, 9, 201), [all[2].as_str()]);
    pool.set_endpoints(&all[..2]).unwrap();
    let demand = Demand { prompt_tokens: 201, ..ask(&[]).demand };
    assert_eq!(pool.too_long(&demand), Some(200));
    assert_eq!(pool.reserve(1, &Ask { blocks: &[], demand, prompt: None }, NOW), None);
    describe(&mut pool, json!({}));
    assert_eq!(pool.too_long(&demand), None);
}

#[test]
fn a_new_endpoint_whose_metrics_never_come_is_neither_flooded_nor_starved() {
    let mut pool = with(json!({"kind": "EndpointPickerConfig", "plugins": []}), 4);
    let (mut id, mut open) = (0, VecDeque::new());
    let mut to_new = Vec::new();
    for second in 0..70 {
        let now = NOW + Duration::from_secs(second);
        if second == 5 {
            pool.set_endpoints(&addresses(5)).unwrap();
        }
        for (address, load) in addresses(4).iter().zip(pool.loads()) {
            let waiting = load.in_flight.saturating_sub(4);
            pool.hear(address, &report(now, waiting, f64::from(load.in_flight) / 20.0));
        }
        let mut count = 0;
        for _ in 0..50 {
            id += 1;
            let chosen = pool.reserve(id, &ask(&blocks(id, 30)), now).unwrap();
            pool.first_token(id, None, now);
            count += usize::from(chosen.order[0] == addresses(5)[4]);
            open.push_back(id);
            if open.len() > 40 {
                open.pop_front().map(|id| pool.end(id));
            }
        }
        to_new.push(count);
    }
    let share =
        |seconds: std::ops::Range<usize>| to_new[seconds.clone()].iter().sum::<usize>() * 2 / seconds.len();
    assert!((2..=40).contains(&share(5..15)), "percent at first: {}", share(5..15));
    assert!((5..=40).contains(&share(60..70)), "percent after a minute: {}", share(60..70));
}

#[test]
fn what_decided_a_choice_is_said_in_a_few_words() {
    let mut pool = with(json!({"kind": "EndpointPickerConfig", "plugins": []}), 3);
    let all = addresses(3);
    let said = |pool: &mut Pool, id, prompt: &[u64]| {
        let choice = pool.reserve(id, &ask(prompt), NOW).unwrap();
        let why = pool.why(&choice, NOW + Duration::from_millis(5));
        pool.end(id);
        assert_eq!(why.candidates[0].endpoint, choice.order[0]);
        assert!(why.candidates[1..].windows(2).all(|two| two[0].explained.total >= two[1].explained.total));
        why
    };
    assert_eq!(said(&mut pool, 1, &[]).because, "it is one of 3 with 3.000, in turn or at random");
    let prompt = blocks(7, 6);
    pool.hold(&all[1], &prompt);
    pool.hear(&all[1], &report(NOW, 0, 0.5));
    let why = said(&mut pool, 2, &prompt);
    assert_eq!((why.endpoint.as_str(), why.candidates[0].age_ms), (all[1].as_str(), Some(5)));
    assert!(why.because.contains("prefix-cache-scorer makes +"), "{}", why.because);
    pool.set_endpoints(&all[..1]).unwrap();
    assert_eq!(said(&mut pool, 3, &[]).because, "it is the only one that was left");
    let mut drawn = with(json!("random"), 2);
    assert_eq!(said(&mut drawn, 1, &[]).because, "it is one of 2 with 1.000, in turn or at random");
}
