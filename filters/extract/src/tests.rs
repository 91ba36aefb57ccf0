use super::*;
use weir_host::fake::{Exchange, Worker};

const CHAT: [(&str, &str); 3] =
    [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];
const BODY: &[u8] = br#"{"messages":[{"role":"user","content":"hello there, how are you this fine and long morning? well?"}],"model":"m"}"#;

fn send(worker: &mut Worker<Extract>, headers: &[(&str, &str)], pieces: &[&[u8]]) -> Exchange<Extract> {
    let mut exchange = worker.request(headers, &[], false);
    for (at, piece) in pieces.iter().enumerate() {
        assert!(exchange.held(), "nothing goes on before the body is read");
        worker.body(&mut exchange, piece, at + 1 == pieces.len());
    }
    exchange
}

#[test]
fn the_model_of_the_body_becomes_a_header_however_the_body_comes() {
    for cut in 0..BODY.len() {
        let mut worker = Worker::new("");
        let exchange = send(&mut worker, &CHAT, &[&BODY[..cut], &BODY[cut..]]);
        assert!(!exchange.held());
        let seen = worker.finish(exchange);
        assert_eq!(seen.header(wire::MODEL), ["m"]);
        assert_eq!(
            seen.state(wire::FACTS).unwrap(),
            "dialect=chat stream=0 prompt_tokens=16 prompt_units=1 model=m"
        );
        let (_, blocks) = wire::read_blocks(&seen.property(&[wire::BLOCKS]).unwrap()).unwrap();
        assert_eq!(blocks.len(), 1);
    }
}

#[test]
fn bodies_are_left_for_the_scorer_only_where_that_is_asked_for_and_only_short_ones() {
    for (most, left) in [(0, None), (BODY.len() - 1, None), (BODY.len(), Some(BODY))] {
        let mut worker = Worker::new(&format!(r#"{{"publish_body_bytes":{most}}}"#));
        let exchange = send(&mut worker, &CHAT, &[BODY]);
        assert_eq!(worker.finish(exchange).property(&[wire::BODY]).as_deref(), left);
    }
}

#[test]
fn what_only_the_gateway_may_set_is_removed_from_every_request() {
    let forged = [
        (wire::MODEL, "other"),
        (wire::MODEL, "twice"),
        (wire::DESTINATION, "1.2.3.4:5"),
        ("x-prefiller-host-port", "1.2.3.4:5"),
        ("x-weir-anything", "x"),
        ("x-own", "kept"),
    ];
    let with =
        |first: &[(&'static str, &'static str)]| first.iter().chain(&forged).copied().collect::<Vec<_>>();
    let mut worker = Worker::new("");
    let read = send(&mut worker, &with(&CHAT), &[BODY]);
    let refused = send(&mut worker, &with(&CHAT), &[b"{}"]);
    assert_eq!(refused.see().answer().unwrap().status, 400);
    let passed = worker.request(&with(&[(":method", "GET"), (":path", "/v1/models")]), &[], true);
    assert!(!passed.held());
    for (exchange, model) in [(read, vec!["m"]), (refused, vec![]), (passed, vec![])] {
        let seen = worker.finish(exchange);
        assert_eq!(seen.header(wire::MODEL), model);
        for (name, _) in &forged[2..5] {
            assert!(seen.header(name).is_empty(), "{name}");
        }
        assert_eq!(seen.header("x-own"), ["kept"]);
    }
}

#[test]
fn a_bad_body_is_answered_in_the_clients_dialect_and_counted() {
    let mut worker = Worker::<Extract>::new("");
    let messages = [(":method", "POST"), (":path", "/v1/messages")];
    let exchange = send(&mut worker, &messages, &[b"{\"model\":1}"]);
    let answer = exchange.see().answer().unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.body.starts_with(r#"{"error":{"message":"model: not a string""#), "{}", answer.body);
    assert_eq!(worker.world().metric("weir_extract_refused_total"), 1);
}

#[test]
fn a_body_over_the_limit_is_refused_as_soon_as_it_is_known() {
    let mut worker = Worker::new(r#"{"request":{"max_body_bytes":100}}"#);
    let exchange = send(&mut worker, &CHAT, &[&[b' '; 60], &[b' '; 60], b"never asked for"]);
    let answer = exchange.see().answer().unwrap();
    assert_eq!(answer.status, 413);
    assert!(answer.body.contains("100 bytes (max_body_bytes)"), "{}", answer.body);
}

#[test]
fn a_request_that_ends_with_trailers_is_read_too() {
    let mut worker = Worker::<Extract>::new("");
    let mut exchange = worker.request(&CHAT, &[], false);
    worker.body(&mut exchange, BODY, false);
    worker.trailers(&mut exchange);
    assert!(!exchange.held());
    assert_eq!(exchange.see().header(wire::MODEL), ["m"]);
}

#[test]
fn once_a_body_has_come_the_missing_flag_is_not_looked_for() {
    let mut worker = Worker::<Extract>::new("");
    let mut exchange = worker.request(&CHAT, &[], false);
    worker.body(&mut exchange, BODY, true);
    for _ in 0..3 {
        worker.tick();
    }
    assert_eq!(worker.world().metric("weir_extract_misconfigured_total"), 0);
}

#[test]
fn a_wrong_configuration_names_the_place() {
    let world = weir_host::fake::World::new();
    let wrong = Worker::<Extract>::of(&world, r#"{"request":{"max_blox":1}}"#).unwrap_err();
    assert!(wrong.to_string().starts_with("request.max_blox: unknown field"), "{wrong}");
    let wrong =
        Worker::<Extract>::of(&world, r#"{"rewrite":{"rules":[{"models":[],"targets":[]}]}}"#).unwrap_err();
    assert_eq!(wrong.at, "rewrite.rules[0].models");
    assert!(
        Worker::<Extract>::of(&world, r#"{"flag_check_ms":0}"#).unwrap_err().at.starts_with("flag_check_ms")
    );
}

const REWRITE: &str = r#"{"rewrite":{"rules":[
    {"models":["m"],"targets":[{"model":"a-longer-one"}]},
    {"models":["split"],"targets":[{"model":"a","weight":1},{"model":"b","weight":1}]}]}}"#;

fn renamed(worker: &mut Worker<Extract>) -> Exchange<Extract> {
    let length = BODY.len().to_string();
    let headers = [&CHAT[..], &[("content-length", length.as_str()), ("accept-encoding", "gzip")]].concat();
    send(worker, &headers, &[&BODY[..30], &BODY[30..]])
}

#[test]
fn a_model_that_another_serves_is_renamed_in_body_header_and_facts() {
    let mut worker = Worker::new(REWRITE);
    let exchange = renamed(&mut worker);
    let seen = exchange.see();
    let expected = String::from_utf8_lossy(BODY).replace(r#""m""#, r#""a-longer-one""#);
    assert_eq!(String::from_utf8(seen.sent()).unwrap(), expected);
    assert_eq!(seen.header("content-length"), [expected.len().to_string()]);
    assert_eq!(seen.header("accept-encoding"), ["identity"]);
    assert_eq!(seen.header(wire::MODEL), ["a-longer-one"]);
    let facts = "dialect=chat stream=0 prompt_tokens=16 prompt_units=1 model=a-longer-one rewritten_from=m";
    assert_eq!(seen.state(wire::FACTS).unwrap(), facts);
    assert_eq!(worker.world().metric("weir_rewrites_total;model=a-longer-one"), 1);
}

#[test]
fn a_renamed_request_without_a_length_or_with_trailers_is_right_too() {
    let mut worker = Worker::<Extract>::new(REWRITE);
    let mut exchange = worker.request(&CHAT, &[], false);
    worker.body(&mut exchange, BODY, false);
    worker.trailers(&mut exchange);
    assert!(!exchange.held());
    assert!(exchange.see().sent().ends_with(br#""model":"a-longer-one"}"#));
    assert_eq!(exchange.see().header("content-length"), [exchange.see().sent().len().to_string()]);
}

#[test]
fn the_answer_has_the_clients_name_and_only_of_a_renamed_request() {
    let mut worker = Worker::new(REWRITE);
    let json = [(":status", "200"), ("content-type", "application/json"), ("content-length", "31")];
    for (model, name, lengths) in [("m", "m", vec![]), ("own", "x", vec!["31".to_owned()])] {
        let body = format!(r#"{{"messages":[],"model":"{model}"}}"#);
        let mut exchange = send(&mut worker, &CHAT, &[body.as_bytes()]);
        worker.response(&mut exchange, "1.2.3.4:5", &json);
        assert_eq!(exchange.see().answer_header("content-length"), lengths);
        let mut answer = worker.piece(&mut exchange, br#"{"id":1,"mod"#, false);
        answer.extend(worker.piece(&mut exchange, br#"el":"x","rest":"#, false));
        answer.extend(worker.piece(&mut exchange, br#"[]}"#, true));
        assert_eq!(String::from_utf8(answer).unwrap(), format!(r#"{{"id":1,"model":"{name}","rest":[]}}"#));
        worker.finish(exchange);
    }
}

#[test]
fn a_name_cut_off_by_the_end_of_the_answer_is_not_lost() {
    let mut worker = Worker::new(REWRITE);
    let mut exchange = renamed(&mut worker);
    worker.response(&mut exchange, "1.2.3.4:5", &[("content-type", "text/event-stream")]);
    assert_eq!(worker.piece(&mut exchange, b"data: {\"model\":\"x", false), b"data: {\"model\":");
    assert_eq!(worker.piece(&mut exchange, b"", true), b"\"x");
}

#[test]
fn an_answer_that_cannot_be_edited_passes_and_is_counted() {
    let mut worker = Worker::new(REWRITE);
    let mut exchange = renamed(&mut worker);
    let headers =
        [("content-type", "application/json"), ("content-encoding", "gzip"), ("content-length", "3")];
    worker.response(&mut exchange, "1.2.3.4:5", &headers);
    assert_eq!(exchange.see().answer_header("content-length"), ["3"]);
    assert_eq!(worker.piece(&mut exchange, b"\x1f\x8b\x08", true), b"\x1f\x8b\x08");
    assert_eq!(worker.world().metric("weir_extract_unrestored_total"), 1);
}

#[test]
fn a_session_stays_with_its_target_and_requests_without_one_are_split() {
    let mut worker = Worker::new(REWRITE);
    let mut target = |session: &[(&'static str, &'static str)]| {
        let headers = [&CHAT[..], session].concat();
        let exchange = send(&mut worker, &headers, &[br#"{"messages":[],"model":"split"}"#]);
        worker.finish(exchange).header(wire::MODEL).remove(0)
    };
    let one: Vec<_> = (0..20).map(|_| target(&[("x-session-id", "one")])).collect();
    assert!(one.iter().all(|target| *target == one[0]));
    let all: std::collections::BTreeSet<_> = (0..40).map(|_| target(&[])).collect();
    assert_eq!(all.len(), 2);
    let body = br#"{"messages":[],"model":"split","prompt_cache_key":"two"}"#;
    let named: std::collections::BTreeSet<_> = (0..40)
        .map(|_| {
            let exchange = send(&mut worker, &CHAT, &[body]);
            worker.finish(exchange).header(wire::MODEL).remove(0)
        })
        .collect();
    assert_eq!(named.len(), 1, "the body may name the session as well");
}

#[test]
fn only_of_whom_a_filter_before_says_so_the_question_for_an_explanation_counts() {
    let config = r#"{"explain":{"metadata":"envoy.filters.http.rbac","key":"k","value":"allowed"}}"#;
    let said = "metadata.filter_metadata.envoy.filters.http.rbac.k";
    let cases: [(&str, &str, &[u8], bool); 5] = [
        (config, "1", b"allowed", true),
        (config, "1", b"denied", false),
        (config, "1", b"", false),
        (config, "0", b"allowed", false),
        ("", "1", b"allowed", false),
    ];
    for (config, asks, by_rbac, is_told) in cases {
        let mut worker = Worker::<Extract>::new(config);
        let headers = [&CHAT[..], &[(wire::EXPLAIN, asks)]].concat();
        let mut exchange = worker.request(&headers, &[(said, by_rbac)], false);
        worker.body(&mut exchange, BODY, true);
        assert!(exchange.see().header(wire::EXPLAIN).is_empty(), "the engine never sees it");
        assert_eq!(exchange.see().state(wire::FACTS).unwrap().contains(" explain=1"), is_told);
        // As `pick` would, where it is told to explain every choice.
        exchange.see().set_property(wire::WHY, br#"{"because":"x","candidates":[]}"#);
        worker.response(&mut exchange, "10.0.0.1:1", &[(":status", "200"), (wire::EXPLANATION, "forged")]);
        let told = exchange.see().answer_header(wire::EXPLANATION);
        let expected = if is_told { r#"{"because":"x","candidates":[]}"# } else { "forged" };
        assert_eq!(told, [expected]);
    }
}
