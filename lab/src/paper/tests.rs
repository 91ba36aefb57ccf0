use super::*;

fn mean(route: &mut dyn Route, seed: u64) -> Result {
    play(&engine().unwrap(), INSTANCES, &episode(seed), route)
}

fn rule(name: &str) -> Rule {
    *RULES.iter().find(|rule| rule.name == name).unwrap()
}

#[test]
fn round_robin_is_as_far_behind_as_the_papers() {
    let result = mean(&mut rule("round robin"), 1);
    assert!((140.0..200.0).contains(&result.mean_s), "{result:?}");
    assert_eq!((result.refused, result), (0, mean(&mut rule("round robin"), 1)), "and the same each time");
}

#[test]
fn learned_lengths_and_waiting_beat_round_robin_by_more_than_the_papers_router_does() {
    let paper = REPORTED.iter().map(|(_, percent)| *percent).fold(0.0, f64::max);
    for seed in [1, 2] {
        let base = mean(&mut rule("round robin"), seed);
        let ours = mean(&mut rule("shortest first (ours)"), seed);
        let better = (1.0 - ours.mean_s / base.mean_s) * 100.0;
        assert!(better > paper, "{better:.1} %: {ours:?} {base:?}");
        assert!(ours.preempted * 4 < base.preempted, "who waits is not put back: {ours:?} {base:?}");
    }
}

#[test]
fn a_router_without_a_usable_network_is_the_rule() {
    let room = mean(&mut rule("room (ours)"), 3);
    assert_eq!(mean(&mut Learned::new(None, Order::Arrival), 3), room);
    let shortest = mean(&mut rule("shortest first (ours)"), 3);
    assert_eq!(mean(&mut Learned::new(None, Order::Urgency), 3), shortest);
    let weights: usize = SHAPE.windows(2).map(|pair| pair[1] * (pair[0] + 1)).sum();
    let huge = vec!["3e38"; weights].join(",");
    let text = format!("{{\"shape\": {SHAPE:?}, \"weights\": [{huge}]}}");
    let net = Net::read(text.as_bytes(), &SHAPE).unwrap();
    assert_eq!(mean(&mut Learned::new(Some(net), Order::Arrival), 3), room, "what it says is no number");
}
