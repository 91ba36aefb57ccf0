//! A simulated day: two workers, random traffic with bursts and pauses, answers that fail, clients that leave, workers that
//! die with all they hold. A bookkeeper who knows everything looks on:
//!
//! - in no window is more admitted than the limit, be it of tokens or of money, sliding, by the calendar or in total;
//! - never are there more requests at once than slots;
//! - whoever stands in line is called, gives way to another in a full line, leaves, or reaches its deadline: none is
//!   forgotten, and no place is taken by nobody;
//! - nobody is refused without need;
//! - in the end nothing is reserved or in line, and what is charged is what was used, to the token and the billionth.

use super::tests::{Memory, limits};
use super::*;
use crate::queue::Line;
use crate::random::Random;
use crate::request::{Dialect, Facts};
use crate::response::Usage;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const CONFIG: &str = r#"{"lease_ms":600000,"limits":[
    {"name":"own","key":["consumer"],"max_in_flight":5,"queue":{"size":4,"timeout_ms":20000,"fair_by":["session"]},"windows":[
        {"tokens":4000,"per_s":60},{"tokens":100000,"per_s":3600},{"money":1.2,"per":"hour","soft_percent":80,"demote":"batch"},
        {"money":22,"total":true}]},
    {"name":"pool","max_in_flight":12,"queue":{"size":10,"timeout_ms":30000,"fair_by":["consumer"]},"windows":[
        {"tokens":3000000,"per_s":86400}]}],
    "objectives":{"batch":-1},
    "cost":{"prices":{"other":{"input":10,"cached_input":1,"output":30}}}}"#;
const USERS: [&str; 4] = ["a", "b", "c", "d"];
const OWN: u64 = 5;
const POOL: u64 = 12;
const LINES: [usize; 2] = [4, 10];
const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;
const LEASE: u64 = 600 * SECOND;
/// Times on the clock are those since midnight.
const MIDNIGHT: Duration = Duration::from_secs(20_000 * 86_400);

/// What was charged, when.
#[derive(Clone, Copy)]
struct Entry {
    at: u64,
    user: usize,
    spend: Spend,
}

/// A request in flight.
struct Flying {
    worker: usize,
    user: usize,
    at: u64,
    entry: usize,
    ticket: Ticket,
}

/// A request in line.
#[derive(Clone)]
struct Standing {
    worker: usize,
    user: usize,
    facts: Facts,
    wait: Wait,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    /// A client does as it was told, and comes again.
    Again {
        user: usize,
        prompt: u32,
        most: Option<u32>,
        times: u32,
    },
    Ends(u64),
    Deadline(u64),
    Leaves(u64),
    Looks(u64),
    WorkerDies,
}

#[derive(Default, Debug)]
struct Counts {
    admitted: u32,
    called: u32,
    full: u32,
    crowded: u32,
    displaced: u32,
    expired: u32,
    left: u32,
    lost: u32,
    debts: u32,
}

struct Day {
    now: u64,
    random: Random,
    store: Memory,
    workers: Vec<Limits>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next: u64,
    ledger: Vec<Entry>,
    /// Of each user, all together.
    spent: [Spend; 4],
    flying: HashMap<u64, Flying>,
    /// Those of dead workers, as far as they still count: when admitted, and whose.
    orphans: Vec<(u64, usize)>,
    line: HashMap<u64, Standing>,
    /// Those in line whose worker died: where, and until when they may keep a place.
    ghosts: Vec<(Hold, u64)>,
    /// How many have had to give way and have not found out.
    giving_way: HashMap<Hold, u32>,
    counts: Counts,
}

fn worker() -> Limits {
    let mut limits = limits(CONFIG);
    limits.set_wall(MIDNIGHT, Instant::default());
    limits
}

fn facts(user: usize, prompt: u32, most: Option<u32>, session: u64) -> Facts {
    Facts {
        model: Some("m".into()),
        stream: true,
        prompt_tokens: prompt,
        max_output_tokens: most,
        session: Some(session % 3 + 10 * user as u64),
        ..Facts::of(Dialect::Chat)
    }
}

impl Day {
    fn new(seed: u64) -> Self {
        let store = Memory::default();
        store.disturb.set(7);
        let mut day = Self {
            now: 0,
            random: Random::new(seed),
            store,
            workers: vec![worker(), worker()],
            events: BinaryHeap::new(),
            next: 0,
            ledger: Vec::new(),
            spent: Default::default(),
            flying: HashMap::new(),
            orphans: Vec::new(),
            line: HashMap::new(),
            ghosts: Vec::new(),
            giving_way: HashMap::new(),
            counts: Counts::default(),
        };
        day.plan(0, Event::Arrives);
        day.plan(HOUR, Event::WorkerDies);
        day
    }

    fn plan(&mut self, after: u64, event: Event) {
        self.next += 1;
        self.events.push(Reverse((self.now + after, self.next, event)));
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn run(&mut self, until: u64) {
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.now = at;
            self.happens(event);
            self.hear();
            self.check();
        }
        self.now = until;
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrives => {
                // Bursts and pauses.
                let pause = if self.random.below(10) == 0 { 60 * SECOND } else { SECOND };
                let pause = self.random.next() % pause;
                self.plan(pause, Event::Arrives);
                let user = self.random.below(USERS.len());
                let most = (self.random.below(3) > 0).then(|| self.random.below(300) as u32);
                let prompt = 1 + self.random.below(300) as u32;
                self.comes(user, prompt, most, 0);
            }
            Event::Again { user, prompt, most, times } => self.comes(user, prompt, most, times),
            Event::Ends(id) => self.ends(id),
            Event::Deadline(id) => {
                if let Some(standing) = self.line.get(&id).cloned() {
                    if Instant::from_nanos(self.now) < standing.wait.until() {
                        return;
                    }
                    self.line.remove(&id);
                    self.workers[standing.worker].leave(&self.store, &standing.wait, self.at());
                    self.counts.expired += 1;
                }
            }
            Event::Leaves(id) => {
                if let Some(standing) = self.line.remove(&id) {
                    self.workers[standing.worker].leave(&self.store, &standing.wait, self.at());
                    self.counts.left += 1;
                }
            }
            Event::Looks(id) => {
                self.looks(id);
                if self.line.contains_key(&id) {
                    self.plan(3 * SECOND / 2, Event::Looks(id));
                }
            }
            Event::WorkerDies => {
                self.plan(HOUR / 3, Event::WorkerDies);
                let dead = self.random.below(2);
                self.workers[dead] = worker();
                let lost: Vec<u64> =
                    self.flying.iter().filter(|(_, own)| own.worker == dead).map(|(id, _)| *id).collect();
                for flying in lost.iter().filter_map(|id| self.flying.remove(id)) {
                    drop(flying.ticket);
                    self.orphans.push((flying.at, flying.user));
                    self.counts.lost += 1;
                }
                let (kept, ghosts) =
                    std::mem::take(&mut self.line).into_iter().partition(|(_, own)| own.worker != dead);
                self.line = kept;
                let ghosts: HashMap<u64, Standing> = ghosts;
                let comes_within = Line::COMES_WITHIN.as_nanos() as u64;
                self.ghosts.extend(
                    ghosts
                        .into_values()
                        .map(|own| (own.wait.hold(), own.wait.until().nanos() + comes_within)),
                );
            }
        }
    }

    fn comes(&mut self, user: usize, prompt: u32, most: Option<u32>, times: u32) {
        let session = self.random.next();
        let (facts, worker) = (facts(user, prompt, most, session), self.random.below(2));
        self.next += 1;
        if let Some(wait) = self.asks(self.next, worker, user, facts, None) {
            // Obeyed, but not for ever.
            if times < 2 {
                let wait = wait.as_nanos() as u64;
                self.plan(wait, Event::Again { user, prompt, most, times: times + 1 });
            }
        }
    }

    /// A request asks, for the first time or because it was called; when it is refused, how long it is to wait.
    fn asks(
        &mut self,
        id: u64,
        worker: usize,
        user: usize,
        facts: Facts,
        at: Option<Wait>,
    ) -> Option<Duration> {
        let header = |name: &str| (name == "x-consumer-username").then_some(USERS[user]);
        let asked = Asked { facts: &facts, header: &header, repeated: &|_| false, address: None };
        let waiting = Waiting { id, warm: 0, at };
        let full = [0, 1].map(|rule| self.waiting(rule, user) as usize >= LINES[rule]);
        let now = self.at();
        match self.workers[worker].admit_or_wait(&self.store, &asked, Reach::Ask, Some(waiting), now) {
            Verdict::Admitted(admitted) => {
                self.counts.admitted += 1;
                self.counts.called += u32::from(at.is_some());
                let spend = admitted.ticket.reserved;
                self.fits(user, spend);
                self.ledger.push(Entry { at: self.now, user, spend });
                self.spent[user] = self.spent[user].plus(spend);
                let flying = Flying {
                    worker,
                    user,
                    at: self.now,
                    entry: self.ledger.len() - 1,
                    ticket: admitted.ticket,
                };
                self.flying.insert(id, flying);
                let takes = self.random.next() % (60 * SECOND);
                self.plan(takes, Event::Ends(id));
                None
            }
            Verdict::Waits(wait) => {
                if at.is_none_or(|before| before.hold() != wait.hold()) && full[wait.hold().rule()] {
                    *self.giving_way.entry(wait.hold()).or_default() += 1;
                }
                if at.is_none() {
                    self.plan(3 * SECOND / 2, Event::Looks(id));
                    self.plan(wait.until().since(now).as_nanos() as u64, Event::Deadline(id));
                    if self.random.below(20) == 0 {
                        let patience = self.random.next() % (10 * SECOND);
                        self.plan(patience, Event::Leaves(id));
                    }
                }
                self.line.insert(id, Standing { worker, user, facts, wait });
                None
            }
            Verdict::Denied(denied) => {
                if let Some(wait) = &at {
                    self.workers[worker].leave(&self.store, wait, now);
                }
                match denied.reason {
                    Reason::Full { .. } | Reason::Quota { .. } => {
                        self.counts.full += 1;
                        self.needed(user, &facts);
                    }
                    Reason::LineFull => {
                        assert!(full.contains(&true), "turned away from a line that has room");
                        self.counts.crowded += 1;
                    }
                    Reason::Shed => self.counts.crowded += 1,
                    other => panic!("{other:?}"),
                }
                Some(denied.wait)
            }
            other => panic!("{other:?}"),
        }
    }

    fn ends(&mut self, id: u64) {
        let Some(Flying { worker, user, entry, ticket, .. }) = self.flying.remove(&id) else { return };
        let (input, output) = (self.random.next() % 300, self.random.next() % 400);
        let outcome = match self.random.below(20) {
            0 => Outcome::Nothing,
            1 => Outcome::Delivered(output),
            2 => Outcome::Unknown,
            _ => Outcome::Used(Usage { input, cached: input / 3, output, reasoning: output / 4 }),
        };
        let reserved = ticket.reserved;
        let charge =
            self.workers[worker].settle(&self.store, ticket, &outcome, Instant::from_nanos(self.now));
        let spent = Spend { tokens: charge.cost, money: charge.money };
        let debt = spent.minus(reserved);
        self.ledger[entry].spend = spent.minus(debt);
        self.spent[user] = self.spent[user].plus(spent).minus(reserved);
        if debt != Spend::default() {
            self.counts.debts += 1;
            self.ledger.push(Entry { at: self.now, user, spend: debt });
        }
    }

    /// Those who were woken look; some hints are lost.
    fn hear(&mut self) {
        loop {
            let woken = self.store.woken.take();
            if woken.is_empty() {
                return;
            }
            for id in woken {
                if self.random.below(4) > 0 {
                    self.looks(id);
                }
            }
        }
    }

    fn looks(&mut self, id: u64) {
        let Some(Standing { worker, user, facts, wait }) = self.line.get(&id).cloned() else { return };
        let now = self.at();
        self.workers[worker].look(&self.store, wait.hold(), now);
        match self.workers[worker].stands(&self.store, &wait, now) {
            Stands::Waiting => {}
            Stands::Called => {
                self.line.remove(&id);
                self.asks(id, worker, user, facts, Some(wait));
            }
            Stands::Gone => {
                self.line.remove(&id);
                let gave_way = self.giving_way.get_mut(&wait.hold()).filter(|number| **number > 0);
                *gave_way.expect("a place was lost, and nobody took it") -= 1;
                self.counts.displaced += 1;
            }
        }
    }

    fn account<T>(&self, rule: usize, user: usize, read: impl Fn(&account::Account, &Rule) -> T) -> T {
        let limits = &self.workers[0];
        let rule = &limits.rules[rule];
        let facts = facts(user, 0, None, 0);
        let header = |name: &str| (name == "x-consumer-username").then_some(USERS[user]);
        let asked = Asked { facts: &facts, header: &header, repeated: &|_| false, address: None };
        let key = key::hash(&rule.key, &asked, &limits.identity, limits.seed).unwrap();
        let stored = self.store.get(&place(rule, key));
        read(&open(stored.as_ref(), key, rule, self.at()).account, rule)
    }

    fn waiting(&self, rule: usize, user: usize) -> u64 {
        self.account(rule, user, |account, _| account.slots().waiting())
    }

    /// Slots and places.
    fn check(&mut self) {
        let now = self.now;
        // A sixtieth longer than the lease, for the cell.
        self.orphans.retain(|(at, _)| at + LEASE > now);
        self.ghosts.retain(|(_, until)| *until > now);
        assert!(self.flying.len() + self.orphans.len() <= POOL as usize, "the pool's slots");
        for user in 0..USERS.len() {
            let flying = self.flying.values().filter(|own| own.user == user).count();
            let orphans = self.orphans.iter().filter(|(_, own)| *own == user).count();
            assert!(flying + orphans <= OWN as usize, "slots of {user}");
        }
        // Reading every account takes long: one after the other is enough.
        let places = (0..USERS.len()).map(|user| (0, user)).chain([(1, 0)]);
        for (rule, user) in places.skip(self.next as usize % 5).take(1) {
            let (called, waiting) = self.account(rule, user, |account, _| {
                account.slots().line().map_or((0, 0), |line| (line.called(), line.waiting()))
            });
            let here = |hold: &Hold| hold.rule == rule && (rule == 1 || self.key_of(user) == hold.key);
            let alive = self.line.values().filter(|own| here(&own.wait.hold())).count();
            let gave_way: u32 =
                self.giving_way.iter().filter(|(hold, _)| here(hold)).map(|(_, number)| *number).sum();
            let ghosts = self.ghosts.iter().filter(|(hold, _)| here(hold)).count();
            let there = called + waiting;
            assert!(alive <= there + gave_way as usize, "{rule}: {alive} stand, {there} have a place");
            assert!(there <= alive + ghosts, "{rule}: {there} places, {alive} stand, {ghosts} died");
        }
    }

    fn key_of(&self, user: usize) -> u64 {
        let limits = &self.workers[0];
        let facts = facts(user, 0, None, 0);
        let header = |name: &str| (name == "x-consumer-username").then_some(USERS[user]);
        let asked = Asked { facts: &facts, header: &header, repeated: &|_| false, address: None };
        key::hash(&limits.rules[0].key, &asked, &limits.identity, limits.seed).unwrap()
    }

    /// What was charged to a user from a moment on.
    fn since(&self, from: u64, user: usize) -> Spend {
        let entries = self.ledger.iter().rev().take_while(|entry| entry.at >= from);
        let own = entries.filter(|entry| user == entry.user);
        own.fold(Spend::default(), |sum, entry| sum.plus(entry.spend))
    }

    /// What counts in each window at the least, or a sixtieth of it longer: unit, sum, limit. The test's day is shorter than the pool's.
    fn windows(&self, user: usize, grace: bool) -> Vec<(Unit, u64, u64)> {
        let window = |secs: u64| {
            let nanos = secs * SECOND + if grace { secs * SECOND / 60 + 61 } else { 0 };
            (self.now + 1).saturating_sub(nanos)
        };
        let mut windows = vec![
            (Unit::Tokens, self.since(window(60), user).tokens, 4_000_000),
            (Unit::Tokens, self.since(window(3_600), user).tokens, 100_000_000),
            (Unit::Money, self.since(self.now / HOUR * HOUR, user).money, 1_200_000_000),
        ];
        let all = self.spent.iter().fold(Spend::default(), |sum, spend| sum.plus(*spend));
        windows.push((Unit::Money, self.spent[user].money, 22_000_000_000));
        windows.push((Unit::Tokens, all.tokens, 3_000_000_000));
        windows
    }

    fn fits(&self, user: usize, spend: Spend) {
        for (unit, before, limit) in self.windows(user, false) {
            let sum = before + unit.amount(spend);
            assert!(sum <= limit, "{unit:?}: {sum} of {limit}");
        }
    }

    fn needed(&self, user: usize, facts: &Facts) {
        let cost = self.workers[0].cost.estimate(facts, &[]).cost;
        let windows = self.windows(user, true);
        let needed = windows.iter().any(|(unit, held, limit)| held + unit.amount(cost) > *limit);
        // What this worker expects of answers it has learned; the other one may know better.
        assert!(needed || facts.max_output_tokens.is_none(), "refused without need: {windows:?} {cost:?}");
    }
}

#[test]
fn over_a_day_no_window_budget_or_number_of_slots_is_exceeded_and_no_line_loses_anybody() {
    let mut day = Day::new(2026);
    day.run(23 * HOUR);
    let Counts { admitted, called, full, crowded, displaced, expired, left, lost, debts } = day.counts;
    assert!(admitted > 5_000, "{:?}", day.counts);
    for happened in [called, full, crowded, displaced, expired, left, lost, debts] {
        assert!(happened > 20, "too little happened: {:?}", day.counts);
    }
    // Nobody comes any more.
    day.events.retain(|Reverse((.., event))| matches!(event, Event::Ends(_) | Event::Deadline(_)));
    day.run(23 * HOUR + 300 * SECOND);
    assert!(day.flying.is_empty() && day.line.is_empty());
    day.run(23 * HOUR + 2 * LEASE);
    let mut all = Spend::default();
    for user in 0..USERS.len() {
        let (in_flight, there) = day.account(0, user, |account, _| {
            let line = account.slots().line().unwrap();
            (account.in_flight(), line.called() + line.waiting())
        });
        assert_eq!((in_flight, there), (0, 0), "{user}");
        let spent = day.spent[user];
        assert_eq!(day.account(0, user, |account, _| account.used(3)), spent.money, "{user}, in total");
        all = all.plus(spent);
    }
    assert_eq!(day.account(1, 0, |account, _| (account.in_flight(), account.used(0))), (0, all.tokens));
}
