use super::*;
use serde_json::json;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const DEMAND: Demand = Demand { prompt_tokens: 1000, prompt_units: 63, output_tokens: 100, stream: true };

fn spread(name: &str, candidates: &[Candidate], times: usize) -> Vec<usize> {
    let mut policy = Policy::read(&json!(name)).unwrap();
    let mut random = Random::new(5);
    let mut counts = vec![0; candidates.len()];
    for _ in 0..times {
        counts[policy.choose(&DEMAND, candidates, 1, &mut random)[0]] += 1;
    }
    counts
}

fn busy(in_flight: u32, queued_tokens: u64, cached_tokens: u32) -> Candidate {
    Candidate { in_flight, queued_tokens, cached_tokens }
}

#[test]
fn least_prefill_goes_to_the_prefix_until_its_queue_is_dearer() {
    assert_eq!(spread("least_prefill", &[busy(0, 0, 0), busy(1, 300, 900)], 10), [0, 10]);
    assert_eq!(spread("least_prefill", &[busy(0, 0, 0), busy(1, 1500, 900)], 10), [10, 0]);
    assert_eq!(spread("least_prefill", &[busy(0, 0, 0), busy(6, 0, 1000)], 10), [10, 0], "a full batch");
}

#[test]
fn equals_share_alike() {
    for name in ["least_prefill", "least_requests", "p2c", "round_robin"] {
        let counts = spread(name, &[Candidate::default(); 4], 4_000);
        assert!(counts.iter().all(|count| (800..=1200).contains(count)), "{name}: {counts:?}");
    }
}

#[test]
fn two_choices_never_take_the_busiest_and_use_the_others() {
    let counts = spread("p2c", &[busy(9, 0, 0), busy(1, 0, 0), busy(0, 0, 0)], 3_000);
    assert_eq!(counts[0], 0);
    assert!(counts[2] > counts[1] && counts[1] > 0, "{counts:?}");
    assert_eq!(spread("p2c", &[busy(9, 0, 0)], 5), [5]);
}

#[test]
fn fallbacks_are_the_next_best_and_never_repeat() {
    let mut policy = Policy::read(&Value::Null).unwrap();
    let candidates = [busy(3, 0, 0), busy(0, 0, 0), busy(1, 0, 0), busy(2, 0, 0)];
    assert_eq!(policy.choose(&DEMAND, &candidates, 3, &mut Random::new(1)), [1, 2, 3]);
    assert_eq!(policy.choose(&DEMAND, &candidates[..1], 3, &mut Random::new(1)), [0]);
    assert!(policy.choose(&DEMAND, &[], 3, &mut Random::new(1)).is_empty());
}

#[test]
fn a_wrong_policy_is_refused_with_what_would_be_right() {
    let message = |value: Value| Policy::read(&value).unwrap_err().to_string();
    assert!(
        message(json!("least_prefil"))
            .contains("expected one of least_prefill, least_requests, p2c, round_robin")
    );
    assert!(
        message(json!({"least_prefill": {"batch": 1}})).starts_with("least_prefill.batch: unknown field")
    );
    assert!(message(json!({"round_robin": {"x": 1}})).starts_with("round_robin.x: unknown field"));
    assert!(message(json!(["p2c"])).contains("expected the name of a policy"));
    assert_eq!(Policy::read(&json!({"least_prefill": {"batch_weight": 0}})).unwrap().name(), "least_prefill");
}
