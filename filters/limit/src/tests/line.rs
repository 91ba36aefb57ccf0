//! Standing in line, as clients see it.

use super::*;

const CONFIG: &str = r#"{"limits":[{"name":"l","max_in_flight":1,"queue":{"size":3,"timeout_ms":5000}}],
    "objectives":{"batch":-1}}"#;

/// Two workers of one Envoy, and the queues by which they are woken.
struct Two {
    workers: [Worker<Limit>; 2],
    queues: [u32; 2],
}

impl Two {
    fn new() -> (Self, Exchange<Limit>) {
        let world = World::new();
        let mut workers = [(); 2].map(|()| Worker::<Limit>::of(&world, CONFIG).unwrap());
        let running = tenant(&mut workers[0], 1);
        assert!(!running.held());
        let first = workers[0].last_queue().unwrap();
        // The other one registers its own with its first request.
        let waits = tenant(&mut workers[1], 1);
        assert!(waits.held() && waits.parked());
        let second = workers[1].last_queue().unwrap();
        workers[1].finish(waits);
        (Self { workers, queues: [first, second] }, running)
    }

    /// Both hear what was sent to them; whom they wake.
    fn hear(&mut self) -> [Vec<u32>; 2] {
        let queues = self.queues;
        [0, 1].map(|worker| {
            self.workers[worker].hear(queues[worker]);
            self.workers[worker].woken()
        })
    }

    fn finish(&mut self, worker: usize, exchange: Exchange<Limit>) {
        self.workers[worker].finish(exchange);
    }
}

fn tenant(worker: &mut Worker<Limit>, tenant: u64) -> Exchange<Limit> {
    let facts =
        format!("dialect=chat stream=1 prompt_tokens=40 max_output_tokens=60 tenant={tenant:016x} model=m");
    worker.request(&KEY, &[(wire::FACTS, facts.as_bytes())], true)
}

#[test]
fn a_slot_freed_by_one_worker_wakes_a_request_of_another() {
    let (mut two, running) = Two::new();
    let mut waits = tenant(&mut two.workers[1], 2);
    let later = tenant(&mut two.workers[0], 2);
    assert!(waits.parked() && later.parked());
    assert_eq!(metric(two.workers[0].world(), "waiting"), 2);
    assert!(two.hear().iter().all(Vec::is_empty));
    two.finish(0, running);
    assert_eq!(two.hear(), [vec![], vec![waits.number()]]);
    two.workers[1].wake(&mut waits);
    assert!(!waits.held() && waits.see().answer().is_none());
    assert_eq!(
        (metric(two.workers[0].world(), "waiting"), metric(two.workers[0].world(), "in_flight")),
        (1, 1)
    );
    // The client of the next one leaves; nobody waits then, and the slot is free.
    two.workers[0].finish(later);
    assert_eq!(metric(two.workers[0].world(), "waiting"), 0);
    let line = two.workers[1].finish(waits).state(wire::LIMIT).unwrap();
    assert!(line.contains(" waited_ms=0"), "{line}");
    let next = tenant(&mut two.workers[0], 3);
    assert!(!next.held());
    two.finish(0, next);
    assert_eq!(metric(two.workers[0].world(), "in_flight"), 0);
}

#[test]
fn who_is_called_and_has_left_gives_its_slot_to_the_next() {
    let (mut two, running) = Two::new();
    let gone = tenant(&mut two.workers[1], 2);
    let mut next = tenant(&mut two.workers[1], 3);
    two.finish(0, running);
    // It was called, and leaves before it hears of it.
    two.finish(1, gone);
    let woken = two.hear();
    assert_eq!(woken, [vec![], vec![next.number()]]);
    two.workers[1].wake(&mut next);
    assert!(!next.held());
    two.finish(1, next);
}

#[test]
fn a_deadline_is_kept_without_any_message_and_says_when_to_come_again() {
    let (mut two, running) = Two::new();
    let mut waits = tenant(&mut two.workers[1], 2);
    two.workers[1].world().pass(Duration::from_millis(4_999));
    assert!(two.workers[1].tick());
    for stream in two.workers[1].woken() {
        assert_eq!(stream, waits.number());
        two.workers[1].wake(&mut waits);
    }
    assert!(waits.parked());
    two.workers[1].world().pass(Duration::from_millis(1));
    assert!(two.workers[1].tick());
    assert_eq!(two.workers[1].woken(), [waits.number()]);
    two.workers[1].wake(&mut waits);
    let answer = waits.see().answer().unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert_eq!(answer.header("x-llm-d-request-dropped-reason"), Some("rejected-ttl-expired"));
    let line = two.workers[1].finish(waits).state(wire::LIMIT).unwrap();
    assert_eq!(line, "verdict=expired limit=l retry_after_s=1 waited_ms=5000");
    two.finish(0, running);
    assert_eq!(metric(two.workers[0].world(), "expired_total"), 1);
}

#[test]
fn a_call_that_was_lost_is_found_by_looking() {
    let (mut two, running) = Two::new();
    let mut waits = tenant(&mut two.workers[1], 2);
    two.finish(0, running);
    // Nobody hears the message.
    assert!(two.workers[1].tick());
    assert_eq!(two.workers[1].woken(), [waits.number()]);
    two.workers[1].wake(&mut waits);
    assert!(!waits.held());
    two.finish(1, waits);
}

#[test]
fn a_full_line_and_a_negative_priority_are_answered_at_once() {
    let (mut two, running) = Two::new();
    let waiting: Vec<_> = (2..5).map(|id| tenant(&mut two.workers[0], id)).collect();
    let full = tenant(&mut two.workers[1], 5);
    let answer = full.see().answer().unwrap();
    assert_eq!(
        (answer.status, answer.header("x-llm-d-request-dropped-reason")),
        (429, Some("rejected-saturated"))
    );
    two.finish(1, full);
    let facts = b"dialect=messages stream=1 prompt_tokens=40 max_output_tokens=60 objective=batch model=m";
    let shed = two.workers[1].request(&KEY, &[(wire::FACTS, facts)], true);
    let answer = shed.see().answer().unwrap();
    assert!(answer.status == 429 && answer.body.contains("rate_limit_error"), "{answer:?}");
    let line = two.workers[1].finish(shed).state(wire::LIMIT).unwrap();
    assert_eq!(line, "verdict=shed limit=l retry_after_s=1");
    waiting.into_iter().for_each(|exchange| two.finish(0, exchange));
    two.finish(0, running);
    assert_eq!(metric(two.workers[0].world(), "waiting"), 0);
}

#[test]
fn with_deficits_a_session_that_was_here_goes_before_one_that_was_not() {
    let config = CONFIG.replace(r#""size":3"#, r#""size":9,"order":{"dlpm":{"quantum_tokens":5000}}"#);
    let mut worker = Worker::<Limit>::new(&config);
    let mut ask = |session: u64| {
        let facts =
            format!("dialect=chat prompt_tokens=400 max_output_tokens=9 session={session:016x} model=m");
        worker.request(&KEY, &[(wire::FACTS, facts.as_bytes())], true)
    };
    let running = ask(1);
    let new = ask(2);
    let mut known = ask(1);
    let queue = worker.last_queue().unwrap();
    worker.finish(running);
    worker.hear(queue);
    assert_eq!(worker.woken(), [known.number()]);
    worker.wake(&mut known);
    assert!(!known.held() && new.held());
    worker.finish(known);
    worker.finish(new);
}

#[test]
fn a_budget_past_its_soft_stage_is_said_and_demotes() {
    const BUDGET: &str = r#"{"limits":[{"name":"team","windows":[{"money":0.01,"per_s":86400,"soft_percent":20,"demote":"batch"}]}],
        "objectives":{"batch":-1}, "cost":{"prices":{"other":{"input":10,"output":30}}}}"#;
    let mut worker = Worker::<Limit>::new(BUDGET);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut exchange = tenant(&mut worker, 1);
        let asked = [wire::BUDGET, wire::OBJECTIVE].map(|name| exchange.see().header(name).join(","));
        worker.response(&mut exchange, "10.0.0.1:1", &SSE);
        let answered = exchange.see().answer_header(wire::BUDGET).join(",");
        exchange.see().set_property(wire::USAGE, b"status=complete input=40 cached=0 output=60 reasoning=0");
        let line = worker.finish(exchange).state(wire::LIMIT).unwrap();
        assert!(line.ends_with("charged=100 estimated=0 charged_nanos=2200000"), "{line}");
        seen.push([asked.join("|"), answered]);
    }
    assert_eq!(seen, [["|", ""], ["team; used=22%|batch", "team; used=22%"]]);
    assert_eq!(worker.world().metric("weir_limit_charged_micros_total;limit=team"), 4_400);
}
