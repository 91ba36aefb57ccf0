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
    assert!(
        Worker::<Extract>::of(&world, r#"{"flag_check_ms":0}"#).unwrap_err().at.starts_with("flag_check_ms")
    );
}
