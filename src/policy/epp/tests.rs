use super::*;
use crate::instant::Instant;
use crate::policy::tests::{DEMAND, at, busy, chosen, described, said, shares_of};
use crate::policy::{Candidate, Demand, News, Policy, Prefill, Round, Signals};
use crate::random::Random;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// One profile of these plugins: type, parameters, weight.
fn of(plugins: &[(&str, Value, f64)]) -> Value {
    let declared =
        plugins.iter().map(|(kind, parameters, _)| json!({"type": kind, "parameters": parameters}));
    let listed = plugins.iter().map(|(kind, _, weight)| json!({"pluginRef": kind, "weight": weight}));
    json!({
        "apiVersion": "llm-d.ai/v1alpha1", "kind": KIND,
        "plugins": declared.collect::<Vec<_>>(),
        "schedulingProfiles": [{"name": "default", "plugins": listed.collect::<Vec<_>>()}],
    })
}

/// What one plugin gives each candidate.
fn scores(kind: &str, parameters: Value, candidates: &[Candidate]) -> Vec<f64> {
    let mut policy = described(of(&[(kind, parameters, 1.0)]), json!({}), candidates.len());
    chosen(&mut policy, candidates);
    rounded(&policy)
}

fn rounded(policy: &Policy) -> Vec<f64> {
    policy.explain().iter().map(|one| (one.total * 1000.0).round() / 1000.0).collect()
}

fn engine(place: usize, waiting: u32, running: u32, kv_usage: f64) -> Candidate {
    let (waiting, running, kv_usage) = (Some(waiting), Some(running), Some(kv_usage));
    said(place, Signals { waiting, running, kv_usage, ..Signals::default() })
}

#[test]
fn scorers_give_what_llm_d_gives() {
    let none = || json!({});
    let engines = [engine(0, 0, 8, 0.1), engine(1, 5, 4, 0.75), engine(2, 10, 0, 1.0)];
    assert_eq!(scores("queue-scorer", none(), &engines), [1.0, 0.5, 0.0]);
    assert_eq!(scores("running-requests-size-scorer", none(), &engines), [0.0, 0.5, 1.0]);
    assert_eq!(scores("kv-cache-utilization-scorer", none(), &engines), [0.9, 0.25, 0.0]);
    assert_eq!(scores("load-aware-scorer", json!({"threshold": 10}), &engines), [0.5, 0.25, 0.0]);
    // 40 of 50 blocks.
    let cached = [busy(0, 0, 0, 800), busy(1, 0, 0, 0)];
    assert_eq!(scores("prefix-cache-scorer", none(), &cached), [0.8, 0.0]);
    let blend = json!({"matchLengthWeight": 0.5, "matchLengthScaleTokens": 1600});
    assert_eq!(scores("prefix-cache-scorer", blend, &cached), [0.525, 0.0], "(0.8 + 0.25) / 2");
    let active = [busy(0, 1, 0, 0), busy(1, 4, 0, 0), busy(2, 8, 0, 0)];
    assert_eq!(scores("active-request-scorer", none(), &active), [0.875, 0.5, 0.0]);
    let idle = json!({"idleThreshold": 1, "maxBusyScore": 0.5});
    assert_eq!(scores("active-request-scorer", idle, &active), [1.0, 0.25, 0.0]);
    let queued = [busy(0, 1, 0, 0), busy(1, 1, 1_000, 500), busy(2, 1, 9_000, 0)];
    assert_eq!(
        scores("token-load-scorer", json!({"queueThresholdTokens": 10_000}), &queued),
        [0.9, 0.85, 0.0]
    );
}

#[test]
fn what_is_not_known_is_neither_idle_nor_full() {
    let some = [engine(0, 0, 0, 0.2), at(1), engine(2, 10, 0, 0.8)];
    assert_eq!(scores("kv-cache-utilization-scorer", json!({}), &some), [0.8, 0.5, 0.2]);
    assert_eq!(scores("queue-scorer", json!({}), &some), [1.0, 0.5, 0.0]);
    let behind = [engine(0, 60, 0, 0.2), engine(1, 68, 0, 0.2), at(2)];
    assert_eq!(scores("load-aware-scorer", json!({}), &behind), [0.266, 0.234, 0.25], "64 wait there too");
    let silent = [busy(0, 3, 0, 0), busy(1, 0, 0, 0)];
    assert_eq!(scores("load-aware-scorer", json!({"threshold": 6}), &silent), [0.25, 0.5]);
    assert_eq!(scores("queue-scorer", json!({}), &silent), [0.0, 1.0], "what is in flight here");
    let full = json!({"conditions": [{"metric": "waiting-queue", "maxValue": 5}]});
    let mut policy = described(of(&[("utilization-filter", full, 1.0)]), json!({}), 3);
    assert_eq!(shares_of(&mut policy, &some, 200)[2], 0);
    assert!(shares_of(&mut policy, &some, 200)[1] > 50, "unknown is not out");
}

/// Whom one filter leaves, of candidates in this state.
fn kept(policy: &mut Policy, demand: &Demand, candidates: &[Candidate]) -> Vec<usize> {
    let round = Round { demand, blocks: &[], candidates, now: Instant::default() };
    let mut kept = policy.choose(&round, candidates.len(), &mut Random::new(1)).to_vec();
    kept.sort_unstable();
    kept
}

fn filter(kind: &str, parameters: Value, count: usize) -> Policy {
    described(of(&[(kind, parameters, 1.0)]), json!({}), count)
}

#[test]
fn who_has_too_many_in_flight_is_out() {
    let all = [busy(0, 1, 0, 0), busy(1, 2, 0, 0), busy(2, 3, 0, 0)];
    let mut two = filter("active-request-filter", json!({"maxRequests": 2}), 3);
    assert_eq!(kept(&mut two, &DEMAND, &all), [0, 1]);
    assert!(kept(&mut two, &DEMAND, &all[2..]).is_empty());
    let back = json!({"maxRequests": 2, "fallbackOnEmpty": true});
    assert_eq!(kept(&mut filter("active-request-filter", back, 3), &DEMAND, &all[2..]), [0]);
}

#[test]
fn an_adapter_stays_at_its_homes_until_all_of_them_are_full() {
    use crate::policy::Adapter::{Absent, Resident, Room};
    let demand = Demand { adapter: Some(7), ..DEMAND };
    let with = |adapter, candidate: Candidate| Candidate { adapter, ..candidate };
    let full = |place| engine(place, 9, 0, 0.1);
    let all = [
        with(Resident, engine(0, 9, 0, 0.9)),
        with(Resident, engine(1, 8, 0, 0.8)),
        with(Room, engine(2, 0, 0, 0.0)),
        with(Absent, engine(3, 0, 0, 0.0)),
    ];
    let mut policy = filter("lora-residency-filter", json!({}), 4);
    assert_eq!(kept(&mut policy, &DEMAND, &all), [0, 1, 2, 3], "no adapter, no homes");
    assert_eq!(kept(&mut policy, &demand, &all), [0, 1], "at both thresholds is not above them");
    let crowded = [all[0], with(Resident, full(1)), all[2], all[3]];
    assert_eq!(kept(&mut policy, &demand, &crowded), [2], "a new copy, where it can be");
    let mut bounded = filter("lora-residency-filter", json!({"maxReplicas": 2}), 4);
    assert_eq!(kept(&mut bounded, &demand, &crowded), [0, 1]);
    let off = json!({"queueThreshold": 0, "kvCacheThreshold": 0});
    assert_eq!(kept(&mut filter("lora-residency-filter", off, 4), &demand, &crowded), [0, 1]);
    let fleet = [all[0], with(Resident, full(1)), with(Room, full(2)), all[3]];
    assert_eq!(kept(&mut policy, &demand, &fleet), [0, 1], "nobody has room");
    let cold = [with(Room, at(0)), with(Room, at(1))];
    assert_eq!(kept(&mut policy, &demand, &cold), [0, 1], "no home yet");
    policy.learn(&News::Booked { place: 1, demand, uncached_tokens: 0 }, Instant::default());
    assert_eq!(kept(&mut policy, &demand, &cold), [1], "what was sent there is a home");
}

#[test]
fn who_does_not_list_the_adapter_is_out() {
    use crate::policy::Adapter::{Absent, Resident, Room, Unknown};
    let demand = Demand { adapter: Some(7), ..DEMAND };
    let keeps = |parameters: Value, adapters: &[crate::policy::Adapter]| {
        let with =
            |(place, adapter): (usize, &crate::policy::Adapter)| Candidate { adapter: *adapter, ..at(place) };
        let all: Vec<Candidate> = adapters.iter().enumerate().map(with).collect();
        kept(&mut filter("served-model-filter", parameters, all.len()), &demand, &all)
    };
    let none = || json!({});
    assert_eq!(keeps(none(), &[Resident, Room, Absent, Unknown]), [0, 1], "one lists it");
    assert_eq!(keeps(none(), &[Absent, Unknown]), [1], "nobody is known to");
    assert_eq!(keeps(json!({"onMissing": "Fail"}), &[Absent, Unknown]), [0; 0]);
    assert_eq!(keeps(json!({"onMissing": "Fail", "fallbackOnEmpty": true}), &[Absent, Unknown]), [0, 1]);
}

#[test]
fn one_waiting_request_need_not_be_a_full_swing() {
    let engines = [engine(0, 0, 0, 0.0), engine(1, 1, 0, 0.0)];
    assert_eq!(scores("queue-scorer", json!({}), &engines), [1.0, 0.0], "as llm-d");
    assert_eq!(scores("queue-scorer", json!({"minRange": 10}), &engines), [1.0, 0.9]);
}

#[test]
fn weights_add_up_and_a_burst_between_two_scrapes_sees_itself() {
    let config = of(&[("queue-scorer", json!({}), 2.0), ("prefix-cache-scorer", json!({}), 3.0)]);
    let mut policy = described(config, json!({}), 2);
    let mut warm = engine(0, 0, 0, 0.0);
    warm.cached_tokens = 500;
    assert_eq!(chosen(&mut policy, &[warm, engine(1, 0, 0, 0.0)]), 0);
    assert_eq!(rounded(&policy), [3.5, 2.0]);
    warm.unseen = 4;
    assert_eq!(chosen(&mut policy, &[warm, engine(1, 0, 0, 0.0)]), 1, "4 sent since it spoke: 1.5 against 2");
}

/// The profile that runs, when none is given.
fn implied(plugins: Value) -> Value {
    let policy = Policy::read(&json!({"kind": KIND, "plugins": plugins})).unwrap();
    assert_eq!(Policy::read(policy.effective()).unwrap().effective(), policy.effective());
    policy.effective()["schedulingProfiles"][0]["plugins"].clone()
}

#[test]
fn without_profiles_what_is_declared_runs_at_weight_one() {
    let declared = json!([
        {"type": "decode-filter"}, {"type": "openai-parser"}, {"type": "queue-scorer"},
        {"type": "load-aware-scorer", "name": "load"}, {"type": "random-picker"},
    ]);
    let expected = json!([
        {"pluginRef": "decode-filter"}, {"pluginRef": "queue-scorer", "weight": 1.0},
        {"pluginRef": "load", "weight": 1.0}, {"pluginRef": "random-picker"},
    ]);
    assert_eq!(implied(declared), expected);
}

#[test]
fn with_nothing_declared_llm_ds_own_configuration_runs() {
    let expected = json!([
        {"pluginRef": "queue-scorer", "weight": 2.0},
        {"pluginRef": "kv-cache-utilization-scorer", "weight": 2.0},
        {"pluginRef": "prefix-cache-scorer", "weight": 3.0},
        {"pluginRef": "max-score-picker"},
    ]);
    assert_eq!(implied(json!([])), expected);
    let policy = Policy::read(&json!({"kind": KIND})).unwrap();
    let prefix = json!({"type": "prefix-cache-scorer", "name": "prefix-cache-scorer",
        "parameters": {"matchLengthWeight": 0.0, "matchLengthScaleTokens": 8192.0}});
    assert!(policy.effective()["plugins"].as_array().unwrap().contains(&prefix));
}

#[test]
fn cold_prompts_take_turns_and_warm_ones_do_not() {
    let mut policy = described(of(&[("no-hit-lru-scorer", json!({}), 1.0)]), json!({}), 3);
    let all = [0, 1, 2].map(at);
    let mut order = Vec::new();
    for _ in 0..6 {
        let place = chosen(&mut policy, &all);
        order.push(place);
        policy.learn(&News::Booked { place, demand: DEMAND, uncached_tokens: 1000 }, Instant::default());
    }
    assert_eq!(order[..3], order[3..]);
    chosen(&mut policy, &all);
    let mut ranks = rounded(&policy);
    ranks.sort_by(f64::total_cmp);
    assert_eq!(ranks, [0.0, 0.5, 1.0]);
    chosen(&mut policy, &[busy(0, 0, 0, 5), at(1), at(2)]);
    assert_eq!(rounded(&policy), [0.5; 3]);
}

#[test]
fn a_session_stays_for_its_time_as_a_preference_or_alone() {
    let demand = Demand { session: Some(9), ..DEMAND };
    let all = [0, 1, 2].map(at);
    for kind in ["session-affinity-scorer", "session-affinity-filter"] {
        let mut policy = described(of(&[(kind, json!({"evictionTtlSeconds": 10}), 1.0)]), json!({}), 3);
        policy.learn(&News::Booked { place: 2, demand, uncached_tokens: 0 }, Instant::default());
        let at = |policy: &mut Policy, ms, candidates: &[Candidate]| {
            let now = Instant::from_millis(ms);
            let round = Round { demand: &demand, blocks: &[], candidates, now };
            (0..30).map(|seed| policy.choose(&round, 1, &mut Random::new(seed))[0]).collect::<Vec<_>>()
        };
        assert!(at(&mut policy, 9_000, &all).iter().all(|place| *place == 2), "{kind}");
        assert!(at(&mut policy, 11_000, &all).contains(&0), "{kind}: forgotten");
        assert!(at(&mut policy, 9_000, &all[..2]).contains(&0), "{kind}: it is not there");
    }
}

#[test]
fn labels_choose_by_selector_and_role() {
    let roles = json!({
        "10.0.0.0:1": {"labels": {"llm-d.ai/role": "prefill", "tier": "a"}},
        "10.0.0.1:1": {"labels": {"llm-d.ai/role": "prefill-decode"}},
        "10.0.0.2:1": {"labels": {"llm-d.ai/role": "encode", "tier": "b"}},
    });
    let all = [0, 1, 2, 3].map(at);
    let left = |kind: &str, parameters: Value| {
        let mut policy = described(of(&[(kind, parameters, 1.0)]), roles.clone(), 4);
        chosen(&mut policy, &all);
        let explained = policy.explain();
        (0..4).filter(|place| explained[*place].left_out_by.is_none()).collect::<Vec<_>>()
    };
    assert_eq!(left("decode-filter", json!({})), [1, 3], "and who has no role");
    assert_eq!(left("prefill-filter", json!({})), [0, 1]);
    assert_eq!(left("encode-filter", json!({})), [2]);
    assert_eq!(left("label-selector-filter", json!({"matchLabels": {"tier": "a"}})), [0]);
    let expression = |operator: &str| json!({"matchExpressions": [{"key": "tier", "operator": operator, "values": ["a"]}]});
    assert_eq!(left("by-label-selector", expression("NotIn")), [1, 2, 3]);
    assert_eq!(left("label-selector-filter", expression("Exists")), [0, 2]);
    assert_eq!(
        left("by-label", json!({"label": "tier", "validValues": ["b"], "allowsNoLabel": true})),
        [1, 2, 3]
    );
}

#[test]
fn affinity_holds_until_the_queue_is_too_long() {
    let parameters = json!({"maxTTFTPenaltyMs": 1000, "peakPrefillThroughput": 1000});
    let config =
        of(&[("prefix-cache-affinity-filter", parameters, 1.0), ("token-load-scorer", json!({}), 1.0)]);
    let mut policy = described(config, json!({}), 3);
    let others = [at(0), busy(2, 0, 0, 700)];
    assert_eq!(chosen(&mut policy, &[others[0], busy(1, 9, 900, 900), others[1]]), 1, "0.9 s is worth it");
    assert_ne!(chosen(&mut policy, &[others[0], busy(1, 9, 1_900, 900), others[1]]), 1, "1.9 s is not");
    let left = policy.explain().iter().filter(|one| one.left_out_by.is_none()).count();
    assert_eq!(left, 3, "all may be chosen then");
}

#[test]
fn lengths_go_to_endpoints_that_are_meant_for_them() {
    let ranges = json!({
        "10.0.0.0:1": {"labels": {"llm-d.ai/context-length-range": "0-2048"}},
        "10.0.0.1:1": {"labels": {"llm-d.ai/context-length-range": "0-131072"}},
        "10.0.0.2:1": {"labels": {"llm-d.ai/context-length-range": "2049-8192"}},
    });
    let all = [0, 1, 2, 3].map(at);
    let mut policy = described(of(&[("context-length-aware", json!({}), 1.0)]), ranges.clone(), 4);
    assert_eq!(chosen(&mut policy, &all), 0, "the tightest");
    let given = rounded(&policy);
    assert!(given[1] > 0.3 && given[2] < 0.3 && given[3] == 0.5, "{given:?}");
    let mut policy =
        described(of(&[("context-length-aware", json!({"enableFiltering": true}), 1.0)]), ranges, 4);
    chosen(&mut policy, &all);
    assert!(policy.explain()[2].left_out_by.is_some());
}

#[test]
fn ranges_score_as_llm_d_has_them() {
    let given = |tokens: u32, ranges: &[&str]| {
        let labels = ranges.iter().enumerate().map(|(place, range)| {
            (format!("10.0.0.{place}:1"), json!({"labels": {"llm-d.ai/context-length-range": range}}))
        });
        let labels = Value::Object(labels.collect());
        let mut policy = described(of(&[("context-length-aware", json!({}), 1.0)]), labels, ranges.len());
        let all: Vec<Candidate> = (0..ranges.len()).map(at).collect();
        let demand = Demand { prompt_tokens: tokens, ..DEMAND };
        let round = Round { demand: &demand, blocks: &[], candidates: &all, now: Instant::default() };
        policy.choose(&round, 1, &mut Random::new(1));
        rounded(&policy)
    };
    assert_eq!(given(30_000, &["8192-32768", "16384-65536"]), [0.465, 0.535], "room above counts");
    assert_eq!(given(2_600, &["500-100000", "2600-2600"]), [0.55, 1.0]);
    assert_eq!(given(3_000, &["0-2000", "4000-9000", "13000-20000"]), [0.15, 0.15, 0.027]);
}

#[test]
fn a_range_that_cannot_be_read_is_refused() {
    use crate::pool::{self, Pools, Spec};
    let read = |label: &str| {
        let pools: Vec<Spec> = serde_json::from_value(json!([{
            "name": "p", "models": ["m"], "endpoints": ["10.0.0.1:1"],
            "attributes": {"10.0.0.1:1": {"labels": {"llm-d.ai/context-length-range": label}}},
        }]))
        .unwrap();
        let choose = json!({"policy": {"plugins": [{"type": "context-length-aware"}]}});
        let choose: pool::Config = serde_json::from_value(choose).unwrap();
        Pools::new(&pools, &choose, 1).map(|_| ()).map_err(|invalid| invalid.to_string())
    };
    assert_eq!(read("8192-32768"), Ok(()));
    for label in ["8k-32k", "8192", "32768-8192", ""] {
        let at = "pools[0].attributes[\"10.0.0.1:1\"].labels[\"llm-d.ai/context-length-range\"]: ";
        let message = read(label).unwrap_err();
        assert!(message.starts_with(&format!("{at}{label:?} is no range")), "{message}");
    }
}

#[test]
fn objectives_are_kept_as_narrowly_as_may_be() {
    use std::time::Duration;
    let demand = Demand { slo_ttft_ms: Some(1_000), ..DEMAND };
    let all = [0, 1, 2].map(at);
    let choose = |strategy: &str| {
        let config = of(&[("latency-scorer", json!({"headroomSelectionStrategy": strategy}), 1.0)]);
        let mut policy = described(config, json!({}), 3);
        // 1,000 tokens took 100 ms, 900 ms, 2 s.
        for (place, ms) in [(0, 100), (1, 900), (2, 2_000)] {
            let after = Duration::from_millis(ms);
            let news = News::FirstToken { place, after, uncached_tokens: 1_000, queued_tokens: 1_000 };
            policy.learn(&news, Instant::default());
        }
        let round = Round { demand: &demand, blocks: &[], candidates: &all, now: Instant::default() };
        policy.choose(&round, 3, &mut Random::new(1)).to_vec()
    };
    assert_eq!(choose("least"), [1, 0, 2]);
    assert_eq!(choose("most"), [0, 1, 2]);
}

#[test]
fn room_in_one_objective_does_not_make_up_for_want_in_the_other() {
    use std::time::Duration;
    let demand = Demand { slo_ttft_ms: Some(1_000), slo_tpot_ms: Some(50), ..DEMAND };
    let all = [0, 1, 2, 3].map(at);
    let order = |kind: &str, parameters: Value| {
        let mut policy = described(of(&[(kind, parameters, 1.0)]), json!({}), 4);
        // A quick start and slow tokens; both kept, narrowly; a slow start and quick tokens; neither.
        for (place, ttft_ms, tpot_ms) in [(0, 100, 100), (1, 900, 40), (2, 1_100, 10), (3, 2_000, 100)] {
            let after = Duration::from_millis(ttft_ms);
            let first = News::FirstToken { place, after, uncached_tokens: 1_000, queued_tokens: 1_000 };
            let decoding = Some(Duration::from_millis(tpot_ms * 10));
            let end = News::Ended { place, after, decoding, output_tokens: Some(11), failed: false };
            [first, end].iter().for_each(|news| policy.learn(news, Instant::default()));
        }
        let round = Round { demand: &demand, blocks: &[], candidates: &all, now: Instant::default() };
        let order = policy.choose(&round, 4, &mut Random::new(1)).to_vec();
        let left_out = policy.explain().iter().filter(|one| one.left_out_by.is_some()).count();
        (order, left_out)
    };
    for strategy in ["least", "most"] {
        let (order, _) = order("latency-scorer", json!({"headroomSelectionStrategy": strategy}));
        assert_eq!(order, [1, 0, 2, 3], "{strategy}: the first token weighs more than the others");
    }
    let (order, left_out) = order("slo-headroom-tier-filter", json!({"epsilonExploreNeg": 0}));
    assert_eq!((order[0], left_out), (1, 3));
}

fn disagg(handler: Value, decider: (&str, Value)) -> Value {
    json!({
        "apiVersion": "llm-d.ai/v1alpha1", "kind": KIND,
        "plugins": [
            {"type": "prefix-cache-scorer"}, {"type": "active-request-scorer"},
            {"type": "prefill-filter"}, {"type": "decode-filter"},
            {"type": decider.0, "parameters": decider.1},
            {"type": "disagg-profile-handler", "parameters": handler},
        ],
        "schedulingProfiles": [
            {"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}, {"pluginRef": "active-request-scorer"}]},
            {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, {"pluginRef": "prefix-cache-scorer"}]},
        ],
    })
}

#[test]
fn prefill_is_split_off_by_uncached_length_by_load_or_always() {
    let roles = json!({
        "10.0.0.0:1": {"labels": {"llm-d.ai/role": "prefill"}}, "10.0.0.1:1": {"labels": {"llm-d.ai/role": "prefill"}},
        "10.0.0.2:1": {"labels": {"llm-d.ai/role": "decode"}},
    });
    let split = |decider: (&str, Value), decode: Candidate, only: bool, no_prefill: &str| {
        let handler = json!({"deciders": {"prefill": decider.0}, "onNoPrefill": no_prefill});
        let mut policy = described(disagg(handler, decider), roles.clone(), 3);
        let all = [busy(0, 5, 0, 0), busy(1, 1, 0, 0), decode];
        let candidates = if only { &all[2..] } else { &all[..] };
        let round = Round { demand: &DEMAND, blocks: &[], candidates, now: Instant::default() };
        let order = policy.choose(&round, 3, &mut Random::new(1)).to_vec();
        assert_eq!(order, [candidates.len() - 1], "who only prefills is no fallback either");
        policy.prefill(&round, &decode, &mut Random::new(1))
    };
    let uncached = |tokens: u32| ("prefix-based-pd-decider", json!({"nonCachedTokens": tokens}));
    let (cold, warm) = (busy(2, 0, 0, 0), busy(2, 0, 0, 600));
    assert_eq!(split(uncached(500), cold, false, "decode-only"), Prefill::At(1), "the less busy");
    assert_eq!(split(uncached(500), warm, false, "decode-only"), Prefill::There, "400 uncached");
    assert_eq!(split(uncached(0), cold, false, "decode-only"), Prefill::There, "off");
    let load = || ("load-based-pd-decider", json!({"queuedTokens": 2000, "nonCachedTokens": 900}));
    assert_eq!(split(load(), busy(2, 3, 2_000, 600), false, "decode-only"), Prefill::At(1));
    assert_eq!(split(load(), cold, false, "decode-only"), Prefill::At(1), "either is enough");
    assert_eq!(split(load(), warm, false, "decode-only"), Prefill::There);
    let always = || ("always-disagg-pd-decider", json!({}));
    let mut first = described(disagg(json!({"stageOrder": "prefill-first"}), uncached(0)), roles.clone(), 3);
    let all = [busy(0, 5, 0, 0), busy(1, 1, 0, 0), warm];
    let round = Round { demand: &DEMAND, blocks: &[], candidates: &all, now: Instant::default() };
    assert_eq!(first.choose(&round, 1, &mut Random::new(1)), [2]);
    assert_eq!(first.prefill(&round, &warm, &mut Random::new(1)), Prefill::At(1), "nobody decides");
    assert_eq!(split(always(), warm, false, "decode-only"), Prefill::At(1));
    assert_eq!(split(always(), warm, true, "decode-only"), Prefill::There, "nobody prefills");
    assert_eq!(split(always(), warm, true, "refuse"), Prefill::Nowhere);
}

/// The handler of `disagg` is the old one, with these parameters and these deciders beside it.
fn old(parameters: Value, deciders: &[&str]) -> Result<Policy, String> {
    let mut config = disagg(json!({}), ("openai-parser", json!({})));
    config["plugins"][5] = json!({"type": "pd-profile-handler", "parameters": parameters});
    let plugins = config["plugins"].as_array_mut().unwrap();
    plugins.extend(deciders.iter().map(|kind| json!({"type": kind})));
    Policy::read(&config).map_err(|invalid| invalid.to_string())
}

#[test]
fn the_old_handler_is_read_as_its_successor() {
    let read = |parameters: Value, deciders: &[&str]| {
        let policy = old(parameters, deciders).unwrap();
        let note = &policy.notes()[0];
        assert_eq!(note.at, "plugins[5].type");
        assert!(note.why.starts_with("deprecated; read as {"), "{note}");
        let again = Policy::read(policy.effective()).unwrap();
        assert_eq!(again.effective(), policy.effective());
        assert!(!again.notes().iter().any(|note| note.why.starts_with("deprecated")));
        let plugins = policy.effective()["plugins"].as_array().unwrap();
        assert_eq!(plugins[5]["type"], "disagg-profile-handler");
        let name = &plugins[5]["parameters"]["deciders"]["prefill"];
        let decider = plugins.iter().find(|plugin| plugin["name"] == *name).unwrap();
        (decider["type"].clone(), decider["parameters"]["nonCachedTokens"].clone())
    };
    let prefix = "prefix-based-pd-decider";
    let named = json!({"deciderPluginName": "always-disagg-pd-decider", "prefixPluginName": "x"});
    assert_eq!(read(named, &["always-disagg-pd-decider"]), (json!("always-disagg-pd-decider"), Value::Null));
    assert_eq!(read(json!({"decodeProfile": "decode"}), &[prefix]), (json!(prefix), json!(0)), "its default");
    assert_eq!(read(json!({"threshold": 100, "hashBlockSize": 5}), &[]), (json!(prefix), json!(100)));
    assert_eq!(read(json!({"threshold": 0}), &[]), (json!("always-disagg-pd-decider"), Value::Null));
    let wrong = |parameters: Value, deciders: &[&str]| old(parameters, deciders).unwrap_err();
    let message = wrong(json!({"thresold": 1}), &[]);
    assert!(message.starts_with("plugins[5].parameters.thresold: unknown field"), "{message}");
    let message = wrong(json!({"threshold": 1}), &[prefix]);
    assert!(message.starts_with("plugins[5].parameters.threshold: there is a decider"), "{message}");
    let message = wrong(json!({"primaryPort": 8000}), &[]);
    assert!(message.starts_with("plugins[5].parameters.primaryPort: list each rank"), "{message}");
    let message = wrong(json!({"deciderPluginName": "x"}), &[]);
    assert!(message.starts_with("plugins[5].parameters.deciderPluginName: no plugin is named"), "{message}");
}

#[test]
fn mistakes_are_named_with_their_place() {
    let message = |value: Value| Policy::read(&value).unwrap_err().to_string();
    let with = |plugins: Value, profiles: Value| json!({"kind": KIND, "plugins": plugins, "schedulingProfiles": profiles});
    let one = |reference: &str| json!([{"name": "default", "plugins": [{"pluginRef": reference}]}]);
    let cases = [
        (json!({"kind": KIND, "apiVersion": "v9"}), "apiVersion: \"v9\"; expected one of llm-d.ai/v1,"),
        (json!({"kind": "Pod", "plugins": []}), "kind: \"Pod\"; expected EndpointPickerConfig"),
        (json!({"kind": KIND, "plugin": []}), "plugin: unknown field `plugin`"),
        (
            with(json!([{"type": "queue-scorr"}]), json!([])),
            "plugins[0].type: unknown plugin `queue-scorr`, expected one of `queue-scorer`, ",
        ),
        (
            with(json!([{"type": "dcgm-data-source"}]), json!([])),
            "plugins[0].type: dcgm-data-source is not carried: other exporters",
        ),
        (
            with(json!([{"type": "load-aware-scorer", "parameters": {"treshold": 1}}]), json!([])),
            "plugins[0].parameters.treshold: unknown field `treshold`",
        ),
        (
            with(json!([{"type": "prefix-cache-scorer", "parameters": {"matchLengthWeight": 2}}]), json!([])),
            "plugins[0].parameters.matchLengthWeight: 2 is not from 0 to 1",
        ),
        (
            with(
                json!([{"type": "utilization-filter", "parameters": {"conditions": [{"metric": "kv-cache-utilization", "maxValue": 90}]}}]),
                json!([]),
            ),
            "plugins[0].parameters.conditions[0]: 90 is not from 0 to 1",
        ),
        (
            with(
                json!([{"type": "utilization-detector", "parameters": {"kvCacheUtilThreshold": 80}}]),
                json!([]),
            ),
            "plugins[0].parameters.kvCacheUtilThreshold: 80 is not from 0 to 1",
        ),
        (
            with(json!([{"type": "utilization-detector", "parameters": {"headroom": 20}}]), json!([])),
            "plugins[0].parameters.headroom: 20 is not from 0 to 5",
        ),
        (
            with(json!([{"type": "active-request-filter"}]), json!([])),
            "plugins[0].parameters: missing field `maxRequests`",
        ),
        (
            with(
                json!([{"type": "context-length-aware", "parameters": {"reusableTokensProducerName": "x"}}]),
                json!([]),
            ),
            "plugins[0].parameters.reusableTokensProducerName: not carried: caches are not moved",
        ),
        (
            disagg(json!({"profiles": {"fallback": "x"}}), ("always-disagg-pd-decider", json!({}))),
            "plugins[5].parameters.profiles.fallback: not carried: give endpoints that do both",
        ),
        (
            disagg(json!({"deciders": {"encode": "x"}}), ("always-disagg-pd-decider", json!({}))),
            "plugins[5].parameters.deciders.encode: not carried: encode is not split off",
        ),
        (
            with(json!([{"type": "metrics-data-source", "parameters": {"x": 2}}]), json!([])),
            "plugins[0].parameters.x: unknown field `x`",
        ),
        (
            with(json!([{"type": "queue-scorer"}, {"type": "queue-scorer"}]), json!([])),
            "plugins[1].name: \"queue-scorer\" is the name of another plugin",
        ),
        (with(json!([]), one("a")), "schedulingProfiles[0].plugins[0].pluginRef: no plugin is named \"a\""),
        (
            with(json!([{"type": "single-profile-handler"}]), one("single-profile-handler")),
            "schedulingProfiles[0].plugins[0].pluginRef: single-profile-handler belongs to no profile",
        ),
        (
            with(json!([]), json!([{"name": "a", "plugins": []}, {"name": "b", "plugins": []}])),
            "schedulingProfiles: more than one profile needs a disagg-profile-handler",
        ),
        (
            with(
                json!([{"type": "max-score-picker"}, {"type": "random-picker"}]),
                json!([{"name": "a", "plugins": [{"pluginRef": "max-score-picker"}, {"pluginRef": "random-picker"}]}]),
            ),
            "schedulingProfiles[0].plugins[1].pluginRef: a second picker in one profile",
        ),
        (
            json!({"kind": KIND, "plugins": [{"type": "max-score-picker"}, {"type": "random-picker"}]}),
            "plugins[1].type: a second picker, and no profile says which is for what",
        ),
        (
            disagg(json!({"deciders": {"prefill": "x"}}), ("always-disagg-pd-decider", json!({}))),
            "plugins[5].parameters.deciders.prefill: no decider is named \"x\"",
        ),
        (
            disagg(
                json!({"deciders": {"prefill": "always-disagg-pd-decider"}, "profiles": {"prefill": "x"}}),
                ("always-disagg-pd-decider", json!({})),
            ),
            "schedulingProfiles: no profile is named \"x\"",
        ),
    ];
    for (config, expected) in cases {
        let message = message(config);
        assert!(message.starts_with(expected), "{message}\nnot {expected}");
    }
}

#[test]
fn what_is_done_elsewhere_is_accepted_and_said() {
    let config = json!({
        "apiVersion": "llm-d.ai/v1", "kind": KIND, "featureGates": ["flowControl"],
        "plugins": [
            {"type": "kv-cache-scorer"},
            {"type": "precise-prefix-cache-producer", "parameters": {"kvEventsConfig": {"zmqEndpoint": "tcp://x"}}},
            {"type": "prefix-cache-scorer", "parameters": {"hashBlockSize": 64}},
            {"type": "fcfs-ordering-policy"},
        ],
        "requestHandler": {"parsers": []},
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "kv-cache-scorer"}, {"pluginRef": "prefix-cache-scorer"}]}],
    });
    let policy = Policy::read(&config).unwrap();
    let places: Vec<&str> = policy.notes().iter().map(|note| note.at.as_str()).collect();
    let expected = [
        "requestHandler",
        "featureGates",
        "plugins[0].type",
        "plugins[1].parameters.kvEventsConfig",
        "plugins[1].type",
        "plugins[2].parameters.hashBlockSize",
        "plugins[3].type",
    ];
    assert_eq!(places, expected);
}

/// A configuration of these plugins and a profile of these references.
fn profiled(plugins: Value, profiles: Value) -> Policy {
    Policy::read(&json!({"kind": KIND, "plugins": plugins, "schedulingProfiles": profiles})).unwrap()
}

#[test]
fn a_profile_without_a_picker_gets_the_one_that_is_declared() {
    let one = json!([{"name": "a", "plugins": [{"pluginRef": "queue-scorer"}]}]);
    let plugins = |picker: &str| json!([{"type": "queue-scorer"}, {"type": picker, "name": "own"}]);
    let mut policy = profiled(plugins("random-picker"), one.clone());
    policy.meet(&[]);
    let counts = shares_of(&mut policy, &[engine(0, 0, 0, 0.0), engine(1, 9, 0, 0.0)], 400);
    assert!(counts[1] > 100, "at random: {counts:?}");
    assert_eq!(policy.effective()["schedulingProfiles"][0]["plugins"][1], json!({"pluginRef": "own"}));
    assert!(policy.notes().is_empty());
    let policy = profiled(json!([{"type": "queue-scorer"}]), one);
    let implied = &policy.effective()["schedulingProfiles"][0]["plugins"][1];
    assert_eq!(implied, &json!({"pluginRef": "max-score-picker"}));
    assert_eq!(policy.effective()["plugins"][1]["type"], "max-score-picker");
}

#[test]
fn what_is_declared_and_stands_nowhere_is_said() {
    let places = |policy: Policy| policy.notes().iter().map(|note| note.at.clone()).collect::<Vec<_>>();
    let plugins = json!([
        {"type": "queue-scorer"}, {"type": "prefix-cache-scorer"}, {"type": "decode-filter"},
        {"type": "max-score-picker"}, {"type": "random-picker"}, {"type": "always-disagg-pd-decider"},
    ]);
    let one =
        json!([{"name": "a", "plugins": [{"pluginRef": "queue-scorer"}, {"pluginRef": "max-score-picker"}]}]);
    let nothing = json!({"kind": KIND, "plugins": [{"type": "token-producer"}]});
    assert_eq!(places(Policy::read(&nothing).unwrap()), ["plugins", "plugins[0].type"]);
    let expected = ["plugins[1].type", "plugins[2].type", "plugins[4].type", "plugins[5].type"];
    assert_eq!(places(profiled(plugins, one)), expected);
    let always = || ("always-disagg-pd-decider", json!({}));
    let split = json!({"deciders": {"prefill": "always-disagg-pd-decider"}});
    assert!(places(Policy::read(&disagg(split, always())).unwrap()).is_empty());
    let whole = Policy::read(&disagg(json!({}), always())).unwrap();
    let expected = [
        "schedulingProfiles[0]",
        "plugins[1].type",
        "plugins[2].type",
        "plugins[4].type",
        "plugins[5].parameters",
    ];
    assert_eq!(places(whole), expected);
}

#[test]
fn every_type_is_known_once() {
    let mut types: Vec<&str> = table::types().map(|(kind, _)| kind).collect();
    let count = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), count);
}

#[test]
fn every_type_is_in_the_documentation_as_what_it_is() {
    let page = include_str!("../../../docs/epp.md");
    let (carried, not_carried) = page.split_once("## Not carried").unwrap();
    let (runs, elsewhere) = carried.split_once("## Done elsewhere").unwrap();
    for (kind, what) in table::types() {
        let part = match what {
            "runs" => runs,
            "elsewhere" => elsewhere,
            _ => not_carried,
        };
        assert!(part.contains(&format!("`{kind}`")), "{kind} {what}");
    }
}
