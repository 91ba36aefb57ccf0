//! Endpoints that are out are tried without a client's request.

use super::*;
use weir_host::fake::Sent;

fn workers(probe: serde_json::Value) -> (Rc<World>, [Worker<Pick>; 2]) {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["choose"] = json!({"breaker": {"active_probe": probe, "ramp_ms": 0}});
    let world = World::new();
    let workers = [0, 1].map(|_| Worker::of(&world, &config.to_string()).unwrap());
    (world, workers)
}

/// A second passes at all workers; the calls of that time.
fn second(world: &World, workers: &mut [Worker<Pick>]) -> Vec<(usize, Sent)> {
    world.pass(Duration::from_secs(1));
    hear_all(workers);
    let mut calls = Vec::new();
    for (at, worker) in workers.iter_mut().enumerate() {
        worker.tick();
        calls.extend(worker.calls().into_iter().map(|call| (at, call)));
    }
    hear_all(workers);
    calls
}

fn hear_all(workers: &mut [Worker<Pick>]) {
    for (queue, worker) in workers.iter_mut().enumerate() {
        worker.hear(queue as u32);
    }
}

/// One endpoint trips, and its cooldown passes; gives it and the probes of that time.
fn tripped(world: &World, workers: &mut [Worker<Pick>]) -> (String, Vec<(usize, Sent)>) {
    for worker in workers.iter_mut() {
        comes_to(worker, 9, "200", 0);
    }
    hear_all(workers);
    let dead = trip(&mut workers[0]);
    hear_all(workers);
    assert!((0..4).all(|_| second(world, workers).is_empty()), "it cools down");
    let calls = (0..2).flat_map(|_| second(world, workers)).collect();
    (dead, calls)
}

fn is_used(workers: &mut [Worker<Pick>], endpoint: &str) -> bool {
    (0..60).any(|prompt| {
        let exchange = ask(&mut workers[prompt % 2], 1_000 + prompt as u64);
        let order = destination(&exchange);
        workers[prompt % 2].finish(exchange);
        order.iter().any(|own| own == endpoint)
    })
}

#[test]
fn one_worker_asks_after_the_cooldown_and_no_client_is_sent_before_it_answers() {
    let (world, mut workers) = workers(json!({}));
    let (dead, calls) = tripped(&world, &mut workers);
    assert_eq!(calls.len(), 1, "{calls:?}");
    let (at, call) = &calls[0];
    assert_eq!((&*call.path, call.endpoint.as_deref(), call.body.len()), ("/health", Some(&*dead), 0));
    assert!(!is_used(&mut workers, &dead), "not yet");
    workers[*at].tell(call, &[(":status", "200")], b"");
    hear_all(&mut workers);
    assert!(is_used(&mut workers, &dead), "in again, at both workers");
    assert_eq!(leases(&mut workers[0]), 0);
    assert_eq!(world.metric("weir_breaker_out;pool=p"), 0);
}

#[test]
fn a_probe_that_fails_doubles_the_cooldown_and_the_next_one_comes_after_it() {
    let (world, mut workers) = workers(json!({}));
    let (dead, mut calls) = tripped(&world, &mut workers);
    for cooldown in [10, 20] {
        let (at, call) = calls.pop().unwrap();
        workers[at].tell(&call, &[(":status", "503")], b"");
        hear_all(&mut workers);
        assert!((1..cooldown).all(|_| second(&world, &mut workers).is_empty()), "{cooldown} s");
        calls = (0..2).flat_map(|_| second(&world, &mut workers)).collect();
        assert_eq!(calls.len(), 1);
    }
    assert!(!is_used(&mut workers, &dead));
}

#[test]
fn a_small_request_must_succeed_as_well() {
    let request = json!({"path": "/v1/completions", "body": {"model": "m", "prompt": "x", "max_tokens": 1}});
    for (status, back) in [("500", false), ("200", true), ("404", true)] {
        let (world, mut workers) = workers(json!({"request": request}));
        let (dead, calls) = tripped(&world, &mut workers);
        let (at, health) = &calls[0];
        workers[*at].tell(health, &[(":status", "200")], b"");
        assert!(!is_used(&mut workers, &dead), "half of it");
        let small = workers[*at].calls().remove(0);
        assert_eq!(small.path, "/v1/completions");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&small.body).unwrap()["max_tokens"], 1);
        workers[*at].tell(&small, &[(":status", status)], b"{}");
        hear_all(&mut workers);
        assert_eq!(is_used(&mut workers, &dead), back, "{status}");
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (probe, place) in [
        (json!({"path": "health"}), "active_probe.path: \"health\" is no path"),
        (json!({"path": null}), "active_probe: nothing is asked"),
        (json!({"request": {"path": "x y", "body": {}}}), "active_probe.request.path"),
        (json!({"timeout_ms": 0}), "active_probe.timeout_ms"),
        (json!({"interval_ms": 5}), "active_probe.interval_ms: unknown field"),
    ] {
        let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
        config["choose"] = json!({"breaker": {"active_probe": probe}});
        let wrong = Worker::<Pick>::of(&World::new(), &config.to_string()).unwrap_err();
        assert!(wrong.to_string().contains(place), "{wrong}");
    }
}
