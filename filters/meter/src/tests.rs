use super::*;
use std::time::Duration;
use weir_host::fake::{Fake, Worker};

const FACTS: &[u8] = b"dialect=chat stream=1 prompt_tokens=9 model=m";
const SSE: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];

fn answer(
    worker: &mut Worker<Meter>,
    facts: &[u8],
    headers: &[(&str, &str)],
    pieces: &[&[u8]],
    whole: bool,
) -> Fake {
    let mut exchange = worker.request(&[], &[(wire::FACTS, facts)], true);
    worker.response(&mut exchange, "127.0.0.1:1", headers);
    for (at, piece) in pieces.iter().enumerate() {
        worker.world().pass(Duration::from_millis(10));
        worker.piece(&mut exchange, piece, whole && at + 1 == pieces.len());
    }
    worker.finish(exchange)
}

#[test]
fn a_stream_gives_usage_times_and_stats() {
    let mut worker = Worker::new(r#"{"models":["m"]}"#);
    let pieces: [&[u8]; 5] = [
        b": waiting\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n",
        b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
        b"data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\nda",
        b"ta: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\n",
        b"data: [DONE]\n\n",
    ];
    let seen = answer(&mut worker, FACTS, &SSE, &pieces, true);
    let expected =
        "status=complete input=9 cached=0 output=3 reasoning=0 ttft_ms=20.000 tpot_ms=15.000 finish=stop";
    assert_eq!(seen.state(wire::USAGE).unwrap(), expected);
    let world = worker.world();
    assert_eq!(world.metric("weir_requests_total;model=m"), 1);
    assert_eq!(world.metric("weir_output_tokens_total;model=m"), 3);
    assert_eq!(world.metric("weir_ttft_ms;model=m"), 20);
    assert_eq!(world.metric("weir_tpot_us;model=m"), 15_000);
}

#[test]
fn a_json_answer_has_usage_and_no_time_per_token() {
    let mut worker = Worker::new("");
    let json = [(":status", "200"), ("content-type", "application/json")];
    let body: [&[u8]; 2] = [
        b"{\"choices\":[{\"finish_reason\":\"length\"}],\"usage\":{\"prompt_",
        b"tokens\":4,\"completion_tokens\":2}}",
    ];
    let seen = answer(&mut worker, FACTS, &json, &body, true);
    let expected = "status=complete input=4 cached=0 output=2 reasoning=0 ttft_ms=10.000 finish=length";
    assert_eq!(seen.state(wire::USAGE).unwrap(), expected);
    assert_eq!(worker.world().metric("weir_requests_total;model=other"), 1);
    assert_eq!(worker.world().metric("weir_ttft_ms;model=other"), 0);
}

#[test]
fn an_answer_that_breaks_off_is_reported_all_the_same() {
    let mut worker = Worker::new("");
    let pieces: [&[u8]; 1] = [b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"];
    let seen = answer(&mut worker, FACTS, &SSE, &pieces, false);
    assert_eq!(seen.state(wire::USAGE).unwrap(), "status=missing deltas=1 ttft_ms=10.000");
    assert_eq!(worker.world().metric("weir_usage_missing_total;model=other"), 1);
}

#[test]
fn an_engines_error_is_counted_and_named() {
    let mut worker = Worker::new("");
    let headers = [(":status", "429"), ("content-type", "application/json")];
    let seen = answer(&mut worker, FACTS, &headers, &[b"{\"error\":{\"type\":\"rate_limit_error\"}}"], true);
    assert!(seen.state(wire::USAGE).unwrap().ends_with("error=rate_limit_error"));
    assert_eq!(worker.world().metric("weir_errors_total;model=other"), 1);
}

#[test]
fn what_is_no_inference_is_left_alone() {
    let mut worker = Worker::new("");
    let seen = answer(&mut worker, b"", &SSE, &[b"data: x\n\n"], true);
    assert_eq!(seen.state(wire::USAGE), None);
    assert_eq!(worker.world().metric("weir_requests_total;model=other"), 0);
}
