//! A proxy, its workers, and a scorer that is the core's.

use crate::{Config, Pick};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;
use weir::policy::Demand;
use weir::pool::{Ask, Message, Outstanding, Pools, Spec};
use weir::replicas::{Asking, Kind, LISTENS, Listeners, Step};
use weir::wire;
use weir_host::fake::{Exchange, Sent, Worker, World};

const ENDPOINTS: [&str; 3] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"];
const OK: [(&str, &str); 2] = [(":status", "200"), (wire::SCORER, "1")];
const PUSH: Duration = Duration::from_millis(5);

fn config(scorer: Value) -> String {
    let mut config = json!({
        "pools": [{"name": "p", "models": ["m"], "endpoints": ENDPOINTS}],
        "scorer": {"cluster": "scorer", "mode": "push", "timeout_ms": 50, "retry_ms": 1000},
    });
    config["scorer"].as_object_mut().unwrap().extend(scorer.as_object().unwrap().clone());
    config.to_string()
}

/// The scorer, and what it has heard.
struct Hub {
    pools: Pools,
    listeners: Listeners,
    world: Rc<World>,
    heard: Vec<Message>,
    steps: Vec<Step>,
}

impl Hub {
    fn new(world: &Rc<World>, epoch: u64) -> Self {
        let spec: Spec =
            serde_json::from_value(json!({"name": "p", "models": ["m"], "endpoints": ENDPOINTS})).unwrap();
        let pools = Pools::new(&[spec], &Default::default(), 1).unwrap();
        let listeners = Listeners::new(epoch);
        Self { pools, listeners, world: world.clone(), heard: Vec::new(), steps: Vec::new() }
    }

    fn answer(&mut self, call: &Sent) -> Vec<u8> {
        assert_eq!((call.cluster.as_str(), call.path.as_str()), ("scorer", wire::NEWS_PATH));
        let mut asking = Asking::decode(&call.body).unwrap();
        assert!(asking.from & LISTENS != 0);
        let news = asking.frames.iter().filter(|frame| frame.kind == Kind::News);
        self.heard.extend(news.flat_map(|frame| frame.messages.clone()));
        self.steps.push(asking.step);
        self.listeners.hear(&mut self.pools, &mut asking, self.world.now()).unwrap();
        self.listeners.tell(&self.pools, &asking, self.world.now()).encode()
    }

    /// Another proxy books at an endpoint.
    fn booked(&mut self, lease: u64, endpoint: &str, prompt: u64) {
        let blocks = blocks(prompt);
        let demand = Demand { prompt_tokens: 336, prompt_units: 21, stream: true, ..Demand::default() };
        let ask = Ask { blocks: &blocks, demand, prompt: None };
        let message = Message::booked(0, lease, endpoint, &ask, false);
        self.pools.hear(&message, self.world.now());
        self.listeners.note(Some(LISTENS | 99), message);
    }

    fn leases(&mut self) -> usize {
        self.pools.get(0).unwrap().1.leases()
    }
}

fn blocks(prompt: u64) -> Vec<u64> {
    (0..20).map(|n| prompt * 1000 + n).collect()
}

fn ask(worker: &mut Worker<Pick>, prompt: u64) -> Exchange<Pick> {
    let facts = "dialect=chat stream=1 prompt_tokens=336 prompt_units=21 model=m";
    worker.request(&[], &[(wire::BLOCKS, &wire::write_blocks(facts, &blocks(prompt)))], false)
}

/// Where it went, and who chose.
fn chosen(exchange: &Exchange<Pick>) -> (String, String) {
    let line = exchange.see().state(wire::PICK).unwrap();
    let field = |key: &str| line.split(' ').find_map(|field| field.strip_prefix(key)).unwrap().to_owned();
    (field("endpoint="), field("by="))
}

/// A request that is only there to have the worker join.
fn join(worker: &mut Worker<Pick>) {
    let exchange = worker.request(&[], &[], false);
    worker.finish(exchange);
}

/// Some time later the worker ticks, and what it calls is answered. Says what was called.
fn tick(worker: &mut Worker<Pick>, hub: &mut Hub) -> Vec<Sent> {
    hub.world.pass(PUSH);
    assert!(worker.tick());
    let calls = worker.calls();
    for call in calls.iter().filter(|call| call.path == wire::NEWS_PATH) {
        let answer = hub.answer(call);
        worker.tell(call, &OK, &answer);
    }
    calls
}

fn started(scorer: Value) -> (Worker<Pick>, Hub) {
    let world = World::new();
    let mut worker = Worker::of(&world, &config(scorer)).unwrap();
    let mut hub = Hub::new(&world, 77);
    join(&mut worker);
    tick(&mut worker, &mut hub);
    (worker, hub)
}

#[test]
fn until_its_picture_is_whole_the_scorer_is_asked_and_then_the_choice_is_made_here_by_all_that_is_known() {
    let world = World::new();
    let mut worker = Worker::<Pick>::of(&world, &config(json!({}))).unwrap();
    let mut hub = Hub::new(&world, 77);
    hub.booked(1, ENDPOINTS[0], 1);
    let mut first = ask(&mut worker, 2);
    assert!(first.held());
    assert_eq!(first.see().calls().remove(0).path, wire::RESERVE_PATH);
    tick(&mut worker, &mut hub);
    // Leases and prefixes were the first part of two.
    assert!(ask(&mut worker, 2).held());
    tick(&mut worker, &mut hub);
    let reserved = wire::Reserved { endpoints: vec![ENDPOINTS[1].into()], ..Default::default() };
    worker.reply(&mut first, &OK, &serde_json::to_vec(&reserved).unwrap());
    assert_eq!(chosen(&first), (ENDPOINTS[1].into(), "scorer".into()));
    // One of another proxy's that it was told when it joined, one of its own, and so the third is idle.
    let second = ask(&mut worker, 3);
    assert!(!second.held());
    assert_eq!(chosen(&second), (ENDPOINTS[2].into(), "push".into()));
    // Another proxy's prefix, and load that ends there.
    hub.booked(2, ENDPOINTS[2], 4);
    tick(&mut worker, &mut hub);
    for lease in [1, 2] {
        let end = Message::End { pool: 0, lease, answered: None };
        hub.pools.hear(&end, world.now());
        hub.listeners.note(Some(LISTENS | 99), end);
    }
    worker.finish(second);
    tick(&mut worker, &mut hub);
    let third = ask(&mut worker, 4);
    assert_eq!(chosen(&third), (ENDPOINTS[2].into(), "push".into()));
    assert!(third.see().state(wire::PICK).unwrap().contains("cached_tokens=320"));
    assert_eq!((world.metric("weir_pick_push_total"), world.metric("weir_pick_scorer_total")), (2, 1));
    worker.finish(first);
    worker.finish(third);
    tick(&mut worker, &mut hub);
    assert_eq!(hub.leases(), 0);
}

#[test]
fn bookings_first_tokens_and_ends_are_told_in_one_call_and_again_when_nobody_heard() {
    let (mut worker, mut hub) = started(json!({}));
    let mut exchange = ask(&mut worker, 1);
    let (endpoint, _) = chosen(&exchange);
    worker.response(&mut exchange, &endpoint, &[(":status", "200")]);
    worker.piece(&mut exchange, b"x", false);
    worker.finish(exchange);
    let open = ask(&mut worker, 2);
    hub.world.pass(PUSH);
    worker.tick();
    let lost = worker.calls().remove(0);
    worker.tick();
    assert!(worker.calls().is_empty(), "one call at a time");
    worker.tell(&lost, &[(":status", "504")], b"");
    hub.world.pass(Duration::from_secs(2));
    tick(&mut worker, &mut hub);
    let kinds: Vec<&str> = hub
        .heard
        .iter()
        .map(|message| match message {
            Message::Booked { .. } => "booked",
            Message::FirstToken { .. } => "first token",
            Message::End { .. } => "end",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["booked", "first token", "end", "booked"]);
    assert_eq!(hub.leases(), 1);
    worker.finish(open);
    tick(&mut worker, &mut hub);
    assert_eq!((hub.heard.len(), hub.leases()), (5, 0));
}

#[test]
fn without_the_scorer_it_goes_on_with_what_it_knows_then_as_without_one_and_comes_back() {
    for away in [&b"upstream connect error"[..], b""] {
        let (mut worker, mut hub) = started(json!({}));
        let garbage: [(&str, &str); 2] = if away.is_empty() { OK } else { [(":status", "503"), ("a", "b")] };
        hub.world.pass(PUSH);
        worker.tick();
        let call = worker.calls().remove(0);
        worker.tell(&call, &garbage, away);
        let known = ask(&mut worker, 1);
        assert_eq!(chosen(&known).1, "push", "it is not old yet");
        hub.world.pass(Duration::from_millis(501));
        let alone = ask(&mut worker, 2);
        assert_eq!(chosen(&alone).1, "fallback");
        assert_ne!(chosen(&alone).0, chosen(&known).0, "what it sent itself it knows");
        worker.tick();
        assert_eq!(hub.world.metric("weir_pick_push_trusted"), 0);
        assert!(worker.calls().is_empty(), "left alone for a while");
        hub.world.pass(Duration::from_millis(600));
        tick(&mut worker, &mut hub);
        assert_eq!(hub.steps.last(), Some(&Step::Upto(1)), "nothing was missed");
        let back = ask(&mut worker, 3);
        assert_eq!(chosen(&back).1, "push");
        hub.world.pass(Duration::from_millis(20));
        tick(&mut worker, &mut hub);
        assert_eq!(hub.world.metric("weir_pick_push_trusted"), 1);
        assert_eq!(hub.leases(), 3);
    }
}

#[test]
fn a_scorer_that_starts_anew_is_told_what_is_out() {
    let (mut worker, mut hub) = started(json!({}));
    let open = [1, 2].map(|prompt| ask(&mut worker, prompt));
    tick(&mut worker, &mut hub);
    assert_eq!(hub.leases(), 2);
    let mut anew = Hub::new(&hub.world, 78);
    tick(&mut worker, &mut anew);
    assert_eq!(chosen(&ask(&mut worker, 3)).1, "push");
    tick(&mut worker, &mut anew);
    assert_eq!(anew.leases(), 3);
    open.into_iter().for_each(|exchange| drop(worker.finish(exchange)));
    tick(&mut worker, &mut anew);
    assert_eq!(anew.leases(), 1);
}

#[test]
fn of_two_workers_one_speaks_for_both_and_the_other_goes_on_when_it_is_gone() {
    let world = World::new();
    let [mut one, mut two] = [0, 1].map(|_| Worker::<Pick>::of(&world, &config(json!({}))).unwrap());
    let mut hub = Hub::new(&world, 77);
    hub.booked(1, ENDPOINTS[0], 1);
    let hear = |one: &mut Worker<Pick>, two: &mut Worker<Pick>| {
        for _ in 0..2 {
            one.hear(0);
            two.hear(1);
        }
    };
    join(&mut one);
    tick(&mut one, &mut hub);
    tick(&mut one, &mut hub);
    join(&mut two);
    hear(&mut one, &mut two);
    // What is told when nothing happens says that the scorer is there.
    world.pass(Duration::from_millis(60));
    tick(&mut one, &mut hub);
    hear(&mut one, &mut two);
    assert!(tick(&mut two, &mut hub).is_empty(), "it does not speak");
    let second = ask(&mut two, 2);
    assert_eq!(chosen(&second).1, "push");
    assert_ne!(chosen(&second).0, ENDPOINTS[0], "it knows what the first was told");
    hear(&mut one, &mut two);
    tick(&mut one, &mut hub);
    assert_eq!(hub.leases(), 2, "the first tells what the second booked");
    // The second endpoint and the third get more than the first has.
    (2..=5).for_each(|lease| hub.booked(lease, ENDPOINTS[1 + lease as usize % 2], lease + 10));
    tick(&mut one, &mut hub);
    hear(&mut one, &mut two);
    let last = hub.steps.last().copied();
    // The first is gone.
    world.pass(Duration::from_millis(1_100));
    two.tick();
    for call in two.calls() {
        let answer = hub.answer(&call);
        two.tell(&call, &OK, &answer);
    }
    let goes_on = matches!((last, hub.steps.last()), (Some(Step::Upto(before)), Some(Step::Upto(now))) if *now > before);
    assert!(goes_on, "{:?}", hub.steps);
    two.finish(second);
    tick(&mut two, &mut hub);
    assert_eq!(hub.leases(), 5);
    assert_eq!(chosen(&ask(&mut two, 5)).0, ENDPOINTS[0], "{:?}", hub.steps);
}

#[test]
fn what_is_told_of_one_of_its_own_leases_does_not_end_it() {
    let (mut worker, mut hub) = started(json!({}));
    let open = ask(&mut worker, 1);
    tick(&mut worker, &mut hub);
    for _ in 0..3 {
        hub.world.pass(Duration::from_secs(1));
        let asked = tick(&mut worker, &mut hub);
        let frames = Asking::decode(&asked[0].body).unwrap().frames;
        let named = frames.iter().filter(|frame| frame.kind == Kind::Whole).flat_map(|frame| &frame.messages);
        let own = |message: &&Message| {
            matches!(message, Message::Outstanding { lease: Outstanding { owner: None, .. }, .. })
        };
        assert_eq!(named.filter(own).count(), 1);
    }
    assert_eq!((hub.leases(), hub.world.metric("weir_pick_leases;pool=p")), (1, 1));
    worker.finish(open);
    hub.world.pass(Duration::from_millis(20));
    tick(&mut worker, &mut hub);
    tick(&mut worker, &mut hub);
    assert_eq!((hub.leases(), hub.world.metric("weir_pick_leases;pool=p")), (0, 0));
}

#[test]
fn without_scorer_and_picture_closed_refuses() {
    let (mut worker, hub) = started(json!({"failure_mode": "closed"}));
    assert_eq!(chosen(&ask(&mut worker, 1)).1, "push");
    hub.world.pass(PUSH);
    worker.tick();
    let call = worker.calls().remove(0);
    worker.tell(&call, &[(":status", "503")], b"");
    hub.world.pass(Duration::from_millis(501));
    let refused = ask(&mut worker, 2);
    assert_eq!(worker.finish(refused).answer().unwrap().status, 503);
}

#[test]
fn what_waits_for_a_scorer_that_is_away_is_bounded() {
    let (mut worker, mut hub) = started(json!({"retry_ms": 60_000}));
    hub.world.pass(PUSH);
    worker.tick();
    let call = worker.calls().remove(0);
    worker.tell(&call, &[(":status", "503")], b"");
    for prompt in 0..5_000 {
        let exchange = ask(&mut worker, prompt);
        worker.finish(exchange);
    }
    assert!(hub.world.metric("weir_pick_push_lost_total") > 1_000);
    let open = ask(&mut worker, 1);
    hub.world.pass(Duration::from_secs(61));
    tick(&mut worker, &mut hub);
    assert!(hub.heard.len() < 5_000, "{}", hub.heard.len());
    for _ in 0..20 {
        tick(&mut worker, &mut hub);
    }
    assert_eq!(hub.leases(), 1);
    worker.finish(open);
}

#[test]
fn what_makes_no_sense_of_the_mode_is_named() {
    let message = |scorer: Value| Config::read(config(scorer).as_bytes()).unwrap_err().to_string();
    for (scorer, expected) in [
        (json!({"mode": "pull"}), "scorer.mode: unknown variant `pull`, expected `ask` or `push`"),
        (json!({"push_ms": 0}), "scorer.push_ms: "),
        (json!({"push_ms": 1001, "trust_ms": 9000}), "scorer.push_ms: 1001 is more than 1000"),
        (
            json!({"push_ms": 100, "trust_ms": 399}),
            "scorer.trust_ms: 399 is less than four times push_ms, 400",
        ),
        (json!({"telemetry": true}), "scorer.telemetry: in mode push the scorer is not asked"),
    ] {
        let said = message(scorer);
        assert!(said.starts_with(expected), "{said}");
    }
    assert!(Config::read(config(json!({"mode": "ask", "telemetry": true})).as_bytes()).is_ok());
}

#[test]
fn what_another_worker_passes_on_and_is_garbled_is_let_go() {
    let (mut worker, _) = started(json!({}));
    for garbage in [&[][..], &[255], &[254], &[254, 1, 2], &[255, 1, 2, 3]] {
        let queue = worker.last_queue().unwrap();
        worker.send(queue, garbage);
        worker.hear(queue);
    }
    assert_eq!(chosen(&ask(&mut worker, 1)).1, "push");
}
