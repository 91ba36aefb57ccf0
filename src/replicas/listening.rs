//! Proxies that listen, and the scorer between them.

use super::*;
use crate::policy::{Demand, Signals};
use crate::pool::{Ask, Config, LeaseId, Report, Spec};
use crate::random::Random;
use std::collections::BTreeMap;
use std::time::Duration;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const START: Instant = Instant::from_millis(1_000_000);
const TRUST: Duration = Duration::from_millis(500);
const BEAT: Duration = Duration::from_secs(1);

fn pools(endpoints: usize, seed: u64) -> Pools {
    let endpoints = (1..=endpoints).map(|n| format!("10.0.0.{n}:80")).collect();
    let spec = Spec {
        name: "p".into(),
        models: vec![],
        endpoints,
        cluster: None,
        choose: None,
        attributes: BTreeMap::new(),
    };
    Pools::new(&[spec], &Config::default(), seed).unwrap()
}

fn in_flight(pools: &Pools) -> Vec<u32> {
    pools.iter().flat_map(|(_, pool)| pool.loads()).map(|load| load.in_flight).collect()
}

fn demand() -> Demand {
    Demand { prompt_tokens: 320, prompt_units: 20, stream: true, ..Demand::default() }
}

fn end(lease: LeaseId) -> Message {
    Message::End { pool: 0, lease, answered: None }
}

/// A scorer, and a proxy's clock may differ from its.
struct Hub {
    pools: Pools,
    listeners: Listeners,
}

impl Hub {
    fn new(epoch: u64) -> Self {
        Self { pools: pools(4, epoch), listeners: Listeners::new(epoch) }
    }

    fn answer(&mut self, asking: &Asking, now: Instant) -> Told {
        let mut asking = Asking::decode(&asking.encode()).unwrap();
        self.listeners.hear(&mut self.pools, &mut asking, now).unwrap();
        Told::decode(&self.listeners.tell(&self.pools, &asking, now).encode()).unwrap()
    }

    fn leases(&self) -> u32 {
        in_flight(&self.pools).iter().sum()
    }
}

struct Proxy {
    name: ReplicaId,
    pools: Pools,
    listener: Listener,
    waiting: Vec<Message>,
    named: Instant,
}

impl Proxy {
    fn new(name: ReplicaId) -> Self {
        let (listener, waiting) = (Listener::default(), Vec::new());
        Self { name: name | LISTENS, pools: pools(4, name), listener, waiting, named: Instant::default() }
    }

    fn reserve(&mut self, lease: LeaseId, prompt: u64, now: Instant) -> String {
        let blocks: Vec<u64> = (0..20).map(|n| prompt * 1000 + n).collect();
        let ask = Ask { blocks: &blocks, demand: demand(), prompt: None };
        let choice = self.pools.get(0).unwrap().1.reserve(lease, &ask, now).unwrap();
        self.waiting.push(Message::booked(0, lease, &choice.order[0], &ask, choice.probe));
        choice.order[0].clone()
    }

    fn end(&mut self, lease: LeaseId, now: Instant) {
        self.pools.hear(&end(lease), now);
        self.waiting.push(end(lease));
    }

    fn ask(&mut self, now: Instant) -> Asking {
        let names = now.since(self.named) >= BEAT || self.listener.is_lost();
        if names {
            self.named = now;
        }
        self.listener.ask(self.name, &self.pools, self.waiting.clone(), names, now)
    }

    /// One call, answered.
    fn call(&mut self, hub: &mut Hub, now: Instant) -> bool {
        let asking = self.ask(now);
        let told = hub.answer(&asking, now);
        let more = told.more;
        self.hear(told, now);
        more
    }

    fn hear(&mut self, told: Told, now: Instant) {
        self.waiting.clear();
        if self.listener.hear(&mut self.pools, told, now).begins {
            self.named = Instant::default();
        }
    }

    fn calls(&mut self, hub: &mut Hub, now: Instant) {
        while self.call(hub, now) {}
    }

    fn is_whole(&self, now: Instant) -> bool {
        self.listener.is_whole(TRUST, now)
    }
}

fn all_call<const N: usize>(proxies: [&mut Proxy; N], hub: &mut Hub, now: Instant) {
    proxies.into_iter().for_each(|proxy| proxy.calls(hub, now));
}

#[test]
fn what_one_proxy_does_the_scorer_and_the_others_know() {
    let mut hub = Hub::new(77);
    let [mut a, mut b] = [1, 2].map(Proxy::new);
    all_call([&mut a, &mut b], &mut hub, START);
    let holder = a.reserve(1, 9, START);
    a.calls(&mut hub, START);
    b.calls(&mut hub, START);
    assert_eq!(in_flight(&hub.pools), in_flight(&a.pools));
    assert_eq!(in_flight(&b.pools), in_flight(&a.pools));
    a.end(1, START);
    // A second turn finds its endpoint through the other proxy.
    a.calls(&mut hub, START);
    b.calls(&mut hub, START);
    assert_eq!((hub.leases(), in_flight(&b.pools).iter().sum()), (0, 0_u32));
    assert_eq!(b.reserve(2, 9, START), holder);
}

#[test]
fn one_that_joins_is_not_whole_before_it_has_heard_all_parts() {
    let mut hub = Hub::new(77);
    // More prefixes than go into one part.
    for prompt in 0..3_000 {
        let blocks = (0..25).map(|n| prompt * 1000 + n).collect();
        let endpoint = format!("10.0.0.{}:80", prompt % 4 + 1);
        hub.pools.hear(&Message::Held { pool: 0, endpoint, blocks }, START);
    }
    let mut proxy = Proxy::new(1);
    let mut parts = 0;
    while proxy.call(&mut hub, START) {
        assert!(!proxy.is_whole(START), "part {parts}");
        parts += 1;
        // What happens meanwhile is heard behind them.
        hub.listeners.note(None, end(parts));
    }
    assert!(parts >= 2, "{parts}");
    assert!(proxy.is_whole(START));
    assert!(!proxy.is_whole(START + TRUST * 2), "it ages");
    let index = |pools: &Pools| {
        pools.iter().next().unwrap().1.loads().iter().map(|one| one.index_tokens).sum::<u64>()
    };
    assert_eq!(index(&proxy.pools), index(&hub.pools));
    proxy.calls(&mut hub, START);
    assert_eq!(proxy.ask(START).step, Step::Upto(1 + parts));
}

#[test]
fn an_answer_that_is_lost_is_told_again_and_one_that_comes_twice_does_no_harm() {
    let mut hub = Hub::new(77);
    let [mut a, mut b] = [1, 2].map(Proxy::new);
    all_call([&mut a, &mut b], &mut hub, START);
    a.reserve(1, 9, START);
    a.calls(&mut hub, START);
    let asking = b.ask(START);
    let lost = hub.answer(&asking, START);
    let told = hub.answer(&b.ask(START), START);
    assert_eq!((lost.after, lost.then), (told.after, told.then));
    b.listener.hear(&mut b.pools, told, START);
    a.end(1, START);
    a.calls(&mut hub, START);
    b.calls(&mut hub, START);
    assert!(!b.listener.hear(&mut b.pools, lost, START).gap);
    assert!(b.is_whole(START));
    assert_eq!(in_flight(&b.pools), [0; 4], "its end is not forgotten");
}

#[test]
fn who_misses_a_number_is_not_whole_until_it_has_been_told_all_again() {
    let mut hub = Hub::new(77);
    let [mut a, mut b] = [1, 2].map(Proxy::new);
    all_call([&mut a, &mut b], &mut hub, START);
    // Another worker of the same proxy, which has heard as much.
    let mut c = Proxy::new(2);
    c.listener.stand(&b.listener.standing());
    for lease in 1..=2 {
        a.reserve(lease, lease, START);
        a.calls(&mut hub, START);
        let told = hub.answer(&b.ask(START), START);
        if lease == 2 {
            assert!(c.listener.hear(&mut c.pools, told.clone(), START).gap);
        }
        b.listener.hear(&mut b.pools, told, START);
    }
    assert!(b.is_whole(START));
    assert!(c.listener.is_lost() && !c.is_whole(START));
    c.calls(&mut hub, START);
    assert!(c.is_whole(START));
    assert_eq!(in_flight(&c.pools), in_flight(&hub.pools));
}

#[test]
fn a_scorer_that_starts_anew_is_told_all_leases_and_nobody_forgets_one() {
    let mut hub = Hub::new(77);
    let [mut a, mut b] = [1, 2].map(Proxy::new);
    all_call([&mut a, &mut b], &mut hub, START);
    (1..=6).for_each(|lease| drop(a.reserve(lease, lease, START)));
    (7..=9).for_each(|lease| drop(b.reserve(lease, lease, START)));
    for _ in 0..2 {
        all_call([&mut a, &mut b], &mut hub, START);
    }
    assert_eq!(hub.leases(), 9);
    let mut hub = Hub::new(78);
    let now = START + TRUST;
    a.calls(&mut hub, now);
    assert_eq!(in_flight(&a.pools).iter().sum::<u32>(), 9, "those of the other have not been told yet");
    all_call([&mut a, &mut b], &mut hub, now);
    b.calls(&mut hub, now);
    // Who is told all from the beginning says what it has out.
    assert_eq!(hub.leases(), 9);
    for beats in 1..4 {
        let now = now + BEAT * beats;
        all_call([&mut a, &mut b], &mut hub, now);
        assert_eq!(
            [&hub.pools, &a.pools, &b.pools].map(|pools| in_flight(pools).iter().sum::<u32>()),
            [9; 3]
        );
    }
    assert_eq!(in_flight(&a.pools), in_flight(&hub.pools));
}

#[test]
fn leases_that_a_proxy_that_died_has_told_end_with_their_time() {
    let mut hub = Hub::new(77);
    let [mut a, mut b] = [1, 2].map(Proxy::new);
    all_call([&mut a, &mut b], &mut hub, START);
    (1..=6).for_each(|lease| drop(a.reserve(lease, lease, START)));
    a.calls(&mut hub, START);
    b.calls(&mut hub, START);
    drop(a);
    let period = hub.pools.get(0).unwrap().1.lease_period();
    b.calls(&mut hub, START + period / 2);
    assert_eq!((hub.leases(), hub.listeners.len()), (6, 1));
    let over = START + period + BEAT;
    for pools in [&mut hub.pools, &mut b.pools] {
        pools.get(0).unwrap().1.expire(over);
    }
    b.calls(&mut hub, over);
    assert_eq!((hub.leases(), in_flight(&b.pools)), (0, vec![0; 4]));
}

#[test]
fn a_lease_that_was_asked_for_at_the_scorer_is_the_proxys_and_counts_once() {
    let mut hub = Hub::new(77);
    let [mut a, mut b] = [1, 2].map(Proxy::new);
    all_call([&mut a, &mut b], &mut hub, START);
    let ask = Ask { blocks: &[1, 2], demand: demand(), prompt: None };
    let choice = hub.pools.get(0).unwrap().1.reserve(5, &ask, START).unwrap();
    let booked = Message::booked(0, 5, &choice.order[0], &ask, false);
    hub.listeners.note(None, booked.clone());
    a.pools.hear(&booked, START);
    a.waiting.push(booked);
    for beats in 0..4 {
        let now = START + BEAT * beats;
        all_call([&mut a, &mut b], &mut hub, now);
        assert_eq!(
            [&hub.pools, &a.pools, &b.pools].map(|pools| in_flight(pools).iter().sum::<u32>()),
            [1; 3]
        );
    }
    a.end(5, START + BEAT * 4);
    for _ in 0..2 {
        all_call([&mut a, &mut b], &mut hub, START + BEAT * 4);
    }
    assert_eq!([&hub.pools, &a.pools, &b.pools].map(|pools| in_flight(pools).iter().sum::<u32>()), [0; 3]);
}

#[test]
fn what_an_engine_says_is_as_old_there_as_here() {
    let mut hub = Hub::new(77);
    let mut proxy = Proxy::new(1);
    proxy.calls(&mut hub, START);
    let signals = Signals { waiting: Some(3), ..Signals::default() };
    let report = Report { at: START, signals, ..Report::default() };
    hub.listeners.note(None, Message::Said { endpoint: "10.0.0.2:80".into(), report });
    // The proxy's clock shows another time.
    let later = START + Duration::from_millis(40);
    let told = hub.answer(&proxy.ask(later), later);
    let there = Instant::from_millis(7_000);
    proxy.listener.hear(&mut proxy.pools, told, there);
    let said: Vec<_> = proxy.pools.iter().flat_map(|(_, pool)| pool.said(there)).collect();
    assert_eq!((said[0].address.as_str(), said[0].waiting, said[0].age_ms), ("10.0.0.2:80", Some(3), 40));
}

#[test]
fn nothing_is_kept_while_nobody_listens_and_who_was_away_for_too_long_begins_again() {
    let mut hub = Hub::new(77);
    let booked = |lease| {
        let ask = Ask { blocks: &[7; 4096], demand: demand(), prompt: None };
        Message::booked(0, lease, "10.0.0.1:80", &ask, false)
    };
    (0..100).for_each(|lease| hub.listeners.note(None, booked(lease)));
    let [mut a, mut b] = [1, 2].map(Proxy::new);
    assert_eq!(hub.answer(&a.ask(START), START).then, Step::Upto(1));
    all_call([&mut a, &mut b], &mut hub, START);
    for lease in 0..2_000 {
        hub.pools.hear(&booked(lease), START);
        hub.listeners.note(None, booked(lease));
    }
    assert_eq!(hub.answer(&a.ask(START), START).after, Step::Nothing, "33 KB each are more than is kept");
    // Its silence makes room.
    a.calls(&mut hub, START + BEAT * 11);
    assert_eq!(hub.listeners.len(), 1);
    assert_eq!(in_flight(&a.pools), in_flight(&hub.pools));
}

#[test]
fn whatever_is_lost_all_agree_in_the_end() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let mut chance = |of: u64| random.next().is_multiple_of(of);
        let mut hub = Hub::new(77);
        let mut proxies = [1, 2, 3].map(Proxy::new);
        let mut out: Vec<(usize, LeaseId)> = Vec::new();
        let mut now = START;
        for turn in 0..300 {
            now = now + Duration::from_millis(5);
            if turn == 150 {
                hub = Hub::new(78);
            }
            for (at, proxy) in proxies.iter_mut().enumerate() {
                if chance(2) {
                    let lease = turn * 10 + at as u64 + 1;
                    proxy.reserve(lease, lease % 40, now);
                    out.push((at, lease));
                }
                let asking = proxy.ask(now);
                if chance(4) {
                    continue; // It never comes there.
                }
                let told = hub.answer(&asking, now);
                if !chance(4) {
                    proxy.hear(told, now);
                }
            }
            if chance(3) && !out.is_empty() {
                let (at, lease) = out.remove(out.len() / 2);
                proxies[at].end(lease, now);
            }
        }
        for _ in 0..3 {
            now = now + BEAT;
            proxies.iter_mut().for_each(|proxy| proxy.calls(&mut hub, now));
        }
        let expected = out.len() as u32;
        assert_eq!(hub.leases(), expected, "seed {seed}");
        for proxy in &proxies {
            assert!(proxy.is_whole(now));
            assert_eq!(in_flight(&proxy.pools), in_flight(&hub.pools), "seed {seed}");
        }
    }
}

#[test]
fn what_is_garbled_is_no_message() {
    let mut hub = Hub::new(77);
    let mut proxy = Proxy::new(1);
    proxy.reserve(1, 1, START);
    let asking = proxy.ask(START);
    assert_eq!(Asking::decode(&asking.encode()), Some(asking.clone()));
    let told = hub.answer(&asking, START);
    assert_eq!(Told::decode(&told.encode()), Some(told.clone()));
    for whole in [asking.encode(), told.encode()] {
        for length in 0..whole.len() {
            let _ = (Asking::decode(&whole[..length]), Told::decode(&whole[..length]));
            let mut other = whole.clone();
            other[length] ^= 0x55;
            let _ = (Asking::decode(&other), Told::decode(&other));
        }
    }
    assert_eq!((Asking::decode(b"upstream connect error"), Told::decode(b"")), (None, None));
}
