use super::*;
use crate::policy::Demand;
use crate::pool::{Ask, Config, LeaseId, Spec};
use crate::random::Random;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const NOW: Instant = Instant::from_millis(1_000_000);

/// A scorer, and what the others have told it and it has not heard yet.
struct One {
    replicas: Replicas,
    pools: Pools,
    inbox: VecDeque<Vec<u8>>,
}

impl One {
    fn new(own: ReplicaId, endpoints: usize, seed: u64) -> Self {
        let endpoints = (1..=endpoints).map(|n| format!("10.0.0.{n}:80")).collect();
        let spec = |name: &str, endpoints| Spec {
            name: name.into(),
            models: vec![],
            endpoints,
            cluster: None,
            choose: None,
            attributes: BTreeMap::new(),
        };
        let mut specs = vec![spec("p", endpoints), spec("other", vec!["10.0.1.1:80".into()])];
        if own.is_multiple_of(2) {
            specs.reverse();
        }
        let pools = Pools::new(&specs, &Config::default(), seed).unwrap();
        Self { replicas: Replicas::join(own, NOW), pools, inbox: VecDeque::new() }
    }

    fn place(&self) -> usize {
        self.pools.of_name("p").unwrap()
    }

    fn reserve(&mut self, lease: LeaseId, ask: &Ask<'_>) -> Message {
        let place = self.place();
        let (_, pool) = self.pools.get(place).unwrap();
        let choice = pool.reserve(lease, ask, NOW).unwrap();
        Message::booked(place as u16, lease, &choice.order[0], ask, choice.probe)
    }

    fn end(&mut self, lease: LeaseId) -> Message {
        let message = Message::End { pool: self.place() as u16, lease, answered: None };
        self.pools.hear(&message, NOW);
        message
    }

    fn news(&self, message: Message) -> Vec<u8> {
        self.replicas.news(&self.pools, [message])[0].encode()
    }

    fn hear(&mut self, bytes: &[u8]) -> Heard {
        self.replicas.hear(&mut self.pools, Frame::decode(bytes).unwrap(), NOW)
    }

    fn hear_all(&mut self) {
        while let Some(bytes) = self.inbox.pop_front() {
            self.hear(&bytes);
        }
    }

    fn whole(&self) -> Vec<u8> {
        self.replicas.whole(&self.pools, NOW).encode()
    }

    fn in_flight(&self) -> Vec<u32> {
        let (_, pool) = self.pools.iter().find(|(name, _)| *name == "p").unwrap();
        pool.loads().iter().map(|load| load.in_flight).collect()
    }

    fn leases(&self) -> u32 {
        self.in_flight().iter().sum()
    }
}

fn ask(blocks: &[u64]) -> Ask<'_> {
    let demand = Demand { prompt_tokens: 480, prompt_units: 30, stream: true, ..Demand::default() };
    Ask { blocks, demand, prompt: None }
}

#[test]
fn frames_survive_the_way_and_nonsense_is_let_go() {
    let mut one = One::new(7, 2, 1);
    let booked = one.reserve(1, &ask(&[1, 2, 3]));
    for frame in [
        one.replicas.hello(&one.pools, Some(3)),
        one.replicas.hello(&one.pools, None),
        one.replicas.news(&one.pools, [booked]).remove(0),
        one.replicas.whole(&one.pools, NOW),
    ] {
        let bytes = frame.encode();
        assert_eq!(Frame::decode(&bytes).as_ref(), Some(&frame));
        (0..bytes.len()).for_each(|n| drop(Frame::decode(&bytes[..n])));
    }
    assert_eq!(Frame::decode(b"\x02\x00"), None);
    let names = vec![String::new(); 1 << 17];
    let many = Frame { names, ..one.replicas.hello(&one.pools, None) };
    assert_eq!(Frame::decode(&many.encode()), None, "more pools than messages can be about");
    assert_eq!(Frame::decode(b"\x01\x09aaaaaaaaaaaa"), None);
}

#[test]
fn what_one_books_the_other_knows_and_either_may_be_told_of_its_end() {
    let (mut a, mut b) = (One::new(1, 4, 1), One::new(2, 4, 2));
    let booked = a.reserve(5, &ask(&[]));
    b.hear(&a.news(booked));
    assert_eq!((a.leases(), b.leases()), (1, 1), "in pools of the same name at other places");
    let end = b.end(5);
    assert_eq!(b.leases(), 0);
    a.hear(&b.news(end));
    assert_eq!(a.leases(), 0);
    // Its own words come back to it, and change nothing.
    let booked = a.reserve(6, &ask(&[]));
    let news = a.news(booked);
    a.end(6);
    a.hear(&news);
    assert_eq!(a.leases(), 0);
}

#[test]
fn an_end_that_overtakes_the_booking_ends_it_everywhere() {
    let (mut a, mut b) = (One::new(1, 4, 1), One::new(2, 4, 2));
    let booked = a.reserve(5, &ask(&[]));
    let end = b.end(5);
    b.hear(&a.news(booked));
    a.hear(&b.news(end));
    assert_eq!((a.leases(), b.leases()), (0, 0));
}

#[test]
fn lost_messages_heal_when_all_leases_are_named() {
    let (mut a, mut b) = (One::new(1, 4, 1), One::new(2, 4, 2));
    let (kept, lost) = (a.reserve(1, &ask(&[])), a.reserve(2, &ask(&[])));
    b.hear(&a.news(kept));
    drop(lost);
    a.end(1);
    // It never heard that 1 is over and 2 was booked.
    assert_eq!(b.leases(), 1);
    b.hear(&a.whole());
    assert_eq!(b.leases(), 1);
    assert_eq!(a.in_flight(), b.in_flight());
    // The end of 2 was told to b, and a never heard of it.
    b.end(2);
    let told = b.hear(&a.whole()).tell;
    assert_eq!(b.leases(), 0, "it does not come back");
    assert_eq!(told.len(), 1);
    a.hear(&b.news(told[0].clone()));
    assert_eq!(a.leases(), 0);
    // Leases of the one are not the other's to name.
    let booked = b.reserve(3, &ask(&[]));
    a.hear(&b.news(booked));
    b.hear(&a.whole());
    assert_eq!((a.leases(), b.leases()), (1, 1));
}

#[test]
fn an_empty_list_in_anothers_name_takes_nothing_for_longer_than_until_the_true_one() {
    let (mut a, mut b) = (One::new(1, 4, 1), One::new(2, 4, 2));
    for lease in 1..=50 {
        let booked = a.reserve(lease, &ask(&[]));
        b.hear(&a.news(booked));
    }
    let forged = One::new(1, 4, 1).whole();
    a.hear(&forged);
    b.hear(&forged);
    assert_eq!(a.leases(), 50, "its own it knows better");
    let told = b.hear(&a.whole()).tell;
    assert!(told.is_empty(), "nobody has said that they ended: {told:?}");
    assert_eq!((a.leases(), b.leases()), (50, 50));
}

#[test]
fn the_leases_of_one_that_died_end_by_a_report_or_with_their_time() {
    let (mut a, mut b) = (One::new(1, 4, 1), One::new(2, 4, 2));
    for lease in [1, 2] {
        let booked = a.reserve(lease, &ask(&[]));
        b.hear(&a.news(booked));
    }
    drop(a);
    b.replicas.list([2]);
    assert_eq!((b.replicas.others(), b.leases()), (0, 2), "their requests are still at the engines");
    b.end(1);
    assert_eq!(b.leases(), 1);
    let (_, pool) = b.pools.get(1).unwrap();
    let period = pool.lease_period();
    assert_eq!(pool.expire(NOW + period), 1);
    assert_eq!(b.leases(), 0);
}

#[test]
fn one_that_joins_is_ready_when_all_have_told_it_or_its_patience_ends() {
    let prompt: Vec<u64> = (0..30).collect();
    let mut a = One::new(1, 4, 1);
    a.reserve(1, &ask(&prompt));
    // One that died had booked another.
    let mut dead = One::new(5, 4, 5);
    let booked = dead.reserve(2, &ask(&[]));
    a.hear(&dead.news(booked));
    let mut late = One::new(2, 4, 2);
    late.replicas = Replicas::join(2, NOW + Duration::from_secs(3));
    assert!(!late.replicas.is_ready(NOW), "it does not know who is there");
    late.replicas.list([1, 2]);
    assert!(!late.replicas.is_ready(NOW));
    let heard = a.hear(&late.replicas.hello(&late.pools, None).encode());
    assert!(heard.whole && heard.newcomer.is_none());
    assert_eq!(late.hear(&a.whole()).ask, Some(1));
    assert!(late.hear(&a.whole()).ask.is_none(), "asked once");
    assert!(!late.replicas.is_ready(NOW), "the prefixes are missing");
    assert!(late.replicas.asks_again(NOW), "who was asked may have died");
    assert_eq!(late.hear(&a.whole()).ask, Some(1));
    let heard = a.hear(&late.replicas.hello(&late.pools, Some(1)).encode());
    assert!(!heard.whole && heard.newcomer == Some(2));
    for frame in a.replicas.everything(&a.pools, NOW) {
        late.hear(&frame.encode());
    }
    assert!(late.replicas.is_ready(NOW));
    assert_eq!(late.in_flight(), a.in_flight());
    let place = late.place();
    let (_, pool) = late.pools.get(place).unwrap();
    let choice = pool.reserve(9, &ask(&prompt), NOW).unwrap();
    assert!(choice.candidate.cached_tokens > 0, "it knows who holds the prefix: {choice:?}");

    let mut alone = Replicas::join(3, NOW + Duration::from_secs(3));
    alone.list([3]);
    assert!(alone.is_ready(NOW), "nobody is there to tell it");
    let mut deaf = Replicas::join(4, NOW + Duration::from_secs(3));
    deaf.list([1, 4]);
    assert!(!deaf.is_ready(NOW) && deaf.is_ready(NOW + Duration::from_secs(3)));
}

#[test]
fn who_is_out_is_told_in_time_left_since_clocks_differ() {
    use crate::breaker::Outcome;
    let mut a = One::new(1, 2, 1);
    let failed = Outcome::of_status(429, Some(Duration::from_secs(20)));
    let attempted = Message::Attempted {
        pool: a.place() as u16,
        lease: 1,
        endpoint: "10.0.0.1:80".into(),
        outcome: failed,
    };
    a.pools.hear(&attempted, NOW);
    let mut b = One::new(2, 2, 2);
    let later = Instant::from_millis(5);
    for frame in a.replicas.everything(&a.pools, NOW + Duration::from_secs(5)) {
        b.replicas.hear(&mut b.pools, Frame::decode(&frame.encode()).unwrap(), later);
    }
    let place = b.place();
    let (_, pool) = b.pools.get(place).unwrap();
    let (_, _, wait) = pool.standings(later).find(|(address, ..)| *address == "10.0.0.1:80").unwrap();
    assert_eq!(wait, Duration::from_secs(15));
}

/// 64 requests at once, each at one of `scorers`, whose messages are late by some requests: the most and the least that an
/// endpoint of eight got.
fn burst(scorers: usize, late: usize, seed: u64) -> (u32, u32) {
    let mut random = Random::new(seed);
    let mut all: Vec<One> = (0..scorers).map(|n| One::new(2 * n as u64 + 1, 8, random.next())).collect();
    for lease in 0..64 {
        let at = random.below(scorers);
        let booked = all[at].reserve(lease, &ask(&[]));
        let news = all[at].news(booked);
        for (_, one) in all.iter_mut().enumerate().filter(|(n, _)| *n != at) {
            one.inbox.push_back(news.clone());
        }
        // Heard in bunches.
        for one in &mut all {
            if random.below(late) == 0 {
                one.hear_all();
            }
        }
    }
    all.iter_mut().for_each(One::hear_all);
    let load = all[0].in_flight();
    assert!(all.iter().all(|one| one.in_flight() == load));
    (*load.iter().max().unwrap(), *load.iter().min().unwrap())
}

#[test]
fn a_burst_at_one_is_even_and_at_two_that_hear_of_each_other_late_nearly_so() {
    for seed in 0..200 {
        for late in [1, 4, 16, 64] {
            assert_eq!(burst(1, late, seed), (8, 8));
            let (most, least) = burst(2, late, seed);
            let apart = if late == 1 { 0 } else { 4 };
            assert!(most - least <= apart, "late by {late}, seed {seed}: {least} to {most}");
        }
    }
}
