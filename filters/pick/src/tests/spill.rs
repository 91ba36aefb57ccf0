//! A list that goes on into another group of endpoints.

use super::*;

const GROUPS: &str = r#"{"pools":[{"name":"p","models":["m"],"endpoints":["10.0.0.1:1","10.0.0.2:1","10.0.0.9:1"],
    "attributes":{"10.0.0.9:1":{"priority":1}}}]}"#;

#[test]
fn where_another_group_follows_the_attempts_are_told_and_the_client_is_told_why() {
    let mut worker = Worker::<Pick>::new(GROUPS);
    let mut exchange = ask(&mut worker, 1);
    let order = destination(&exchange);
    assert_eq!((order.len(), order[2].as_str()), (3, "10.0.0.9:1"));
    assert_eq!(exchange.see().state(wire::SPILLS_TO).as_deref(), Some("10.0.0.9:1"));
    for refused in &order[..2] {
        let left = format!("filter_state.wasm.{}", wire::attempt(refused));
        exchange.see().set_property(&left, Outcome::too_long().write().as_bytes());
    }
    worker.response(&mut exchange, "10.0.0.9:1", &[(":status", "200")]);
    let told = wire::SPILLOVER.map(|header| exchange.see().answer_header(header).concat());
    assert_eq!(told, ["0", "1", "too_long"]);
    worker.piece(&mut exchange, b"x", true);
    worker.finish(exchange);
    let metrics = ["breaker_trips_total", "breaker_retries_total", "pick_spillovers_total"];
    let metrics = metrics.map(|name| worker.world().metric(&format!("weir_{name};pool=p")));
    assert_eq!(metrics, [0, 2, 1], "nobody trips");
    // The budget had ended before: the mark was for Envoy, and its answer is the client's.
    let mut exchange = ask(&mut worker, 2);
    let refusal = [(":status", "400"), (wire::TOO_LONG, "1")];
    let first = destination(&exchange).remove(0);
    worker.response(&mut exchange, &first, &refusal);
    assert!(exchange.see().answer_header(wire::TOO_LONG).is_empty());
    worker.finish(exchange);
}

#[test]
fn prompts_that_are_too_long_here_take_no_retries_from_others() {
    let mut worker = Worker::<Pick>::new(GROUPS);
    for prompt in 0..60 {
        let mut exchange = ask(&mut worker, prompt);
        let order = destination(&exchange);
        assert_eq!(order.len(), 3, "after {prompt}");
        for refused in &order[..2] {
            let left = format!("filter_state.wasm.{}", wire::attempt(refused));
            exchange.see().set_property(&left, Outcome::too_long().write().as_bytes());
        }
        worker.response(&mut exchange, "10.0.0.9:1", &[(":status", "400")]);
        worker.finish(exchange);
    }
}

#[test]
fn where_no_other_group_follows_nobody_is_told() {
    let mut worker = Worker::<Pick>::new(CONFIG);
    let exchange = ask(&mut worker, 1);
    assert_eq!(exchange.see().state(wire::SPILLS_TO), None);
    worker.finish(exchange);
}
