//! Tests: standing in line, and budgets.

use super::tests::{Memory, admitted, denied};
use super::*;
use crate::invalid;
use crate::queue::Line;
use crate::random::Random;
use crate::request::{Dialect, Facts};
use crate::response::Usage;
use std::collections::{BTreeSet, HashMap};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A proxy with its store.
struct Gate {
    limits: Limits,
    memory: Memory,
    now: Instant,
}

impl Gate {
    fn new(json: &str) -> Self {
        let limits = Limits::new(&invalid::read(json.as_bytes()).unwrap(), 9).unwrap();
        Self { limits, memory: Memory::default(), now: Instant::from_millis(1_000) }
    }

    /// A request of 100 tokens asks, for the first time or after it was called.
    fn ask(&self, waiting: Waiting, tenant: u64, session: u64, objective: Option<&str>) -> Verdict {
        let facts = Facts {
            model: Some("m".into()),
            prompt_tokens: 40,
            max_output_tokens: Some(60),
            tenant: Some(tenant),
            session: Some(session),
            objective: objective.map(str::to_owned),
            ..Facts::of(Dialect::Chat)
        };
        let asked = Asked { facts: &facts, header: &|_| None, repeated: &|_| false, address: None };
        self.limits.admit_or_wait(&self.memory, &asked, Reach::Ask, Some(waiting), self.now)
    }

    fn first(&self, id: u64, tenant: u64) -> Verdict {
        self.ask(Waiting { id, warm: 0, at: None }, tenant, id, None)
    }

    fn again(&self, wait: Wait, tenant: u64) -> Verdict {
        self.ask(Waiting { id: wait.id, warm: 0, at: Some(wait) }, tenant, wait.id, None)
    }

    fn settle(&mut self, ticket: Ticket, output: u64) -> Charge {
        let usage = Usage { input: 40, output, ..Usage::default() };
        self.limits.settle(&self.memory, ticket, &Outcome::Used(usage), self.now)
    }

    fn woken(&self) -> Vec<u64> {
        self.memory.woken.take()
    }
}

fn waits(verdict: Verdict) -> Wait {
    match verdict {
        Verdict::Waits(wait) => wait,
        other => panic!("{other:?}"),
    }
}

const POOL: &str = r#"{"limits":[{"name":"pool","max_in_flight":4,"queue":{"size":40,"timeout_ms":5000}}],
    "objectives":{"batch":-1,"chat":0,"urgent":7}}"#;

#[test]
fn a_fan_out_of_forty_cannot_take_a_pool() {
    let mut gate = Gate::new(POOL);
    let mut running: Vec<Ticket> = (0..4).map(|id| admitted(gate.first(id, 1)).ticket).collect();
    let mut line: HashMap<u64, (Wait, u64)> = HashMap::new();
    for id in 4..40 {
        line.insert(id, (waits(gate.first(id, 1)), 1));
    }
    for id in [100, 101] {
        line.insert(id, (waits(gate.first(id, 2)), 2));
    }
    let mut order = Vec::new();
    for _ in 0..6 {
        let ticket = running.remove(0);
        // Far less than might have come: that is no reason to let others wait.
        gate.settle(ticket, 1);
        let called = gate.woken();
        assert_eq!(called.len(), 1, "one slot, one call");
        // The slot is kept for the one that was called: nobody else gets it, not even who comes just now.
        waits(gate.first(500 + order.len() as u64, 1));
        let (wait, tenant) = line[&called[0]];
        assert_eq!(gate.limits.stands(&gate.memory, &wait, gate.now), Stands::Called);
        running.push(admitted(gate.again(wait, tenant)).ticket);
        order.push(called[0]);
    }
    assert!(order.iter().position(|id| *id == 100) <= Some(1), "{order:?}");
    assert!(order.iter().position(|id| *id == 101) <= Some(3), "{order:?}");
}

#[test]
fn negative_priority_is_shed_at_once_and_higher_bands_go_first() {
    let mut gate = Gate::new(POOL);
    let ask =
        |gate: &Gate, id, objective| gate.ask(Waiting { id, warm: 0, at: None }, id, id, Some(objective));
    let tickets: Vec<Ticket> = (0..4).map(|id| admitted(ask(&gate, id, "batch")).ticket).collect();
    let shed = denied(ask(&gate, 4, "batch"));
    assert_eq!(shed.reason, Reason::Shed);
    let answer = shed.answer(Dialect::Chat, || Duration::ZERO);
    assert_eq!(answer.status, 429);
    assert!(
        answer.headers.contains(&("x-llm-d-request-dropped-reason", "rejected-saturated".into())),
        "{answer:?}"
    );
    waits(ask(&gate, 5, "chat"));
    waits(ask(&gate, 6, "unheard-of"));
    waits(ask(&gate, 7, "urgent"));
    for ticket in tickets {
        gate.settle(ticket, 1);
    }
    assert_eq!(gate.woken()[..2], [7, 5]);
}

#[test]
fn a_full_line_and_a_deadline_are_answered_with_the_time_it_takes() {
    let mut gate =
        Gate::new(r#"{"limits":[{"name":"l","max_in_flight":1,"queue":{"size":2,"timeout_ms":5000}}]}"#);
    let mut running = admitted(gate.first(0, 0)).ticket;
    // A slot every three seconds.
    for id in 1..6 {
        let wait = waits(gate.first(id, 1));
        gate.now = gate.now + Duration::from_secs(3);
        gate.settle(running, 60);
        running = admitted(gate.again(wait, 1)).ticket;
    }
    let first = waits(gate.first(10, 1));
    let second = waits(gate.first(11, 1));
    assert_eq!(gate.woken(), [1, 2, 3, 4, 5]);
    let full = denied(gate.first(12, 1));
    assert_eq!((full.reason, full.retry_after_s()), (Reason::LineFull, 9));
    // Of another client there is room for one: the last of who has most gives way.
    waits(gate.first(13, 2));
    assert_eq!(gate.woken(), [11]);
    assert_eq!(gate.limits.stands(&gate.memory, &second, gate.now), Stands::Gone);
    assert_eq!(gate.limits.stands(&gate.memory, &first, gate.now), Stands::Waiting);
    gate.limits.leave(&gate.memory, &first, gate.now);
    let late = gate.limits.turned_away(&gate.memory, first.hold(), Reason::Expired, gate.now);
    let answer = late.answer(Dialect::Messages, || Duration::ZERO);
    assert_eq!(answer.status, 503);
    let headers = [
        ("retry-after", "6".to_owned()),
        ("x-llm-d-request-dropped-reason", "rejected-ttl-expired".to_owned()),
    ];
    assert_eq!(answer.headers, headers);
    assert!(answer.body.contains("not this request's turn in time"), "{}", answer.body);
}

#[test]
fn a_slot_is_never_free_while_somebody_waits_nor_given_twice() {
    const CONFIG: &str = r#"{"lease_ms":600000,"limits":[
        {"name":"session","key":["session"],"max_in_flight":2,"queue":{"size":5,"timeout_ms":4000}},
        {"name":"pool","max_in_flight":5,"queue":{"size":12,"timeout_ms":4000}}]}"#;
    let mut random = Random::new(5);
    let mut gate = Gate::new(CONFIG);
    gate.memory.disturb.set(7);
    let mut running: Vec<(Ticket, u64)> = Vec::new();
    let mut line: HashMap<u64, (Wait, u64)> = HashMap::new();
    // Their worker died: nobody looks after them.
    let mut dead = BTreeSet::new();
    let mut came_to_nothing = [0; 3];
    for id in 0..4_000 {
        gate.now = gate.now + Duration::from_millis(random.below(200) as u64);
        let session = random.below(4) as u64;
        let ask =
            |gate: &Gate, id, at, session| gate.ask(Waiting { id, warm: 0, at }, session, session, None);
        match ask(&gate, id, None, session) {
            Verdict::Admitted(admitted) => running.push((admitted.ticket, session)),
            Verdict::Waits(wait) => drop(line.insert(id, (wait, session))),
            Verdict::Denied(_) => came_to_nothing[0] += 1,
            other => panic!("{other:?}"),
        }
        if random.below(3) > 0 && !running.is_empty() {
            let (ticket, _) = running.swap_remove(random.below(running.len()));
            gate.settle(ticket, random.below(60) as u64);
        }
        if random.below(10) == 0
            && let Some(gone) = line.keys().copied().nth(random.below(line.len().max(1)))
        {
            let (wait, _) = line.remove(&gone).unwrap();
            match random.below(3) {
                0 => drop(dead.insert(gone)),
                _ => gate.limits.leave(&gate.memory, &wait, gate.now),
            }
        }
        // Half of the hints are lost; all look now and then.
        let mut look: BTreeSet<u64> = gate.woken().into_iter().filter(|_| random.below(2) == 0).collect();
        if id % 4 == 0 {
            look.extend(line.keys());
        }
        for id in look {
            let Some((wait, session)) = line.get(&id).copied() else { continue };
            gate.limits.look(&gate.memory, wait.hold(), gate.now);
            match gate.limits.stands(&gate.memory, &wait, gate.now) {
                Stands::Waiting if gate.now >= wait.until() => {
                    gate.limits.leave(&gate.memory, &wait, gate.now);
                    line.remove(&id);
                    came_to_nothing[1] += 1;
                }
                Stands::Waiting => {}
                Stands::Gone => {
                    line.remove(&id);
                    came_to_nothing[2] += 1;
                }
                Stands::Called => match ask(&gate, id, Some(wait), session) {
                    Verdict::Admitted(admitted) => {
                        line.remove(&id);
                        running.push((admitted.ticket, session));
                    }
                    Verdict::Waits(wait) => drop(line.insert(id, (wait, session))),
                    Verdict::Denied(_) => drop(line.remove(&id)),
                    other => panic!("{other:?}"),
                },
            }
        }
        assert!(running.len() <= 5, "the pool");
        for session in 0..4 {
            assert!(running.iter().filter(|(_, own)| *own == session).count() <= 2, "session {session}");
        }
    }
    assert!(came_to_nothing.iter().all(|times| *times > 0) && !dead.is_empty(), "{came_to_nothing:?}");
    for (ticket, _) in running {
        gate.settle(ticket, 1);
    }
    // Whoever is left is called within the time that the dead may take.
    for _ in 0..100 {
        gate.now = gate.now + Line::COMES_WITHIN + Duration::from_millis(1);
        for (id, (wait, session)) in std::mem::take(&mut line) {
            gate.limits.look(&gate.memory, wait.hold(), gate.now);
            if gate.limits.stands(&gate.memory, &wait, gate.now) == Stands::Called {
                match gate.ask(Waiting { id, warm: 0, at: Some(wait) }, session, session, None) {
                    Verdict::Admitted(admitted) => drop(gate.settle(admitted.ticket, 1)),
                    Verdict::Waits(wait) => drop(line.insert(id, (wait, session))),
                    other => panic!("{other:?}"),
                }
            } else {
                gate.limits.leave(&gate.memory, &wait, gate.now);
            }
        }
    }
    // All of both limits is free again.
    let all: Vec<_> = (0..5)
        .map(|n| admitted(gate.ask(Waiting { id: 9_000 + n, warm: 0, at: None }, n, n % 4, None)))
        .collect();
    assert_eq!(all.len(), 5);
}

const BUDGET: &str = r#"{"limits":[{"name":"team","key":["tenant"],"windows":[
    {"money":0.01,"per_s":86400,"soft_percent":50,"demote":"batch"}, {"money":0.05,"total":true}]}],
    "objectives":{"batch":-1},
    "cost":{"prices":{"other":{"input":10,"output":30}}}}"#;

#[test]
fn a_budget_warns_demotes_and_ends_exact_to_the_billionth() {
    let mut gate = Gate::new(BUDGET);
    // 40 of input and 60 of output: 400 + 1,800 millionths each; four fit into the day.
    let mut softened = Vec::new();
    for turn in 0..4 {
        let admitted = admitted(gate.first(turn, 1));
        softened.push(admitted.softened.clone());
        let charge = gate.settle(admitted.ticket, 60);
        assert_eq!(charge, Charge { cost: 100_000, money: 2_200_000, estimated: false });
    }
    let soft = Some(Softened { limit: "team".into(), percent: 66, demote: Some("batch".into()) });
    assert_eq!(softened, [None, None, None, soft]);
    let hard = denied(gate.first(5, 1));
    assert_eq!(hard.reason, Reason::Quota { unit: Unit::Money });
    let answer = hard.answer(Dialect::Chat, || Duration::ZERO);
    assert_eq!(answer.status, 403);
    assert!(
        answer.body.contains("0.01 USD in 86400 s") && answer.body.contains("insufficient_quota"),
        "{}",
        answer.body
    );
    admitted(gate.first(6, 2));
    // What was reserved and not used can be spent: 40 of input and 2 of output fit five times less.
    gate.now = gate.now + Duration::from_secs(90_000);
    for turn in 0..17 {
        let admitted = admitted(gate.first(turn, 1));
        gate.settle(admitted.ticket, 2);
    }
    // Days pass; the total stays, and nobody is told to come again.
    let mut refused = None;
    for day in 0..20 {
        gate.now = gate.now + Duration::from_secs(90_000);
        match gate.first(day, 1) {
            Verdict::Admitted(admitted) => drop(gate.settle(admitted.ticket, 60)),
            Verdict::Denied(denied) => refused = Some(denied),
            other => panic!("{other:?}"),
        }
    }
    let answer = refused.unwrap().answer(Dialect::Chat, || Duration::ZERO);
    assert_eq!((answer.status, answer.headers.len()), (403, 0), "{answer:?}");
    assert!(answer.body.contains("0.05 USD in total"), "{}", answer.body);
    // More than there ever is.
    let small = BUDGET.replace("0.05", "0.001");
    let denied = denied(Gate::new(&small).first(1, 1));
    let answer = denied.answer(Dialect::Chat, || Duration::ZERO);
    assert!(answer.status == 400 && answer.body.contains("0.0022 USD"), "{}", answer.body);
}

#[test]
fn a_tenant_past_its_soft_stage_goes_behind_the_others() {
    let config = BUDGET
        .replace(r#""windows""#, r#""max_in_flight":1,"queue":{},"windows""#)
        .replace("batch\":-1", "batch\":-3");
    let mut gate = Gate::new(&config);
    for turn in 0..2 {
        let admitted = admitted(gate.first(turn, 1));
        gate.settle(admitted.ticket, 60);
    }
    let running = admitted(gate.first(3, 1));
    assert_eq!(denied(gate.first(4, 1)).reason, Reason::Shed);
    gate.settle(running.ticket, 0);
    // Others are as they were.
    drop(admitted(gate.first(5, 2)));
    waits(gate.first(6, 2));
}

#[test]
fn what_is_wrong_with_queues_and_budgets_is_named_by_its_place() {
    for (json, wrong) in [
        (
            r#"{"limits":[{"name":"l","windows":[{"requests":1,"per_s":1}],"queue":{}}]}"#,
            "limits[0].queue: without max_in_flight",
        ),
        (
            r#"{"limits":[{"name":"l","max_in_flight":1,"queue":{"size":2000}}]}"#,
            "limits[0].queue.size: 2000 is above 1000",
        ),
        (
            r#"{"limits":[{"name":"l","max_in_flight":1,"queue":{"timeout_ms":0}}]}"#,
            "limits[0].queue.timeout_ms: ",
        ),
        (
            r#"{"limits":[{"name":"l","max_in_flight":1,"queue":{"order":"fifo"}}]}"#,
            "limits[0].queue.order: ",
        ),
        (
            r#"{"limits":[{"name":"l","max_in_flight":1,"queue":{"fair_by":[{"header":"A"}]}}]}"#,
            "limits[0].queue.fair_by[0].header: ",
        ),
        (
            r#"{"limits":[{"name":"l","windows":[{"money":5,"per_s":60}]}]}"#,
            "limits[0].windows[0].money: nothing has a price",
        ),
        (
            r#"{"limits":[{"name":"l","windows":[{"money":-5,"per_s":60}]}]}"#,
            "limits[0].windows[0].money: -5 is no amount",
        ),
        (r#"{"limits":[{"name":"l","windows":[{"tokens":5}]}]}"#, "limits[0].windows[0].per_s: missing"),
        (
            r#"{"limits":[{"name":"l","windows":[{"tokens":5,"per_s":1,"total":true}]}]}"#,
            "limits[0].windows[0].total: ",
        ),
        (
            r#"{"limits":[{"name":"l","windows":[{"tokens":5,"per_s":1,"soft_percent":100}]}]}"#,
            "limits[0].windows[0].soft_percent: ",
        ),
        (
            r#"{"limits":[{"name":"l","windows":[{"tokens":5,"per_s":1,"demote":"b"}]}]}"#,
            "limits[0].windows[0].demote: without",
        ),
        (
            r#"{"limits":[{"name":"l","windows":[{"tokens":5,"per_s":1,"soft_percent":9,"demote":"b"}]}]}"#,
            "limits[0].windows[0].demote: b is not among",
        ),
        (r#"{"limits":[],"objectives":{"a b":1}}"#, "objectives.a b: "),
        (
            r#"{"limits":[],"cost":{"prices":{"other":{"input":0.0001,"output":1}}}}"#,
            "cost.prices.other.input: 0.0001 is no price",
        ),
        (r#"{"limits":[],"cost":{"prices":{"models":{}}}}"#, "cost.prices: missing field `other`"),
    ] {
        let limits =
            invalid::read::<Config>(json.as_bytes()).and_then(|config| Limits::new(&config, 0).map(drop));
        let said = limits.unwrap_err().to_string();
        assert!(said.starts_with(wrong), "{said}, not {wrong}");
    }
}
