//! Mode `push`: the choice is made here, by what the scorer keeps telling.
//!
//! One worker of an Envoy speaks with the scorer for all of them, since a call each few milliseconds from every core would cost
//! more than it brings. It tells what all workers did, which it hears of anyway (`peers.rs`), and passes on, as it is, what the scorer
//! answers: what others did, numbered. Each worker takes it into its own book and chooses by that ([`weir::replicas::Listener`]).
//!
//! A worker trusts its picture when it is whole and fresh. Until then, and whenever it is not, a request asks the scorer as in mode
//! `ask`; when that one is away as well the choice is made here all the same.
//!
//! What is to be told waits, up to a bound, until the scorer has said that it heard it. All leases are named once a second, so nothing
//! that is lost is lost for longer.

use crate::config;
use crate::duty::{Duty, Held};
use crate::scorers::Scorers;
use crate::{Pick, count};
use std::collections::VecDeque;
use std::time::Duration;
use weir::breaker::Moved;
use weir::instant::Instant;
use weir::pool::{Message, Pools};
use weir::replicas::{LISTENS, Listener, ReplicaId, Told};
use weir::wire;
use weir_host::roll::BEAT;
use weir_host::{Host, Kind, Metric, Reply};

/// What the worker that speaks passes on to the others begins so; a [`Message`] does not.
const PASSED_ON: u8 = 255;
/// What tells a worker that has just been told everything where it stands.
const STANDING: u8 = 254;
/// Another worker speaks once the one that did has been silent for so long.
const TERM: Duration = Duration::from_secs(1);
/// Most bytes that wait to be told.
const MOST_WAITING: usize = 1 << 20;
/// Most bytes that are told at once.
const AT_ONCE: usize = 256 << 10;
/// The others are told so often at least that the scorer is there.
const SIGN: Duration = Duration::from_millis(50);

/// What a worker hears, and, if it speaks for all, what it is to tell.
#[derive(Debug)]
pub(crate) struct Push {
    listener: Listener,
    every: Duration,
    trust: Duration,
    duty: Duty,
    speaks: bool,
    group: String,
    name: Option<ReplicaId>,
    waiting: VecDeque<Message>,
    bytes: usize,
    calling: Option<Calling>,
    due: Instant,
    /// When all leases were last named.
    named: Option<Instant>,
    /// When something was last passed on to the other workers.
    passed_on: Instant,
    /// When the other workers were last asked for everything.
    pleaded: Option<Instant>,
    trusted: bool,
    /// When what need not be done so often was last done.
    ticked: Option<Instant>,
    trusts: Metric,
    lost: Metric,
}

/// A call that has not been answered.
#[derive(Debug)]
struct Calling {
    call: u32,
    by: usize,
    told: Vec<Message>,
}

impl Push {
    /// Of the workers of `group`.
    pub(crate) fn new(config: &config::Scorer, group: &str, host: &dyn Host) -> Self {
        let [every, trust] = [config.push_ms, config.trust_ms].map(|ms| Duration::from_millis(ms.get()));
        Self {
            listener: Listener::default(),
            every,
            trust,
            duty: Duty::new(group, "push", TERM),
            speaks: false,
            group: group.to_owned(),
            name: None,
            waiting: VecDeque::new(),
            bytes: 0,
            calling: None,
            due: Instant::default(),
            named: None,
            passed_on: Instant::default(),
            pleaded: None,
            trusted: false,
            ticked: None,
            trusts: host.define(Kind::Gauge, "weir_pick_push_trusted"),
            lost: count(host, "weir_pick_push_lost_total"),
        }
    }

    /// Whether its picture is whole and fresh. What changes is logged.
    pub(crate) fn is_trusted(&mut self, now: Instant) -> bool {
        let trusted = self.listener.is_whole(self.trust, now);
        if std::mem::replace(&mut self.trusted, trusted) != trusted {
            match trusted {
                true => log::info!("weir-pick: choosing here, by what the scorer tells"),
                false => log::warn!(
                    "weir-pick: what the scorer told is not trusted any more: it is old, or not all"
                ),
            }
        }
        trusted
    }

    /// Notes what happened here, to tell it.
    pub(crate) fn note(&mut self, host: &dyn Host, message: &Message) {
        use Message::{Attempted, Booked, End, FirstToken};
        if !self.speaks
            || !matches!(message, Booked { .. } | FirstToken { .. } | End { .. } | Attempted { .. })
        {
            return;
        }
        if self.bytes >= MOST_WAITING {
            host.add(self.lost, self.waiting.len() as u64);
            self.drop_all();
        }
        self.bytes = self.bytes.saturating_add(message.size());
        self.waiting.push_back(message.clone());
    }

    fn drop_all(&mut self) {
        self.waiting.clear();
        (self.bytes, self.named) = (0, None);
    }

    /// The first of what waits.
    fn take(&mut self) -> Vec<Message> {
        let mut bytes = 0_usize;
        let few = |message: &Message| {
            let fits = bytes < AT_ONCE;
            bytes = bytes.saturating_add(message.size());
            fits
        };
        let number = self.waiting.iter().map(few).take_while(|fits| *fits).count();
        let told: Vec<Message> = self.waiting.drain(..number).collect();
        self.bytes = self.bytes.saturating_sub(told.iter().map(Message::size).sum());
        told
    }

    /// It was not heard; told twice it does no harm.
    fn put_back(&mut self, told: Vec<Message>) {
        self.bytes = self.bytes.saturating_add(told.iter().map(Message::size).sum());
        told.into_iter().rev().for_each(|message| self.waiting.push_front(message));
    }

    /// Tells and asks, if it is this worker that does so, and time.
    fn speak(&mut self, host: &dyn Host, own: u32, pools: &Pools, scorers: &mut Scorers) {
        let now = host.now();
        let held = self.duty.is_held(host, own);
        if held == Held::Anew {
            log::info!("weir-pick: this worker speaks with the scorer");
            self.named = None;
        }
        self.speaks = held != Held::No;
        if !self.speaks {
            if self.bytes > 0 {
                self.drop_all();
            }
            return;
        }
        if self.calling.is_some() || now < self.due {
            return;
        }
        self.due = now + self.every;
        let names = self.named.is_none_or(|named| now.since(named) >= BEAT) || self.listener.is_lost();
        let told = self.take();
        let name = self.name(host);
        let asking = self.listener.ask(name, pools, told.iter().cloned(), names, now);
        // No request waits for it.
        let timeout = self.trust / 2;
        match scorers.call(host, wire::NEWS_PATH, &asking.encode(), timeout) {
            Some((call, by)) => {
                self.calling = Some(Calling { call, by, told });
                self.named = if names { Some(now) } else { self.named };
            }
            None => {
                self.put_back(told);
                // All are left alone for a while.
                self.due = now + self.every * 10;
            }
        }
    }

    /// The name of this proxy: the same for whichever worker speaks.
    fn name(&mut self, host: &dyn Host) -> ReplicaId {
        let group = &self.group;
        *self.name.get_or_insert_with(|| {
            let key = format!("{group}.name");
            host.create_shared(&key, &host.random().to_le_bytes());
            let shared = host.shared(&key).and_then(|(bytes, _)| bytes.try_into().ok());
            shared.map_or_else(|| host.random(), u64::from_le_bytes) | LISTENS
        })
    }
}

impl Pick {
    /// Tells the other workers, and whoever is to hear of it elsewhere.
    pub(crate) fn tell(&mut self, host: &dyn Host, message: &Message) {
        self.peers.send(host, message);
        if let Some(push) = &mut self.push {
            push.note(host, message);
        }
    }

    /// Speaks with the scorer. Says whether what is done less often is due.
    pub(crate) fn speak(&mut self, host: &dyn Host) -> bool {
        let (Some(push), Some(scorers), Some(own)) = (&mut self.push, &mut self.scorers, self.peers.own())
        else {
            return true;
        };
        let spoke = push.speaks;
        push.speak(host, own, &self.pools, scorers);
        if push.speaks != spoke {
            host.tick_every(if push.speaks { push.every.min(self.every) } else { self.every });
        }
        let now = host.now();
        if push.ticked.is_some_and(|ticked| now.since(ticked) < self.every) {
            return false;
        }
        push.ticked = Some(now);
        let trusted = push.is_trusted(now);
        if push.speaks {
            host.record(push.trusts, u64::from(trusted));
        }
        true
    }

    /// The answer to what was told and asked. Says whether it was that.
    pub(crate) fn heard_news(&mut self, host: &dyn Host, call: u32, reply: &Reply) -> bool {
        let (Some(push), Some(scorers)) = (&mut self.push, &mut self.scorers) else { return false };
        let Some(Calling { by, told: ours, .. }) = push.calling.take_if(|calling| calling.call == call)
        else {
            return false;
        };
        let Some(body) = scorers.body(host, by, reply) else {
            push.put_back(ours);
            return true;
        };
        let Some(told) = Told::decode(body) else {
            scorers.babbles(host, by);
            push.put_back(ours);
            return true;
        };
        if told.more {
            push.due = host.now();
        }
        let now = host.now();
        let says = told.then != told.after || !told.frames.is_empty();
        if says || now.since(push.passed_on) >= SIGN {
            push.passed_on = now;
            self.peers.send_bytes(host, &[&[PASSED_ON], body].concat());
        }
        for (place, endpoint, moved) in self.take_news(told, now) {
            let name = self.pools.get(usize::from(place)).map_or("", |(name, _)| name);
            match moved {
                Moved::Out => log::warn!("weir-pick: pool {name}: {endpoint} is out, as the scorer says"),
                Moved::Back => log::info!("weir-pick: pool {name}: {endpoint} is back, as the scorer says"),
            }
        }
        true
    }

    /// What came by a queue, if it was of these. Says whether it was.
    pub(crate) fn heard_passed_on(&mut self, host: &dyn Host, bytes: &[u8]) -> bool {
        match bytes.split_first() {
            Some((&STANDING, standing)) => {
                if let Some(push) = &mut self.push {
                    push.listener.stand(standing);
                }
            }
            Some((&PASSED_ON, told)) => {
                if let Some(told) = Told::decode(told) {
                    self.take_news(told, host.now());
                    self.plead(host, host.now());
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes over what the scorer tells. Endpoints that went out or came back are given.
    fn take_news(&mut self, told: Told, now: Instant) -> Vec<(u16, String, Moved)> {
        let Some(push) = &mut self.push else { return Vec::new() };
        let took = push.listener.hear(&mut self.pools, told, now);
        if took.begins {
            push.named = None;
        }
        took.moved
    }

    /// Has the other workers tell it everything, where it has missed something.
    fn plead(&mut self, host: &dyn Host, now: Instant) {
        let (Some(push), Some(queue)) = (&mut self.push, self.peers.own()) else { return };
        // It is told everything when it joins.
        let pleaded = *push.pleaded.get_or_insert(now);
        if push.listener.is_lost() && now.since(pleaded) >= BEAT {
            push.pleaded = Some(now);
            self.peers.send(host, &Message::Hello { queue });
        }
    }

    /// Tells a worker that has been told everything where it stands.
    pub(crate) fn tell_standing(&self, host: &dyn Host, queue: u32) {
        if let Some(push) = self.push.as_ref().filter(|push| !push.listener.is_lost()) {
            host.enqueue(queue, &[&[STANDING], &*push.listener.standing()].concat());
        }
    }
}

#[cfg(test)]
mod tests;
