//! The KV memory of an engine: blocks that requests hold, and the prefix cache in those that nobody holds.
//!
//! As vLLM has it: a full block is known by the hash of all tokens up to its end; several requests may hold the same
//! one; a block that nobody holds keeps its content until it is needed, the one free for longest first, and of one
//! prompt the last before the first, because a prefix without its head is worth nothing.

use super::Hashed;
use std::collections::HashMap;

/// A block's place in the memory.
pub(super) type Slot = u32;

const NONE: Slot = Slot::MAX;
/// The content of a block that is not full, or of none.
const UNKNOWN: u64 = 0;

/// The blocks of one engine.
#[derive(Debug)]
pub(super) struct Memory {
    blocks: Vec<Block>,
    known: HashMap<u64, Slot, Hashed>,
    /// The free blocks as a ring through this extra block at the end: its `next` is used first.
    ring: Slot,
    free: usize,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    hash: u64,
    holders: u32,
    before: Slot,
    next: Slot,
}

impl Memory {
    pub(super) fn new(blocks: usize) -> Self {
        let blocks = u32::try_from(blocks).unwrap_or(NONE - 1).min(NONE - 1);
        let ring = blocks;
        let block = |at: u32| Block {
            hash: UNKNOWN,
            holders: 0,
            before: if at == 0 { ring } else { at - 1 },
            next: if at == ring { 0 } else { at + 1 },
        };
        Self {
            blocks: (0..=blocks).map(block).collect(),
            known: HashMap::default(),
            ring,
            free: blocks as usize,
        }
    }

    /// Blocks in all.
    pub(super) fn len(&self) -> usize {
        self.blocks.len() - 1
    }

    /// Blocks that nobody holds.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// How many blocks at the beginning of `chain` are here, and how many of these nobody holds.
    pub(super) fn matched(&self, chain: &[u64]) -> (usize, usize) {
        let mut idle = 0;
        let here = chain.iter().map_while(|hash| self.known.get(hash));
        let matched = here.map(|slot| idle += usize::from(self.blocks[*slot as usize].holders == 0)).count();
        (matched, idle)
    }

    /// Holds the first `count` blocks of `chain`, which are here.
    pub(super) fn hold(&mut self, chain: &[u64], count: usize, held: &mut Vec<Slot>) {
        for hash in chain.iter().take(count) {
            let Some(&slot) = self.known.get(hash) else { return };
            if self.blocks[slot as usize].holders == 0 {
                self.unlink(slot);
                self.free -= 1;
            }
            self.blocks[slot as usize].holders += 1;
            held.push(slot);
        }
    }

    /// Takes a free block; what it kept is gone. `None` when there is none.
    pub(super) fn take(&mut self) -> Option<Slot> {
        let slot = self.blocks[self.ring as usize].next;
        if slot == self.ring {
            return None;
        }
        self.unlink(slot);
        self.free -= 1;
        let block = &mut self.blocks[slot as usize];
        block.holders = 1;
        let hash = std::mem::replace(&mut block.hash, UNKNOWN);
        if hash != UNKNOWN && self.known.get(&hash) == Some(&slot) {
            self.known.remove(&hash);
        }
        Some(slot)
    }

    /// A held block is full now, with this content.
    pub(super) fn fill(&mut self, slot: Slot, hash: u64) {
        let block = &mut self.blocks[slot as usize];
        if block.hash == UNKNOWN {
            block.hash = hash;
            self.known.entry(hash).or_insert(slot);
        }
    }

    /// A request holds these no longer.
    pub(super) fn release(&mut self, held: &mut Vec<Slot>) {
        // The last first, so that of equally old blocks the tail is used up before the head.
        for slot in held.drain(..).rev() {
            let block = &mut self.blocks[slot as usize];
            block.holders -= 1;
            if block.holders > 0 {
                continue;
            }
            self.free += 1;
            let keeps = block.hash != UNKNOWN && self.known.get(&block.hash) == Some(&slot);
            // What keeps nothing is used first.
            let (before, next) = match keeps {
                true => (self.blocks[self.ring as usize].before, self.ring),
                false => (self.ring, self.blocks[self.ring as usize].next),
            };
            let block = &mut self.blocks[slot as usize];
            (block.before, block.next) = (before, next);
            self.blocks[before as usize].next = slot;
            self.blocks[next as usize].before = slot;
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let Block { before, next, .. } = self.blocks[slot as usize];
        self.blocks[before as usize].next = next;
        self.blocks[next as usize].before = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes a prompt and leaves it.
    fn run(memory: &mut Memory, chain: &[u64]) -> usize {
        let (matched, _) = memory.matched(chain);
        let mut held = Vec::new();
        memory.hold(chain, matched, &mut held);
        for hash in &chain[matched..] {
            let slot = memory.take().unwrap();
            memory.fill(slot, *hash);
            held.push(slot);
        }
        memory.release(&mut held);
        matched
    }

    #[test]
    fn a_prefix_is_found_again_and_the_oldest_tail_goes_first() {
        let mut memory = Memory::new(6);
        run(&mut memory, &[1, 2, 3]);
        run(&mut memory, &[7, 8]);
        assert_eq!(run(&mut memory, &[1, 2, 3, 4]), 3);
        run(&mut memory, &[20]);
        assert_eq!(memory.matched(&[7, 8]).0, 1, "the only block without content was used up before");
        assert_eq!(memory.matched(&[1, 2, 3, 4]).0, 4);
    }

    #[test]
    fn what_is_held_is_shared_and_never_taken() {
        let mut memory = Memory::new(3);
        run(&mut memory, &[1, 2]);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        memory.hold(&[1, 2], 2, &mut one);
        memory.hold(&[1, 2], 2, &mut other);
        assert_eq!((one.clone(), memory.free()), (other.clone(), 1));
        assert!(memory.take().is_some() && memory.take().is_none());
        memory.release(&mut one);
        assert_eq!((memory.free(), memory.matched(&[1, 2])), (0, (2, 0)));
        memory.release(&mut other);
        assert_eq!((memory.free(), memory.matched(&[1, 2])), (2, (2, 2)));
    }

    #[test]
    fn the_same_content_computed_twice_is_kept_once() {
        let mut memory = Memory::new(4);
        let mut held = vec![memory.take().unwrap(), memory.take().unwrap()];
        held.clone().into_iter().for_each(|slot| memory.fill(slot, 5));
        memory.release(&mut held);
        assert_eq!((memory.free(), memory.known.len()), (4, 1));
        for hash in 10..14 {
            run(&mut memory, &[hash]);
        }
        assert_eq!(memory.matched(&[5]).0, 0);
        assert_eq!(memory.known.len(), 4);
    }
}
