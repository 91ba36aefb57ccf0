mod line;

use super::*;
use std::time::Duration;
use weir_host::fake::{Exchange, Worker, World};

const CONFIG: &str = r#"{"limits":[{"name":"l","key":["api_key"],"windows":[{"tokens":1000,"per_s":60}],"max_in_flight":20}]}"#;
const KEY: [(&str, &str); 1] = [("authorization", "Bearer secret-1")];
const FACTS: &[u8] = b"dialect=chat stream=1 prompt_tokens=40 max_output_tokens=60 model=m";
const SSE: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];

fn send(worker: &mut Worker<Limit>, key: &[(&str, &str)]) -> Exchange<Limit> {
    worker.request(key, &[(wire::FACTS, FACTS)], true)
}

/// Sends one, has it answered, with usage published in time or late; gives `weir.limit` of the access log.
fn charged(worker: &mut Worker<Limit>, answer: &[(&str, &str)], usage: &str, late: bool) -> String {
    let mut exchange = send(worker, &KEY);
    worker.response(&mut exchange, "10.0.0.1:1", answer);
    let state: [(&str, &[u8]); 1] = [(wire::USAGE, usage.as_bytes())];
    let seen = match late {
        false => {
            exchange.see().set_property(wire::USAGE, usage.as_bytes());
            worker.finish(exchange)
        }
        true => worker.finish_with(exchange, &state),
    };
    seen.state(wire::LIMIT).unwrap()
}

fn metric(world: &World, name: &str) -> u64 {
    world.metric(&format!("weir_limit_{name};limit=l"))
}

/// What the three gauges say.
fn gauges(world: &World) -> [u64; 3] {
    ["in_flight", "reserved_tokens", "waiting"].map(|gauge| metric(world, gauge))
}

fn beats(workers: &mut [Worker<Limit>], world: &World, seconds: u64) {
    for _ in 0..seconds {
        world.pass(Duration::from_secs(1));
        assert!(workers.iter_mut().all(Worker::tick));
    }
}

#[test]
fn a_worker_that_dies_takes_its_part_of_the_gauges_along() {
    let world = World::new();
    let mut workers = Vec::from([(); 3].map(|()| Worker::<Limit>::of(&world, CONFIG).unwrap()));
    let open: Vec<_> = workers.iter_mut().map(|worker| send(worker, &KEY)).collect();
    assert_eq!(gauges(&world), [3, 300, 0]);
    let dead = workers.pop();
    beats(&mut workers, &world, 3);
    assert_eq!(gauges(&world), [3, 300, 0], "it may be slow");
    beats(&mut workers, &world, 4);
    assert_eq!(gauges(&world), [2, 200, 0], "once, whoever sees it first");
    // It was only slow, and counts again; what ends then is what it had.
    workers.extend(dead);
    beats(&mut workers, &world, 2);
    assert_eq!(gauges(&world), [3, 300, 0]);
    for (worker, exchange) in workers.iter_mut().zip(open) {
        worker.finish(exchange);
    }
    beats(&mut workers, &world, 10);
    assert_eq!(gauges(&world), [0, 0, 0]);
}

#[test]
fn workers_share_the_count_and_the_client_is_told_how_it_stands() {
    let world = World::new();
    let mut workers = [(); 2].map(|()| Worker::<Limit>::of(&world, CONFIG).unwrap());
    let mut open = Vec::new();
    for turn in 0..10_usize {
        let mut exchange = send(&mut workers[turn % 2], &KEY);
        assert!(!exchange.held());
        workers[turn % 2].response(&mut exchange, "10.0.0.1:1", &SSE);
        let remaining = exchange.see().answer_header("x-ratelimit-remaining-tokens");
        assert_eq!(remaining, [(900 - 100 * turn).to_string()]);
        assert_eq!(exchange.see().answer_header("x-ratelimit-limit-tokens"), ["1000"]);
        open.push((turn % 2, exchange));
    }
    let denied = send(&mut workers[0], &KEY);
    assert!(denied.held());
    let answer = denied.see().answer().unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("61")));
    assert!(answer.body.contains("rate_limit_exceeded") && !answer.body.contains("secret"));
    let seen = workers[0].finish(denied);
    assert_eq!(seen.state(wire::LIMIT).unwrap(), "verdict=limited limit=l retry_after_s=61");
    let other = send(&mut workers[1], &[("x-api-key", "secret-2")]);
    assert!(!other.held());
    workers[1].finish(other);
    assert_eq!((metric(&world, "in_flight"), metric(&world, "reserved_tokens")), (10, 1000));
    for (worker, exchange) in open {
        exchange.see().set_property(wire::USAGE, b"status=complete input=40 cached=0 output=37 reasoning=0");
        let seen = workers[worker].finish(exchange);
        assert!(seen.state(wire::LIMIT).unwrap().ends_with(" charged=77 estimated=0"));
    }
    let counted = ["in_flight", "reserved_tokens", "admitted_total", "limited_total", "charged_tokens_total"];
    assert_eq!(counted.map(|name| metric(&world, name)), [0, 0, 11, 1, 770]);
}

#[test]
fn what_is_charged_follows_how_the_answer_ended() {
    let json = |status| [(":status", status), ("content-type", "application/json")];
    let complete = "status=complete input=40 cached=0 output=9 reasoning=0";
    let cases = [
        (SSE, complete, 49),
        (SSE, "status=partial input=40 cached=0 output=1 reasoning=0 deltas=8", 48),
        (SSE, "status=missing deltas=7", 47),
        (SSE, "status=missing deltas=2 text=80", 60),
        (SSE, "status=missing deltas=2 finish=length", 100),
        (SSE, "status=missing deltas=0", 40),
        // The client asked for a stream, and it is a document.
        (json("200"), "status=missing", 100),
        (SSE, "status=missing", 100),
        (json("200"), complete, 49),
        (json("503"), "status=missing", 0),
        (json("400"), "status=missing error=invalid", 0),
    ];
    for (answer, usage, cost) in cases {
        for late in [false, true] {
            let mut worker = Worker::<Limit>::new(CONFIG);
            let line = charged(&mut worker, &answer, usage, late);
            assert_eq!(line.contains("charged="), !late, "{line}");
            assert_eq!(metric(worker.world(), "charged_tokens_total"), cost, "{usage}, late: {late}");
            let estimated = u64::from(!usage.contains("complete") && cost > 0);
            assert_eq!(metric(worker.world(), "estimated_total"), estimated, "{usage}");
            assert_eq!(metric(worker.world(), "reserved_tokens"), 0);
            let mut next = send(&mut worker, &KEY);
            worker.response(&mut next, "10.0.0.1:1", &SSE);
            let remaining = (900 - cost).to_string();
            assert_eq!(next.see().answer_header("x-ratelimit-remaining-tokens"), [remaining], "{usage}");
        }
    }
}

#[test]
fn an_hour_of_the_calendar_ends_when_the_wall_clock_says_so() {
    let config =
        CONFIG.replace(r#""tokens":1000,"per_s":60"#, r#""tokens":100,"per":"hour","zone":"+00:30""#);
    let mut worker = Worker::<Limit>::new(&config);
    assert!(!send(&mut worker, &KEY).held());
    worker.world().pass(Duration::from_secs(7));
    let denied = send(&mut worker, &KEY);
    let left = 3_600 - (denied.see().wall().as_secs() + 1_800) % 3_600;
    assert_eq!(denied.see().answer().unwrap().header("retry-after"), Some(left.to_string().as_str()));
    worker.world().pass(Duration::from_secs(left - 1));
    assert!(send(&mut worker, &KEY).held());
    worker.world().pass(Duration::from_secs(1));
    assert!(!send(&mut worker, &KEY).held());
}

#[test]
fn a_client_that_leaves_before_an_answer_is_charged_nothing() {
    let mut worker = Worker::<Limit>::new(CONFIG);
    let exchange = send(&mut worker, &KEY);
    let seen = worker.finish(exchange);
    let line = seen.state(wire::LIMIT).unwrap();
    assert_eq!(line, "verdict=admitted reserved=100 remaining=900 charged=0 estimated=0");
    assert_eq!(metric(worker.world(), "in_flight"), 0);
}

#[test]
fn an_answer_nobody_read_costs_what_was_reserved() {
    let mut worker = Worker::<Limit>::new(CONFIG);
    let mut exchange = send(&mut worker, &KEY);
    worker.response(&mut exchange, "10.0.0.1:1", &SSE);
    worker.finish(exchange);
    assert_eq!(metric(worker.world(), "charged_tokens_total"), 100);
    let mut gzip = worker.request(&KEY, &[(wire::FACTS, FACTS)], true);
    worker.response(&mut gzip, "10.0.0.1:1", &SSE);
    gzip.see().set_property(wire::USAGE, b"status=missing unread=1");
    worker.finish(gzip);
    assert_eq!(metric(worker.world(), "charged_tokens_total"), 200);
}

#[test]
fn anthropics_clients_are_answered_in_their_words() {
    let mut worker = Worker::<Limit>::new(&CONFIG.replace("1000", "100"));
    let facts = b"dialect=messages stream=0 prompt_tokens=40 max_output_tokens=60 model=m";
    let mut first = worker.request(&KEY, &[(wire::FACTS, facts)], true);
    worker.response(&mut first, "10.0.0.1:1", &[(":status", "200")]);
    assert_eq!(first.see().answer_header("anthropic-ratelimit-tokens-remaining"), ["0"]);
    assert_eq!(first.see().answer_header("anthropic-ratelimit-tokens-reset"), ["2023-11-14T22:14:22Z"]);
    assert!(first.see().answer_header("x-ratelimit-limit-tokens").is_empty());
    let denied = worker.request(&KEY, &[(wire::FACTS, facts)], true).see().answer().unwrap();
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("61")));
    assert!(denied.body.contains(r#""type":"rate_limit_error""#), "{}", denied.body);
    let large = b"dialect=messages stream=0 prompt_tokens=41 max_output_tokens=60 model=m";
    let refused = worker.request(&KEY, &[(wire::FACTS, large)], true).see().answer().unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (400, None));
    assert!(refused.body.contains("invalid_request_error"), "{}", refused.body);
    assert_eq!((metric(worker.world(), "limited_total"), metric(worker.world(), "too_large_total")), (1, 1));
}

#[test]
fn a_random_credential_beside_the_one_that_was_checked_is_no_new_key() {
    let named = CONFIG.replace(r#""limits""#, r#""identity":{"key_headers":["x-api-key"]},"limits""#);
    for (config, statuses) in [
        (CONFIG, [Some(400); 12]),
        (&named, [[None; 10].as_slice(), &[Some(429); 2]].concat().try_into().unwrap()),
    ] {
        let mut worker = Worker::<Limit>::new(config);
        for (turn, status) in statuses.into_iter().enumerate() {
            let random = format!("Bearer {turn}");
            let sent = send(&mut worker, &[("authorization", &random), ("x-api-key", "sk-real")]);
            let answer = sent.see().answer();
            assert_eq!(answer.as_ref().map(|answer| answer.status), status, "{turn}");
            if status == Some(400) {
                let body = answer.unwrap().body;
                assert!(body.contains("more than one credential") && !body.contains("sk-real"), "{body}");
            }
        }
        assert_eq!(metric(worker.world(), "ambiguous_total"), if config == CONFIG { 12 } else { 0 });
    }
    let mut worker = Worker::<Limit>::new(CONFIG);
    for pair in [
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
        [("api-key", "a"), ("x-api-key", "b")],
    ] {
        let refused = send(&mut worker, &pair);
        assert_eq!(refused.see().answer().unwrap().status, 400);
        let seen = worker.finish(refused);
        assert_eq!(seen.state(wire::LIMIT).unwrap(), "verdict=ambiguous limit=l retry_after_s=1");
    }
}

#[test]
fn what_is_no_inference_or_has_no_limit_passes() {
    let mut worker =
        Worker::<Limit>::new(r#"{"limits":[{"name":"l","when":{"models":["x"]},"max_in_flight":1}]}"#);
    for state in [None, Some((wire::FACTS, FACTS)), Some((wire::FACTS, &b"garbage"[..]))] {
        let state: Vec<_> = state.into_iter().collect();
        let mut exchange = worker.request(&KEY, &state, true);
        assert!(!exchange.held());
        worker.response(&mut exchange, "10.0.0.1:1", &SSE);
        let seen = worker.finish(exchange);
        assert_eq!(seen.state(wire::LIMIT), None);
        assert!(seen.answer_header("x-ratelimit-limit-tokens").is_empty());
    }
}

#[test]
fn an_address_is_the_client_as_envoy_sees_it() {
    let config =
        r#"{"headers":false,"limits":[{"name":"l","key":["ip"],"windows":[{"requests":1,"per_s":60}]}]}"#;
    let mut worker = Worker::<Limit>::new(config);
    let mut from = |address: &str| {
        let forged = [("x-forwarded-for", "6.6.6.6")];
        let state = [(wire::FACTS, FACTS), ("source.address", address.as_bytes())];
        let mut exchange = worker.request(&forged, &state, true);
        if !exchange.held() {
            worker.response(&mut exchange, "10.0.0.1:1", &SSE);
            assert!(exchange.see().answer_header("x-ratelimit-limit-requests").is_empty(), "turned off");
        }
        exchange.held()
    };
    let held = ["1.1.1.1:5", "1.1.1.1:6", "1.1.1.2:5", "[2001:db8::1]:5", "[2001:db8::2]:5"].map(&mut from);
    assert_eq!(held, [false, true, false, false, true]);
    worker.world().pass(Duration::from_secs(62));
}

const SHARED: &str = r#"{"limits":[{"name":"l","key":["api_key"],"windows":[{"tokens":1000,"per_s":60}]}],
    "share":{"cluster":"scorer","id_seed":3,"failure_mode":"open"}}"#;
const SIGNED: [(&str, &str); 2] = [(":status", "200"), (wire::SCORER, "1")];
const LATE: [(&str, &str); 1] = [(":status", "504")];

/// The scorer, for the clock of one world.
struct Scorer(weir::limit::Ledger);

impl Scorer {
    fn new(worker: &Worker<Limit>) -> Self {
        let scorer = Self(weir::limit::Ledger::new(worker.world().now()));
        worker.world().pass(Duration::from_secs(4));
        scorer
    }

    fn answer(&mut self, worker: &Worker<Limit>, body: &[u8]) -> Vec<u8> {
        let claims = serde_json::from_slice(body).unwrap();
        serde_json::to_vec(&self.0.grant(&claims, worker.world().now())).unwrap()
    }

    /// Answers a request that waits.
    fn reply(&mut self, worker: &mut Worker<Limit>, exchange: &mut Exchange<Limit>) {
        let body = self.answer(worker, &exchange.see().calls().pop().unwrap().body);
        worker.reply(exchange, &SIGNED, &body);
    }
}

#[test]
fn a_request_waits_for_the_scorer_only_when_the_allowance_does_not_suffice() {
    let mut worker = Worker::<Limit>::new(SHARED);
    let mut scorer = Scorer::new(&worker);
    let mut first = send(&mut worker, &KEY);
    assert!(first.held(), "nothing is granted yet");
    scorer.reply(&mut worker, &mut first);
    assert!(!first.held());
    worker.response(&mut first, "10.0.0.1:1", &SSE);
    assert_eq!(first.see().answer_header("x-ratelimit-remaining-tokens"), ["900"]);
    first.see().set_property(wire::USAGE, b"status=complete input=40 cached=0 output=10 reasoning=0");
    worker.finish(first);
    // 50 of 100 are left of what was granted.
    let small = b"dialect=chat stream=1 prompt_tokens=40 max_output_tokens=10 model=m";
    assert!(!worker.request(&KEY, &[(wire::FACTS, small)], true).held());
    // Then what is in use is renewed, by one call for all.
    worker.world().pass(Duration::from_millis(900));
    assert!(worker.tick());
    let renewal = worker.calls().pop().unwrap();
    let claims: weir::limit::Claims = serde_json::from_slice(&renewal.body).unwrap();
    assert_eq!((renewal.path.as_str(), claims.keys[0].parts[0].used), (wire::ALLOWANCES_PATH, 100_000));
    assert!(!String::from_utf8(renewal.body.clone()).unwrap().contains("secret"));
    let grants = scorer.answer(&worker, &renewal.body);
    worker.told(&SIGNED, &grants);
}

#[test]
fn what_others_have_used_is_denied_and_told() {
    let mut worker = Worker::<Limit>::new(SHARED);
    let mut scorer = Scorer::new(&worker);
    let mut first = send(&mut worker, &KEY);
    let body = first.see().calls().pop().unwrap().body;
    let mut other: weir::limit::Claims = serde_json::from_slice(&body).unwrap();
    other.proxy += 1;
    let part = &mut other.keys[0].parts[0];
    (part.keep, part.used, part.want, part.reset_ms) = (950_000, 950_000, 950_000, 20_000);
    scorer.0.grant(&other, worker.world().now());
    let grants = scorer.answer(&worker, &body);
    worker.reply(&mut first, &SIGNED, &grants);
    let answer = first.see().answer().unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("20")));
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("50"));
    // Nobody asks again for a moment.
    let again = send(&mut worker, &KEY);
    assert!(again.see().calls().is_empty() && again.see().answer().unwrap().status == 429);
}

#[test]
fn without_the_scorer_open_counts_alone_and_closed_refuses_until_it_is_back() {
    for mode in ["open", "closed"] {
        let mut worker = Worker::<Limit>::new(&SHARED.replace("open", mode));
        let mut scorer = Scorer::new(&worker);
        let mut first = send(&mut worker, &KEY);
        worker.reply(&mut first, &LATE, b"");
        let mut answers = vec![first];
        answers.extend((0..11).map(|_| send(&mut worker, &KEY)));
        assert!(answers[1..].iter().all(|one| one.see().calls().is_empty()), "nobody waits for it now");
        let statuses: Vec<_> =
            answers.iter().map(|one| one.see().answer().map(|answer| answer.status)).collect();
        match mode {
            "open" => assert_eq!(statuses, [vec![None; 10], vec![Some(429); 2]].concat()),
            _ => assert_eq!(statuses, [Some(503); 12]),
        }
        assert_eq!(worker.world().metric("weir_limit_share_up"), 0);
        // A renewal finds out that it is back.
        worker.world().pass(Duration::from_millis(1_100));
        assert!(worker.tick());
        let probe = worker.calls().pop().unwrap();
        let grants = scorer.answer(&worker, &probe.body);
        worker.told(&SIGNED, &grants);
        assert_eq!(worker.world().metric("weir_limit_share_up"), 1);
        let mut back = send(&mut worker, &[("x-api-key", "another")]);
        scorer.reply(&mut worker, &mut back);
        assert!(!back.held() && back.see().answer().is_none());
    }
}

#[test]
fn what_the_documentation_shows_is_right() {
    let text = include_str!("../../../../docs/limits.md");
    let blocks: Vec<&str> =
        text.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let (whole, parts): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|json| json.contains("\"limits\""));
    let configs: Vec<_> = whole.iter().map(|json| read(json.as_bytes()).unwrap()).collect();
    assert_eq!(configs.iter().map(|config| config.limits.len()).collect::<Vec<_>>(), [3, 2, 2]);
    let share = parts.first().unwrap().trim_start().trim_start_matches('{');
    let shared =
        read(format!(r#"{{"limits":[{{"name":"l","max_in_flight":1}}],{share}"#).as_bytes()).unwrap();
    assert_eq!(shared.share.unwrap().lease_ms.get(), 3_000);
    let short = SHARED.replace("\"id_seed\":3", "\"id_seed\":3,\"lease_ms\":500");
    let short = read(short.as_bytes()).unwrap_err().to_string();
    assert!(short.starts_with("share.lease_ms: 500 is less than four times renew_ms"), "{short}");
    let wrong = read(br#"{"limits":[{"name":"l","windows":[{"tokens":1,"per_m":1}]}]}"#).unwrap_err();
    assert!(wrong.to_string().starts_with("limits[0].windows[0].per_m: unknown field"), "{wrong}");
}
