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
fn a_wish_for_a_stream_makes_none_and_a_stream_by_another_name_is_one() {
    let plain = [(":status", "200"), ("content-type", "text/plain")];
    let pieces: [&[u8]; 2] = [
        b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n",
    ];
    let usage = |facts: &[u8], headers: &[(&str, &str)], pieces: &[&[u8]]| {
        answer(&mut Worker::new(""), facts, headers, pieces, true).state(wire::USAGE).unwrap()
    };
    let read = "status=complete input=9 cached=0 output=1 reasoning=0 ttft_ms=10.000";
    assert_eq!(usage(FACTS, &plain, &pieces), read);
    // The first byte is no token, also while nothing tells yet that this is a stream.
    let slowly =
        [&b"da"[..], b"ta: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n", pieces[0], pieces[1]];
    assert_eq!(usage(FACTS, &plain, &slowly), read.replace("=10", "=30"));
    assert_eq!(usage(FACTS, &plain, &[b"da", b"ta: [DONE]\n\n"]), "status=missing deltas=0");
    let unwished = b"dialect=chat stream=0 prompt_tokens=9 model=m";
    assert_eq!(usage(unwished, &plain, &pieces), "status=missing unread=1 ttft_ms=10.000");
    let sound = [(":status", "200"), ("content-type", "audio/mpeg")];
    assert_eq!(usage(FACTS, &sound, &[b"ID3\x04", b"data: "]), "status=missing unread=1 ttft_ms=10.000");
    let json = [(":status", "200"), ("content-type", "application/json")];
    assert_eq!(usage(FACTS, &json, &[b"{\"choices\":[]}"]), "status=missing ttft_ms=10.000");
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

#[test]
fn a_stream_that_ends_in_the_middle_gets_an_error_as_its_last_event() {
    let anthropic: &[u8] = b"dialect=messages stream=1 prompt_tokens=9 model=m";
    let delta = b"data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n";
    for (facts, piece, error) in [
        (
            FACTS,
            &b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"ch"[..],
            "data: {\"error\":{",
        ),
        (anthropic, &delta[..], "event: error\ndata: {\"error\":{"),
    ] {
        for empty_end in [false, true] {
            let mut worker = Worker::<Meter>::new("");
            let mut exchange = worker.request(&[], &[(wire::FACTS, facts)], true);
            worker.response(&mut exchange, "127.0.0.1:1", &SSE);
            let mut got = worker.piece(&mut exchange, piece, !empty_end);
            if empty_end {
                got.extend(worker.piece(&mut exchange, b"", true));
            }
            let got = String::from_utf8(got).unwrap();
            let rest = got.strip_prefix(std::str::from_utf8(piece).unwrap()).unwrap();
            assert!(rest.starts_with(&format!("\n\n{error}")) && rest.ends_with("}\n\n"), "{rest:?}");
            assert!(worker.finish(exchange).state(wire::USAGE).unwrap().ends_with("error=broken_off"));
            assert_eq!(worker.world().metric("weir_broken_off_total;model=other"), 1);
        }
    }
}

#[test]
fn an_answer_whose_length_was_said_gets_nothing_more() {
    let mut worker = Worker::<Meter>::new("");
    let mut exchange = worker.request(&[], &[(wire::FACTS, FACTS)], true);
    worker.response(&mut exchange, "127.0.0.1:1", &[SSE[0], SSE[1], ("content-length", "49")]);
    let piece = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    assert_eq!(worker.piece(&mut exchange, piece, true), piece);
}
