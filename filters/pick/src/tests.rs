mod active;
mod breaker;
mod deadline;
mod hedge;
mod scorer;
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

const SCORER_200: [(&str, &str); 2] = [(":status", "200"), (wire::SCORER, "1")];
const NO_CONNECTION: i64 = 0x20;
const CLIENT_LEFT: i64 = 0x4000;

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
