//! A proxy that listens: what it knows of what happened elsewhere, and whether that is all.
//!
//! It keeps a book of its own and chooses by that, as a scorer does; what others book it hears from one scorer, to which it says what
//! it books itself. It is a light replica: it knows no other but that scorer, and nobody waits for it.
//!
//! Its picture is *whole* once it has heard all that the scorer knew and each number since. One number missed, or another scorer, and
//! it begins again. What it has heard stays in its book meanwhile: it is the best that there is, only nobody should call it whole.
//! And a whole picture ages: it is worth its name as long as the scorer has answered within a time that the caller chooses.
//!
//! What was elsewhere belongs to [`ELSEWHERE`], whoever tells it, so that the list of all leases, which the scorer repeats now and then,
//! ends what another scorer told and did not end.

use super::{
    Asking, Frame, Heard, Kind, ReplicaId, Step, Told, framed, here, in_parts, news, reconcile, take,
};
use crate::breaker::Moved;
use crate::instant::Instant;
use crate::pool::{Message, Outstanding, Pools};
use std::time::Duration;

/// Who has booked what this proxy hears of.
const ELSEWHERE: ReplicaId = 1;

/// Most leases that are named at once: with more of them messages alone have to do.
pub(super) const MOST_NAMED: usize = 32 << 10;

/// What one proxy, or one of its workers, knows.
#[derive(Debug, Default)]
pub struct Listener {
    epoch: u64,
    step: Step,
    heard: Option<Instant>,
}

/// What came of an answer.
#[derive(Debug, Default, PartialEq)]
pub struct Took {
    /// Endpoints that went out or came back, with the places of their pools.
    pub moved: Vec<(u16, String, Moved)>,
    /// Something that was told before it was missed: the picture is not whole.
    pub gap: bool,
    /// All is told from the beginning: by a scorer that may know nothing of this proxy.
    pub begins: bool,
}

impl Listener {
    /// What proxy `from` asks, telling what happened there. `whole`: also all leases that are out there.
    pub fn ask(
        &self,
        from: ReplicaId,
        pools: &Pools,
        happened: impl IntoIterator<Item = Message>,
        whole: bool,
        now: Instant,
    ) -> Asking {
        let mut frames = in_parts(from, pools, happened);
        if whole {
            frames.extend(Self::leases(from, pools, now));
        }
        Asking { from, epoch: self.epoch, step: self.step, frames }
    }

    /// All leases that this proxy has out, if they can be named at once.
    fn leases(from: ReplicaId, pools: &Pools, now: Instant) -> Option<Frame> {
        let own = |message: &Message| matches!(message, Message::Outstanding { lease, .. } if lease.owner.is_none());
        let own: Vec<Message> = pools.outstanding(now).filter(own).take(MOST_NAMED + 1).collect();
        (own.len() <= MOST_NAMED).then(|| framed(from, Kind::Whole, pools, own))
    }

    /// Takes over what the scorer tells.
    pub fn hear(&mut self, pools: &mut Pools, told: Told, now: Instant) -> Took {
        let Told { epoch, after, then, frames, .. } = told;
        let begins = after == Step::Nothing;
        if !begins && (epoch, after) != (self.epoch, self.step) {
            // What is known already may be told again: it is no gap.
            let again = matches!((then, self.step), (Step::Upto(told), Step::Upto(known)) if told <= known);
            let gap = epoch != self.epoch || !again;
            if gap {
                self.step = Step::Nothing;
            }
            return Took { gap, ..Took::default() };
        }
        let mut heard = Heard::default();
        for Frame { kind, names, messages, .. } in frames {
            let messages = here(pools, &names, messages);
            match kind {
                Kind::Whole => reconcile(pools, ELSEWHERE, messages, now, &mut heard),
                _ => {
                    for message in messages {
                        if !is_known(pools, &message) {
                            take(pools, ELSEWHERE, elsewhere(message), now, &mut heard);
                        }
                    }
                }
            }
        }
        (self.epoch, self.step, self.heard) = (epoch, then, Some(now));
        Took { moved: heard.moved, gap: false, begins }
    }

    /// Since when nothing was heard, if anything was.
    pub fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// Whether it knows what the scorer knew less than `trust` ago.
    pub fn is_whole(&self, trust: Duration, now: Instant) -> bool {
        matches!(self.step, Step::Upto(_)) && self.heard.is_some_and(|heard| now.since(heard) <= trust)
    }

    /// Whether it has heard nothing of a whole picture, or has missed something of it.
    pub fn is_lost(&self) -> bool {
        self.step == Step::Nothing
    }

    /// Where it stands, for another worker that has been told all that this one knows.
    pub fn standing(&self) -> Vec<u8> {
        news::write_standing(self.epoch, self.step)
    }

    /// Stands where another worker does, of whom it knows everything.
    pub fn stand(&mut self, standing: &[u8]) {
        if let Some((epoch, step)) = news::read_standing(standing).filter(|_| self.is_lost()) {
            (self.epoch, self.step) = (epoch, step);
        }
    }
}

/// Whether it tells of a lease that is out already, or over: for one that was asked for at the scorer that comes back from there.
fn is_known(pools: &mut Pools, message: &Message) -> bool {
    let (Message::Booked { pool, lease, .. }
    | Message::Outstanding { pool, lease: Outstanding { id: lease, .. }, .. }) = message
    else {
        return false;
    };
    pools.get(usize::from(*pool)).is_some_and(|(_, pool)| pool.is_out(*lease) || pool.has_ended(*lease))
}

/// Whoever booked it, it was not here.
fn elsewhere(mut message: Message) -> Message {
    if let Message::Outstanding { lease, .. } = &mut message {
        lease.owner = None;
    }
    message
}
