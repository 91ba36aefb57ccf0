//! Copies of requests whose first token is late.

use super::*;

fn config(hedge: serde_json::Value) -> String {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["choose"] = json!({"policy": "round_robin", "breaker": {"hedge": hedge, "ramp_ms": 0}});
    config.to_string()
}

fn stream(worker: &mut Worker<Pick>, stream: u8) -> (Exchange<Pick>, Vec<String>) {
    let facts = format!("dialect=chat stream={stream} prompt_tokens=336 prompt_units=21 model=m");
    let state = [(wire::BLOCKS, &*wire::write_blocks(&facts, &[]))];
    let exchange = worker.request(&[], &state, false);
    let order = destination(&exchange);
    (exchange, order)
}

/// Answered from `from` after so long, in so many attempts.
fn answered(
    worker: &mut Worker<Pick>,
    mut exchange: Exchange<Pick>,
    from: &str,
    after: u64,
    attempts: i64,
    status: &str,
) {
    worker.world().pass(Duration::from_millis(after));
    exchange.see().set_property("upstream.request_attempt_count", &attempts.to_le_bytes());
    worker.response(&mut exchange, from, &[(":status", status)]);
    worker.piece(&mut exchange, b"x", true);
    worker.finish(exchange);
}

/// Streams that are answered after 100 ms: enough to know.
fn taught(hedge: serde_json::Value) -> Worker<Pick> {
    let mut worker = Worker::new(&config(hedge));
    for _ in 0..30 {
        let (exchange, order) = stream(&mut worker, 1);
        assert!(exchange.see().header(wire::HEDGE).is_empty(), "not enough is known");
        answered(&mut worker, exchange, &order[0], 100, 1, "200");
    }
    worker
}

fn count(worker: &Worker<Pick>, name: &str) -> u64 {
    worker.world().metric(&format!("weir_breaker_{name}_total;pool=p"))
}

#[test]
fn envoy_is_told_to_send_a_copy_of_streams_once_it_is_known_what_is_late() {
    let mut worker = taught(json!({"percentile": 95, "min_requests": 30}));
    let (exchange, order) = stream(&mut worker, 1);
    assert_eq!(exchange.see().header(wire::HEDGE), ["true"]);
    let millis: u64 = exchange.see().header(wire::PER_TRY_TIMEOUT)[0].parse().unwrap();
    assert!((100..=110).contains(&millis), "{millis}");
    assert!(exchange.see().state(wire::PICK).unwrap().ends_with(&format!(" hedge_ms={millis}")));
    answered(&mut worker, exchange, &order[0], 10, 1, "200");
    let (exchange, _) = stream(&mut worker, 0);
    assert!(exchange.see().header(wire::HEDGE).is_empty(), "no stream");
    worker.finish(exchange);
    assert_eq!((count(&worker, "hedges"), leases(&mut worker)), (0, 0));
}

#[test]
fn off_by_default() {
    let mut worker = Worker::new(CONFIG);
    for _ in 0..500 {
        let (exchange, order) = stream(&mut worker, 1);
        assert!(exchange.see().header(wire::HEDGE).is_empty());
        answered(&mut worker, exchange, &order[0], 100, 1, "200");
    }
}

#[test]
fn the_one_that_was_slower_is_out_when_it_always_is_and_the_lease_ends() {
    let mut worker = taught(json!({"min_requests": 30}));
    let mut slow = 0;
    for _ in 0..200 {
        let (exchange, order) = stream(&mut worker, 1);
        match (&*order[0], exchange.see().header(wire::PER_TRY_TIMEOUT).first()) {
            ("10.0.0.1:1", Some(millis)) => {
                slow += 1;
                let after = millis.parse::<u64>().unwrap() + 100;
                answered(&mut worker, exchange, &order[1], after, 2, "200");
            }
            _ => answered(&mut worker, exchange, &order[0], 100, 1, "200"),
        }
        if count(&worker, "trips") > 0 {
            break;
        }
    }
    assert_eq!((count(&worker, "trips"), count(&worker, "hedges"), count(&worker, "retries")), (1, slow, 0));
    assert!(slow >= 5, "{slow}: not for one");
    assert_eq!(leases(&mut worker), 0);
}

#[test]
fn an_answer_before_a_copy_would_have_gone_out_is_a_retrys() {
    let mut worker = taught(json!({"min_requests": 30}));
    for _ in 0..2 {
        let (exchange, order) = stream(&mut worker, 1);
        answered(&mut worker, exchange, &order[1], 20, 2, "200");
    }
    assert_eq!((count(&worker, "hedges"), count(&worker, "retries")), (0, 2));
}

#[test]
fn a_client_that_leaves_says_nothing_of_who_was_slower() {
    let mut worker = taught(json!({"min_requests": 30}));
    for _ in 0..20 {
        let (exchange, order) = stream(&mut worker, 1);
        worker.world().pass(Duration::from_millis(200));
        exchange.see().set_property("upstream.request_attempt_count", &2_i64.to_le_bytes());
        exchange.see().set_property("upstream.address", order.last().unwrap().as_bytes());
        exchange.see().set_property("response.flags", &0x4000_i64.to_le_bytes());
        worker.finish(exchange);
    }
    assert_eq!((count(&worker, "trips"), count(&worker, "hedges")), (0, 0));
    assert_eq!(leases(&mut worker), 0);
}

#[test]
fn copies_are_paid_from_the_budget_of_retries_and_none_goes_out_without_it() {
    let mut worker = taught(json!({"min_requests": 30}));
    // The first is always sooner in the end: nobody trips.
    let mut hedged = 0;
    for _ in 0..100 {
        let (exchange, order) = stream(&mut worker, 1);
        let copy = !exchange.see().header(wire::HEDGE).is_empty();
        assert_eq!(copy, order.len() > 1);
        hedged += u64::from(copy);
        answered(&mut worker, exchange, &order[0], 105, if copy { 2 } else { 1 }, "200");
    }
    assert_eq!(count(&worker, "hedges"), hedged);
    assert!((20..=20 + 20 + 12).contains(&hedged), "{hedged}: 20 saved, 20 per cent, one a second");
}

#[test]
fn nobody_is_sent_to_a_later_group_for_being_served_sooner() {
    let mut config: serde_json::Value = serde_json::from_str(&config(json!({"min_requests": 1}))).unwrap();
    config["pools"][0]["attributes"] = json!({"10.0.0.3:1": {"priority": 1}});
    let mut worker = Worker::new(&config.to_string());
    for _ in 0..9 {
        let (exchange, order) = stream(&mut worker, 1);
        assert!(exchange.see().header(wire::HEDGE).is_empty());
        answered(&mut worker, exchange, &order[0], 100, 1, "200");
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    let wrong = Worker::<Pick>::of(&World::new(), &config(json!({"percentile": 100}))).unwrap_err();
    assert!(wrong.to_string().contains("breaker.hedge.percentile: 100 is not from 50 to 99"), "{wrong}");
}
