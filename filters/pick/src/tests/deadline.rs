//! How long a request may take, all attempts together.

use super::*;

fn asked(worker: &mut Worker<Pick>, timeout: &str) -> Exchange<Pick> {
    let facts = format!("dialect=chat stream=0 prompt_tokens=336 prompt_units=21{timeout} model=m");
    let begun = (worker.world().now().nanos() + 1_700_000_000_000_000_000).to_le_bytes();
    // It has come a tenth of a second ago.
    worker.world().pass(Duration::from_millis(100));
    let state = [(wire::BLOCKS, &*wire::write_blocks(&facts, &[])), ("request.time", &begun[..])];
    worker.request(&[], &state, false)
}

fn with(deadline: serde_json::Value) -> Worker<Pick> {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["deadline"] = deadline;
    Worker::new(&config.to_string())
}

#[test]
fn what_is_left_of_the_clients_time_is_envoys_and_never_more_than_configured() {
    for (deadline, timeout, left) in [
        (json!({}), "", None),
        (json!({}), " timeout_ms=1000", Some("900")),
        (json!({"most_ms": 500}), " timeout_ms=1000", Some("400")),
        (json!({"most_ms": 5000}), " timeout_ms=1000", Some("900")),
        (json!({"most_ms": 5000}), "", Some("4900")),
        (json!({"from_client": false}), " timeout_ms=1000", None),
        (json!({"from_client": false, "most_ms": 5000}), " timeout_ms=1000", Some("4900")),
    ] {
        let mut worker = with(deadline.clone());
        let exchange = asked(&mut worker, timeout);
        let said = exchange.see().header(wire::TIMEOUT);
        assert_eq!(said.first().map(String::as_str), left, "{deadline} {timeout}");
    }
}

#[test]
fn a_request_whose_time_is_over_is_answered_and_asks_nobody() {
    let mut worker = with(json!({}));
    let exchange = asked(&mut worker, " timeout_ms=100");
    let answer = exchange.see().answer().unwrap();
    assert_eq!((answer.status, answer.header("x-should-retry")), (504, Some("false")));
    assert_eq!(worker.finish(exchange).state(wire::PICK).unwrap(), "refused=504 timeout_ms=100");
    assert_eq!(worker.world().metric("weir_pick_too_late_total"), 1);
    assert_eq!(leases(&mut worker), 0);
}

#[test]
fn a_client_in_a_hurry_trips_nothing_and_the_configured_time_does() {
    const TIMEOUT: i64 = 0x4;
    for (deadline, timeout, trips) in
        [(json!({}), " timeout_ms=150", false), (json!({"most_ms": 150}), " timeout_ms=1000", true)]
    {
        let mut worker = with(deadline);
        for _ in 0..12 {
            let exchange = asked(&mut worker, timeout);
            let at = destination(&exchange)[0].clone();
            // Of fifty that are left: Envoy's timer may be early.
            worker.world().pass(Duration::from_millis(48));
            ends(&mut worker, exchange, &at, "504", TIMEOUT);
        }
        assert_eq!(worker.world().metric("weir_breaker_trips_total;pool=p") > 0, trips);
        assert_eq!(leases(&mut worker), 0);
    }
}
