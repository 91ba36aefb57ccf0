//! Scorers that serve the same pools, and keep each other's books.
//!
//! Each chooses and books by itself, at once, and tells the others what it did ([`Message`]); what they hear is booked beside their
//! own. So any of them may be told of the end of any lease, and one that dies leaves its leases with the others, where they end as
//! they would have: by a report, or when their time is up.
//!
//! Messages are told in order and may be lost. So each says again and again which leases it has booked and not ended
//! ([`Kind::Whole`]); a lease of its that it no longer names is over, one that nobody knew is booked, and one that is known here to
//! have ended is ended there by saying so again. Nothing is corrected by counting: a lease has a name.
//!
//! One that joins says so. Everybody answers with its leases, and the first that did is asked for the prefixes and for who is out;
//! until then, or until its patience ends, it had better not be asked ([`Replicas::is_ready`]).
//!
//! Not a leader and no consensus: two that choose within the milliseconds that a message takes do not see each other, which costs a
//! request in the second best place. `docs/replicas.md` says how that is avoided.

mod frame;
mod listener;
mod listeners;
mod news;
mod taking;

pub use frame::{Frame, Kind};
pub use listener::{Listener, Took};
pub use listeners::Listeners;
pub use news::{Asking, Step, Told};

use taking::{here, reconcile, take};

use crate::breaker::Moved;
use crate::instant::Instant;
use crate::pool::{Message, Pools};
use std::collections::BTreeSet;

/// A scorer among those that share pools; one that starts anew is another.
pub type ReplicaId = u64;

/// Names with this bit are those of proxies that listen ([`Listener`]); scorers have names without it.
pub const LISTENS: ReplicaId = 1 << 63;

/// The largest part of what is told at once, in bytes of hashes.
const PART: usize = 256 << 10;

/// The others, as one of them sees them.
#[derive(Debug)]
pub struct Replicas {
    own: ReplicaId,
    /// Those known to live, itself not among them.
    others: BTreeSet<ReplicaId>,
    joining: Joining,
}

/// What a newcomer waits for.
#[derive(Debug)]
struct Joining {
    until: Instant,
    /// The list of the others has come.
    listed: bool,
    /// Those that have named their leases.
    heard: BTreeSet<ReplicaId>,
    /// The prefixes were asked for.
    asked: bool,
    /// They have come.
    told_all: bool,
    ready: bool,
}

/// What follows from a frame.
#[derive(Debug, Default, PartialEq)]
pub struct Heard {
    /// To be told to all.
    pub tell: Vec<Message>,
    /// What is known now and was not: for those who hear of it from this one.
    pub news: Vec<Message>,
    /// Endpoints that went out or came back, with the places of their pools.
    pub moved: Vec<(u16, String, Moved)>,
    /// One has joined: all say which leases they have.
    pub whole: bool,
    /// One that knows nothing yet asks this one for everything.
    pub newcomer: Option<ReplicaId>,
    /// This one knows nothing yet, and is to ask that one for everything.
    pub ask: Option<ReplicaId>,
}

impl Replicas {
    /// One that joins, and is ready at `until` whatever it has heard.
    pub fn join(own: ReplicaId, until: Instant) -> Self {
        let (listed, asked, told_all, ready) = (false, false, false, false);
        let joining = Joining { until, listed, heard: BTreeSet::new(), asked, told_all, ready };
        Self { own, others: BTreeSet::new(), joining }
    }

    /// Its own name.
    pub fn own(&self) -> ReplicaId {
        self.own
    }

    /// How many others live.
    pub fn others(&self) -> usize {
        self.others.len()
    }

    /// Those who live, itself or not.
    pub fn list(&mut self, living: impl IntoIterator<Item = ReplicaId>) {
        self.others = living.into_iter().filter(|id| *id != self.own).collect();
        self.joining.listed = true;
    }

    /// Whether it may be asked: it knows what the others know, or has waited long enough.
    pub fn is_ready(&mut self, now: Instant) -> bool {
        let Joining { until, listed, heard, told_all, ready, .. } = &mut self.joining;
        let knows = *listed && (self.others.is_empty() || (*told_all && self.others.is_subset(heard)));
        *ready |= knows || now >= *until;
        *ready
    }

    /// What happened here, in frames of bounded size.
    pub fn news(&self, pools: &Pools, messages: impl IntoIterator<Item = Message>) -> Vec<Frame> {
        in_parts(self.own, pools, messages)
    }

    /// Whether it has to say again that it is here: somebody that was to answer may have died.
    pub fn asks_again(&mut self, now: Instant) -> bool {
        self.joining.asked = false;
        !self.is_ready(now)
    }

    /// A frame that says it is here, and whom it asks for everything.
    pub fn hello(&self, pools: &Pools, asks: Option<ReplicaId>) -> Frame {
        self.frame(Kind::Hello { asks }, pools, Vec::new())
    }

    /// A frame of all leases that were booked here and are out.
    pub fn whole(&self, pools: &Pools, now: Instant) -> Frame {
        // A proxy that listens here is spoken for here.
        let is_own = |owner: Option<ReplicaId>| owner.is_none_or(|owner| owner & LISTENS != 0);
        let own =
            |message: &Message| matches!(message, Message::Outstanding { lease, .. } if is_own(lease.owner));
        self.frame(Kind::Whole, pools, pools.outstanding(now).filter(own).collect())
    }

    /// For one who knows nothing: prefixes, those used last coming last; leases, also of those who died; who is out.
    pub fn everything(&self, pools: &Pools, now: Instant) -> Vec<Frame> {
        let mut frames = self.news(pools, pools.prefixes().chain(pools.outstanding(now)));
        let out = pools.out().map(|message| match message {
            Message::Out { pool, endpoint, snapshot } => {
                Message::Out { pool, endpoint, snapshot: snapshot.from_now(now) }
            }
            other => other,
        });
        frames.push(self.frame(Kind::Everything, pools, out.collect()));
        frames
    }

    fn frame(&self, kind: Kind, pools: &Pools, messages: Vec<Message>) -> Frame {
        framed(self.own, kind, pools, messages)
    }

    /// Takes over what a frame says; its own are let go.
    pub fn hear(&mut self, pools: &mut Pools, frame: Frame, now: Instant) -> Heard {
        let Frame { from, kind, names, messages } = frame;
        let mut heard = Heard::default();
        if from == self.own {
            return heard;
        }
        self.others.insert(from);
        let messages = here(pools, &names, messages);
        match kind {
            Kind::Hello { asks } => {
                heard.whole = asks.is_none();
                heard.newcomer = Some(from).filter(|_| asks == Some(self.own));
            }
            Kind::News | Kind::Everything => {
                for message in messages {
                    take(pools, from, message, now, &mut heard);
                }
                self.joining.told_all |= kind == Kind::Everything;
            }
            Kind::Whole => {
                self.joining.heard.insert(from);
                let asks = !self.joining.told_all && !self.joining.ready;
                heard.ask = Some(from).filter(|_| asks && !std::mem::replace(&mut self.joining.asked, true));
                reconcile(pools, from, messages, now, &mut heard);
            }
        }
        heard
    }
}

/// Messages about these pools as one frame.
fn framed(from: ReplicaId, kind: Kind, pools: &Pools, messages: Vec<Message>) -> Frame {
    let names = pools.iter().map(|(name, _)| name.to_owned()).collect();
    Frame { from, kind, names, messages }
}

/// What happened, in frames of bounded size.
fn in_parts(from: ReplicaId, pools: &Pools, messages: impl IntoIterator<Item = Message>) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut bytes = PART;
    for message in messages {
        if bytes >= PART {
            frames.push(framed(from, Kind::News, pools, Vec::new()));
            bytes = 0;
        }
        bytes = bytes.saturating_add(message.size());
        if let Some(last) = frames.last_mut() {
            last.messages.push(message);
        }
    }
    frames
}

#[cfg(test)]
mod listening;
#[cfg(test)]
mod tests;
