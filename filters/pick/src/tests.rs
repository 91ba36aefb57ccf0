use super::*;
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;
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
    assert_eq!((request.pool.as_str(), request.prompt_tokens, request.blocks.0.len()), ("p", 336, 20));
    worker.reply(&mut exchange, &SCORER_200, &reserved(&["10.0.0.2:1", "10.0.0.3:1"]));
    assert!(!exchange.held());
    assert_eq!(destination(&exchange), ["10.0.0.2:1", "10.0.0.3:1"]);
    serve(&mut worker, exchange, "10.0.0.3:1");
    assert!(worker.tick());
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    let (pool, lease) = ("p".to_owned(), request.lease);
    let served = "10.0.0.3:1".to_owned();
    assert_eq!(report, [Event::FirstToken { pool: pool.clone(), lease, served }, Event::End { pool, lease }]);
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
    assert_eq!(report, [Event::End { pool: "p".into(), lease: request.lease }]);
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
    assert_eq!(again.events, told.events);
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
    worker.told(&[(":status", "504")]);
    worker.tick();
    assert!(worker.calls().is_empty(), "left alone");
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    assert_eq!(worker.calls().remove(0).body, report);
    worker.told(&[(":status", "204"), (wire::SCORER, "1")]);
    worker.tick();
    assert!(worker.calls().is_empty(), "told");
}

#[test]
fn a_scorer_that_was_not_asked_is_told_nothing() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut failing = ask(&mut worker, 1);
    worker.reply(&mut failing, &[(":status", "504")], b"");
    let alone = ask(&mut worker, 2);
    assert!(!alone.held());
    worker.finish(alone);
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    assert!(worker.calls().is_empty());
    worker.finish(failing);
    worker.tick();
    assert_eq!(worker.calls().len(), 1, "its reserve may have arrived after all");
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
