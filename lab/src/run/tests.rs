use super::*;
use crate::engine::specs;
use crate::report::{Slo, Summary};
use crate::routing::Share;
use crate::suite::splitters;
use crate::workload::generate;
use serde_json::json;

fn spec() -> Arc<Spec> {
    Arc::new(specs().unwrap().remove("a100-llama3-8b").unwrap())
}

fn workload(name: &str, count: usize) -> Workload {
    Workload::new(name, generate(name, count, 5).unwrap(), 16)
}

fn setup(policy: &str) -> Setup {
    let mut setup = Setup::new(&spec(), 4, Routing::default());
    setup.routing.choose.policy = json!(policy);
    setup.rate = 0.5;
    setup
}

fn outcome(setup: &Setup, workload: &Workload) -> Outcome {
    run(setup, workload, &mut |_| {}).unwrap()
}

#[test]
fn the_same_seed_is_the_same_run() {
    let workload = workload("chat", 500);
    for share in [Share::Nothing, Share::Bookings, Share::Book] {
        let mut setup = setup("p2c");
        setup.routing = Routing { proxies: 3, share, lost: 0.05, ..setup.routing };
        let one = outcome(&setup, &workload).records;
        assert_eq!(one, outcome(&setup, &workload).records);
        setup.seed = 2;
        assert_ne!(one, outcome(&setup, &workload).records);
    }
}

#[test]
fn every_request_is_answered_and_no_lease_is_left() {
    for (name, policy) in [("chat", "least_prefill"), ("agents", "round_robin"), ("lora", "least_requests")] {
        let workload = workload(name, 600);
        let outcome = outcome(&setup(policy), &workload);
        assert_eq!(outcome.leaked, 0);
        for (record, request) in outcome.records.iter().zip(&workload.requests) {
            assert_eq!(record.how, End::Answered);
            let first = record.first.unwrap();
            assert!(record.arrived < first && first <= record.end);
            for of in &request.after {
                assert!(record.arrived >= outcome.records[*of as usize].end + request.at);
            }
        }
    }
}

#[test]
fn hits_stay_below_the_ceiling_and_a_prefix_aware_policy_comes_near() {
    let workload = workload("chat", 2_000);
    let hit = |policy| {
        Summary::new(policy, &workload, 1.0, &Slo::default(), &outcome(&setup(policy), &workload)).hit
    };
    let (aware, blind) = (hit("least_prefill"), hit("round_robin"));
    assert!(aware <= workload.ceiling);
    assert!(aware > 0.9 * workload.ceiling, "{aware} of {}", workload.ceiling);
    assert!(blind < 0.8 * aware, "{blind}");
}

#[test]
fn a_dead_endpoint_costs_what_it_was_writing_and_no_more() {
    let workload = workload("chat", 1_000);
    let mut setup = setup("least_prefill");
    let second = |s: u64| s * 1_000_000_000;
    setup.changes = vec![
        Change { at: second(20), endpoint: 1, alive: false },
        Change { at: second(60), endpoint: 1, alive: true },
    ];
    let outcome = outcome(&setup, &workload);
    let broken: Vec<&Record> = outcome.records.iter().filter(|record| record.how != End::Answered).collect();
    assert!(!broken.is_empty() && broken.len() < 40, "{}", broken.len());
    assert!(broken.iter().all(|record| record.first.is_some() && record.endpoint == 1));
    let dead = outcome.records.iter().filter(|record| {
        record.endpoint == 1
            && record.how == End::Answered
            && record.end > second(20)
            && record.end < second(60)
    });
    assert_eq!(dead.count(), 0);
    let back = outcome.records.iter().filter(|record| record.endpoint == 1 && record.arrived > second(61));
    assert!(back.count() > 20, "it is used again");
    assert_eq!(outcome.leaked, 0);
}

#[test]
fn lost_reports_leak_until_their_lease_ends() {
    let workload = workload("chat", 800);
    let mut setup = setup("least_prefill");
    setup.routing.lost = 0.2;
    let lossy = outcome(&setup, &workload);
    assert!(lossy.leaked > 0);
    setup.routing.choose.lease_ms = std::num::NonZeroU64::new(5_000).unwrap();
    let short = outcome(&setup, &workload);
    assert!(short.leaked < lossy.leaked, "{} {}", short.leaked, lossy.leaked);
}

#[test]
fn a_slow_endpoint_gets_less() {
    let workload = workload("bursts", 1_500);
    let mut setup = setup("least_requests");
    setup.rate = 0.3;
    setup.endpoints[2].speed = 0.25;
    let outcome = outcome(&setup, &workload);
    let at = |endpoint| outcome.records.iter().filter(|record| record.endpoint == endpoint).count();
    assert!(2 * at(2) < at(0), "{} {}", at(2), at(0));
}

#[test]
fn wrong_routers_are_refused_with_their_place() {
    let workload = workload("chat", 10);
    let said = |change: fn(&mut Routing)| {
        let mut setup = setup("p2c");
        change(&mut setup.routing);
        run(&setup, &workload, &mut |_| {}).unwrap_err().to_string()
    };
    assert!(said(|routing| routing.proxies = 0).starts_with("proxies: 0"));
    assert!(said(|routing| routing.lost = 2.0).starts_with("lost: 2"));
    assert!(said(|routing| routing.choose.policy = json!("fastest")).starts_with("choose.policy: unknown"));
}

/// Six endpoints of which the first two compute prompts, or may: the contender says.
fn split(name: &str, share: Share) -> Setup {
    let contender =
        splitters(&Routing { share, ..Routing::default() }).into_iter().find(|one| one.name == name);
    let mut setup = Setup::new(&spec(), 6, contender.unwrap().routing);
    for (at, endpoint) in setup.endpoints.iter_mut().enumerate() {
        endpoint.role = if at < 2 { Role::Prefill } else { Role::Decode };
    }
    setup.rate = 0.5;
    setup
}

#[test]
fn prompts_are_computed_by_some_and_answered_by_others() {
    for (name, policy, share) in [
        ("chat", "split-always", Share::Book),
        ("lora", "split-uncached-512", Share::Bookings),
        ("agents", "split-always", Share::Nothing),
    ] {
        let workload = workload(name, 600);
        let mut setup = split(policy, share);
        setup.routing.proxies = 2;
        let outcome = outcome(&setup, &workload);
        assert_eq!(outcome.leaked, 0);
        let split = outcome.records.iter().filter(|record| record.prefill.is_some()).count();
        let all = workload.requests.len();
        assert!(split > 100 && (split == all) == (policy == "split-always"), "{split}");
        for record in &outcome.records {
            assert_eq!(record.how, End::Answered);
            assert!(record.prefill.is_none_or(|at| at < 2) && record.endpoint >= 2, "{record:?}");
            assert!(record.cached < record.prompt);
        }
        let done = |of: std::ops::Range<usize>| {
            outcome.engines[of].iter().map(|done| done.prefill_tokens).sum::<u64>()
        };
        if policy == "split-always" {
            let computed: u64 =
                outcome.records.iter().map(|record| u64::from(record.prompt - record.cached)).sum();
            assert_eq!(
                (done(0..2), done(2..6)),
                (computed, all as u64),
                "of each prompt the last token is computed again"
            );
        }
    }
}

#[test]
fn answers_are_left_alone_by_prompts_that_others_compute() {
    let workload = workload("bursts", 1_000);
    let of = |name| {
        Summary::new(name, &workload, 1.0, &Slo::default(), &outcome(&split(name, Share::Book), &workload))
    };
    let (apart, together) = (of("split-always"), of("least_prefill"));
    assert_eq!((apart.split, together.split), (1_000, 0));
    let slowest = |summary: &Summary| summary.tpot_ms.p99.unwrap();
    assert!(slowest(&apart) < 0.7 * slowest(&together), "{} {}", slowest(&apart), slowest(&together));
}

#[test]
fn kv_that_comes_late_makes_first_tokens_late() {
    let workload = workload("chat", 400);
    let first = |ms| {
        let mut setup = split("split-always", Share::Book);
        setup.transfer = Transfer { ms, us_per_token: 0.0 };
        Summary::new("", &workload, 1.0, &Slo::default(), &outcome(&setup, &workload)).ttft_ms.p50.unwrap()
    };
    let late = first(300.0) - first(0.0);
    assert!((295.0..400.0).contains(&late), "{late}");
}

#[test]
fn either_side_may_die_and_what_has_no_token_yet_is_answered_elsewhere() {
    let workload = workload("chat", 1_000);
    let second = |s: u64| s * 1_000_000_000;
    for endpoint in [0, 3] {
        let mut setup = split("split-always", Share::Book);
        setup.rate = 2.0;
        // Slow, so that much is on its way at any time.
        setup.transfer = Transfer { ms: 500.0, us_per_token: 0.0 };
        setup.changes = vec![
            Change { at: second(20), endpoint, alive: false },
            Change { at: second(60), endpoint, alive: true },
        ];
        let outcome = outcome(&setup, &workload);
        assert_eq!(outcome.leaked, 0);
        let broken = outcome.records.iter().filter(|record| record.how != End::Answered);
        let broken: Vec<&Record> = broken.collect();
        assert!(broken.iter().all(|record| record.first.is_some() && record.endpoint == endpoint));
        assert_eq!(broken.is_empty(), endpoint == 0, "who computes prompts has no answers to lose");
        let alone = outcome.records.iter().filter(|record| record.prefill.is_none()).count();
        assert!(if endpoint == 0 { (1..60).contains(&alone) } else { alone == 0 }, "{alone}");
        let again = outcome.records.iter().filter(|record| record.attempts > 1).count();
        assert_eq!(again > 0, endpoint == 3, "the router hears of the endpoint that answers");
        let back = outcome.records.iter().filter(|record| record.arrived > second(61));
        let uses = |record: &Record| record.endpoint == endpoint || record.prefill == Some(endpoint);
        let back = back.filter(|record| uses(record)).count();
        assert!(back > 0, "it is used again");
    }
}

#[test]
fn without_anybody_to_compute_prompts_those_who_answer_do() {
    let workload = workload("chat", 300);
    let mut setup = split("split-always", Share::Book);
    setup.endpoints.iter_mut().take(2).for_each(|endpoint| endpoint.alive = false);
    let outcome = outcome(&setup, &workload);
    assert!(outcome.records.iter().all(|record| record.how == End::Answered && record.prefill.is_none()));
}
