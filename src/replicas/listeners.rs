//! The proxies that listen to one scorer, and what they are still to hear.
//!
//! All that happens is kept, numbered, for as long as it takes the slowest of them to ask again, up to a bound: who asks for what is
//! gone is told all from the beginning. Nobody is told of what it said itself. While nobody listens nothing is kept.
//!
//! Engines' word goes as an age and the end of a cooldown as a time from now, since clocks differ.

use super::listener::MOST_NAMED;
use super::{
    Asking, Frame, Heard, Kind, PART, ReplicaId, Step, Told, framed, here, in_parts, reconcile, take,
};
use crate::instant::Instant;
use crate::pool::{Message, Pools};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Most bytes that are kept for those who listen: some seconds of what a scorer can do.
const KEPT: usize = 16 << 20;
/// Who has asked nothing for so long has gone.
const SILENCE: Duration = Duration::from_secs(10);
/// All leases are named to each so often.
const BEAT: Duration = Duration::from_secs(1);
/// Most proxies that may listen.
const MOST: usize = 1_000;

/// All of them.
#[derive(Debug)]
pub struct Listeners {
    epoch: u64,
    each: BTreeMap<ReplicaId, Listening>,
    /// What happened, and where, unless here.
    log: VecDeque<(Option<ReplicaId>, Message)>,
    /// The number of the first of them.
    first: u64,
    bytes: usize,
}

/// One of them.
#[derive(Debug)]
struct Listening {
    asked: Instant,
    /// When all leases were last named to it.
    named: Instant,
    /// All that was known when it began to listen, and the number of what came next.
    parts: Vec<Frame>,
    upto: u64,
}

impl Listeners {
    /// Nobody listens yet. `epoch` tells this scorer from others, and from itself before it was started; not 0.
    pub fn new(epoch: u64) -> Self {
        Self { epoch, each: BTreeMap::new(), log: VecDeque::new(), first: 1, bytes: 0 }
    }

    /// How many listen.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Something happened, told by `from` if it was not here.
    pub fn note(&mut self, from: Option<ReplicaId>, message: Message) {
        if self.each.is_empty() || matches!(message, Message::Hello { .. }) {
            return;
        }
        self.bytes = self.bytes.saturating_add(message.size());
        self.log.push_back((from, message));
        while self.bytes > KEPT {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some((_, message)) = self.log.pop_front() else { return };
        self.bytes = self.bytes.saturating_sub(message.size());
        self.first = self.first.saturating_add(1);
    }

    /// The number of what comes next.
    fn next(&self) -> u64 {
        self.first.saturating_add(self.log.len() as u64)
    }

    /// Takes over what a proxy says happened there, for which its frames are taken; what follows is noted for the others. `None`
    /// when there are too many already.
    pub fn hear(&mut self, pools: &mut Pools, asking: &mut Asking, now: Instant) -> Option<Heard> {
        if !self.each.contains_key(&asking.from) && self.each.len() >= MOST {
            return None;
        }
        let mut heard = Heard::default();
        for Frame { kind, names, messages, .. } in std::mem::take(&mut asking.frames) {
            let messages = here(pools, &names, messages);
            match kind {
                Kind::News => {
                    for message in messages {
                        if !own_asked(pools, asking.from, &message) {
                            take(pools, asking.from, message, now, &mut heard);
                        }
                    }
                }
                Kind::Whole => reconcile(pools, asking.from, messages, now, &mut heard),
                Kind::Hello { .. } | Kind::Everything => {}
            }
        }
        // The proxy itself knows best which of its leases are over.
        heard.tell.clear();
        heard.news.iter().for_each(|message| self.note(Some(asking.from), message.clone()));
        Some(heard)
    }

    /// What a proxy is told that stands where `asking` says.
    pub fn tell(&mut self, pools: &Pools, asking: &Asking, now: Instant) -> Told {
        let from = asking.from;
        let step = if asking.epoch == self.epoch { asking.step } else { Step::Nothing };
        let (first, next) = (self.first, self.next());
        let told = match (self.each.get_mut(&from), step) {
            (Some(one), Step::Parts(parts)) => one.part(self.epoch, parts),
            (Some(one), Step::Upto(known)) if (first..=next).contains(&known) => {
                (one.parts, one.upto) = (Vec::new(), known);
                Some(self.news(pools, from, known, now))
            }
            _ => None,
        };
        let told = told.unwrap_or_else(|| self.begin(pools, from, now));
        if let Some(one) = self.each.get_mut(&from) {
            one.asked = now;
        }
        self.forget(now);
        told
    }

    /// Tells all from the beginning.
    fn begin(&mut self, pools: &Pools, from: ReplicaId, now: Instant) -> Told {
        let others = |message: &Message| !is_of(from, message);
        let leases = pools.outstanding(now).filter(others);
        let mut parts = in_parts(self.epoch, pools, pools.prefixes().chain(leases));
        let out = pools.out().map(|message| from_now(message, now)).collect();
        parts.push(framed(self.epoch, Kind::Everything, pools, out));
        // What is named for the first time after a beat: this scorer may have started just now, and not have heard the others yet.
        let one = Listening { asked: now, named: now, parts, upto: self.next() };
        let told = one.part(self.epoch, 0);
        self.each.insert(from, one);
        told.unwrap_or(Told {
            epoch: self.epoch,
            after: Step::Nothing,
            then: Step::Nothing,
            more: false,
            frames: Vec::new(),
        })
    }

    /// Tells what happened since number `known`.
    fn news(&mut self, pools: &Pools, from: ReplicaId, known: u64, now: Instant) -> Told {
        let skip = usize::try_from(known.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let (mut bytes, mut upto, mut messages) = (0_usize, known, Vec::new());
        for (by, message) in self.log.iter().skip(skip) {
            if bytes >= PART {
                break;
            }
            upto = upto.saturating_add(1);
            if *by != Some(from) {
                bytes = bytes.saturating_add(message.size());
                messages.push(from_now(message.clone(), now));
            }
        }
        let more = upto < self.next();
        let mut frames = in_parts(self.epoch, pools, messages);
        if let Some(one) = self.each.get_mut(&from).filter(|one| !more && now.since(one.named) >= BEAT) {
            one.named = now;
            let others: Vec<Message> = pools
                .outstanding(now)
                .filter(|message| !is_of(from, message))
                .take(MOST_NAMED.saturating_add(1))
                .collect();
            if others.len() <= MOST_NAMED {
                frames.push(framed(self.epoch, Kind::Whole, pools, others));
            }
        }
        Told { epoch: self.epoch, after: Step::Upto(known), then: Step::Upto(upto), more, frames }
    }

    /// Lets go of those who have gone, and of what all have heard.
    pub fn forget(&mut self, now: Instant) {
        self.each.retain(|_, one| now.since(one.asked) < SILENCE);
        let wanted = self.each.values().map(|one| one.upto).min().unwrap_or_else(|| self.next());
        while self.first < wanted && !self.log.is_empty() {
            self.drop_first();
        }
    }
}

impl Listening {
    /// The part after so many.
    fn part(&self, epoch: u64, heard: u32) -> Option<Told> {
        let at = usize::try_from(heard).ok()?;
        let part = self.parts.get(at)?;
        let after = if at == 0 { Step::Nothing } else { Step::Parts(heard) };
        let more = at + 1 < self.parts.len();
        let then = if more { Step::Parts(heard.saturating_add(1)) } else { Step::Upto(self.upto) };
        Some(Told { epoch, after, then, more, frames: vec![part.clone()] })
    }
}

/// Whether it tells of a lease that is out already: `from` asked for it, and it is booked here. It is the proxy's from now on.
fn own_asked(pools: &mut Pools, from: ReplicaId, message: &Message) -> bool {
    let Message::Booked { pool, lease, .. } = message else { return false };
    let Some((_, pool)) = pools.get(usize::from(*pool)).filter(|(_, pool)| pool.is_out(*lease)) else {
        return false;
    };
    pool.owned(*lease, from);
    true
}

/// Whether `from` has told of this lease.
fn is_of(from: ReplicaId, message: &Message) -> bool {
    matches!(message, Message::Outstanding { lease, .. } if lease.owner == Some(from))
}

/// The same with its times counted from now.
fn from_now(message: Message, now: Instant) -> Message {
    match message {
        Message::Out { pool, endpoint, snapshot } => {
            Message::Out { pool, endpoint, snapshot: snapshot.from_now(now) }
        }
        Message::Said { endpoint, report } => Message::Said { endpoint, report: report.aged(now) },
        other => other,
    }
}
