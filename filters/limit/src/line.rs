//! The requests of this worker that stand in line, and how they learn that it is their turn.
//!
//! Who is next is decided where the slots are counted, in shared data, by whichever worker frees a slot. It sends the
//! request's name, which has the number of its worker's queue in it, to that queue; Envoy wakes the worker within a
//! fraction of a millisecond. Nothing depends on the message: on each tick a worker looks after deadlines, after slots that time has freed, and
//! after a few of its requests in turn.

use std::collections::BTreeMap;
use std::time::Duration;
use weir::instant::Instant;
use weir::limit::{Limits, Store, Wait};
use weir::request::Facts;
use weir_host::Host;

/// Between two looks while somebody waits: deadlines are kept to within this.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// So many are looked after in each.
const AT_ONCE: usize = 16;

/// Requests that wait in this worker.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// The queue by which this worker is woken.
    queue: Option<u32>,
    /// By their streams.
    waiting: BTreeMap<u32, Wait>,
    /// The stream that was looked after last.
    last: u32,
    ticks: bool,
}

impl Waiters {
    /// The name of the stream at hand; `None`: it could not be woken.
    pub(crate) fn name(&mut self, host: &dyn Host) -> Option<u64> {
        if self.queue.is_none() {
            self.queue = host.queue(&format!("weir.limit.line.{:016x}", host.random()));
        }
        Some(u64::from(self.queue?) << 32 | u64::from(host.stream()))
    }

    /// Sends a request its name.
    pub(crate) fn wake(host: &dyn Host, name: u64) {
        let (queue, stream) = ((name >> 32) as u32, name as u32);
        host.enqueue(queue, &stream.to_le_bytes());
    }

    /// The stream at hand stands in line.
    pub(crate) fn add(&mut self, host: &dyn Host, wait: Wait) {
        self.waiting.insert(host.stream(), wait);
        if !std::mem::replace(&mut self.ticks, true) {
            host.tick_every(LOOK);
        }
    }

    /// The stream at hand does not any more.
    pub(crate) fn remove(&mut self, host: &dyn Host) {
        self.waiting.remove(&host.stream());
    }

    /// Whether this queue is its own.
    pub(crate) fn owns(&self, queue: u32) -> bool {
        self.queue == Some(queue)
    }

    /// Wakes those whose names are in the queue.
    pub(crate) fn hear(&self, host: &dyn Host, queue: u32) {
        while let Some(message) = host.dequeue(queue) {
            if let Ok(stream) = message.try_into().map(u32::from_le_bytes)
                && self.waiting.contains_key(&stream)
            {
                host.wake(stream);
            }
        }
    }

    /// Looks after what no message tells. Says whether nobody waits any more, once.
    pub(crate) fn look(&mut self, host: &dyn Host, limits: &Limits, store: &dyn Store) -> bool {
        let now = host.now();
        let overdue = |(_, wait): &(&u32, &Wait)| now >= wait.until();
        let mut wake: Vec<u32> = self.waiting.iter().filter(overdue).map(|(stream, _)| *stream).collect();
        let after = self.waiting.range(self.last.saturating_add(1)..);
        let in_turn = after.chain(self.waiting.iter()).take(AT_ONCE.min(self.waiting.len()));
        wake.extend(in_turn.map(|(stream, _)| *stream));
        self.last = wake.last().copied().unwrap_or(0);
        wake.sort_unstable();
        wake.dedup();
        wake.into_iter().for_each(|stream| host.wake(stream));
        let mut lines: Vec<_> = self.waiting.values().map(Wait::hold).collect();
        lines.sort_unstable();
        lines.dedup();
        lines.into_iter().for_each(|line| limits.look(store, line, now));
        self.waiting.is_empty() && std::mem::replace(&mut self.ticks, false)
    }
}

/// Which prompts are likely to be cached: those of sessions that were here lately, as long as they were then. Two generations of
/// a bounded number: what is asked for stays, the rest is gone after so many others.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    young: BTreeMap<u64, u32>,
    old: BTreeMap<u64, u32>,
}

impl Warm {
    const MOST: usize = 4_096;

    /// A prompt of a session goes to an endpoint.
    pub(crate) fn note(&mut self, facts: &Facts) {
        let Some(session) = facts.session else { return };
        if self.young.len() >= Self::MOST {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(session, facts.prompt_tokens);
    }

    /// Tokens of a prompt that are likely to be cached.
    pub(crate) fn tokens(&self, facts: &Facts) -> u32 {
        let before =
            facts.session.and_then(|session| self.young.get(&session).or_else(|| self.old.get(&session)));
        before.map_or(0, |before| facts.prompt_tokens.min(*before))
    }
}

/// What a request has waited.
pub(crate) fn millis(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX)
}
