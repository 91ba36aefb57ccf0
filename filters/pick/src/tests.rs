mod active;
mod deadline;
mod hedge;
mod spill;

use super::*;
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;
use weir::breaker::Reason;
use weir::wire::Reserve;
use weir_host::fake::{Exchange, Worker, World};

const CONFIG: &str =
    r#"{"pools":[{"name":"p","models":["m"],"endpoints":["10.0.0.1:1","10.0.0.2:1","10.0.0.3:1"]}]}"#;

fn with_scorer(cluster: &str) -> String {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["scorer"] = json!({"cluster": cluster, "timeout_ms": 50, "retry_ms": 1000});
    config.to_string()
}

fn ask(worker: &mut Worker<Pick>, prompt: u64) -> Exchange<Pick> {
    let blocks: Vec<u64> = (0..20).map(|n| prompt * 1000 + n).collect();
    let facts = "dialect=chat stream=0 prompt_tokens=336 prompt_units=21 model=m";
    let state = [(wire::BLOCKS, &*wire::write_blocks(facts, &blocks))];
    worker.request(&[(wire::DESTINATION, "6.6.6.6:6")], &state, false)
}

fn destination(exchange: &Exchange<Pick>) -> Vec<String> {
    let values = exchange.see().header(wire::DESTINATION);
    assert_eq!(values.len(), 1, "one value");
    values[0].split(',').map(str::to_owned).collect()
}

fn serve(worker: &mut Worker<Pick>, mut exchange: Exchange<Pick>, from: &str) {
    worker.response(&mut exchange, from, &[(":status", "200")]);
    worker.piece(&mut exchange, b"x", true);
    worker.finish(exchange);
}

fn leases(worker: &mut Worker<Pick>) -> u64 {
    worker.world().pass(Duration::from_secs(1));
    worker.tick();
    worker.world().metric("weir_pick_leases;pool=p")
}

#[test]
fn alone_it_chooses_keeps_to_the_prefix_and_leaves_no_lease() {
    let mut worker = Worker::new(CONFIG);
    let first = ask(&mut worker, 1);
    let order = destination(&first);
    assert_eq!(order.len(), 3, "the chosen one and fallbacks");
    assert!(
        first
            .see()
            .state(wire::PICK)
            .unwrap()
            .contains("by=local policy=least_prefill prompt_tokens=336 cached_tokens=0")
    );
    assert_eq!(leases(&mut worker), 1);
    serve(&mut worker, first, &order[0]);
    assert_eq!(leases(&mut worker), 0);
    for _ in 0..20 {
        let again = ask(&mut worker, 1);
        assert_eq!(destination(&again)[0], order[0]);
        assert!(again.see().state(wire::PICK).unwrap().contains("cached_tokens=320"));
        serve(&mut worker, again, &order[0]);
    }
}

#[test]
fn without_facts_or_pool_the_clients_destination_is_removed() {
    let mut worker = Worker::<Pick>::new(CONFIG);
    let unknown = wire::write_blocks("dialect=chat stream=0 prompt_tokens=1 model=unknown", &[]);
    for state in [&[][..], &[(wire::BLOCKS, &unknown[..])][..]] {
        let exchange = worker.request(&[(wire::DESTINATION, "6.6.6.6:6")], state, true);
        assert!(!exchange.held());
        assert!(worker.finish(exchange).header(wire::DESTINATION).is_empty());
    }
    assert_eq!(worker.world().metric("weir_pick_unrouted_total"), 2);
}

#[test]
fn a_client_that_leaves_at_any_point_leaves_no_lease() {
    let mut worker = Worker::new(CONFIG);
    let waiting = ask(&mut worker, 1);
    let mut streaming = ask(&mut worker, 2);
    let from = destination(&streaming)[0].clone();
    worker.response(&mut streaming, &from, &[(":status", "200")]);
    worker.piece(&mut streaming, b"x", false);
    assert_eq!(leases(&mut worker), 2);
    worker.finish(waiting);
    worker.finish(streaming);
    assert_eq!(leases(&mut worker), 0);
}

fn reserved(endpoints: &[&str]) -> Vec<u8> {
    let reserved = wire::Reserved {
        endpoints: endpoints.iter().map(ToString::to_string).collect(),
        policy: "least_prefill".into(),
        ..Default::default()
    };
    serde_json::to_vec(&reserved).unwrap()
}

const SCORER_200: [(&str, &str); 2] = [(":status", "200"), (wire::SCORER, "1")];

#[test]
fn the_scorers_choice_is_followed_and_its_lease_ended() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut exchange = ask(&mut worker, 1);
    assert!(exchange.held());
    let call = exchange.see().calls().remove(0);
    assert_eq!((call.cluster.as_str(), call.path.as_str()), ("scorer", wire::RESERVE_PATH));
    let request: Reserve = serde_json::from_slice(&call.body).unwrap();
    assert_eq!((request.pool.as_str(), request.demand.prompt_tokens, request.blocks.0.len()), ("p", 336, 20));
    worker.reply(&mut exchange, &SCORER_200, &reserved(&["10.0.0.2:1", "10.0.0.3:1"]));
    assert!(!exchange.held());
    assert_eq!(destination(&exchange), ["10.0.0.2:1", "10.0.0.3:1"]);
    serve(&mut worker, exchange, "10.0.0.3:1");
    assert!(worker.tick());
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    let (pool, lease) = ("p".to_owned(), request.lease);
    let served = "10.0.0.3:1".to_owned();
    let (endpoint, outcome) = ("10.0.0.2:1".to_owned(), Outcome::failed(Reason::Reset));
    let failed = Event::Attempted { pool: pool.clone(), lease, endpoint, outcome };
    assert_eq!(
        report,
        [
            failed,
            Event::FirstToken { pool: pool.clone(), lease, served },
            Event::End { pool, lease, answered: None }
        ]
    );
}

#[test]
fn a_scorer_that_is_late_gone_or_lies_costs_no_request_and_sets_no_foreign_endpoint() {
    type Reply<'a> = (&'a [(&'a str, &'a str)], Vec<u8>);
    let replies: [Reply<'_>; 6] = [
        (&[(":status", "504")], b"upstream request timeout".to_vec()),
        (&[(":status", "503")], Vec::new()),
        (&[], Vec::new()),
        (&SCORER_200, b"garbage".to_vec()),
        (&SCORER_200, reserved(&[])),
        (&SCORER_200, reserved(&["6.6.6.6:6"])),
    ];
    for (headers, body) in replies {
        let mut worker = Worker::new(&with_scorer("scorer"));
        let mut exchange = ask(&mut worker, 1);
        worker.reply(&mut exchange, headers, &body);
        assert!(!exchange.held());
        assert!(destination(&exchange).iter().all(|endpoint| endpoint.starts_with("10.0.0.")));
        assert!(exchange.see().state(wire::PICK).unwrap().contains("by=fallback"));
    }
    let mut worker = Worker::new(&with_scorer("missing"));
    let exchange = ask(&mut worker, 1);
    assert!(!exchange.held(), "a cluster that does not exist");
}

#[test]
fn after_a_failure_the_scorer_is_asked_by_one_request_a_second() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut exchange = ask(&mut worker, 1);
    worker.reply(&mut exchange, &[(":status", "504")], b"");
    worker.finish(exchange);
    assert!(!ask(&mut worker, 2).held(), "left alone");
    worker.world().pass(Duration::from_millis(1_001));
    let mut trying = ask(&mut worker, 3);
    assert!(trying.held());
    assert!(!ask(&mut worker, 4).held(), "the others do not wait for it");
    worker.reply(&mut trying, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    assert!(ask(&mut worker, 5).held(), "back");
}

#[test]
fn a_client_that_leaves_while_the_scorer_is_asked_ends_the_lease_there() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let exchange = ask(&mut worker, 1);
    let request: Reserve = serde_json::from_slice(&exchange.see().calls().remove(0).body).unwrap();
    worker.finish(exchange);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    assert_eq!(report, [Event::End { pool: "p".into(), lease: request.lease, answered: None }]);
}

#[test]
fn what_travelled_with_the_call_of_a_client_that_left_is_told_again() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut first = ask(&mut worker, 1);
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    let leaving = ask(&mut worker, 2);
    let told: Reserve = serde_json::from_slice(&leaving.see().calls().remove(0).body).unwrap();
    worker.finish(leaving);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    assert_eq!((report.len(), &report[..1]), (2, &told.events[..]));
}

#[test]
fn what_was_not_told_to_a_scorer_that_failed_is_told_later() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut first = ask(&mut worker, 1);
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    let mut failing = ask(&mut worker, 2);
    let told: Reserve = serde_json::from_slice(&failing.see().calls().remove(0).body).unwrap();
    assert_eq!(told.events.len(), 1);
    worker.reply(&mut failing, &[(":status", "504")], b"");
    worker.tick();
    assert!(worker.calls().is_empty(), "nobody to tell");
    worker.world().pass(Duration::from_secs(2));
    let trying = ask(&mut worker, 3);
    let again: Reserve = serde_json::from_slice(&trying.see().calls().remove(0).body).unwrap();
    assert_eq!(again.events[..1], told.events);
    assert!(matches!(&again.events[1..], [Event::Booked { lease, .. }] if *lease == told.lease), "{again:?}");
}

#[test]
fn a_report_that_was_not_heard_is_told_again_even_when_no_request_comes() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut first = ask(&mut worker, 1);
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    worker.tick();
    let report = worker.calls().remove(0).body;
    worker.tick();
    assert!(worker.calls().is_empty(), "one report at a time");
    worker.told(&[(":status", "504")], b"");
    worker.tick();
    assert!(worker.calls().is_empty(), "left alone");
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    assert_eq!(worker.calls().remove(0).body, report);
    worker.told(&[(":status", "204"), (wire::SCORER, "1")], b"");
    worker.tick();
    assert!(worker.calls().is_empty(), "told");
}

#[test]
fn a_scorer_that_comes_back_is_told_what_was_chosen_without_it() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut failing = ask(&mut worker, 1);
    worker.reply(&mut failing, &[(":status", "504")], b"");
    let alone = ask(&mut worker, 2);
    assert!(!alone.held());
    let places = [&failing, &alone].map(|exchange| destination(exchange)[0].clone());
    worker.finish(alone);
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    let [
        Event::Booked { endpoint: first, demand, lease: open, .. },
        Event::Booked { endpoint: second, lease, .. },
        end,
    ] = &report[..]
    else {
        panic!("{report:?}")
    };
    assert_eq!((first, second, demand.prompt_tokens), (&places[0], &places[1], 336));
    assert_eq!(*end, Event::End { pool: "p".into(), lease: *lease, answered: None });
    worker.told(&[(":status", "204"), (wire::SCORER, "1")], b"");
    worker.finish(failing);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    assert_eq!(report, [Event::End { pool: "p".into(), lease: *open, answered: None }]);
}

#[test]
fn while_a_scorer_is_away_for_long_only_so_much_waits_for_it_and_no_end_is_missing() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut failing = ask(&mut worker, 1);
    worker.reply(&mut failing, &[(":status", "504")], b"");
    worker.finish(failing);
    for prompt in 0..6_000 {
        let exchange = ask(&mut worker, prompt);
        worker.finish(exchange);
    }
    let (mut booked, mut ended) = (Vec::new(), Vec::new());
    worker.world().pass(Duration::from_secs(2));
    while worker.tick() {
        let Some(call) = worker.calls().pop() else { break };
        for event in serde_json::from_slice::<Vec<Event>>(&call.body).unwrap() {
            match event {
                Event::Booked { lease, .. } => booked.push(lease),
                Event::End { lease, .. } => ended.push(lease),
                other => panic!("{other:?}"),
            }
        }
        worker.told(&[(":status", "204"), (wire::SCORER, "1")], b"");
    }
    assert_eq!(booked, ended);
    assert!((1_000..=5_000).contains(&booked.len()), "{}", booked.len());
}

/// Two workers of one Envoy, the second of which joins later.
fn two_workers(world: &Rc<World>) -> (Worker<Pick>, Worker<Pick>) {
    (Worker::of(world, CONFIG).unwrap(), Worker::of(world, CONFIG).unwrap())
}

#[test]
fn workers_know_each_others_prefixes_and_load() {
    let world = World::new();
    let (mut one, mut two) = two_workers(&world);
    let before = ask(&mut one, 1);
    let holder = destination(&before)[0].clone();
    serve(&mut one, before, &holder);
    let open = ask(&mut one, 9);
    let hear = |one: &mut Worker<Pick>, two: &mut Worker<Pick>| {
        for _ in 0..2 {
            one.hear(0);
            two.hear(1);
        }
    };
    // Its first request joins it; then it is told what happened before.
    let joining = ask(&mut two, 50);
    hear(&mut one, &mut two);
    assert_eq!((leases(&mut one), leases(&mut two)), (2, 2));
    two.finish(joining);
    one.finish(open);
    hear(&mut one, &mut two);
    assert_eq!((leases(&mut one), leases(&mut two)), (0, 0));
    let there = ask(&mut two, 1);
    assert_eq!(destination(&there)[0], holder, "a prefix from before it joined");
    serve(&mut two, there, &holder);
    let fresh = ask(&mut two, 2);
    let holder = destination(&fresh)[0].clone();
    serve(&mut two, fresh, &holder);
    hear(&mut one, &mut two);
    let here = ask(&mut one, 2);
    assert_eq!(destination(&here)[0], holder, "a prefix from another worker");
}

#[test]
fn a_worker_that_falls_silent_is_forgotten() {
    let world = World::new();
    let (mut one, mut two) = two_workers(&world);
    ask(&mut one, 1);
    ask(&mut two, 2);
    one.hear(0);
    for _ in 0..7 {
        world.pass(Duration::from_secs(1));
        one.tick();
    }
    ask(&mut one, 3);
    two.hear(1);
    assert_eq!(leases(&mut two), 1, "only its own: nothing was sent to it any more");
}

#[test]
fn a_wrong_configuration_names_the_place() {
    let message =
        |config: serde_json::Value| Config::read(config.to_string().as_bytes()).unwrap_err().to_string();
    let pool = json!({"name": "p", "models": ["m"], "endpoints": ["10.0.0.1:1"]});
    assert!(message(json!({})).contains("missing field `pools`"));
    assert!(
        message(json!({"pools": [pool], "scorer": {"clustr": "x"}}))
            .starts_with("scorer.clustr: unknown field")
    );
    assert!(
        message(json!({"pools": [pool], "scorer": {"cluster": ""}})).starts_with("scorer.cluster: empty")
    );
    assert!(
        message(json!({"pools": [pool], "choose": {"policy": "x"}}))
            .starts_with("choose.policy: unknown policy")
    );
    assert!(
        message(json!({"pools": [{"name": "p", "models": [], "endpoints": ["x"]}]}))
            .starts_with("pools[0].endpoints[0]: ")
    );
}

/// One request is sent, fails as it is told to, or is answered, and is over; gives where it went.
fn comes_to(worker: &mut Worker<Pick>, prompt: u64, status: &str, flags: i64) -> Vec<String> {
    let exchange = ask(worker, prompt);
    let order = destination(&exchange);
    ends(worker, exchange, &order[0], status, flags);
    order
}

fn ends(worker: &mut Worker<Pick>, mut exchange: Exchange<Pick>, at: &str, status: &str, flags: i64) {
    let code: i64 = status.parse().unwrap();
    exchange.see().set_property("response.code", &code.to_le_bytes());
    exchange.see().set_property("response.flags", &flags.to_le_bytes());
    worker.response(&mut exchange, at, &[(":status", status)]);
    if flags == 0 {
        worker.piece(&mut exchange, b"x", true);
    }
    worker.finish(exchange);
}

const NO_CONNECTION: i64 = 0x20;
const CLIENT_LEFT: i64 = 0x4000;

/// Fails until the endpoint that is chosen first is out, and gives its address.
fn trip(worker: &mut Worker<Pick>) -> String {
    let dead = comes_to(worker, 1, "200", 0)[0].clone();
    for prompt in 100..200 {
        if worker.world().metric("weir_breaker_trips_total;pool=p") > 0 {
            break;
        }
        let exchange = ask(worker, prompt);
        let order = destination(&exchange);
        let (status, flags) = if order[0] == dead { ("503", NO_CONNECTION) } else { ("200", 0) };
        ends(worker, exchange, &order[0], status, flags);
    }
    dead
}

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

#[test]
fn a_scorer_that_has_no_endpoint_left_says_so_and_its_probes_are_told_of() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut exchange = ask(&mut worker, 1);
    let shut = br#"{"endpoints":[],"cached_tokens":0,"queued_tokens":0,"in_flight":0,"policy":"","shut":{"retry_after_ms":1500,"status":503}}"#;
    worker.reply(&mut exchange, &SCORER_200, shut);
    let answer = exchange.see().answer().unwrap();
    assert_eq!(
        (answer.status, answer.header("retry-after"), answer.header("retry-after-ms")),
        (503, Some("2"), Some("1500"))
    );
    worker.finish(exchange);
    let mut exchange = ask(&mut worker, 2);
    let mut probe: wire::Reserved = serde_json::from_slice(&reserved(&["10.0.0.1:1"])).unwrap();
    probe.probe = true;
    worker.reply(&mut exchange, &SCORER_200, &serde_json::to_vec(&probe).unwrap());
    ends(&mut worker, exchange, "10.0.0.1:1", "200", 0);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    let ok = Outcome::of_status(200, None);
    assert!(
        report.iter().any(|event| matches!(event, Event::Attempted { outcome, .. } if *outcome == ok)),
        "{report:?}"
    );
}

/// Another policy, in both a worker and those it tells.
fn policy(policy: serde_json::Value) -> String {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["choose"] = json!({"policy": policy});
    config.to_string()
}

#[test]
fn policies_that_learn_from_answers_learn_from_every_workers() {
    learned_by_every_worker(b"status=complete input=9 cached=0 output=10 reasoning=0");
}

#[test]
fn of_streams_that_do_not_count_their_tokens_policies_learn_by_what_was_delivered() {
    learned_by_every_worker(b"status=missing deltas=10");
}

/// Answers with this usage teach `latency_based`.
fn learned_by_every_worker(usage: &[u8]) {
    let world = World::new();
    let config = policy(json!({"latency_based": {"samples": 1}}));
    let [mut one, mut two] = [(); 2].map(|()| Worker::<Pick>::of(&world, &config).unwrap());
    let hear = |one: &mut Worker<Pick>, two: &mut Worker<Pick>| {
        for _ in 0..2 {
            one.hear(0);
            two.hear(1);
        }
    };
    for exchange in [ask(&mut one, 50), ask(&mut two, 51)] {
        one.finish(exchange);
    }
    hear(&mut one, &mut two);
    // The second endpoint writes ten tokens in a tenth of the time.
    for (from, ms) in [("10.0.0.1:1", 1_000), ("10.0.0.3:1", 1_000), ("10.0.0.2:1", 100)] {
        let mut exchange = loop {
            let exchange = ask(&mut one, 1);
            if destination(&exchange)[0] == from {
                break exchange;
            }
            one.finish(exchange);
        };
        hear(&mut one, &mut two);
        world.pass(Duration::from_millis(ms));
        one.response(&mut exchange, from, &[(":status", "200")]);
        one.piece(&mut exchange, b"x", true);
        exchange.see().set_property(wire::USAGE, usage);
        one.finish(exchange);
        hear(&mut one, &mut two);
    }
    for worker in [&mut one, &mut two] {
        for prompt in 60..70 {
            let exchange = ask(worker, prompt);
            assert_eq!(destination(&exchange)[0], "10.0.0.2:1");
            worker.finish(exchange);
        }
    }
}

#[test]
fn endpoints_are_asked_how_they_are_only_where_the_policy_wants_to_know() {
    let mut worker = Worker::new(&policy(json!("client_side_weighted_round_robin")));
    assert_eq!(ask(&mut worker, 1).see().header(wire::ORCA_FORMAT), ["JSON"]);
    let mut worker = Worker::new(CONFIG);
    assert!(ask(&mut worker, 1).see().header(wire::ORCA_FORMAT).is_empty());
}

#[test]
fn who_computes_the_prompt_is_named_and_a_clients_word_for_it_is_removed() {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["pools"][0]["attributes"] = json!({"10.0.0.1:1": {"labels": {"llm-d.ai/role": "prefill"}}});
    let profile = |name: &str| json!({"name": name, "plugins": [{"pluginRef": format!("{name}-filter")}]});
    config["choose"] = json!({"policy": {
        "plugins": [
            {"type": "prefill-filter"}, {"type": "decode-filter"},
            {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 100}},
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "prefix-based-pd-decider"}}},
        ],
        "schedulingProfiles": [profile("prefill"), profile("decode")],
    }});
    let mut worker = Worker::new(&config.to_string());
    let first = ask(&mut worker, 1);
    let at = destination(&first);
    assert!(!at.contains(&"10.0.0.1:1".to_owned()), "{at:?}");
    assert_eq!(first.see().header(wire::PREFILLER), ["10.0.0.1:1"]);
    assert!(first.see().state(wire::PICK).unwrap().ends_with(" prefill=10.0.0.1:1"));
    serve(&mut worker, first, &at[0]);
    assert_eq!(leases(&mut worker), 0);
    let facts = "dialect=chat stream=0 prompt_tokens=16 prompt_units=1 model=m";
    let state = [(wire::BLOCKS, &*wire::write_blocks(facts, &[7]))];
    let short = worker.request(&[(wire::PREFILLER, "6.6.6.6:6")], &state, false);
    assert!(short.see().header(wire::PREFILLER).is_empty());
}

#[test]
fn a_choice_is_explained_where_that_is_configured() {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    assert_eq!(ask(&mut Worker::new(CONFIG), 1).see().state(wire::WHY), None);
    config["explain"] = true.into();
    let mut worker = Worker::new(&config.to_string());
    let exchange = ask(&mut worker, 1);
    let why: serde_json::Value = serde_json::from_str(&exchange.see().state(wire::WHY).unwrap()).unwrap();
    assert_eq!(why["candidates"].as_array().unwrap().len(), 3);
    let expected = json!({
        "endpoint": destination(&exchange)[0], "in_flight": 0, "queued_tokens": 0, "cached_tokens": 0,
        "waiting": null, "running": null, "kv_usage": null, "age_ms": null, "total": 1.0,
        "scores": [{"score": "least_prefill", "weight": 1.0, "value": 1.0}],
    });
    assert_eq!(why["candidates"][0], expected);
    assert_eq!(why["because"], "it is one of 3 with 1.000, in turn or at random");
    // Without it, of a request of which `extract` says that somebody may know.
    let facts = "dialect=chat stream=0 prompt_tokens=16 prompt_units=1 explain=1 model=m";
    let mut worker = Worker::<Pick>::new(CONFIG);
    let exchange = worker.request(&[], &[(wire::BLOCKS, &wire::write_blocks(facts, &[]))], false);
    assert!(exchange.see().state(wire::WHY).is_some());
    config["scorer"] = json!({"cluster": "scorer"});
    let mut worker = Worker::new(&config.to_string());
    let mut exchange = ask(&mut worker, 1);
    let call: Reserve = serde_json::from_slice(&exchange.see().calls()[0].body).unwrap();
    assert!(call.explain);
    let answer =
        wire::Reserved { why: Some(json!([7])), endpoints: vec!["10.0.0.2:1".into()], ..Default::default() };
    worker.reply(&mut exchange, &SCORER_200, &serde_json::to_vec(&answer).unwrap());
    assert_eq!(exchange.see().state(wire::WHY).unwrap(), "[7]");
}

#[test]
fn a_prompt_that_no_endpoint_can_hold_is_answered_in_the_clients_words() {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    let limits = |most: [u32; 3]| {
        let one =
            |(n, most): (usize, u32)| (format!("10.0.0.{}:1", n + 1), json!({"max_input_tokens": most}));
        most.into_iter().enumerate().map(one).collect::<serde_json::Map<_, _>>()
    };
    config["pools"][0]["attributes"] = limits([100, 336, 100]).into();
    let mut worker = Worker::<Pick>::new(&config.to_string());
    assert_eq!(
        destination(&ask(&mut worker, 1)),
        ["10.0.0.2:1"],
        "nobody else can hold it, also not for a retry"
    );
    config["pools"][0]["attributes"] = limits([100, 335, 100]).into();
    // With a scorer it is not even asked.
    config["scorer"] = json!({"cluster": "scorer"});
    let mut worker = Worker::<Pick>::new(&config.to_string());
    for (dialect, kind) in [("chat", "/error/code"), ("messages", "/error/type")] {
        let facts = format!("dialect={dialect} stream=0 prompt_tokens=336 prompt_units=21 model=m");
        let state = [(wire::BLOCKS, &*wire::write_blocks(&facts, &[]))];
        let exchange = worker.request(&[], &state, false);
        assert!(exchange.see().calls().is_empty());
        let answer = exchange.see().answer().unwrap();
        assert_eq!(answer.status, 400);
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        let expected = if dialect == "chat" { "context_length_exceeded" } else { "invalid_request_error" };
        assert_eq!(body.pointer(kind).unwrap(), expected);
        assert!(answer.body.contains("about 336 tokens") && answer.body.contains("335"), "{}", answer.body);
        assert!(exchange.see().state(wire::PICK).unwrap().contains("max_input_tokens=335"));
        worker.finish(exchange);
    }
    assert_eq!(worker.world().metric("weir_pick_too_long_total"), 2);
    assert_eq!(leases(&mut worker), 0);
}

/// What is asked of two scorers, by this name or that.
fn with_two(mode: &str) -> String {
    let mut config: serde_json::Value = serde_json::from_str(&with_scorer("a")).unwrap();
    config["scorer"]["replicas"] = json!(["b"]);
    config["scorer"]["failure_mode"] = mode.into();
    config["pools"] = (0..16)
        .map(|n| json!({"name": format!("p{n}"), "models": [], "endpoints": ["10.0.0.1:1"]}))
        .collect();
    config["pools"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::from_str::<serde_json::Value>(CONFIG).unwrap()["pools"][0].clone());
    config.to_string()
}

#[test]
fn a_scorer_that_reads_prompts_is_sent_the_body_as_is_every_other_that_is_asked_instead() {
    let mut config: serde_json::Value = serde_json::from_str(&with_two("open")).unwrap();
    config["scorer"]["max_body_bytes"] = 8.into();
    let mut worker = Worker::new(&config.to_string());
    let blocks = wire::write_blocks("dialect=chat stream=0 prompt_tokens=336 prompt_units=21 model=m", &[1]);
    let behind = |exchange: &Exchange<Pick>| {
        let call = exchange.see().calls().remove(0);
        let (request, at) = Reserve::read(&call.body).unwrap();
        assert_eq!(request.blocks.0, [1]);
        String::from_utf8(call.body[at..].to_vec()).unwrap()
    };
    let mut exchange = worker.request(&[], &[(wire::BLOCKS, &*blocks), (wire::BODY, b"{\"a\":1}")], false);
    assert_eq!(behind(&exchange), "{\"a\":1}");
    worker.reply(&mut exchange, &[(":status", "503")], b"");
    assert_eq!(behind(&exchange), "{\"a\":1}");
    worker.reply(&mut exchange, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    assert_eq!(exchange.see().state(wire::BODY).unwrap(), "", "no copy stays while the answer is made");
    worker.finish(exchange);
    let long = worker.request(&[], &[(wire::BLOCKS, &*blocks), (wire::BODY, b"{\"a\":123}")], false);
    assert_eq!((behind(&long).as_str(), long.see().state(wire::BODY).unwrap().as_str()), ("", ""));
    worker.finish(long);
}

#[test]
fn a_pool_is_asked_for_at_one_scorer_and_at_another_while_that_one_is_away() {
    let mut worker = Worker::new(&with_two("closed"));
    let asked = |exchange: &Exchange<Pick>| exchange.see().calls().remove(0).cluster;
    let mut first = ask(&mut worker, 1);
    let home = asked(&first);
    let other = if home == "a" { "b" } else { "a" };
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    for prompt in 2..6 {
        let again = ask(&mut worker, prompt);
        assert_eq!(asked(&again), home, "one book");
        worker.finish(again);
    }
    // It dies: the request that finds out is asked for again, and the next ones are not asked for there.
    let mut finds = ask(&mut worker, 7);
    assert_eq!(asked(&finds), home);
    worker.reply(&mut finds, &[(":status", "503")], b"");
    assert!(finds.held());
    assert_eq!(asked(&finds), other);
    worker.reply(&mut finds, &SCORER_200, &reserved(&["10.0.0.2:1"]));
    assert_eq!(destination(&finds), ["10.0.0.2:1"]);
    serve(&mut worker, finds, "10.0.0.2:1");
    let mut next = ask(&mut worker, 8);
    assert_eq!(asked(&next), other);
    worker.reply(&mut next, &SCORER_200, &reserved(&["10.0.0.3:1"]));
    worker.finish(next);
    // What became of requests is told to who is there.
    worker.tick();
    let report = worker.calls().remove(0);
    assert_eq!(report.cluster, other);
    worker.tell(&report, &[(":status", "204"), (wire::SCORER, "1")], b"");
    // One that has come back and joins is no better than one that is away.
    worker.world().pass(Duration::from_secs(2));
    let mut trying = ask(&mut worker, 9);
    assert_eq!(asked(&trying), home);
    worker.reply(&mut trying, &[(":status", "503"), (wire::SCORER, wire::JOINING)], b"{}");
    assert_eq!(asked(&trying), other);
    worker.finish(trying);
    // That it is ready is found out though nobody needs it.
    worker.tick();
    worker.calls().iter().for_each(|report| assert_eq!(report.cluster, other));
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    let reports = worker.calls();
    let report = reports.iter().find(|report| report.cluster == home).unwrap();
    assert_eq!(report.body, b"[]");
    worker.tell(report, &[(":status", "204"), (wire::SCORER, "1")], b"");
    assert_eq!(asked(&ask(&mut worker, 10)), home);
}

#[test]
fn without_any_scorer_open_chooses_here_and_closed_answers_503_with_the_time_to_wait() {
    for (mode, status) in [("open", None), ("closed", Some(503))] {
        let mut worker = Worker::new(&with_two(mode));
        let mut exchange = ask(&mut worker, 1);
        for _ in 0..2 {
            exchange.see().calls();
            worker.reply(&mut exchange, &[(":status", "504")], b"");
        }
        let mut left_alone = ask(&mut worker, 2);
        for exchange in [&mut exchange, &mut left_alone] {
            let answer = exchange.see().answer();
            assert_eq!(answer.as_ref().map(|answer| answer.status), status, "{mode}");
            if let Some(answer) = answer {
                assert!(answer.headers.iter().any(|(name, value)| name == "retry-after" && value == "1"));
            }
        }
        worker.finish(exchange);
        worker.finish(left_alone);
        assert_eq!(leases(&mut worker), 0);
    }
}

#[test]
fn pools_spread_over_the_scorers_and_keep_their_order() {
    let config = Config::read(with_two("open").as_bytes()).unwrap();
    let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    let scorers = Scorers::new(config.scorer.clone().unwrap(), names.iter().copied());
    let home = |scorers: &Scorers, pool| scorers.order(pool)[0];
    let first = (0..names.len()).filter(|pool| home(&scorers, *pool) == 0).count();
    assert!((3..=names.len() - 3).contains(&first), "{first} of {}", names.len());
    // Named the other way round it is the same.
    let mut other = config.scorer.unwrap();
    (other.cluster, other.replicas) = ("b".into(), vec!["a".into()]);
    let turned = Scorers::new(other, names.iter().copied());
    assert!((0..names.len()).all(|pool| home(&turned, pool) != home(&scorers, pool)));
}

#[test]
fn what_an_autoscaler_reads_is_there_without_a_scorer() {
    let mut worker = Worker::new(CONFIG);
    let exchanges: Vec<_> = (0..3).map(|prompt| ask(&mut worker, prompt)).collect();
    worker.tick();
    let stat =
        |worker: &mut Worker<Pick>, name: &str| worker.world().metric(&format!("weir_pick_{name};pool=p"));
    assert_eq!(stat(&mut worker, "queue_requests"), 3);
    assert_eq!(stat(&mut worker, "queue_tokens"), 3 * 336);
    // 336 tokens are 67 ms at 5,000 a second, and an endpoint is full at 2 s.
    assert_eq!(stat(&mut worker, "saturation_permille"), 34);
    assert_eq!(stat(&mut worker, "predicted_ttft_ms"), 134, "one that waits, and the next");
    exchanges.into_iter().for_each(|exchange| drop(worker.finish(exchange)));
    worker.tick();
    assert_eq!(stat(&mut worker, "queue_requests") + stat(&mut worker, "queue_tokens"), 0);
    assert_eq!(stat(&mut worker, "predicted_ttft_ms"), 67, "a usual prompt");
}

#[test]
fn the_scorer_hears_of_traces_and_answers_only_where_it_is_told_to() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for telemetry in [false, true] {
        let mut config: serde_json::Value = serde_json::from_str(&with_scorer("scorer")).unwrap();
        config["scorer"]["telemetry"] = telemetry.into();
        let mut worker = Worker::new(&config.to_string());
        let facts = wire::write_blocks("dialect=chat stream=1 prompt_tokens=9 model=m", &[]);
        let state = [(wire::BLOCKS, &facts[..]), ("request.headers.traceparent", TRACE.as_bytes())];
        let mut exchange = worker.request(&[], &state, false);
        let asked: Reserve = serde_json::from_slice(&exchange.see().calls().remove(0).body).unwrap();
        assert_eq!(asked.trace.as_deref(), telemetry.then_some(TRACE));
        worker.reply(&mut exchange, &SCORER_200, &reserved(&["10.0.0.1:1"]));
        worker.world().pass(Duration::from_millis(250));
        ends(&mut worker, exchange, "10.0.0.1:1", "200", 0);
        worker.tick();
        let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
        let went = report.iter().find_map(|event| match event {
            Event::Went { went, lease, .. } if *lease == asked.lease => Some(went),
            _ => None,
        });
        assert_eq!(went.is_some(), telemetry, "{report:?}");
        if let Some(went) = went {
            assert_eq!((went.dialect.as_str(), went.model.as_str(), went.status), ("chat", "m", 200));
            assert_eq!((went.served.as_deref(), went.trace.as_deref()), (Some("10.0.0.1:1"), Some(TRACE)));
            assert!(went.ms >= 250.0, "{went:?}");
        }
        assert!(matches!(report.last(), Some(Event::End { .. })), "the end comes last: {report:?}");
    }
}
