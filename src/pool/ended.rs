//! Leases that ended of late: messages can overtake each other, and what somebody says is out may be known to be over.

use super::LeaseId;
use crate::seeded::Seeded;
use std::collections::{HashSet, VecDeque};

/// The newest so many: seconds of what one pool can serve.
const REMEMBERED: usize = 4096;

/// Their names.
#[derive(Debug)]
pub(super) struct Ended {
    /// The newest last.
    order: VecDeque<LeaseId>,
    known: HashSet<LeaseId, Seeded>,
}

impl Ended {
    pub(super) fn new(seed: u64) -> Self {
        Self { order: VecDeque::new(), known: HashSet::with_hasher(Seeded(seed)) }
    }

    pub(super) fn note(&mut self, id: LeaseId) {
        if !self.known.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.known.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_newest_are_remembered_and_no_more() {
        let mut ended = Ended::new(1);
        (0..5000).for_each(|id| ended.note(id));
        ended.note(4999);
        assert_eq!((0..5000).filter(|id| ended.contains(*id)).count(), REMEMBERED);
        assert!(ended.contains(4999) && !ended.contains(0));
        assert_eq!(ended.order.len(), ended.known.len());
    }
}
