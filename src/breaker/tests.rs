use super::*;
use crate::instant::Instant;
use crate::random::Random;
use serde_json::{Value, json};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn breaker(config: Value) -> Breaker {
    Breaker::new(&crate::invalid::read_value(config).unwrap()).unwrap()
}

fn three() -> Breaker {
    breaker(json!({
        "rules": [{"name": "r", "failure_condition": {"count": 3, "interval_ms": 10_000,
            "status_code_ranges": [{"min": 500, "max": 599}], "error_reasons": ["connect"]}, "trip_duration_ms": 5_000}],
        "ramp_ms": 10_000, "max_trip_duration_ms": 15_000,
    }))
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(100_000 + ms)
}

const BAD: Outcome = Outcome { cause: Cause::Status(500), retry_after: None };
const GOOD: Outcome = Outcome { cause: Cause::Status(200), retry_after: None };

fn busy(secs: u64) -> Outcome {
    Outcome::of_status(429, Some(Duration::from_secs(secs)))
}

/// Trips it; the last of three failures comes at `ms`.
fn trip(breaker: &Breaker, circuit: &mut Circuit, ms: u64) {
    assert_eq!(circuit.note(breaker, None, &BAD, at(ms)), None);
    assert_eq!(circuit.note(breaker, None, &BAD, at(ms)), None);
    assert_eq!(circuit.note(breaker, None, &BAD, at(ms)), Some(Moved::Out));
}

fn gate(breaker: &Breaker, circuits: &mut [Circuit], ms: u64) -> (Gate, Vec<usize>) {
    let mut open = Vec::new();
    let gate = breaker.gate(circuits.iter_mut().enumerate(), at(ms), &mut Random::new(ms), &mut open);
    (gate, open)
}

#[test]
fn it_trips_cools_down_is_probed_and_ramps_up() {
    let breaker = three();
    let mut circuits = [Circuit::default(), Circuit::default()];
    trip(&breaker, &mut circuits[0], 0);
    assert_eq!(gate(&breaker, &mut circuits, 4_999), (Gate::Open, vec![1]));
    assert_eq!(gate(&breaker, &mut circuits, 5_000), (Gate::Probe(0), vec![1]));
    let probe = circuits[0].probe();
    assert_eq!(gate(&breaker, &mut circuits, 5_000), (Gate::Open, vec![1]), "one probe at a time");
    circuits[0].release();
    assert_eq!(circuits[0].note(&breaker, Some(probe), &GOOD, at(6_000)), Some(Moved::Back));
    let mut share = |ms| {
        let (mut random, mut open) = (Random::new(ms), Vec::new());
        let mut chosen = 0;
        for _ in 0..1_000 {
            breaker.gate(circuits.iter_mut().enumerate(), at(ms), &mut random, &mut open);
            chosen += usize::from(open.contains(&0));
        }
        chosen / 10
    };
    let shares = [6_000, 9_000, 13_500].map(&mut share);
    for (share, about) in shares.iter().zip([10_usize, 30, 75]) {
        assert!(share.abs_diff(about) <= 6, "{shares:?}");
    }
    assert_eq!(gate(&breaker, &mut circuits, 16_000), (Gate::Open, vec![0, 1]));
    assert!(!circuits[0].is_watched());
}

#[test]
fn cooldown_doubles_after_failed_probe_up_to_the_most() {
    let breaker = three();
    let mut circuit = Circuit::default();
    trip(&breaker, &mut circuit, 0);
    let mut now = 0;
    for lasts in [5_000, 10_000, 15_000, 15_000] {
        assert_eq!(circuit.free_at(), at(now + lasts));
        now += lasts;
        let probe = circuit.probe();
        circuit.release();
        assert_eq!(
            circuit.note(&breaker, Some(probe), &Outcome::failed(Reason::Connect), at(now)),
            Some(Moved::Out)
        );
    }
    // A whole ramp later it is as if nothing had been.
    let probe = circuit.probe();
    circuit.release();
    now += 15_000;
    circuit.note(&breaker, Some(probe), &GOOD, at(now));
    now += 10_000;
    gate(&breaker, std::slice::from_mut(&mut circuit), now);
    trip(&breaker, &mut circuit, now);
    assert_eq!(circuit.free_at(), at(now + 5_000));
}

#[test]
fn a_late_answer_does_not_end_a_trip_and_an_abandoned_probe_gives_its_slot_back() {
    let breaker = three();
    let mut circuit = Circuit::default();
    trip(&breaker, &mut circuit, 0);
    assert_eq!(circuit.note(&breaker, None, &GOOD, at(100)), None);
    assert_eq!(circuit.standing(at(100)), Standing::Cooldown);
    let abandoned = circuit.probe();
    circuit.release();
    assert_eq!(gate(&breaker, std::slice::from_mut(&mut circuit), 5_000).0, Gate::Probe(0));
    let failing = circuit.probe();
    circuit.release();
    circuit.note(&breaker, Some(failing), &BAD, at(5_100));
    assert_eq!(circuit.note(&breaker, Some(abandoned), &GOOD, at(5_200)), None, "of a trip before");
    assert_eq!(circuit.standing(at(5_200)), Standing::Cooldown);
}

#[test]
fn late_failures_do_not_keep_a_cooldown_up_but_a_late_hint_lengthens_it() {
    let breaker = three();
    let mut circuit = Circuit::default();
    trip(&breaker, &mut circuit, 0);
    circuit.note(&breaker, None, &BAD, at(4_000));
    assert_eq!(circuit.free_at(), at(5_000));
    let hint = |secs| Outcome { retry_after: Some(Duration::from_secs(secs)), ..BAD };
    circuit.note(&breaker, None, &hint(3), at(4_000));
    assert_eq!(circuit.free_at(), at(7_000));
    circuit.note(&breaker, None, &hint(1), at(4_000));
    assert_eq!(circuit.free_at(), at(7_000), "the latest end counts");
    circuit.note(&breaker, None, &hint(86_400), at(4_000));
    assert_eq!(circuit.free_at(), at(64_000), "of a day a minute is believed");
}

#[test]
fn busy_endpoints_are_held_off_and_do_not_trip() {
    let breaker = three();
    let mut circuits = [Circuit::default(), Circuit::default()];
    for _ in 0..20 {
        circuits[0].note(&breaker, None, &busy(20), at(0));
        circuits[0].note(&breaker, None, &busy(10), at(0));
    }
    assert_eq!(gate(&breaker, &mut circuits, 19_999), (Gate::Open, vec![1]));
    circuits[1].note(&breaker, None, &busy(40), at(0));
    for (ms, wait) in [(0, 20), (10_000, 10)] {
        let shut = Shut { wait: Duration::from_secs(wait), status: 429 };
        assert_eq!(gate(&breaker, &mut circuits, ms), (Gate::Shut(shut), vec![]));
        assert_eq!(shut.retry_after_s(), wait);
    }
    assert_eq!(gate(&breaker, &mut circuits, 25_000), (Gate::Open, vec![0]), "at once, and all of it");
    circuits[0].note(&breaker, None, &Outcome::of_status(429, None), at(25_000));
    assert_eq!(circuits[0].free_at(), at(26_000), "without a hint, hold_off_ms");
}

#[test]
fn a_ramp_ends_also_where_nobody_chose_meanwhile() {
    let breaker = three();
    let mut circuit = Circuit::default();
    let mut trip_at = 0;
    for _ in 0..3 {
        trip(&breaker, &mut circuit, trip_at);
        assert_eq!(circuit.free_at(), at(trip_at + 5_000), "not doubled");
        let probe = circuit.probe();
        circuit.release();
        circuit.note(&breaker, Some(probe), &Outcome::of_status(200, None), at(trip_at + 5_000));
        trip_at += 60_000;
    }
}

#[test]
fn who_is_busy_again_without_having_served_is_not_taken_at_its_word() {
    let breaker = three();
    let mut circuit = Circuit::default();
    let soon = Outcome { retry_after: Some(Duration::from_millis(100)), ..busy(0) };
    let mut noted = |outcome: &Outcome, ms| {
        circuit.note(&breaker, None, outcome, at(ms));
        circuit.free_at()
    };
    assert_eq!(noted(&soon, 0), at(100));
    assert_eq!(noted(&soon, 20), at(120), "what was under way is no second word");
    assert_eq!(noted(&soon, 130), at(1_130));
    assert_eq!(noted(&busy(5), 1_200), at(6_200), "a longer one is its own");
    assert_eq!(noted(&soon, 7_000), at(8_000));
    assert!(breaker.concerns(&circuit, &Outcome::of_status(200, None)), "a success is of interest once");
    circuit.note(&breaker, None, &Outcome::of_status(200, None), at(8_100));
    circuit.note(&breaker, None, &soon, at(8_200));
    assert_eq!(circuit.free_at(), at(8_300));
}

#[test]
fn a_clients_faults_do_not_count_unless_a_rule_names_them() {
    let breaker = three();
    let mut circuit = Circuit::default();
    for status in [400, 404, 413, 422, 501, 529] {
        (0..20).for_each(|_| {
            assert_eq!(circuit.note(&breaker, None, &Outcome::of_status(status, None), at(0)), None)
        });
    }
    (0..20).for_each(|_| assert_eq!(circuit.note(&breaker, None, &Outcome::gone(), at(0)), None));
    (0..20).for_each(|_| {
        circuit.note(&breaker, None, &Outcome::of_status(503, Some(Duration::from_secs(1))), at(0));
    });
    assert!(matches!(circuit.standing(at(2_000)), Standing::Closed));
    let named =
        self::breaker(json!({"rules": [{"name": "keys", "trip_duration_ms": 1000, "failure_condition":
        {"count": 1, "interval_ms": 1000, "status_code_ranges": [{"min": 401, "max": 403}]}}]}));
    assert_eq!(circuit.note(&named, None, &Outcome::of_status(401, None), at(2_000)), Some(Moved::Out));
}

#[test]
fn a_share_trips_only_when_there_was_enough() {
    let breaker = breaker(json!({"rules": [{"name": "half", "trip_duration_ms": 1000, "failure_condition":
        {"percentage": 50, "min_requests": 10, "interval_ms": 10_000, "error_reasons": ["cut"]}}]}));
    let mut circuit = Circuit::default();
    let cut = Outcome::failed(Reason::Cut);
    let mut note = |outcome| circuit.note(&breaker, None, outcome, at(0));
    (0..4).for_each(|_| assert_eq!(note(&cut), None));
    (0..6).for_each(|_| assert_eq!(note(&GOOD), None));
    assert_eq!(note(&cut), None, "5 of 11");
    assert_eq!(note(&cut), Some(Moved::Out), "6 of 12");
}

#[test]
fn when_all_have_tripped_the_least_bad_are_tried_or_the_client_is_told_when() {
    let (least_bad, mut circuits) = (three(), [(); 3].map(|()| Circuit::default()));
    for (nth, circuit) in circuits.iter_mut().enumerate() {
        trip(&least_bad, circuit, 1_000 * nth as u64);
    }
    let probe = circuits[1].probe();
    circuits[1].release();
    circuits[1].note(&least_bad, Some(probe), &BAD, at(2_000));
    assert_eq!(gate(&least_bad, &mut circuits, 3_000), (Gate::LeastBad, vec![0, 2]), "1 tripped twice");
    let refuse =
        Breaker::new(&Config { when_all_are_out: AllOut::Refuse, ..least_bad.config.clone() }).unwrap();
    let shut = Shut { wait: Duration::from_secs(2), status: 503 };
    assert_eq!(gate(&refuse, &mut circuits, 3_000), (Gate::Shut(shut), vec![]));
    circuits[2].note(&least_bad, None, &busy(30), at(3_000));
    let shut = Shut { wait: Duration::from_secs(2), status: 429 };
    assert_eq!(
        gate(&least_bad, &mut circuits, 3_000),
        (Gate::Shut(shut), vec![]),
        "one asked to be left alone"
    );
}

#[test]
fn who_joins_learns_who_is_out() {
    let breaker = three();
    let (mut circuit, mut joined) = (Circuit::default(), Circuit::default());
    assert_eq!(circuit.snapshot(), None);
    trip(&breaker, &mut circuit, 0);
    circuit.note(&breaker, None, &busy(7), at(0));
    joined.adopt(&breaker, &circuit.snapshot().unwrap(), at(0));
    assert_eq!((joined.free_at(), joined.standing(at(0))), (at(7_000), Standing::Cooldown));
    let sooner = Snapshot { out: Some(at(1)), held: None, trips: 1, cooldown: Duration::ZERO };
    joined.adopt(&breaker, &sooner, at(0));
    assert_eq!(joined.free_at(), at(7_000));
}

#[test]
fn by_anothers_word_nobody_is_out_for_longer_than_by_the_rules_here() {
    let breaker = three();
    let ever = Instant::from_nanos(u64::MAX);
    let told = |out, held| Snapshot { out, held, trips: u32::MAX, cooldown: Duration::MAX };
    // Until 60 s, `max_retry_after_ms`: a trip lasts as long as the endpoint's own word, or as `max_trip_duration_ms`.
    for snapshot in
        [told(Some(ever), None), told(None, Some((ever, 503))), told(Some(ever), Some((ever, 503)))]
    {
        let mut circuit = Circuit::default();
        circuit.adopt(&breaker, &snapshot, at(0));
        assert_eq!(circuit.free_at(), at(60_000), "{snapshot:?}");
    }
    let mut circuit = Circuit::default();
    circuit.adopt(&breaker, &told(Some(at(1)), None), at(0));
    let probe = circuit.probe();
    circuit.release();
    circuit.note(&breaker, Some(probe), &BAD, at(2));
    assert_eq!(circuit.free_at(), at(15_002), "and the next trip is of the longest here");
}

/// Random outcomes of random requests at one endpoint, with the time passed by hand.
#[test]
fn no_sequence_of_outcomes_breaks_a_promise() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let probes = 1 + seed as u32 % 3;
        let config = Config {
            probes: NonZeroU32::new(probes).unwrap(),
            probes_to_recover: NonZeroU32::new(1 + random.below(3) as u32).unwrap(),
            ..three().config
        };
        let breaker = Breaker::new(&config).unwrap();
        let mut circuit = Circuit::default();
        // Requests under way, and those of them that are probes, with the trip they were sent after.
        let mut under_way: Vec<(Option<Probe>, u32)> = Vec::new();
        let (mut ms, mut trips) = (0, 0_u32);
        for _ in 0..2_000 {
            ms += random.below(700) as u64;
            let now = at(ms);
            let before = (circuit.standing(now), circuit.free_at());
            match random.below(3) {
                0 => {
                    let (gate, _) = gate(&breaker, std::slice::from_mut(&mut circuit), ms);
                    let probe = matches!(gate, Gate::Probe(_)).then(|| circuit.probe());
                    assert!(probe.is_none() || before.0 == Standing::Probing, "{before:?}");
                    under_way.push((probe, trips));
                }
                _ if under_way.is_empty() => {}
                _ => {
                    let (probe, sent) = under_way.swap_remove(random.below(under_way.len()));
                    probe.iter().for_each(|_| circuit.release());
                    let outcome = match random.below(6) {
                        0 | 1 => GOOD,
                        2 => BAD,
                        3 => Outcome::gone(),
                        4 => busy(random.below(9) as u64),
                        _ => {
                            Outcome { retry_after: Some(Duration::from_secs(random.below(9) as u64)), ..BAD }
                        }
                    };
                    let moved = circuit.note(&breaker, probe, &outcome, now);
                    if moved == Some(Moved::Back) {
                        assert!(probe.is_some() && outcome == GOOD, "only a probe ends a trip");
                        assert_eq!(sent, trips, "and only one from after it");
                        assert!(matches!(before.0, Standing::Probing | Standing::Held), "{before:?}");
                    }
                    trips += u32::from(moved == Some(Moved::Out));
                }
            }
            let out = under_way.iter().filter(|(probe, _)| probe.is_some()).count() as u32;
            assert_eq!(circuit.probing(), out, "a slot a probe");
            assert!(out <= probes, "never more probes than allowed");
            if before.0 == Standing::Cooldown {
                assert!(circuit.free_at() >= before.1, "a cooldown never shrinks");
            }
        }
        for (probe, _) in under_way {
            probe.iter().for_each(|_| circuit.release());
        }
        assert_eq!(circuit.probing(), 0);
        assert!(trips > 10, "seed {seed}: nothing was shown");
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    let rule = |condition: Value| {
        let mut condition = condition;
        condition["interval_ms"] = 1.into();
        json!({"rules": [{"name": "r", "trip_duration_ms": 1, "failure_condition": condition}]})
    };
    let cases = [
        (json!({"rules": [{"nam": "r"}]}), "rules[0].nam: unknown field"),
        (json!({"probes": 0}), "probes: invalid value"),
        (rule(json!({"count": 1})), "rules[0].failure_condition: nothing counts as a failure"),
        (rule(json!({"error_reasons": ["cut"]})), "rules[0].failure_condition: say `count` or `percentage`"),
        (
            rule(json!({"count": 1, "percentage": 1, "error_reasons": ["cut"]})),
            "rules[0].failure_condition.percentage: there is a `count`",
        ),
        (
            rule(json!({"percentage": 101, "error_reasons": ["cut"]})),
            "rules[0].failure_condition.percentage: 101 is not from 1 to 100",
        ),
        (
            rule(json!({"count": 1, "status_code_ranges": [{"min": 200, "max": 599}]})),
            "rules[0].failure_condition.status_code_ranges[0]: 200 to 599 is no range",
        ),
        (
            rule(json!({"count": 1, "error_reasons": ["cute"]})),
            "rules[0].failure_condition.error_reasons[0]: unknown variant",
        ),
    ];
    for (config, expected) in cases {
        let read =
            crate::invalid::read_value::<Config>(config.clone()).and_then(|c| Breaker::new(&c).map(drop));
        let message = read.unwrap_err().to_string();
        assert!(message.starts_with(expected), "{config}: {message}");
    }
    let twice = Config { rules: [Rule::usual(), Rule::usual()].concat(), ..Config::default() };
    assert_eq!(Breaker::new(&twice).unwrap_err().at, "rules[2].name");
}

#[test]
fn clients_are_told_in_the_words_of_their_api() {
    use crate::request::Dialect;
    let shut = |status| Shut { wait: Duration::from_millis(19_001), status };
    for (dialect, status, word) in [
        (Dialect::Chat, 429, "rate_limit_exceeded"),
        (Dialect::Chat, 503, "service_unavailable"),
        (Dialect::Messages, 429, "rate_limit_error"),
        (Dialect::Messages, 503, "overloaded_error"),
    ] {
        let answer = shut(status).answer(dialect);
        assert_eq!((answer.status, &answer.headers[0]), (status, &("retry-after", "20".to_owned())));
        assert_eq!(answer.headers.len(), if dialect == Dialect::Messages { 1 } else { 2 });
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(answer.body.contains(word) && body["error"]["message"].is_string(), "{}", answer.body);
    }
}

#[test]
fn what_the_documentation_shows_is_the_default() {
    let text = include_str!("../../docs/breaker.md");
    let json = text.split_once("```json\n").unwrap().1.split_once("```").unwrap().0;
    let shown: Config = crate::invalid::read(json.as_bytes()).unwrap();
    Breaker::new(&shown).unwrap();
    let value = |config: &Config| serde_json::to_value(config).unwrap();
    assert_eq!(value(&shown), value(&Config::default()));
}
