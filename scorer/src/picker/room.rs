//! How many bytes of bodies are held at once, all requests together.
//!
//! A body may grow as long as it is not longer than the room that is left (the dynamic threshold of shared buffers in
//! switches: Choudhury and Hahne, 1998). So `n` bodies that never end are stopped at the `n + 1`th part of the room each, and
//! as much again stays free: those who hold most are refused first, and a short request finds room beside many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The room of all bodies.
#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    held: AtomicUsize,
}

/// What one body has of it; given back at its end.
#[derive(Debug)]
pub(super) struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    pub(super) fn new(most: usize) -> Self {
        Self { most, held: AtomicUsize::new(0) }
    }

    /// A share of nothing yet.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { room: Arc::clone(self), bytes: 0 }
    }
}

impl Share {
    /// Takes so many bytes more, if there is room for them.
    pub(super) fn grow(&mut self, more: usize) -> bool {
        let long = self.bytes.saturating_add(more);
        let taken = self.room.held.fetch_update(Relaxed, Relaxed, |held| {
            let is_free = long <= self.room.most.saturating_sub(held);
            is_free.then(|| held.saturating_add(more))
        });
        if taken.is_ok() {
            self.bytes = long;
        }
        taken.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_grow_without_end_leave_room_for_another_as_long_as_they_are() {
        for others in [1, 3, 20, 100] {
            let room = Arc::new(Room::new(1 << 20));
            let mut shares: Vec<Share> = (0..others).map(|_| room.share()).collect();
            for _ in 0..2_000 {
                for share in &mut shares {
                    share.grow(1_000);
                }
            }
            let held: usize = shares.iter().map(|share| share.bytes).sum();
            assert_eq!(held, room.held.load(Relaxed));
            assert!(held <= room.most);
            let fair = room.most / (others + 1);
            assert!(shares.iter().all(|share| share.bytes.abs_diff(fair) <= 2_000), "{shares:?}");
            assert!(room.share().grow(fair - 2_000), "a short one has room beside {others}");
            drop(shares);
            assert_eq!(room.held.load(Relaxed), 0);
        }
    }
}
