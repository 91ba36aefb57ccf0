//! Who served, how the answer went, and that the lease ends.

use super::*;

#[test]
fn the_first_token_and_the_end_are_seen_wherever_the_answer_is_cut() {
    const SSE: &[u8] = b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"It\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n";
    // Where the second event ends, the first that carries text.
    let token = SSE.windows(2).enumerate().filter(|(_, two)| *two == b"\n\n").nth(1).unwrap().0;
    let desk = desk(|_| {});
    for mode in [Streamed, FullDuplexStreamed] {
        for cut in 0..SSE.len() {
            let modes = [Buffered, mode];
            let mut exchange = desk.open();
            say(&mut exchange, modes, None, post(&[]));
            say(&mut exchange, modes, None, Asked::RequestBody(body(CHAT, true)));
            say(&mut exchange, modes, None, answered("200", "text/event-stream", false));
            let queued = || desk.pool(0).endpoints.iter().map(|own| own.queued_tokens).sum::<u64>();
            assert!(queued() > 0, "the headers are no token");
            let mut told = say(&mut exchange, modes, None, Asked::ResponseBody(body(&SSE[..cut], false)));
            assert!(cut >= token || queued() > 0, "{cut}");
            assert!(cut < token + 2 || queued() == 0, "{cut}");
            assert_eq!(desk.leases(), 1);
            told.extend(say(&mut exchange, modes, None, Asked::ResponseBody(body(&SSE[cut..], true))));
            assert_eq!((queued(), desk.leases()), (0, 0));
            let usage = field(told.last().unwrap(), "weir", "usage").unwrap();
            assert!(usage.starts_with("status=complete input=11 cached=0 output=5"), "{usage}");
            if mode == FullDuplexStreamed {
                assert_eq!(sent_back(&told), (SSE.to_vec(), true));
            }
        }
    }
}

#[test]
fn an_endpoint_that_served_instead_has_the_lease_and_the_one_before_it_a_failure() {
    let desk = desk(
        |config| config["choose"] = json!({"breaker": {"rules": [{"name": "one", "trip_duration_ms": 60000, "failure_condition": {"count": 1, "interval_ms": 60000, "error_reasons": ["reset"]}}]}}),
    );
    let mut exchange = desk.open();
    let told = ask(&mut exchange, Buffered, None, CHAT);
    let order = chosen(&told[1]);
    say(
        &mut exchange,
        [Buffered, NoBody],
        Some(&text(&order[1])),
        answered("200", "application/json", false),
    );
    let pool = desk.pool(0);
    let out: Vec<&str> = pool.out.iter().map(|out| out.address.as_str()).collect();
    assert_eq!(out, [&order[0]]);
    let busy: Vec<_> =
        pool.endpoints.iter().filter(|own| own.in_flight > 0).map(|own| own.address.clone()).collect();
    assert_eq!(busy, [order[1].clone()]);
    drop(exchange);
    assert_eq!(desk.leases(), 0);
}

#[test]
fn conformance_tests_may_name_endpoints_and_are_told_who_served() {
    let desk = desk(|config| config["picker"]["conformance"] = true.into());
    for (wanted, allowed) in
        [("10.0.0.2", &["10.0.0.2:8000"][..]), ("10.0.0.1:8001", &["10.0.0.1:8001"]), ("256.1.1.1", &[])]
    {
        let mut exchange = desk.open();
        say(&mut exchange, [Buffered, NoBody], None, post(&[("test-epp-endpoint-selection", wanted)]));
        let told = say(&mut exchange, [Buffered, NoBody], None, Asked::RequestBody(body(CHAT, true)));
        let order = chosen(&told[0]);
        assert!(allowed.is_empty() || order == allowed, "{order:?}");
        let served = text(&order[0]);
        let told =
            say(&mut exchange, [Buffered, NoBody], Some(&served), answered("200", "application/json", true));
        let told = header(common(&told[0]).header_mutation.as_ref(), "x-conformance-test-served-endpoint");
        assert_eq!(told, Some(order[0].as_str()));
    }
}
