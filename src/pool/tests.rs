use super::*;
use serde_json::json;
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
    Ask { blocks, demand }
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
    assert!(!(100..1_000).any(|id| pool.end(id)));
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
    assert!(message(json!({"policy": "fastest"}), &[]).starts_with("policy: unknown policy \"fastest\""));
    assert!(
        message(json!({}), &["10.0.0.1:80", "engine:80"])
            .starts_with("endpoints[1]: \"engine:80\" is not an IP")
    );
    assert!(
        message(json!({}), &["10.0.0.1:80", "10.0.0.1:80"])
            .starts_with("endpoints[1]: 10.0.0.1:80 is listed twice")
    );
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
