//! What it counts.

use super::*;

#[test]
fn each_request_counts_once_by_what_became_of_it() {
    let desk = desk(|config| {
        config["picker"]["request"] = json!({"max_body_bytes": 4_000});
        config["pools"][1]["attributes"] =
            json!({"10.1.0.1:8000": {"max_in_flight": 1, "max_input_tokens": 500}});
    });
    assert!(desk.scorer.metrics().unwrap().contains("weir_picker_requests_total{outcome=\"too_large\"} 0"));
    let to = |model: &str| format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}"#);
    let long = to("n").replace("hi", &"long ".repeat(700));
    let gzip = Asked::RequestHeaders(headers(
        &[(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "text/plain")],
        false,
    ));
    let nobody = text("10.9.9.9:1");
    let mut open = desk.open();
    ask(&mut open, Buffered, None, to("n").as_bytes());
    say(&mut open, [Buffered, NoBody], None, answered("200", "application/json", false));
    for (outcome, told) in [
        ("saturated", ask(&mut desk.open(), Buffered, None, to("n").as_bytes())),
        ("no_endpoints", ask(&mut desk.open(), Buffered, Some(&nobody), to("m").as_bytes())),
        ("unknown_model", ask(&mut desk.open(), Buffered, None, to("zzz").as_bytes())),
        ("too_long", ask(&mut desk.open(), Buffered, None, long.as_bytes())),
        ("unreadable", ask(&mut desk.open(), Buffered, None, b"{")),
        ("too_large", ask(&mut desk.open(), Buffered, None, &[b' '; 5_000])),
        ("unsupported", say(&mut desk.open(), [Buffered, NoBody], None, gzip)),
    ] {
        assert!(counted(&desk).contains(&(outcome.to_owned(), 1)), "{outcome}: {told:?}");
    }
    let get = Asked::RequestHeaders(headers(&[(":method", "GET"), (":path", "/v1/models")], true));
    say(&mut desk.open(), [NoBody, NoBody], None, get);
    let mut leaves = desk.open();
    say(&mut leaves, [Buffered, NoBody], None, post(&[]));
    assert_eq!(streams(&desk), 2);
    drop((open, leaves));
    assert_eq!(streams(&desk), 0);
    let all =
        ["chosen", "left", "no_endpoints", "passed", "saturated", "too_large", "too_long", "unknown_model"];
    let all = all.iter().chain(&["unreadable", "unsupported"]);
    assert_eq!(counted(&desk), all.map(|outcome| ((*outcome).to_owned(), 1)).collect::<Vec<_>>());
}
