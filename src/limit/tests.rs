use super::*;
use crate::invalid;
use crate::random::Random;
use crate::request::{Dialect, Facts};
use crate::response::{Report, Status, Usage};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

type Values = HashMap<String, (Vec<u8>, u32)>;

/// A store in memory that notes whom it is to wake; every so many writes another one comes first.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) values: RefCell<Values>,
    pub(super) writes: Cell<u32>,
    pub(super) disturb: Cell<u32>,
    pub(super) woken: RefCell<Vec<u64>>,
}

impl Store for Memory {
    fn get(&self, name: &str) -> Option<(Vec<u8>, u32)> {
        self.values.borrow().get(name).cloned()
    }

    fn put(&self, name: &str, value: &[u8], version: Option<u32>) -> bool {
        let mut values = self.values.borrow_mut();
        let write = self.writes.get() + 1;
        self.writes.set(write);
        let there = values.get(name).map(|(_, version)| *version);
        let disturbed = self.disturb.get() > 0 && write.is_multiple_of(self.disturb.get());
        if disturbed || there != version {
            return false;
        }
        values.insert(name.to_owned(), (value.to_vec(), write));
        true
    }

    fn wake(&self, waiter: u64) {
        self.woken.borrow_mut().push(waiter);
    }
}

pub(super) fn limits(json: &str) -> Limits {
    Limits::new(&invalid::read(json.as_bytes()).unwrap(), 9).unwrap()
}

pub(super) fn facts(prompt_tokens: u32, most: Option<u32>) -> Facts {
    Facts {
        model: Some("m".into()),
        stream: true,
        prompt_tokens,
        max_output_tokens: most,
        ..Facts::of(Dialect::Chat)
    }
}

pub(super) fn ask(limits: &Limits, store: &Memory, user: &str, facts: &Facts, now: Instant) -> Verdict {
    let header = |name: &str| (name == "x-consumer-username").then_some(user);
    limits.admit(
        store,
        &Asked { facts, header: &header, repeated: &|_| false, address: None },
        Reach::Ask,
        now,
    )
}

pub(super) fn admitted(verdict: Verdict) -> Admitted {
    match verdict {
        Verdict::Admitted(admitted) => admitted,
        other => panic!("{other:?}"),
    }
}

pub(super) fn denied(verdict: Verdict) -> Box<Denied> {
    match verdict {
        Verdict::Denied(denied) => denied,
        other => panic!("{other:?}"),
    }
}

pub(super) fn used(input: u64, output: u64) -> Outcome {
    Outcome::Used(Usage { input, output, ..Usage::default() })
}

pub(super) fn secs(secs: u64) -> Instant {
    Instant::from_millis(secs * 1_000)
}

const MINUTE: &str = r#"{"limits":[{"name":"l","key":["consumer"],"windows":[{"tokens":1000,"per_s":60}]}]}"#;

#[test]
fn at_once_no_more_is_admitted_than_the_limit_and_what_is_charged_is_what_was_used() {
    let (mut limits, store) = (limits(MINUTE), Memory::default());
    let verdicts: Vec<_> =
        (0..50).map(|_| ask(&limits, &store, "k", &facts(40, Some(60)), secs(100))).collect();
    let mut tickets = Vec::new();
    for verdict in verdicts {
        match verdict {
            Verdict::Admitted(admitted) => tickets.push(admitted.ticket),
            Verdict::Denied(denied) => assert_eq!(denied.reason, Reason::Full { unit: Unit::Tokens }),
            Verdict::Unlimited | Verdict::Short(_) | Verdict::Waits(_) => {
                panic!("a limit matches, and is not shared")
            }
        }
    }
    assert_eq!(tickets.len(), 10);
    // Another key has its own.
    let other = admitted(ask(&limits, &store, "other", &facts(40, Some(60)), secs(100)));
    assert_eq!(other.tokens.unwrap().remaining, 900);
    for ticket in tickets {
        let charge = limits.settle(&store, ticket, &used(40, 37), secs(102));
        assert_eq!(charge, Charge { cost: 77_000, money: 0, estimated: false });
    }
    let next = admitted(ask(&limits, &store, "k", &facts(1, Some(0)), secs(102)));
    assert_eq!(next.tokens.unwrap().remaining, 1000 - 770 - 1);
}

#[test]
fn after_the_stated_wait_a_request_is_admitted_and_before_it_is_not() {
    let mut random = Random::new(4);
    for _ in 0..300 {
        let (limits, store) = (limits(MINUTE), Memory::default());
        let mut now = random.next() >> 20;
        let denial = loop {
            now += random.next() % 5_000_000_000;
            let tokens = 1 + random.below(400) as u32;
            match ask(&limits, &store, "k", &facts(tokens, Some(0)), Instant::from_nanos(now)) {
                Verdict::Denied(denied) => break (tokens, denied),
                verdict => drop(admitted(verdict)),
            }
        };
        let (tokens, denial) = denial;
        let at =
            |wait: u64| ask(&limits, &store, "k", &facts(tokens, Some(0)), Instant::from_nanos(now + wait));
        denied(at(denial.wait.as_nanos() as u64 - 1));
        admitted(at(denial.retry_after_s() * 1_000_000_000));
    }
}

#[test]
fn more_than_was_reserved_is_a_debt_that_is_carried_on() {
    let (mut limits, store) = (limits(MINUTE), Memory::default());
    let first = admitted(ask(&limits, &store, "k", &facts(100, Some(0)), secs(0)));
    // The engine counts 1,500: half as much again as the limit. The reservation has left the window by then.
    limits.settle(&store, first.ticket, &used(1_500, 0), secs(70));
    let denial = denied(ask(&limits, &store, "k", &facts(1, Some(0)), secs(71)));
    assert_eq!(denial.tokens.unwrap().remaining, 0);
    denied(ask(&limits, &store, "k", &facts(1, Some(0)), secs(129)));
    admitted(ask(&limits, &store, "k", &facts(1, Some(0)), secs(132)));
}

#[test]
fn what_never_fits_is_told_so_and_a_guess_of_the_output_is_cut() {
    let (limits, store) = (limits(MINUTE), Memory::default());
    let denial = denied(ask(&limits, &store, "k", &facts(500, Some(501)), secs(0)));
    assert_eq!(denial.reason, Reason::TooLarge);
    let answer = denial.answer(Dialect::Chat, || panic!("no clock"));
    assert_eq!(answer.status, 400);
    assert!(
        answer.body.contains("1001 tokens") && answer.body.contains("1000 tokens in 60 s"),
        "{}",
        answer.body
    );
    let guess = admitted(ask(&limits, &store, "k", &facts(999, None), secs(0)));
    assert_eq!(guess.ticket.reserved(), 1_000_000);
}

#[test]
fn every_limit_must_admit_the_longest_wait_answers_and_a_refusal_charges_none() {
    let json = r#"{"limits":[
        {"name":"minute","key":["consumer"],"windows":[{"tokens":1000,"per_s":60},{"requests":3,"per_s":60}]},
        {"name":"day","key":["consumer"],"windows":[{"tokens":1500,"per_s":86400,"quota":true}]},
        {"name":"large","when":{"models":["large*"]},"windows":[{"tokens":1,"per_s":1}]},
        {"name":"but","unless":{"headers":{"x-consumer-username":["k","o*"]}},"windows":[{"tokens":1,"per_s":1}]}
    ]}"#;
    let (limits, store) = (limits(json), Memory::default());
    let ask = |now, tokens| ask(&limits, &store, "k", &facts(tokens, Some(0)), secs(now));
    let first = admitted(ask(0, 900));
    assert_eq!(first.tokens.unwrap().remaining, 100);
    assert_eq!(first.requests.unwrap(), Standing { limit: 3, remaining: 2, reset: Duration::from_secs(61) });
    let writes = store.writes.get();
    assert_eq!(denied(ask(1, 200)).limit, "minute");
    assert_eq!(store.writes.get(), writes, "a refusal writes nothing");
    let quota = denied(ask(1, 700));
    assert_eq!((&quota.limit[..], quota.reason), ("day", Reason::Quota { unit: Unit::Tokens }));
    assert_eq!(quota.answer(Dialect::Chat, || Duration::ZERO).status, 403);
    assert_eq!(admitted(ask(100, 500)).tokens.unwrap().remaining, 100);
    admitted(ask(100, 1));
    admitted(ask(100, 1));
    let crowded = denied(ask(100, 1));
    assert_eq!((&crowded.limit[..], crowded.reason), ("minute", Reason::Full { unit: Unit::Requests }));
    assert_eq!(
        admitted(ask(200, 1)).tokens.unwrap().remaining,
        97,
        "of the day: what was refused is not charged"
    );
}

#[test]
fn a_limit_that_fills_up_while_others_are_charged_takes_all_back() {
    /// While the first limit is written, somebody else uses up the second.
    struct Race(Memory, Limits, Cell<bool>);
    impl Store for Race {
        fn get(&self, name: &str) -> Option<(Vec<u8>, u32)> {
            self.0.get(name)
        }
        fn put(&self, name: &str, value: &[u8], version: Option<u32>) -> bool {
            let done = self.0.put(name, value, version);
            if !self.2.replace(true) {
                drop(admitted(ask(&self.1, &self.0, "else", &facts(1000, Some(0)), secs(0))));
            }
            done
        }
    }
    let shared = r#"{"name":"all","windows":[{"tokens":1000,"per_s":60}]}"#;
    let own = r#"{"name":"own","key":["consumer"],"windows":[{"tokens":50,"per_s":60},{"requests":1,"per_s":60}],"max_in_flight":1}"#;
    let both = limits(&format!(r#"{{"limits":[{own},{shared}]}}"#));
    let race = Race(Memory::default(), limits(&format!(r#"{{"limits":[{shared}]}}"#)), Cell::new(false));
    let header = |name: &str| (name == "x-consumer-username").then_some("k");
    let facts = facts(50, Some(0));
    let asked = Asked { facts: &facts, header: &header, repeated: &|_| false, address: None };
    assert_eq!(denied(both.admit(&race, &asked, Reach::Ask, secs(0))).limit, "all");
    let only_own = limits(&format!(r#"{{"limits":[{own}]}}"#));
    admitted(only_own.admit(&race, &asked, Reach::Ask, secs(0)));
}

#[test]
fn in_flight_is_capped_until_it_ends_or_its_lease_does() {
    let json = r#"{"lease_ms":60000,"limits":[{"name":"f","key":["consumer"],"max_in_flight":2}]}"#;
    let (mut limits, store) = (limits(json), Memory::default());
    let a = admitted(ask(&limits, &store, "k", &facts(1, None), secs(0))).ticket;
    let lost = admitted(ask(&limits, &store, "k", &facts(1, None), secs(0))).ticket;
    let crowded = denied(ask(&limits, &store, "k", &facts(1, None), secs(1)));
    assert_eq!((crowded.reason, crowded.retry_after_s()), (Reason::Crowded, 1));
    limits.settle(&store, a, &Outcome::Nothing, secs(2));
    let b = admitted(ask(&limits, &store, "k", &facts(1, None), secs(2))).ticket;
    denied(ask(&limits, &store, "k", &facts(1, None), secs(59)));
    admitted(ask(&limits, &store, "k", &facts(1, None), secs(62)));
    // Settled after its lease: nothing to give back.
    limits.settle(&store, lost, &Outcome::Nothing, secs(62));
    limits.settle(&store, b, &Outcome::Nothing, secs(62));
    admitted(ask(&limits, &store, "k", &facts(1, None), secs(62)));
    denied(ask(&limits, &store, "k", &facts(1, None), secs(62)));
}

#[test]
fn steady_use_below_the_limit_is_never_refused_and_idle_keys_vanish() {
    let (mut limits, store) = (limits(MINUTE), Memory::default());
    for second in 0..3_600 {
        let ticket = admitted(ask(&limits, &store, "k", &facts(6, Some(4)), secs(second))).ticket;
        limits.settle(&store, ticket, &used(7, 3), secs(second));
    }
    let size = |store: &Memory| store.values.borrow().values().map(|(bytes, _)| bytes.len()).sum::<usize>();
    assert!(size(&store) < 400, "{}", size(&store));
    // Of a key that is gone nothing is left when its book is next written, here by a request that uses nothing.
    let name = store.values.borrow().keys().next().unwrap().clone();
    let rule = limits.rules.first().unwrap();
    let mut bytes = store.get(&name).unwrap().0;
    let book = Book::open(&bytes, 1, rule, secs(3_600 + 120));
    bytes = book.close(rule).0;
    assert_eq!(bytes.len(), 1);
}

#[test]
fn a_full_book_forgets_who_used_least() {
    let limits = limits(MINUTE);
    let rule = limits.rules.first().unwrap();
    let mut bytes = Vec::new();
    let mut charge = |key: u64, tokens: u64| {
        let cost = Spend { tokens, money: 0 };
        let mut book = Book::open(&bytes, key, rule, secs(0));
        let had = book.account.standing(rule, Unit::Tokens, secs(0)).unwrap().remaining < 1000;
        book.account.reserve(rule, cost, &Guest::default(), secs(0));
        let (next, evicted) = book.close(rule);
        bytes = next;
        (had, evicted)
    };
    charge(1, 900_000);
    for key in 2..=16 {
        assert_eq!(charge(key, 1_000 * key), (false, false));
    }
    for key in 100..1_000 {
        assert_eq!(charge(key, 1_000), (false, true));
    }
    assert_eq!(charge(1, 1_000), (true, false));
    assert!(bytes.len() < 17 * 40, "{}", bytes.len());
}

#[test]
fn anything_in_the_store_is_survived() {
    let (limits, store) = (limits(MINUTE), Memory::default());
    let mut random = Random::new(8);
    drop(admitted(ask(&limits, &store, "k", &facts(900, Some(0)), secs(0))));
    let (name, good) = store.values.borrow().iter().next().map(|(n, v)| (n.clone(), v.0.clone())).unwrap();
    for turn in 0..20_000 {
        let mut bytes = good.clone();
        bytes.truncate(if turn % 2 == 0 { bytes.len() } else { random.below(bytes.len()) });
        for _ in 0..1 + random.below(4) {
            if let Some(byte) = bytes.get_mut(random.below(good.len())) {
                *byte = random.next() as u8;
            }
        }
        store.values.borrow_mut().insert(name.clone(), (bytes, 1));
        let _ = ask(&limits, &store, "k", &facts(900, Some(0)), secs(turn));
    }
}

#[test]
fn weights_count_each_class_and_the_longest_name_wins() {
    let config = r#"{"limits":[],"cost":{"weights":{"cached_input":0.1,"output":4},
        "models":{"big*":{"output":10},"big-1":{"reasoning":0.5}}}}"#;
    let cost = Cost::new(invalid::read::<Config>(config.as_bytes()).unwrap().cost).unwrap();
    let usage = Usage { input: 100, cached: 64, output: 10, reasoning: 4 };
    assert_eq!(cost.weights(Some("m")).cost(&usage), 36_000 + 6_400 + 24_000 + 4_000);
    assert_eq!(cost.weights(Some("big-2")).cost(&usage), 100_000 + 60_000 + 4_000);
    assert_eq!(cost.weights(Some("big-1")).cost(&usage), 100_000 + 6_000 + 2_000);
    let odd = Usage { input: 1, cached: u64::MAX, output: 0, reasoning: 9 };
    assert_eq!(cost.weights(None).cost(&odd), 100);
    assert_eq!(Weights::default().cost(&Usage { input: u64::MAX, ..usage }), u64::MAX);
}

#[test]
fn the_estimate_learns_what_answers_come_to() {
    let config: Config = invalid::read(br#"{"limits":[],"cost":{"reserve":"usual"}}"#).unwrap();
    let mut cost = Cost::new(config.cost).unwrap();
    let tokens = |tokens| Spend { tokens, money: 0 };
    let first = Estimate {
        cost: tokens(522_000),
        firm: tokens(10_000),
        prompt: 10_000,
        expected: Expected { input: 10, bound: 0 },
    };
    let of = |key| [Hold { rule: 0, key }];
    assert_eq!(cost.estimate(&facts(10, None), &of(1)), first);
    for key in (0..200).map(|turn| turn % 2) {
        cost.learn("m", &of(key), &Usage { input: 10, output: 50, ..Usage::default() }, 1);
    }
    let learned = cost.estimate(&facts(10, None), &of(1));
    assert!((60_000..63_000).contains(&learned.cost.tokens), "{learned:?}");
    assert_eq!(cost.estimate(&facts(10, Some(1 << 20)), &of(1)).cost, learned.cost, "of `usual`");
    assert_eq!(cost.estimate(&facts(10, Some(5)), &of(1)).cost.tokens, 15_000);
}

#[test]
fn what_the_engine_must_write_is_reserved_where_less_was_expected_and_must_fit() {
    let json = r#"{"limits":[],"cost":{"output_tokens":100,"reserve":"usual"}}"#;
    let cost = Cost::new(invalid::read::<Config>(json.as_bytes()).unwrap().cost).unwrap();
    let estimate = |most, least| {
        let estimate = cost.estimate(&Facts { min_output_tokens: least, ..facts(10, most) }, &[]);
        (estimate.cost.tokens / 1_000, estimate.firm.tokens / 1_000)
    };
    assert_eq!(estimate(None, 0), (110, 10));
    assert_eq!(estimate(None, 50), (110, 60));
    assert_eq!(estimate(None, 300), (310, 310));
    assert_eq!(estimate(Some(1_000), 300), (310, 310));
    // Engines refuse this one.
    assert_eq!(estimate(Some(20), 300), (30, 30));
    let (limits, store) = (limits(MINUTE), Memory::default());
    let far = Facts { min_output_tokens: 991, ..facts(10, None) };
    assert_eq!(denied(ask(&limits, &store, "k", &far, secs(0))).reason, Reason::TooLarge);
}

#[test]
fn what_was_learned_of_others_prompts_makes_nobodys_too_large() {
    let (limits, store) = (limits(MINUTE), Memory::default());
    let mut learned = facts(600, Some(100));
    learned.estimate(1_300);
    let ticket = admitted(ask(&limits, &store, "k", &learned, secs(0))).ticket;
    assert_eq!(ticket.reserved(), 1_000_000, "all that the limit allows");
    learned.firm_prompt_tokens = None;
    assert_eq!(denied(ask(&limits, &store, "j", &learned, secs(0))).reason, Reason::TooLarge);
    learned.estimate(1_200);
    assert_eq!(learned.firm_prompt_tokens, None, "it is less than what is configured");
}

/// Answers of this many tokens to a key, one after the other.
fn taught(limits: &mut Limits, store: &Memory, user: &str, facts: &Facts, output: u64, times: u64) {
    for turn in 0..times {
        let ticket = admitted(ask(limits, store, user, facts, secs(turn * 100))).ticket;
        let usage = Usage { input: 1, output, ..Usage::default() };
        limits.settle(store, ticket, &Outcome::Ended(usage), secs(turn * 100));
    }
}

#[test]
fn what_one_client_does_leaves_the_reserves_of_others_as_they_were() {
    let reserved = |limits: &Limits, store: &Memory, facts: &Facts| {
        admitted(ask(limits, store, "other", facts, secs(1 << 30))).ticket.reserved()
    };
    let large = MINUTE.replace("1000", "1000000");
    let (unbounded, many) = (facts(10, None), Facts { choices: Some(128), ..facts(10, None) });
    for (asked, output) in [(facts(1, Some(1)), 1), (unbounded.clone(), 1), (many.clone(), 128 * 400)] {
        let (mut limits, store) = (limits(&large), Memory::default());
        taught(&mut limits, &store, "k", &asked, output, 200);
        assert_eq!(reserved(&limits, &store, &unbounded), 522_000, "after answers of {output}");
        assert_eq!(reserved(&limits, &store, &many), (10 + 128 * 512) * 1_000);
    }
    // Bounded answers teach nothing, however many keys they have.
    let (mut limits, store) = (limits(&large), Memory::default());
    for user in ["a", "b", "c", "d"] {
        taught(&mut limits, &store, user, &facts(1, Some(1)), 1, 50);
    }
    assert_eq!(reserved(&limits, &store, &unbounded), 522_000);
    for user in ["a", "b", "c", "d"] {
        taught(&mut limits, &store, user, &unbounded, 50, 50);
    }
    assert!((60_000..66_000).contains(&reserved(&limits, &store, &unbounded)));
    // A bound that is far off is none: there are clients that always ask for the most.
    for user in ["a", "b", "c", "d"] {
        taught(&mut limits, &store, user, &facts(1, Some(8 * 512)), 90, 50);
    }
    assert!((100_000..106_000).contains(&reserved(&limits, &store, &unbounded)));
    // How many answers are asked for nobody knows: as much as there is.
    let odd = Facts { choices: None, ..facts(10, None) };
    let ticket = admitted(ask(&limits, &store, "odd", &odd, secs(1 << 30))).ticket;
    assert_eq!(ticket.reserved(), 1_000_000_000);
}

#[test]
fn unbounded_requests_at_once_are_bounded_by_the_guess_and_their_debt_keeps_others_out() {
    let (mut limits, store) = (limits(MINUTE), Memory::default());
    taught(&mut limits, &store, "k", &facts(1, Some(1)), 1, 200);
    taught(&mut limits, &store, "k", &facts(1, None), 1, 200);
    let verdicts = (0..60).map(|_| ask(&limits, &store, "k", &facts(10, None), secs(100_000)));
    let tickets: Vec<Ticket> = verdicts
        .filter_map(|verdict| match verdict {
            Verdict::Admitted(admitted) => Some(admitted.ticket),
            _ => None,
        })
        .collect();
    assert_eq!(tickets.len(), 1, "1000 / (10 + 512)");
    for ticket in tickets {
        limits.settle(&store, ticket, &used(10, 900), secs(100_010));
    }
    denied(ask(&limits, &store, "k", &facts(10, Some(100)), secs(100_060)));
}

#[test]
fn outcomes_follow_the_answer() {
    let report =
        |usage, status, deltas| Report { usage, status, streamed: true, deltas, ..Report::default() };
    let usage = Usage { input: 5, output: 1, ..Usage::default() };
    let complete = report(Some(usage), Status::Complete, 9);
    assert_eq!(Outcome::of(&complete, 200), Outcome::Used(usage));
    for (finish, outcome_of_it) in [("stop", Outcome::Ended(usage)), ("length", Outcome::Used(usage))] {
        let finished = Report { finish: Some(finish.into()), ..complete.clone() };
        assert_eq!(Outcome::of(&finished, 200), outcome_of_it);
    }
    let partial = report(Some(usage), Status::Partial, 9);
    let delivered = Usage { output: 9, ..usage };
    assert_eq!(Outcome::of(&partial, 200), Outcome::Cut(delivered));
    assert_eq!(Outcome::of(&Report { unread: true, ..partial }, 200), Outcome::Least(delivered));
    let missing = |deltas| report(None, Status::Missing, deltas);
    assert_eq!(Outcome::of(&missing(4), 200), Outcome::Delivered(4));
    assert_eq!(Outcome::of(&missing(0), 200), Outcome::Delivered(0));
    let document = Report { streamed: false, ..missing(0) };
    assert_eq!(Outcome::of(&document, 200), Outcome::Unknown, "whatever the client wished for");
    let unread = |deltas| Report { unread: true, ..missing(deltas) };
    assert_eq!(Outcome::of(&unread(0), 200), Outcome::Unknown);
    assert_eq!(Outcome::of(&unread(4), 200), Outcome::Unknown, "and who knows how much more");
    assert_eq!(Outcome::of(&unread(0), 503), Outcome::Nothing);
    assert_eq!(Outcome::of(&document, 503), Outcome::Nothing);
    let failed = Report { error: Some("overloaded".into()), ..missing(0) };
    assert_eq!(Outcome::of(&failed, 200), Outcome::Nothing);
    let answered = Report { unread: true, streamed: false, ..failed };
    assert_eq!(
        Outcome::of(&answered, 200),
        Outcome::Unknown,
        "an answer with an error beside it is not free"
    );
    // Two events, and the text of two hundred tokens.
    let long = Report { text: 800, ..missing(2) };
    assert_eq!(Outcome::of(&long, 200), Outcome::Delivered(200));
    let filled = Report { finish: Some("length".into()), ..long };
    assert_eq!(Outcome::of(&filled, 200), Outcome::Filled(Usage { output: 200, ..Usage::default() }));
}

#[test]
fn where_the_engine_did_not_count_the_charge_is_what_is_known_at_the_least() {
    let usage = |input, output| Usage { input, output, ..Usage::default() };
    for (choices, outcome, cost) in [
        (1, Outcome::Filled(usage(0, 2)), 40 + 60),
        (1, Outcome::Filled(usage(0, 70)), 40 + 70),
        (3, Outcome::Filled(usage(30, 2)), 30 + 20),
        (1, Outcome::Cut(usage(0, 7)), 40 + 7),
        (1, Outcome::Least(usage(40, 9)), 100),
        (1, Outcome::Least(usage(40, 90)), 130),
        (1, Outcome::Delivered(3), 43),
        (1, Outcome::Unknown, 100),
    ] {
        let (mut limits, store) = (limits(MINUTE), Memory::default());
        let facts = Facts { choices: Some(choices), ..facts(40, Some(60)) };
        let ticket = admitted(ask(&limits, &store, "k", &facts, secs(0))).ticket;
        let charge = limits.settle(&store, ticket, &outcome, secs(1));
        assert_eq!(charge, Charge { cost: cost * 1_000, money: 0, estimated: true }, "{outcome:?}");
    }
}

#[test]
fn a_wrong_configuration_names_the_place() {
    let message = |limits: &str| {
        let config = invalid::read::<Config>(format!(r#"{{"limits":[{limits}]}}"#).as_bytes());
        config.and_then(|config| Limits::new(&config, 0)).unwrap_err().to_string()
    };
    let window = r#""windows":[{"tokens":1,"per_s":1}]"#;
    for (limit, begins) in [
        (r#"{"name":"","windows":[]}"#.to_owned(), "limits[0].name: "),
        (r#"{"name":"a"}"#.to_owned(), "limits[0].windows: empty"),
        (r#"{"name":"a","windows":[{"per_s":1}]}"#.to_owned(), "limits[0].windows[0]: one of"),
        (
            r#"{"name":"a","windows":[{"tokens":1,"requests":1,"per_s":1}]}"#.to_owned(),
            "limits[0].windows[0]: one of",
        ),
        (r#"{"name":"a","windows":[{"tokens":0,"per_s":1}]}"#.to_owned(), "limits[0].windows[0].tokens: "),
        (
            r#"{"name":"a","windows":[{"tokens":1,"per_s":1,"x":1}]}"#.to_owned(),
            "limits[0].windows[0].x: unknown",
        ),
        (
            r#"{"name":"a","windows":[{"tokens":1,"per_s":99999999}]}"#.to_owned(),
            "limits[0].windows[0].per_s: ",
        ),
        (
            format!(r#"{{"name":"a","key":[{{"header":"X-Key"}}],{window}}}"#),
            "limits[0].key[0].header: the name",
        ),
        (format!(r#"{{"name":"a","key":["customer"],{window}}}"#), "limits[0].key[0]"),
        (format!(r#"{{"name":"a;b=c",{window}}}"#), "limits[0].name: 1 to 64"),
        (format!(r#"{{"name":"a b",{window}}}"#), "limits[0].name: 1 to 64"),
        (format!(r#"{{"name":"a\nb",{window}}}"#), "limits[0].name: 1 to 64"),
        (
            format!(r#"{{"name":"a","when":{{"headers":{{"x-a":[]}}}},{window}}}"#),
            "limits[0].when.headers.x-a: empty",
        ),
        (
            format!(r#"{{"name":"a","unless":{{"headers":{{"x-a":[]}}}},{window}}}"#),
            "limits[0].unless.headers.x-a: empty",
        ),
        (format!(r#"{{"name":"a","max_keys":9999999,{window}}}"#), "limits[0].max_keys: "),
        (
            format!(r#"{{"name":"a","when":{{"models":["demo","*small"]}},{window}}}"#),
            "limits[0].when.models[1]: \"*small\" has a `*`",
        ),
        (format!(r#"{{"name":"a","unless":{{"models":["a*b"]}},{window}}}"#), "limits[0].unless.models[0]: "),
        (
            format!(r#"{{"name":"a","when":{{"headers":{{"x-plan":["*free"]}}}},{window}}}"#),
            "limits[0].when.headers.x-plan[0]: \"*free\" has a `*`",
        ),
        (
            format!(r#"{{"name":"a","unless":{{"headers":{{"x-plan":["fr**"]}}}},{window}}}"#),
            "limits[0].unless.headers.x-plan[0]: ",
        ),
        (format!(r#"{{"name":"a",{window}}},{{"name":"a",{window}}}"#), "limits[1].name: a is"),
    ] {
        assert!(message(&limit).starts_with(begins), "{limit}: {}", message(&limit));
    }
    for (identity, begins) in [
        (r#"{"consumer_header":"X-Consumer-Username"}"#, "identity.consumer_header: the name"),
        (r#"{"consumer_header":""}"#, "identity.consumer_header: the name"),
        (r#"{"consumer_header":"bad name\n"}"#, "identity.consumer_header: the name"),
        (r#"{"key_headers":[]}"#, "identity.key_headers: empty"),
        (r#"{"key_headers":["authorization","X-Key"]}"#, "identity.key_headers[1]: the name"),
    ] {
        let config = invalid::read(format!(r#"{{"limits":[],"identity":{identity}}}"#).as_bytes()).unwrap();
        let said = Limits::new(&config, 0).unwrap_err().to_string();
        assert!(said.starts_with(begins), "{identity}: {said}");
    }
    for (cost, begins) in [
        (r#"{"models":{"*small":{}}}"#, "cost.models.*small: "),
        (r#"{"models":{"":{}}}"#, "cost.models.: empty"),
        (
            r#"{"prices":{"other":{"input":1,"output":1},"models":{"a*b":{"input":1,"output":1}}}}"#,
            "cost.prices.models.a*b: ",
        ),
    ] {
        let config = invalid::read(format!(r#"{{"limits":[],"cost":{cost}}}"#).as_bytes()).unwrap();
        let said = Limits::new(&config, 0).unwrap_err().to_string();
        assert!(said.starts_with(begins), "{cost}: {said}");
    }
    let weight =
        invalid::read::<Config>(br#"{"limits":[],"cost":{"models":{"m":{"output":-1}}}}"#).unwrap_err();
    assert!(weight.to_string().starts_with("cost.models.m.output: -1 is no weight"), "{weight}");
}

#[test]
fn other_amounts_keep_the_counts_and_other_windows_begin_anew() {
    let store = Memory::default();
    let before = limits(MINUTE);
    drop(admitted(ask(&before, &store, "k", &facts(900, Some(0)), secs(0))));
    let after = limits(&MINUTE.replace("1000", "2000"));
    assert_eq!(
        admitted(ask(&after, &store, "k", &facts(100, Some(0)), secs(1))).tokens.unwrap().remaining,
        1000
    );
    let other = limits(&MINUTE.replace("60", "30"));
    assert_eq!(
        admitted(ask(&other, &store, "k", &facts(100, Some(0)), secs(1))).tokens.unwrap().remaining,
        900
    );
}

#[test]
fn answers_speak_the_clients_api() {
    let json = r#"{"limits":[{"name":"l","windows":[{"tokens":100,"per_s":60},{"requests":9,"per_s":60}]}]}"#;
    let (limits, store) = (limits(json), Memory::default());
    let wall = || Duration::from_secs(951_782_400);
    let first = admitted(ask(&limits, &store, "k", &facts(90, Some(0)), secs(0)));
    let headers = first.headers(Dialect::Messages, wall);
    let of = |headers: &[(&str, String)], name: &str| {
        headers
            .iter()
            .find(|(own, _)| *own == name)
            .unwrap_or_else(|| panic!("{name}: {headers:?}"))
            .1
            .clone()
    };
    assert_eq!(of(&headers, "anthropic-ratelimit-tokens-limit"), "100");
    assert_eq!(of(&headers, "anthropic-ratelimit-tokens-remaining"), "10");
    assert_eq!(of(&headers, "anthropic-ratelimit-tokens-reset"), "2000-02-29T00:01:01Z");
    assert_eq!(of(&headers, "anthropic-ratelimit-requests-remaining"), "8");
    let denial = denied(ask(&limits, &store, "k", &facts(11, Some(0)), secs(1)));
    let answer = denial.answer(Dialect::Responses, || panic!("no clock"));
    assert_eq!((answer.status, &of(&answer.headers, "retry-after")[..]), (429, "60"));
    assert_eq!(of(&answer.headers, "retry-after-ms"), "60000");
    assert_eq!(of(&answer.headers, "x-ratelimit-reset-tokens"), "1m0s");
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(
        (&body["error"]["type"], &body["error"]["code"]),
        (&"tokens".into(), &"rate_limit_exceeded".into())
    );
    let answer = denial.answer(Dialect::Messages, wall);
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
    assert_eq!(of(&answer.headers, "anthropic-ratelimit-tokens-remaining"), "10");
}

#[cfg(not(target_arch = "wasm32"))]
#[test]
fn threads_that_share_a_store_lose_no_update() {
    use std::sync::Mutex;
    #[derive(Default)]
    struct Shared(Mutex<(Values, u32)>);
    impl Store for Shared {
        fn get(&self, name: &str) -> Option<(Vec<u8>, u32)> {
            self.0.lock().unwrap().0.get(name).cloned()
        }
        fn put(&self, name: &str, value: &[u8], version: Option<u32>) -> bool {
            let (values, next) = &mut *self.0.lock().unwrap();
            *next += 1;
            let fits = values.get(name).map(|(_, version)| *version) == version;
            if fits {
                values.insert(name.to_owned(), (value.to_vec(), *next));
            }
            fits
        }
    }
    let (store, all_asked) = (Shared::default(), std::sync::Barrier::new(4));
    let worker = || {
        let mut limits = limits(&MINUTE.replace("1000", "100000"));
        let header = |_: &str| None;
        let facts = facts(10, Some(10));
        let asked = Asked { facts: &facts, header: &header, repeated: &|_| false, address: None };
        let mut tickets = Vec::new();
        for _ in 0..2_000 {
            match limits.admit(&store, &asked, Reach::Ask, secs(1)) {
                Verdict::Admitted(admitted) => tickets.push(admitted.ticket),
                _ => continue,
            }
        }
        let admitted = tickets.len();
        all_asked.wait();
        for ticket in tickets {
            limits.settle(&store, ticket, &used(10, 7), secs(2));
        }
        admitted
    };
    let admitted: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(admitted, 5_000);
    let facts = facts(0, Some(0));
    let verdict = limits(&MINUTE.replace("1000", "100000")).admit(
        &store,
        &Asked { facts: &facts, header: &|_| None, repeated: &|_| false, address: None },
        Reach::Ask,
        secs(2),
    );
    let Verdict::Admitted(after) = verdict else { panic!("{verdict:?}") };
    assert_eq!(after.tokens.unwrap().remaining, 100_000 - 17 * 5_000);
}
