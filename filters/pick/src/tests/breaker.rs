//! What attempts come to is noted, by every worker, and followed.

use super::*;

#[test]
fn an_endpoint_that_cannot_be_reached_gets_nothing_until_one_probe_has_succeeded() {
    let mut worker = Worker::new(CONFIG);
    let dead = trip(&mut worker);
    for prompt in 0..50 {
        assert!(!comes_to(&mut worker, prompt, "200", 0).contains(&dead), "neither first nor as a fallback");
    }
    worker.tick();
    assert_eq!(worker.world().metric("weir_breaker_out;pool=p"), 1);
    worker.world().pass(Duration::from_secs(5));
    let probe = ask(&mut worker, 60);
    assert_eq!(destination(&probe)[0], dead);
    assert!(probe.see().state(wire::PICK).unwrap().ends_with(" probe=1"));
    assert_eq!(destination(&probe).len(), 3, "its fallbacks are the others");
    for prompt in 0..50 {
        assert!(!comes_to(&mut worker, prompt, "200", 0).contains(&dead), "one at a time");
    }
    ends(&mut worker, probe, &dead, "200", 0);
    worker.world().pass(Duration::from_secs(11));
    let orders: Vec<_> = (0..50).map(|prompt| comes_to(&mut worker, 500 + prompt, "200", 0)).collect();
    assert!(orders.iter().any(|order| order[0] == dead), "it is back");
    worker.tick();
    assert_eq!(worker.world().metric("weir_breaker_out;pool=p"), 0);
}

#[test]
fn an_abandoned_probe_gives_its_slot_back_and_a_failed_one_starts_a_longer_cooldown() {
    let mut worker = Worker::new(CONFIG);
    let dead = trip(&mut worker);
    for abandoned in 0..3 {
        worker.world().pass(Duration::from_secs(5));
        let probe = ask(&mut worker, 60 + abandoned);
        assert_eq!(destination(&probe)[0], dead);
        ends(&mut worker, probe, &dead, "0", CLIENT_LEFT);
    }
    let probe = ask(&mut worker, 70);
    let order = destination(&probe);
    assert_eq!(order[0], dead);
    // It is retried, and a healthy endpoint serves.
    ends(&mut worker, probe, &order[1], "200", 0);
    worker.world().pass(Duration::from_millis(9_990));
    assert_ne!(destination(&ask(&mut worker, 71))[0], dead);
    worker.world().pass(Duration::from_millis(20));
    assert_eq!(destination(&ask(&mut worker, 72))[0], dead);
    leases(&mut worker);
    assert_eq!(worker.world().metric("weir_breaker_probes;pool=p"), 1);
}

#[test]
fn of_two_workers_one_sends_the_probe_and_both_hear_what_it_came_to() {
    let world = World::new();
    let [mut one, mut two] = [(); 2].map(|()| Worker::<Pick>::of(&world, CONFIG).unwrap());
    let hear = |one: &mut Worker<Pick>, two: &mut Worker<Pick>| {
        one.hear(0);
        two.hear(1);
    };
    // Both join, and the second is on the first one's list.
    comes_to(&mut one, 1, "200", 0);
    comes_to(&mut two, 2, "200", 0);
    hear(&mut one, &mut two);
    let dead = trip(&mut one);
    hear(&mut one, &mut two);
    assert!((0..20).all(|prompt| !comes_to(&mut two, 30 + prompt, "200", 0).contains(&dead)));
    hear(&mut one, &mut two);
    world.pass(Duration::from_secs(5));
    // Neither has heard of the other's probe yet.
    let (first, second) = (ask(&mut one, 60), ask(&mut two, 61));
    assert_eq!(destination(&first)[0], dead);
    assert!(!destination(&second).contains(&dead), "the slot is taken");
    hear(&mut one, &mut two);
    ends(&mut one, first, &dead, "503", NO_CONNECTION);
    hear(&mut one, &mut two);
    world.pass(Duration::from_secs(9));
    assert!(!destination(&ask(&mut two, 62)).contains(&dead), "the longer cooldown is known there too");
    world.pass(Duration::from_secs(1));
    let probe = ask(&mut two, 63);
    assert_eq!(destination(&probe)[0], dead, "and the slot is free");
    ends(&mut two, probe, &dead, "200", 0);
    hear(&mut one, &mut two);
    world.pass(Duration::from_secs(11));
    let orders: Vec<_> = (0..50).map(|prompt| comes_to(&mut one, 500 + prompt, "200", 0)).collect();
    assert!(orders.iter().any(|order| order[0] == dead));
}

#[test]
fn an_endpoint_that_is_out_by_failures_that_passed_each_other_is_known_to_be() {
    let world = World::new();
    let [mut one, mut two] = [(); 2].map(|()| Worker::<Pick>::of(&world, CONFIG).unwrap());
    let hear = |one: &mut Worker<Pick>, two: &mut Worker<Pick>| {
        one.hear(0);
        two.hear(1);
    };
    let dead = comes_to(&mut one, 1, "200", 0)[0].clone();
    comes_to(&mut two, 2, "200", 0);
    (0..2).for_each(|_| hear(&mut one, &mut two));
    // Each sees one failure of the two that it takes, and then hears of the other's.
    for worker in [&mut one, &mut two] {
        let failing = ask(worker, 1);
        assert_eq!(destination(&failing)[0], dead);
        ends(worker, failing, &dead, "503", NO_CONNECTION);
    }
    assert_eq!(world.metric("weir_breaker_trips_total;pool=p"), 0);
    hear(&mut one, &mut two);
    assert_eq!(world.metric("weir_breaker_trips_total;pool=p"), 1);
    let mut three = Worker::<Pick>::of(&world, CONFIG).unwrap();
    for worker in [&mut one, &mut two, &mut three] {
        assert!((0..20).all(|prompt| !comes_to(worker, 30 + prompt, "200", 0).contains(&dead)));
    }
}

#[test]
fn a_worker_that_joins_knows_who_is_out_before_its_first_choice() {
    let world = World::new();
    let mut one = Worker::<Pick>::of(&world, CONFIG).unwrap();
    let dead = trip(&mut one);
    let mut two = Worker::<Pick>::of(&world, CONFIG).unwrap();
    assert!((0..20).all(|prompt| !comes_to(&mut two, 30 + prompt, "200", 0).contains(&dead)));
    drop(one);
    // It is alone, and its VM is loaded anew.
    let mut again = Worker::<Pick>::of(&world, CONFIG).unwrap();
    assert!((0..20).all(|prompt| !comes_to(&mut again, 30 + prompt, "200", 0).contains(&dead)));
}

#[test]
fn when_all_ask_to_be_left_alone_the_client_is_told_for_how_long() {
    let mut worker = Worker::new(CONFIG);
    for retry_after in ["20", "30", "40"] {
        let mut exchange = ask(&mut worker, 1);
        let at = destination(&exchange)[0].clone();
        exchange.see().set_property("response.code", &429_i64.to_le_bytes());
        exchange.see().set_property("response.headers.retry-after", retry_after.as_bytes());
        worker.response(&mut exchange, &at, &[(":status", "429")]);
        worker.piece(&mut exchange, b"x", true);
        worker.finish(exchange);
    }
    for (secs, dialect, word) in [(0, "chat", "rate_limit_exceeded"), (10, "messages", "rate_limit_error")] {
        worker.world().pass(Duration::from_secs(secs));
        let facts = format!("dialect={dialect} stream=0 prompt_tokens=336 prompt_units=21 model=m");
        let exchange = worker.request(&[], &[(wire::BLOCKS, &*wire::write_blocks(&facts, &[]))], false);
        let answer = exchange.see().answer().unwrap();
        let wait = (20 - secs).to_string();
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some(&*wait)));
        assert!(answer.body.contains(word), "{}", answer.body);
        let seen = worker.finish(exchange);
        assert_eq!(seen.state(wire::PICK).unwrap(), format!("refused=429 retry_after_s={wait}"));
    }
    assert_eq!(worker.world().metric("weir_breaker_shut_total;pool=p"), 2);
    assert_eq!(leases(&mut worker), 0);
    worker.world().pass(Duration::from_secs(10));
    assert_eq!(destination(&ask(&mut worker, 9)).len(), 1, "the first of them");
}

#[test]
fn a_retried_429_is_no_failure_and_its_hint_is_kept() {
    let mut worker = Worker::new(CONFIG);
    let mut asked = std::collections::HashSet::new();
    for prompt in 0..3 {
        let exchange = ask(&mut worker, prompt);
        let order = destination(&exchange);
        if order.len() < 2 {
            break;
        }
        let left = format!("filter_state.wasm.{}", wire::attempt(&order[0]));
        exchange.see().set_property(&left, b"status=429 retry_after_ms=30000");
        ends(&mut worker, exchange, &order[1], "200", 0);
        asked.insert(order[0].clone());
    }
    assert_eq!(asked.len(), 2, "the third has no fallback left");
    assert_eq!(worker.world().metric("weir_breaker_trips_total;pool=p"), 0);
    worker.world().pass(Duration::from_secs(29));
    assert_eq!(destination(&ask(&mut worker, 9)).len(), 1);
    worker.world().pass(Duration::from_secs(1));
    assert_eq!(destination(&ask(&mut worker, 9)).len(), 3);
}

#[test]
fn errors_and_garbage_inside_a_200_count_and_a_clients_faults_do_not() {
    let trips = |status: &str, usage: &[u8]| {
        let mut worker = Worker::new(CONFIG);
        for turn in 0..30 {
            let exchange = ask(&mut worker, turn);
            let at = destination(&exchange)[0].clone();
            exchange.see().set_property(wire::USAGE, usage);
            ends(&mut worker, exchange, &at, status, 0);
        }
        worker.world().metric("weir_breaker_trips_total;pool=p")
    };
    assert_eq!(trips("200", b"status=complete input=1 cached=0 output=1 reasoning=0"), 0);
    assert_eq!(trips("200", b"status=missing finish=stop"), 0, "no usage, but an answer");
    assert_eq!(trips("200", b"status=missing error=BadRequestError"), 0);
    assert_eq!(trips("400", b"status=missing error=BadRequestError"), 0);
    assert!(trips("200", b"status=missing error=InternalServerError") > 0);
    assert!(trips("200", b"status=missing ttft_ms=1.000") > 0, "garbage");
    assert!(trips("500", b"status=missing") > 0);
}

#[test]
fn retries_end_with_the_list_and_with_the_budget() {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["choose"] =
        json!({"breaker": {"rules": [], "retry_budget": {"percent": 0, "per_s": 0, "most": 3}}});
    let mut worker = Worker::new(&config.to_string());
    let mut retries = Vec::new();
    for turn in 0..4 {
        let exchange = ask(&mut worker, turn);
        let order = destination(&exchange);
        assert_eq!(exchange.see().header(wire::MAX_RETRIES), [(order.len() - 1).to_string()]);
        retries.push(order.len() - 1);
        let last = order.last().unwrap().clone();
        ends(&mut worker, exchange, &last, "503", NO_CONNECTION);
    }
    assert_eq!(retries, [2, 1, 0, 0], "three in all");
    assert_eq!(worker.world().metric("weir_breaker_retries_total;pool=p"), 3);
}
