use super::*;
use weir::wire;
use weir_host::fake::{Exchange, Worker};

const CONFIG: &str =
    r#"{"pick":{"pools":[{"name":"p","models":["m"],"endpoints":["10.0.0.1:1","10.0.0.2:1"]}]}}"#;
const CHAT: [(&str, &str); 3] =
    [(":method", "POST"), (":path", "/v1/chat/completions"), (wire::DESTINATION, "6.6.6.6:6")];
const BODY: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;

fn send(worker: &mut Worker<Chain>, body: &[u8]) -> Exchange<Chain> {
    let mut exchange = worker.request(&CHAT, &[], false);
    assert!(exchange.held());
    worker.body(&mut exchange, body, true);
    exchange
}

#[test]
fn a_request_is_read_sent_and_measured_as_by_three_filters() {
    let mut worker = Worker::new(CONFIG);
    let mut exchange = send(&mut worker, BODY);
    assert!(!exchange.held());
    let destination = exchange.see().header(wire::DESTINATION).remove(0);
    let (endpoint, _) = destination.split_once(',').unwrap();
    assert!(endpoint.starts_with("10.0.0."));
    worker.response(&mut exchange, endpoint, &[(":status", "200"), ("content-type", "application/json")]);
    worker.piece(&mut exchange, br#"{"usage":{"prompt_tokens":4,"completion_tokens":2}}"#, true);
    let seen = worker.finish(exchange);
    assert_eq!(seen.header(wire::MODEL), ["m"]);
    assert!(seen.state(wire::PICK).unwrap().contains("by=local"));
    assert!(seen.state(wire::USAGE).unwrap().starts_with("status=complete input=4"));
    assert_eq!(seen.state(wire::BLOCKS), None, "no need of Envoy's");
    worker.tick();
    assert_eq!(worker.world().metric("weir_pick_leases;pool=p"), 0);
}

#[test]
fn a_scorer_that_reads_prompts_gets_the_body_that_envoy_never_has_as_state() {
    let scorer = r#""scorer":{"cluster":"scorer","max_body_bytes":1000},"pools""#;
    let mut worker = Worker::new(&CONFIG.replacen(r#""pools""#, scorer, 1));
    let exchange = send(&mut worker, BODY);
    let call = exchange.see().calls().remove(0);
    let (_, at) = wire::Reserve::read(&call.body).unwrap();
    assert_eq!(&call.body[at..], BODY);
    assert_eq!(worker.finish(exchange).state(wire::BODY), None);
}

#[test]
fn what_engines_count_teaches_how_many_bytes_make_a_token() {
    let mut worker = Worker::new(CONFIG);
    let body =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, "word ".repeat(400));
    let mut estimates = Vec::new();
    for _ in 0..60 {
        let mut exchange = send(&mut worker, body.as_bytes());
        worker.response(
            &mut exchange,
            "10.0.0.1:1",
            &[(":status", "200"), ("content-type", "application/json")],
        );
        worker.piece(&mut exchange, br#"{"usage":{"prompt_tokens":1000,"completion_tokens":2}}"#, true);
        let facts =
            worker.finish(exchange).state(wire::FACTS).and_then(|line| wire::read_facts(&line)).unwrap();
        estimates.push(facts.prompt_tokens);
    }
    assert_eq!(estimates[0], 502, "four bytes to a token, until it is known");
    assert!((950..=1_050).contains(&estimates[59]), "{estimates:?}");
}

#[test]
fn a_body_that_comes_while_the_scorer_is_asked_releases_nothing() {
    let config = CONFIG.replace(r#"{"pools""#, r#"{"scorer":{"cluster":"scorer"},"pools""#);
    let mut worker = Worker::new(&config);
    let mut exchange = send(&mut worker, BODY);
    assert!(exchange.held());
    worker.body(&mut exchange, b"", true);
    assert!(exchange.held());
    worker.reply(&mut exchange, &[(":status", "504")], b"");
    assert!(!exchange.held());
    assert!(exchange.see().state(wire::PICK).unwrap().contains("by=fallback"));
    worker.finish(exchange);
}

#[test]
fn a_renamed_request_is_sent_by_its_target_and_measured_before_it_is_named_back() {
    let rules = r#""extract":{"rewrite":{"rules":[{"models":["alias*"],"targets":[{"model":"m"}]}]}},"pick""#;
    for scorer in [false, true] {
        let mut config = CONFIG.replace(r#""pick""#, rules);
        if scorer {
            config = config.replace(r#"{"pools""#, r#"{"scorer":{"cluster":"scorer"},"pools""#);
        }
        let mut worker = Worker::new(&config);
        let mut exchange =
            send(&mut worker, &String::from_utf8_lossy(BODY).replace(r#""m""#, r#""alias-1""#).into_bytes());
        if scorer {
            worker.reply(&mut exchange, &[(":status", "504")], b"");
        }
        assert!(!exchange.held());
        assert_eq!(exchange.see().sent(), BODY);
        assert_eq!(exchange.see().header(wire::MODEL), ["m"]);
        worker.response(
            &mut exchange,
            "10.0.0.1:1",
            &[(":status", "200"), ("content-type", "application/json")],
        );
        let answer = br#"{"model":"m","usage":{"prompt_tokens":4,"completion_tokens":2}}"#;
        let got = worker.piece(&mut exchange, answer, true);
        assert!(got.starts_with(br#"{"model":"alias-1","usage""#), "{}", String::from_utf8_lossy(&got));
        let seen = worker.finish(exchange);
        assert!(seen.state(wire::PICK).unwrap().contains("endpoint=10.0.0."));
        assert!(seen.state(wire::USAGE).unwrap().starts_with("status=complete input=4"));
        assert!(seen.state(wire::FACTS).unwrap().ends_with("model=m rewritten_from=alias-1"));
    }
}

#[test]
fn what_is_refused_or_passes_is_treated_as_by_three_filters() {
    let mut worker = Worker::new(CONFIG);
    let refused = send(&mut worker, b"{}");
    assert_eq!(refused.see().answer().unwrap().status, 400);
    worker.finish(refused);
    let passed = worker.request(&[(":method", "GET"), (wire::DESTINATION, "6.6.6.6:6")], &[], true);
    assert!(!passed.held());
    assert!(worker.finish(passed).header(wire::DESTINATION).is_empty());
}

#[test]
fn a_wrong_configuration_names_the_filter_and_the_place() {
    let message = |json: &str| Config::read(json.as_bytes()).unwrap_err().to_string();
    assert!(message(r#"{"pick":{"pools":[{"name":1}]}}"#).starts_with("pick.pools[0].name: "));
    assert!(
        message(r#"{"extract":{"request":{"x":1}},"pick":{"pools":[]}}"#).starts_with("extract.request.x: ")
    );
    let limit = CONFIG.replace(r#"{"pick""#, r#"{"limit":{"limits":[{"name":"l"}]},"pick""#);
    let limit = limit.as_str();
    assert!(message(limit).starts_with("limit.limits[0].windows: "), "{}", message(limit));
    let rule = r#"{"extract":{"rewrite":{"rules":[{"models":["a"],"targets":[]}]}},"pick":{"pools":[]}}"#;
    assert!(message(rule).starts_with("extract.rewrite.rules[0].targets: empty"), "{}", message(rule));
    assert!(message(r#"{"pikc":{}}"#).starts_with("pikc: unknown field"));
}

#[test]
fn a_limit_keeps_requests_from_pick_and_is_settled_by_what_meter_read() {
    let limit = r#""limit":{"limits":[{"name":"l","windows":[{"tokens":100,"per_s":60}]}]}"#;
    let mut worker = Worker::new(&CONFIG.replace(r#"{"pick""#, &format!(r#"{{{limit},"pick""#)));
    let body = br#"{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":90}"#;
    let mut exchange = send(&mut worker, body);
    let denied = send(&mut worker, body);
    assert!(denied.held());
    assert_eq!(denied.see().answer().unwrap().status, 429);
    let seen = worker.finish(denied);
    assert!(seen.header(wire::DESTINATION).is_empty() && seen.state(wire::PICK).is_none());
    assert!(seen.state(wire::LIMIT).unwrap().starts_with("verdict=limited limit=l "));
    worker.response(&mut exchange, "10.0.0.1:1", &[(":status", "200"), ("content-type", "application/json")]);
    assert_eq!(exchange.see().answer_header("x-ratelimit-limit-tokens"), ["100"]);
    worker.piece(&mut exchange, br#"{"usage":{"prompt_tokens":4,"completion_tokens":2}}"#, true);
    let seen = worker.finish(exchange);
    assert!(seen.state(wire::LIMIT).unwrap().ends_with(" charged=6 estimated=0"));
    let broken = send(&mut worker, body);
    let seen = worker.finish(broken);
    assert!(seen.state(wire::LIMIT).unwrap().ends_with(" charged=0 estimated=0"));
    assert_eq!(worker.world().metric("weir_limit_reserved_tokens;limit=l"), 0);
}

#[test]
fn a_request_that_waits_for_its_share_of_a_limit_is_sent_when_that_is_known() {
    let limit = r#"{"limit":{"limits":[{"name":"l","windows":[{"tokens":1000,"per_s":60}]}],
        "share":{"cluster":"scorer","id_seed":1}},"pick""#;
    let mut worker = Worker::new(&CONFIG.replace("{\"pick\"", limit));
    let mut exchange = send(&mut worker, BODY);
    let call = exchange.see().calls().pop().unwrap();
    assert_eq!((exchange.held(), call.path.as_str()), (true, wire::ALLOWANCES_PATH));
    // The scorer is late: the request is counted by this proxy alone, and then an endpoint is chosen.
    worker.reply(&mut exchange, &[(":status", "504")], b"");
    assert!(!exchange.held());
    assert_eq!(exchange.see().header(wire::DESTINATION).len(), 1);
    // Renewals are its own: pick is not told of them.
    worker.world().pass(std::time::Duration::from_millis(1_500));
    assert!(worker.tick());
    assert_eq!(worker.calls().pop().unwrap().path, wire::ALLOWANCES_PATH);
    let grants = br#"{"keys":[{"turn":0,"lacks":false,"sought":false,"parts":[]}]}"#;
    worker.told(&[(":status", "200"), (wire::SCORER, "1")], grants);
    assert_eq!(worker.world().metric("weir_limit_share_up"), 1);
    worker.finish(exchange);
}
