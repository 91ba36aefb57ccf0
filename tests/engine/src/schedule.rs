//! Who runs, who waits: the engine's admission as a pure state machine.
//!
//! One queue, first come first served. The head is admitted when a slot, KV room for all its tokens and
//! the prefill lane are free at once; so a request that waits for another's prefill counts as waiting,
//! as in vLLM, where it has not been scheduled yet. Nobody overtakes: a large head holds up small ones
//! behind it, also as in vLLM. There is no preemption, since KV is reserved to the end of the answer.

use std::collections::{BTreeMap, HashMap};

/// Names a request; later requests have larger tickets.
pub(crate) type Ticket = u64;

pub(crate) struct Schedule {
    slots: usize,
    kv_tokens: u64,
    next: Ticket,
    waiting: BTreeMap<Ticket, u64>,
    running: HashMap<Ticket, u64>,
    lane: Option<Ticket>,
    kv_used: u64,
}

impl Schedule {
    pub(crate) fn new(slots: usize, kv_tokens: u64) -> Self {
        Self {
            slots,
            kv_tokens,
            next: 0,
            waiting: BTreeMap::new(),
            running: HashMap::new(),
            lane: None,
            kv_used: 0,
        }
    }

    /// Puts a request that needs `kv` tokens at the end of the queue.
    pub(crate) fn submit(&mut self, kv: u64) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.waiting.insert(ticket, kv);
        ticket
    }

    /// Admits the head of the queue into a slot and the lane, if it may run now.
    pub(crate) fn admit(&mut self) -> Option<Ticket> {
        let head = self.waiting.first_entry()?;
        let fits = self.kv_used + head.get() <= self.kv_tokens;
        if self.lane.is_some() || self.running.len() >= self.slots || !fits {
            return None;
        }
        let (ticket, kv) = head.remove_entry();
        self.running.insert(ticket, kv);
        self.kv_used += kv;
        self.lane = Some(ticket);
        Some(ticket)
    }

    /// Frees the lane: this request goes on to decode.
    pub(crate) fn prefilled(&mut self, ticket: Ticket) {
        if self.lane == Some(ticket) {
            self.lane = None;
        }
    }

    /// Takes a request out wherever it is. A second call changes nothing.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
        self.prefilled(ticket);
        if let Some(kv) = self.running.remove(&ticket) {
            self.kv_used -= kv;
        }
    }

    pub(crate) fn runs(&self, ticket: Ticket) -> bool {
        self.running.contains_key(&ticket)
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn kv_used(&self) -> u64 {
        self.kv_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_admits_one_prefill_at_a_time() {
        let mut schedule = Schedule::new(8, 1000);
        let (a, b) = (schedule.submit(10), schedule.submit(10));
        assert_eq!((schedule.admit(), schedule.admit()), (Some(a), None));
        schedule.prefilled(a);
        assert_eq!(schedule.admit(), Some(b));
        assert_eq!((schedule.running(), schedule.kv_used()), (2, 20));
    }

    #[test]
    fn no_more_run_than_there_are_slots() {
        let mut schedule = Schedule::new(1, 1000);
        let (a, b) = (schedule.submit(10), schedule.submit(10));
        schedule.admit();
        schedule.prefilled(a);
        assert_eq!(schedule.admit(), None);
        schedule.release(a);
        assert_eq!(schedule.admit(), Some(b));
    }

    #[test]
    fn a_request_that_does_not_fit_waits_and_is_not_overtaken() {
        let mut schedule = Schedule::new(8, 100);
        let (a, b, c) = (schedule.submit(60), schedule.submit(50), schedule.submit(10));
        schedule.admit();
        schedule.prefilled(a);
        assert_eq!((schedule.admit(), schedule.waiting()), (None, 2));
        schedule.release(b);
        assert_eq!(schedule.admit(), Some(c));
    }

    #[test]
    fn release_in_prefill_frees_slot_lane_and_kv() {
        let mut schedule = Schedule::new(1, 10);
        let (a, b) = (schedule.submit(10), schedule.submit(10));
        schedule.admit();
        schedule.release(a);
        schedule.release(a);
        assert_eq!(schedule.kv_used(), 0);
        assert_eq!(schedule.admit(), Some(b));
    }
}
