//! A scorer chooses, and is late, gone, wrong, or one of several.

use super::*;

fn reserved(endpoints: &[&str]) -> Vec<u8> {
    let reserved = wire::Reserved {
        endpoints: endpoints.iter().map(ToString::to_string).collect(),
        policy: "least_prefill".into(),
        ..Default::default()
    };
    serde_json::to_vec(&reserved).unwrap()
}

#[test]
fn the_scorers_choice_is_followed_and_its_lease_ended() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut exchange = ask(&mut worker, 1);
    assert!(exchange.held());
    let call = exchange.see().calls().remove(0);
    assert_eq!((call.cluster.as_str(), call.path.as_str()), ("scorer", wire::RESERVE_PATH));
    let request: Reserve = serde_json::from_slice(&call.body).unwrap();
    assert_eq!((request.pool.as_str(), request.demand.prompt_tokens, request.blocks.0.len()), ("p", 336, 20));
    worker.reply(&mut exchange, &SCORER_200, &reserved(&["10.0.0.2:1", "10.0.0.3:1"]));
    assert!(!exchange.held());
    assert_eq!(destination(&exchange), ["10.0.0.2:1", "10.0.0.3:1"]);
    serve(&mut worker, exchange, "10.0.0.3:1");
    assert!(worker.tick());
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    let (pool, lease) = ("p".to_owned(), request.lease);
    let served = "10.0.0.3:1".to_owned();
    let (endpoint, outcome) = ("10.0.0.2:1".to_owned(), Outcome::failed(Reason::Reset));
    let failed = Event::Attempted { pool: pool.clone(), lease, endpoint, outcome };
    assert_eq!(
        report,
        [
            failed,
            Event::FirstToken { pool: pool.clone(), lease, served },
            Event::End { pool, lease, answered: None }
        ]
    );
}

#[test]
fn a_scorer_that_is_late_gone_or_lies_costs_no_request_and_sets_no_foreign_endpoint() {
    type Reply<'a> = (&'a [(&'a str, &'a str)], Vec<u8>);
    let replies: [Reply<'_>; 6] = [
        (&[(":status", "504")], b"upstream request timeout".to_vec()),
        (&[(":status", "503")], Vec::new()),
        (&[], Vec::new()),
        (&SCORER_200, b"garbage".to_vec()),
        (&SCORER_200, reserved(&[])),
        (&SCORER_200, reserved(&["6.6.6.6:6"])),
    ];
    for (headers, body) in replies {
        let mut worker = Worker::new(&with_scorer("scorer"));
        let mut exchange = ask(&mut worker, 1);
        worker.reply(&mut exchange, headers, &body);
        assert!(!exchange.held());
        assert!(destination(&exchange).iter().all(|endpoint| endpoint.starts_with("10.0.0.")));
        assert!(exchange.see().state(wire::PICK).unwrap().contains("by=fallback"));
    }
    let mut worker = Worker::new(&with_scorer("missing"));
    let exchange = ask(&mut worker, 1);
    assert!(!exchange.held(), "a cluster that does not exist");
}

#[test]
fn after_a_failure_the_scorer_is_asked_by_one_request_a_second() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut exchange = ask(&mut worker, 1);
    worker.reply(&mut exchange, &[(":status", "504")], b"");
    worker.finish(exchange);
    assert!(!ask(&mut worker, 2).held(), "left alone");
    worker.world().pass(Duration::from_millis(1_001));
    let mut trying = ask(&mut worker, 3);
    assert!(trying.held());
    assert!(!ask(&mut worker, 4).held(), "the others do not wait for it");
    worker.reply(&mut trying, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    assert!(ask(&mut worker, 5).held(), "back");
}

#[test]
fn a_client_that_leaves_while_the_scorer_is_asked_ends_the_lease_there() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let exchange = ask(&mut worker, 1);
    let request: Reserve = serde_json::from_slice(&exchange.see().calls().remove(0).body).unwrap();
    worker.finish(exchange);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    assert_eq!(report, [Event::End { pool: "p".into(), lease: request.lease, answered: None }]);
}

#[test]
fn what_travelled_with_the_call_of_a_client_that_left_is_told_again() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut first = ask(&mut worker, 1);
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    let leaving = ask(&mut worker, 2);
    let told: Reserve = serde_json::from_slice(&leaving.see().calls().remove(0).body).unwrap();
    worker.finish(leaving);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    assert_eq!((report.len(), &report[..1]), (2, &told.events[..]));
}

#[test]
fn what_was_not_told_to_a_scorer_that_failed_is_told_later() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut first = ask(&mut worker, 1);
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    let mut failing = ask(&mut worker, 2);
    let told: Reserve = serde_json::from_slice(&failing.see().calls().remove(0).body).unwrap();
    assert_eq!(told.events.len(), 1);
    worker.reply(&mut failing, &[(":status", "504")], b"");
    worker.tick();
    assert!(worker.calls().is_empty(), "nobody to tell");
    worker.world().pass(Duration::from_secs(2));
    let trying = ask(&mut worker, 3);
    let again: Reserve = serde_json::from_slice(&trying.see().calls().remove(0).body).unwrap();
    assert_eq!(again.events[..1], told.events);
    assert!(matches!(&again.events[1..], [Event::Booked { lease, .. }] if *lease == told.lease), "{again:?}");
}

#[test]
fn a_report_that_was_not_heard_is_told_again_even_when_no_request_comes() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut first = ask(&mut worker, 1);
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    worker.tick();
    let report = worker.calls().remove(0).body;
    worker.tick();
    assert!(worker.calls().is_empty(), "one report at a time");
    worker.told(&[(":status", "504")], b"");
    worker.tick();
    assert!(worker.calls().is_empty(), "left alone");
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    assert_eq!(worker.calls().remove(0).body, report);
    worker.told(&[(":status", "204"), (wire::SCORER, "1")], b"");
    worker.tick();
    assert!(worker.calls().is_empty(), "told");
}

#[test]
fn a_scorer_that_comes_back_is_told_what_was_chosen_without_it() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut failing = ask(&mut worker, 1);
    worker.reply(&mut failing, &[(":status", "504")], b"");
    let alone = ask(&mut worker, 2);
    assert!(!alone.held());
    let places = [&failing, &alone].map(|exchange| destination(exchange)[0].clone());
    worker.finish(alone);
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    let [
        Event::Booked { endpoint: first, demand, lease: open, .. },
        Event::Booked { endpoint: second, lease, .. },
        end,
    ] = &report[..]
    else {
        panic!("{report:?}")
    };
    assert_eq!((first, second, demand.prompt_tokens), (&places[0], &places[1], 336));
    assert_eq!(*end, Event::End { pool: "p".into(), lease: *lease, answered: None });
    worker.told(&[(":status", "204"), (wire::SCORER, "1")], b"");
    worker.finish(failing);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    assert_eq!(report, [Event::End { pool: "p".into(), lease: *open, answered: None }]);
}

#[test]
fn while_a_scorer_is_away_for_long_only_so_much_waits_for_it_and_no_end_is_missing() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut failing = ask(&mut worker, 1);
    worker.reply(&mut failing, &[(":status", "504")], b"");
    worker.finish(failing);
    for prompt in 0..6_000 {
        let exchange = ask(&mut worker, prompt);
        worker.finish(exchange);
    }
    let (mut booked, mut ended) = (Vec::new(), Vec::new());
    worker.world().pass(Duration::from_secs(2));
    while worker.tick() {
        let Some(call) = worker.calls().pop() else { break };
        for event in serde_json::from_slice::<Vec<Event>>(&call.body).unwrap() {
            match event {
                Event::Booked { lease, .. } => booked.push(lease),
                Event::End { lease, .. } => ended.push(lease),
                other => panic!("{other:?}"),
            }
        }
        worker.told(&[(":status", "204"), (wire::SCORER, "1")], b"");
    }
    assert_eq!(booked, ended);
    assert!((1_000..=5_000).contains(&booked.len()), "{}", booked.len());
}

#[test]
fn a_scorer_that_has_no_endpoint_left_says_so_and_its_probes_are_told_of() {
    let mut worker = Worker::new(&with_scorer("scorer"));
    let mut exchange = ask(&mut worker, 1);
    let shut = br#"{"endpoints":[],"cached_tokens":0,"queued_tokens":0,"in_flight":0,"policy":"","shut":{"retry_after_ms":1500,"status":503}}"#;
    worker.reply(&mut exchange, &SCORER_200, shut);
    let answer = exchange.see().answer().unwrap();
    assert_eq!(
        (answer.status, answer.header("retry-after"), answer.header("retry-after-ms")),
        (503, Some("2"), Some("1500"))
    );
    worker.finish(exchange);
    let mut exchange = ask(&mut worker, 2);
    let mut probe: wire::Reserved = serde_json::from_slice(&reserved(&["10.0.0.1:1"])).unwrap();
    probe.probe = true;
    worker.reply(&mut exchange, &SCORER_200, &serde_json::to_vec(&probe).unwrap());
    ends(&mut worker, exchange, "10.0.0.1:1", "200", 0);
    worker.tick();
    let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
    let ok = Outcome::of_status(200, None);
    assert!(
        report.iter().any(|event| matches!(event, Event::Attempted { outcome, .. } if *outcome == ok)),
        "{report:?}"
    );
}

/// What is asked of two scorers, by this name or that.
fn with_two(mode: &str) -> String {
    let mut config: serde_json::Value = serde_json::from_str(&with_scorer("a")).unwrap();
    config["scorer"]["replicas"] = json!(["b"]);
    config["scorer"]["failure_mode"] = mode.into();
    config["pools"] = (0..16)
        .map(|n| json!({"name": format!("p{n}"), "models": [], "endpoints": ["10.0.0.1:1"]}))
        .collect();
    config["pools"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::from_str::<serde_json::Value>(CONFIG).unwrap()["pools"][0].clone());
    config.to_string()
}

#[test]
fn a_scorer_that_reads_prompts_is_sent_the_body_as_is_every_other_that_is_asked_instead() {
    let mut config: serde_json::Value = serde_json::from_str(&with_two("open")).unwrap();
    config["scorer"]["max_body_bytes"] = 8.into();
    let mut worker = Worker::new(&config.to_string());
    let blocks = wire::write_blocks("dialect=chat stream=0 prompt_tokens=336 prompt_units=21 model=m", &[1]);
    let behind = |exchange: &Exchange<Pick>| {
        let call = exchange.see().calls().remove(0);
        let (request, at) = Reserve::read(&call.body).unwrap();
        assert_eq!(request.blocks.0, [1]);
        String::from_utf8(call.body[at..].to_vec()).unwrap()
    };
    let mut exchange = worker.request(&[], &[(wire::BLOCKS, &*blocks), (wire::BODY, b"{\"a\":1}")], false);
    assert_eq!(behind(&exchange), "{\"a\":1}");
    worker.reply(&mut exchange, &[(":status", "503")], b"");
    assert_eq!(behind(&exchange), "{\"a\":1}");
    worker.reply(&mut exchange, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    assert_eq!(exchange.see().state(wire::BODY).unwrap(), "", "no copy stays while the answer is made");
    worker.finish(exchange);
    let long = worker.request(&[], &[(wire::BLOCKS, &*blocks), (wire::BODY, b"{\"a\":123}")], false);
    assert_eq!((behind(&long).as_str(), long.see().state(wire::BODY).unwrap().as_str()), ("", ""));
    worker.finish(long);
}

#[test]
fn a_pool_is_asked_for_at_one_scorer_and_at_another_while_that_one_is_away() {
    let mut worker = Worker::new(&with_two("closed"));
    let asked = |exchange: &Exchange<Pick>| exchange.see().calls().remove(0).cluster;
    let mut first = ask(&mut worker, 1);
    let home = asked(&first);
    let other = if home == "a" { "b" } else { "a" };
    worker.reply(&mut first, &SCORER_200, &reserved(&["10.0.0.1:1"]));
    worker.finish(first);
    for prompt in 2..6 {
        let again = ask(&mut worker, prompt);
        assert_eq!(asked(&again), home, "one book");
        worker.finish(again);
    }
    // It dies: the request that finds out is asked for again, and the next ones are not asked for there.
    let mut finds = ask(&mut worker, 7);
    assert_eq!(asked(&finds), home);
    worker.reply(&mut finds, &[(":status", "503")], b"");
    assert!(finds.held());
    assert_eq!(asked(&finds), other);
    worker.reply(&mut finds, &SCORER_200, &reserved(&["10.0.0.2:1"]));
    assert_eq!(destination(&finds), ["10.0.0.2:1"]);
    serve(&mut worker, finds, "10.0.0.2:1");
    let mut next = ask(&mut worker, 8);
    assert_eq!(asked(&next), other);
    worker.reply(&mut next, &SCORER_200, &reserved(&["10.0.0.3:1"]));
    worker.finish(next);
    // What became of requests is told to who is there.
    worker.tick();
    let report = worker.calls().remove(0);
    assert_eq!(report.cluster, other);
    worker.tell(&report, &[(":status", "204"), (wire::SCORER, "1")], b"");
    // One that has come back and joins is no better than one that is away.
    worker.world().pass(Duration::from_secs(2));
    let mut trying = ask(&mut worker, 9);
    assert_eq!(asked(&trying), home);
    worker.reply(&mut trying, &[(":status", "503"), (wire::SCORER, wire::JOINING)], b"{}");
    assert_eq!(asked(&trying), other);
    worker.finish(trying);
    // That it is ready is found out though nobody needs it.
    worker.tick();
    worker.calls().iter().for_each(|report| assert_eq!(report.cluster, other));
    worker.world().pass(Duration::from_secs(2));
    worker.tick();
    let reports = worker.calls();
    let report = reports.iter().find(|report| report.cluster == home).unwrap();
    assert_eq!(report.body, b"[]");
    worker.tell(report, &[(":status", "204"), (wire::SCORER, "1")], b"");
    assert_eq!(asked(&ask(&mut worker, 10)), home);
}

#[test]
fn without_any_scorer_open_chooses_here_and_closed_answers_503_with_the_time_to_wait() {
    for (mode, status) in [("open", None), ("closed", Some(503))] {
        let mut worker = Worker::new(&with_two(mode));
        let mut exchange = ask(&mut worker, 1);
        for _ in 0..2 {
            exchange.see().calls();
            worker.reply(&mut exchange, &[(":status", "504")], b"");
        }
        let mut left_alone = ask(&mut worker, 2);
        for exchange in [&mut exchange, &mut left_alone] {
            let answer = exchange.see().answer();
            assert_eq!(answer.as_ref().map(|answer| answer.status), status, "{mode}");
            if let Some(answer) = answer {
                assert!(answer.headers.iter().any(|(name, value)| name == "retry-after" && value == "1"));
            }
        }
        worker.finish(exchange);
        worker.finish(left_alone);
        assert_eq!(leases(&mut worker), 0);
    }
}

#[test]
fn pools_spread_over_the_scorers_and_keep_their_order() {
    let config = Config::read(with_two("open").as_bytes()).unwrap();
    let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    let scorers = Scorers::new(config.scorer.clone().unwrap(), names.iter().copied());
    let home = |scorers: &Scorers, pool| scorers.order(pool)[0];
    let first = (0..names.len()).filter(|pool| home(&scorers, *pool) == 0).count();
    assert!((3..=names.len() - 3).contains(&first), "{first} of {}", names.len());
    // Named the other way round it is the same.
    let mut other = config.scorer.unwrap();
    (other.cluster, other.replicas) = ("b".into(), vec!["a".into()]);
    let turned = Scorers::new(other, names.iter().copied());
    assert!((0..names.len()).all(|pool| home(&turned, pool) != home(&scorers, pool)));
}

#[test]
fn the_scorer_hears_of_traces_and_answers_only_where_it_is_told_to() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for telemetry in [false, true] {
        let mut config: serde_json::Value = serde_json::from_str(&with_scorer("scorer")).unwrap();
        config["scorer"]["telemetry"] = telemetry.into();
        let mut worker = Worker::new(&config.to_string());
        let facts = wire::write_blocks("dialect=chat stream=1 prompt_tokens=9 model=m", &[]);
        let state = [(wire::BLOCKS, &facts[..]), ("request.headers.traceparent", TRACE.as_bytes())];
        let mut exchange = worker.request(&[], &state, false);
        let asked: Reserve = serde_json::from_slice(&exchange.see().calls().remove(0).body).unwrap();
        assert_eq!(asked.trace.as_deref(), telemetry.then_some(TRACE));
        worker.reply(&mut exchange, &SCORER_200, &reserved(&["10.0.0.1:1"]));
        worker.world().pass(Duration::from_millis(250));
        ends(&mut worker, exchange, "10.0.0.1:1", "200", 0);
        worker.tick();
        let report: Vec<Event> = serde_json::from_slice(&worker.calls().remove(0).body).unwrap();
        let went = report.iter().find_map(|event| match event {
            Event::Went { went, lease, .. } if *lease == asked.lease => Some(went),
            _ => None,
        });
        assert_eq!(went.is_some(), telemetry, "{report:?}");
        if let Some(went) = went {
            assert_eq!((went.dialect.as_str(), went.model.as_str(), went.status), ("chat", "m", 200));
            assert_eq!((went.served.as_deref(), went.trace.as_deref()), (Some("10.0.0.1:1"), Some(TRACE)));
            assert!(went.ms >= 250.0, "{went:?}");
        }
        assert!(matches!(report.last(), Some(Event::End { .. })), "the end comes last: {report:?}");
    }
}
