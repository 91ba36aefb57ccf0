//! What is known of routing, in kind: that old pictures make herds and what helps against it, and which rule has the better
//! tail. The figures are others'; here it is the order that must come out. `-- --nocapture` prints what came out.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use serde_json::{Value, json};
use std::sync::Arc;
use weir_lab::engine::{Spec, specs};
use weir_lab::report::{Slo, Summary};
use weir_lab::routing::{Routing, Share};
use weir_lab::run::{Outcome, Setup, run};
use weir_lab::workload::{Draw, Piece, Request, Workload};

const SECOND: f64 = 1e9;

fn engine(name: &str) -> Spec {
    specs().unwrap().remove(name).unwrap()
}

fn outcome(spec: &Arc<Spec>, endpoints: usize, routing: Routing, workload: &Workload) -> Outcome {
    run(&Setup::new(spec, endpoints, routing), workload, &mut |_| {}).unwrap()
}

/// Two requests a second, each of which takes 12 seconds wherever it is sent.
fn alike() -> Workload {
    let (mut draw, mut at) = (Draw::new(3, 0), 0.0);
    let mut request = |id| {
        at += draw.exponential(0.5);
        let prompt = vec![Piece { id, tokens: 1 }];
        Request { at: (at * SECOND) as u64, prompt, output: 480, answer: id, ..Request::default() }
    };
    Workload::new("alike", (1..1_200).map(&mut request).collect(), 512)
}

/// Requests in the fullest of five endpoints less those in the emptiest: the mean over time.
fn gap(policy: &str, workload: &Workload, routing: Routing) -> f64 {
    let mut routing = Routing { share: Share::Pictures, metrics_ms: 10_000.0, ..routing };
    routing.choose.policy = json!(policy);
    let outcome = outcome(&Arc::new(engine("lane")), 5, routing, workload);
    Summary::new(policy, workload, 1.0, &Slo::default(), &outcome).load_gap
}

#[test]
fn routers_that_believe_an_old_picture_make_herds_and_two_choices_and_own_work_help() {
    let workload = alike();
    let four = |corrected, apart| Routing { proxies: 4, corrected, apart, ..Routing::default() };
    let believing = gap("least_requests", &workload, four(false, false));
    let own = gap("least_requests", &workload, four(true, false));
    let two = gap("p2c", &workload, four(false, false));
    let both = gap("p2c", &workload, four(true, false));
    assert!(believing > 1.3 * own, "own work helps, also when there are four: {believing} {own}");
    assert!(own > 1.05 * two, "two choices help more: {own} {two}");
    assert!(both < two, "both are best: {both} {two}");

    let alone = |corrected| Routing { proxies: 1, ..four(corrected, false) };
    let exact = gap("least_requests", &workload, alone(true));
    assert!(exact < 0.3 * own, "one router's correction is exact: {exact}");
    let herd = gap("least_requests", &workload, alone(false));
    assert!(
        (herd / believing - 1.0).abs() < 0.15,
        "how many believe it makes no difference: {herd} {believing}"
    );

    let apart = gap("least_requests", &workload, four(false, true));
    println!(
        "gap of four: {believing:.1} believing, {own:.1} with own work, {two:.1} of two, {both:.1} both;"
    );
    println!("believing, pictures apart: {apart:.1}; alone: {herd:.1} believing, {exact:.1} with own work");
    assert!(apart < 0.8 * believing, "pictures taken apart spread the herd: {apart}");
}

/// One of five prompts is long, half of them begin with one of eight shared texts; batches are small, so there is a queue.
fn mixed() -> (Arc<Spec>, Workload) {
    let spec = Spec { batch: 8, step_tokens: 2_048, kv_tokens: 120_000, ..engine("a100-llama3-8b") };
    let (mut draw, mut at) = (Draw::new(11, 0), 0.0);
    let mut request = |id: u64| {
        at += draw.exponential(1.0 / 7.0);
        let long = draw.unit() < 0.2;
        let own = draw.lognormal(if long { 6_000.0 } else { 600.0 }, 0.4) as u32;
        let mut prompt = vec![Piece { id: id << 8, tokens: own.max(1) }];
        if draw.unit() < 0.5 {
            prompt.insert(0, Piece { id: draw.0.below(48) as u64, tokens: 1_500 });
        }
        let output = draw.lognormal(200.0, 0.8) as u32 + 1;
        Request { at: (at * SECOND) as u64, prompt, output, answer: id << 8 | 1, ..Request::default() }
    };
    let workload = Workload::new("mixed", (1..2_500).map(&mut request).collect(), spec.block_tokens);
    (Arc::new(spec), workload)
}

#[test]
fn equal_numbers_are_not_equal_work_and_free_memory_is_not_a_short_queue() {
    let (spec, workload) = mixed();
    let of = |policy: Value| {
        // The memory as it is, and nothing added: who waits holds none yet.
        let mut routing = Routing { metrics_ms: 100.0, corrected: false, ..Routing::default() };
        routing.choose.policy = policy;
        Summary::new("", &workload, 1.0, &Slo::default(), &outcome(&spec, 4, routing, &workload))
    };
    let names =
        ["random", "round_robin", "p2c", "least_requests", "least_kv", "cache_aware", "least_prefill"];
    let summaries = names.map(|policy| of(json!(policy)));
    let tail = |summary: &Summary| summary.ttft_ms.p90.unwrap();
    for (name, of) in names.iter().zip(&summaries) {
        let (spread, p90) = (of.most - of.least, tail(of) / 1_000.0);
        println!(
            "{name}: p90 {p90:.2} s, good {:.1} %, hit {:.1} %, spread {spread}",
            of.good * 100.0,
            of.hit * 100.0
        );
    }
    let [random, round_robin, two, least, memory, prefix, ours] = summaries;
    assert!(round_robin.most - round_robin.least <= 1, "round robin's numbers are equal");
    assert!(
        tail(&round_robin) > 1.2 * tail(&least),
        "and its tail is worse: {} {}",
        tail(&round_robin),
        tail(&least)
    );
    assert!(tail(&random) > tail(&round_robin), "chance is worse still");
    assert!(tail(&two) > tail(&least) && tail(&two) < tail(&random), "two choices are between");
    for (name, other) in
        [("round_robin", &round_robin), ("p2c", &two), ("least_requests", &least), ("random", &random)]
    {
        assert!(
            tail(&memory) > tail(other),
            "free memory is the worst signal: {} {name} {}",
            tail(&memory),
            tail(other)
        );
    }
    let blind = [&random, &round_robin, &two, &least, &memory];
    assert!(blind.iter().all(|other| prefix.hit > other.hit + 0.02), "who looks at prefixes hits most");
    assert!(
        tail(&ours) < 0.9 * tail(&least),
        "load and prefixes together beat either: {} {}",
        tail(&ours),
        tail(&least)
    );
}
