use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

pub(super) const DEMAND: Demand = Demand {
    prompt_tokens: 1000,
    prompt_units: 63,
    output_tokens: 100,
    stream: true,
    session: None,
    tenant: None,
    adapter: None,
    slo_ttft_ms: None,
    slo_tpot_ms: None,
    retried: false,
};

/// Has somebody meet these endpoints.
pub(super) fn meet(addresses: &[String], mut with: impl FnMut(&[Known<'_>])) {
    let attributes = Attributes::default();
    let known = |(id, address): (usize, &String)| (id as u64, address.clone());
    let all: Vec<(u64, String)> = addresses.iter().enumerate().map(known).collect();
    let known: Vec<Known<'_>> =
        all.iter().map(|(id, address)| Known { id: *id, address, attributes: &attributes }).collect();
    with(&known);
}

/// A policy that has met so many endpoints, `10.0.0.N:1`.
pub(super) fn read(policy: Value, count: usize) -> Policy {
    described(policy, json!({}), count)
}

/// The same, with attributes by address.
pub(super) fn described(policy: Value, attributes: Value, count: usize) -> Policy {
    let attributes: BTreeMap<String, Attributes> = serde_json::from_value(attributes).unwrap();
    let addresses: Vec<String> = (0..count).map(|n| format!("10.0.0.{n}:1")).collect();
    let none = Attributes::default();
    let known: Vec<Known<'_>> = addresses
        .iter()
        .enumerate()
        .map(|(id, address)| {
            let attributes = attributes.get(address).unwrap_or(&none);
            Known { id: id as u64, address, attributes }
        })
        .collect();
    let mut policy = Policy::read(&policy).unwrap();
    policy.meet(&known);
    policy
}

/// A candidate of which nothing is known.
pub(super) fn at(place: usize) -> Candidate {
    Candidate { place, seed: Random::new(place as u64 + 1).next(), ..Candidate::default() }
}

pub(super) fn busy(place: usize, in_flight: u32, queued_tokens: u64, cached_tokens: u32) -> Candidate {
    Candidate { in_flight, queued_tokens, cached_tokens, ..at(place) }
}

pub(super) fn said(place: usize, engine: Signals) -> Candidate {
    Candidate { engine, ..at(place) }
}

/// The place in `candidates` that is chosen.
pub(super) fn chosen_for(
    policy: &mut Policy,
    demand: &Demand,
    blocks: &[u64],
    candidates: &[Candidate],
) -> usize {
    let round = Round { demand, blocks, candidates, now: Instant::default() };
    policy.choose(&round, 1, &mut Random::new(5))[0]
}

pub(super) fn chosen(policy: &mut Policy, candidates: &[Candidate]) -> usize {
    chosen_for(policy, &DEMAND, &[], candidates)
}

fn counts(
    policy: &mut Policy,
    demand: &Demand,
    candidates: &[Candidate],
    times: usize,
    now: Instant,
) -> Vec<usize> {
    let mut random = Random::new(5);
    let mut counts = vec![0; candidates.len()];
    for _ in 0..times {
        let round = Round { demand, blocks: &[], candidates, now };
        counts[policy.choose(&round, 1, &mut random)[0]] += 1;
    }
    counts
}

/// How often each is chosen, of so many times.
pub(super) fn shares_of(policy: &mut Policy, candidates: &[Candidate], times: usize) -> Vec<usize> {
    counts(policy, &DEMAND, candidates, times, Instant::default())
}

pub(super) fn shares_at(
    policy: &mut Policy,
    candidates: &[Candidate],
    times: usize,
    now: Instant,
) -> Vec<usize> {
    counts(policy, &DEMAND, candidates, times, now)
}

pub(super) fn shares_for(
    policy: &mut Policy,
    demand: &Demand,
    candidates: &[Candidate],
    times: usize,
) -> Vec<usize> {
    counts(policy, demand, candidates, times, Instant::default())
}

pub(super) fn shares(policy: Value, candidates: &[Candidate], times: usize) -> Vec<usize> {
    shares_of(&mut read(policy, candidates.len()), candidates, times)
}

#[test]
fn equals_share_alike_under_every_policy() {
    for name in Policy::names() {
        let counts = shares(json!(name), &[0, 1, 2, 3].map(at), 4_000);
        assert!(counts.iter().all(|count| (800..=1200).contains(count)), "{name}: {counts:?}");
    }
}

#[test]
fn every_policy_chooses_once_and_falls_back_on_each_other_candidate_once() {
    let candidates: Vec<Candidate> = (0..5).map(|n| busy(n, n as u32, 10 * n as u64, 7 * n as u32)).collect();
    for name in Policy::names() {
        let mut policy = read(json!(name), 5);
        let round =
            Round { demand: &DEMAND, blocks: &[1, 2], candidates: &candidates, now: Instant::default() };
        let mut order = policy.choose(&round, 9, &mut Random::new(3)).to_vec();
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3, 4], "{name}");
        assert!(policy.choose(&Round { candidates: &[], ..round }, 3, &mut Random::new(3)).is_empty());
        assert!(policy.explain().is_empty(), "{name}");
    }
}

#[test]
fn a_policy_reads_its_own_effective_configuration() {
    for name in Policy::names() {
        let policy = Policy::read(&json!(name)).unwrap();
        let again = Policy::read(policy.effective()).unwrap();
        assert_eq!((again.effective(), again.name()), (policy.effective(), name));
    }
    let policy = Policy::read(&json!("least_prefill")).unwrap();
    assert_eq!(
        policy.effective(),
        &json!({"least_prefill": {
            "uncached_weight": 2.25, "copy_weight": 5.0, "batch_weight": 0.2, "full_batch": 80, "held_weight": 0.1,
            "request_tokens": 60.0, "adapter_tokens": 1500.0, "alike": 0.05
        }})
    );
}

#[test]
fn two_choices_never_take_the_busiest_and_use_the_others() {
    let counts = shares(json!("p2c"), &[busy(0, 9, 0, 0), busy(1, 1, 0, 0), busy(2, 0, 0, 0)], 3_000);
    assert_eq!(counts[0], 0);
    assert!(counts[2] > counts[1] && counts[1] > 0, "{counts:?}");
    assert_eq!(shares(json!("p2c"), &[busy(0, 9, 0, 0)], 5), [5]);
}

#[test]
fn round_robin_takes_who_has_waited_longest_while_candidates_come_and_go() {
    let mut policy = read(json!("round_robin"), 3);
    let all = [0, 1, 2].map(at);
    let mut counts = [0; 3];
    for turn in 0..300 {
        let candidates = if turn % 2 == 0 { &all[..] } else { &all[..2] };
        counts[chosen(&mut policy, candidates)] += 1;
    }
    assert!(counts.iter().all(|count| (70..=115).contains(count)), "{counts:?}");
}

#[test]
fn fallbacks_are_the_next_best_and_never_repeat() {
    let mut policy = read(Value::Null, 4);
    let candidates = [busy(0, 3, 0, 0), busy(1, 0, 0, 0), busy(2, 1, 0, 0), busy(3, 2, 0, 0)];
    let round = Round { demand: &DEMAND, blocks: &[], candidates: &candidates, now: Instant::default() };
    assert_eq!(policy.choose(&round, 3, &mut Random::new(1)), [1, 2, 3]);
    assert_eq!(policy.choose(&Round { candidates: &candidates[..1], ..round }, 3, &mut Random::new(1)), [0]);
}

#[test]
fn a_choice_explains_itself() {
    let mut policy = read(json!("least_requests"), 2);
    chosen(&mut policy, &[busy(0, 4, 0, 0), busy(1, 1, 0, 0)]);
    let step = |value| Step { score: "least_requests".into(), weight: 1.0, value };
    let one = |value| Explained { left_out_by: None, scores: vec![step(value)], total: value };
    assert_eq!(policy.explain(), [one(0.0), one(1.0)]);
}

#[test]
fn what_an_endpoint_says_counts_with_what_was_sent_since() {
    let engine = Signals { waiting: Some(3), running: Some(5), ..Signals::default() };
    let candidate = Candidate { unseen: 2, in_flight: 4, ..said(0, engine) };
    assert_eq!((candidate.waiting(), candidate.running()), (Some(5.0), Some(7.0)));
    assert_eq!(candidate.requests(), 10.0, "others send there too");
    assert_eq!((at(0).waiting(), busy(0, 4, 0, 0).requests()), (None, 4.0), "unknown is not zero");
}

#[test]
fn a_wrong_policy_is_refused_with_what_would_be_right() {
    let message = |value: Value| Policy::read(&value).unwrap_err().to_string();
    let unknown = message(json!("least_prefil"));
    assert!(unknown.contains("expected one of `least_prefill`, `least_requests`, `p2c`, "), "{unknown}");
    assert!(
        message(json!({"least_prefill": {"batch": 1}})).starts_with("least_prefill.batch: unknown field")
    );
    let negative = message(json!({"least_prefill": {"batch_weight": -1}}));
    assert_eq!(negative, "least_prefill.batch_weight: -1 is not a number from 0 up");
    assert!(message(json!({"round_robin": {"x": 1}})).starts_with("round_robin.x: unknown field"));
    assert!(message(json!({"cache_aware": {"cache_threshold": 2}})).contains("2 is not from 0 to 1"));
    assert!(message(json!(["p2c"])).contains("expected the name of a policy"));
    for (wrong, why) in [
        (
            json!({"consistent_hash": {"balance": 125}}),
            "consistent_hash.balance: 125 is not a factor from 1 to 20",
        ),
        (json!({"prefix_hash": {"balance": 0.25}}), "prefix_hash.balance: 0.25 is not a factor from 1 to 20"),
        (
            json!({"cache_aware": {"balance_rel_threshold": 0.5}}),
            "cache_aware.balance_rel_threshold: 0.5 is not a factor from 1 to 20",
        ),
        (
            json!({"cache_aware": {"cache_threshold": 30}}),
            "cache_aware.cache_threshold: 30 is not from 0 to 1",
        ),
        (
            json!({"latency_based": {"lowest_latency_buffer": 10}}),
            "latency_based.lowest_latency_buffer: 10 is not from 0 to 5: 0.1 is a tenth more",
        ),
        (
            json!({"latency_based": {"ttl_ms": 60}}),
            "latency_based.ttl_ms: 60 is not from 100 milliseconds up",
        ),
        (json!({"peak_ewma": {"tau_ms": 10}}), "peak_ewma.tau_ms: 10 is not from 100 milliseconds up"),
        (
            json!({"lora_affinity": {"memory_ms": 30}}),
            "lora_affinity.memory_ms: 30 is not 0 (off) or from 100",
        ),
        (
            json!({"weighted_round_robin": {"slow_start": {"min_weight_percent": 500}}}),
            "weighted_round_robin.slow_start.min_weight_percent: 500 is not from 1 to 100 percent",
        ),
        (
            json!({"cswrr": {"weight_update_period_ms": 1}}),
            "cswrr.weight_update_period_ms: 1 is not from 100",
        ),
    ] {
        let said = message(wrong);
        assert!(said.starts_with(why), "{said}");
    }
    assert_eq!(Policy::read(&json!({"least_prefill": {"batch_weight": 0}})).unwrap().name(), "least_prefill");
}

#[test]
fn every_policy_has_its_section_in_the_documentation() {
    let page = include_str!("../../docs/policies.md");
    for name in Policy::names() {
        assert!(page.contains(&format!("\n## {name}\n")), "{name}");
    }
    for section in page.lines().filter_map(|line| line.strip_prefix("## ")).filter(|line| !line.contains(' '))
    {
        assert!(Policy::names().any(|name| name == section), "{section} is no policy");
    }
}
