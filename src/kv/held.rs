//! The blocks that one engine has said it holds.
//!
//! Engines name blocks by hashes of their own and say parent and tokens of each, from which ours follows: so there are
//! two maps to one slot, by their name and by ours. A slot counts how often the block is held on each tier, since
//! an engine that computed the same block twice at the same time says twice that it came and twice that it went.
//!
//! A block that went is kept, without being held, while blocks behind it are: engines need not give up the tail first, and
//! what comes again behind a hole finds its parent. Whoever holds nothing and has nothing behind it is gone.
//!
//! What is held is bounded. An engine says itself what it gives up, so the bound is only a guard; but when it is
//! reached, the block without children that came least recently goes, so that a chain loses its tail and never its head. All
//! steps are of constant time, and everything lies in three allocations: to forget an engine is to free them.

use super::event::{Stored, Tier};
use super::prompt;
use crate::seeded::Seeded;
use std::collections::HashMap;

/// Why an event was not, or not wholly, taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// The block before the first is not known: said before anybody listened, or forgotten.
    UnknownParent,
    /// Its numbers do not fit each other, or blocks have another size than before.
    Misshapen,
}

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    engine: u64,
    own: u64,
    parent: u32,
    children: u32,
    /// Neighbours in the list of those without children.
    older: u32,
    newer: u32,
    held: [u16; Tier::COUNT],
}

impl Slot {
    fn is_held(&self) -> bool {
        self.held != [0; Tier::COUNT]
    }
}

/// The blocks of one engine.
#[derive(Debug)]
pub struct Held {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_engine: HashMap<u64, u32, Seeded>,
    by_own: HashMap<u64, u32, Seeded>,
    /// The ends of the list of those without children.
    oldest: u32,
    newest: u32,
    capacity: usize,
    /// Tokens of a block; 0 until one came.
    block_tokens: u32,
    /// The group of layers that is followed: the first that looks at whole prefixes. The others of such a model hold
    /// the same blocks.
    group: Option<u32>,
}

impl Held {
    /// Nothing held, and never more than `capacity` blocks. `seed` keeps an engine's clients from choosing collisions.
    pub fn new(capacity: usize, seed: u64) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_engine: HashMap::with_hasher(Seeded(seed)),
            by_own: HashMap::with_hasher(Seeded(seed)),
            oldest: NONE,
            newest: NONE,
            capacity: capacity.clamp(1, NONE as usize - 1),
            block_tokens: 0,
            group: None,
        }
    }

    /// Blocks known: those held, and those with held ones behind them.
    pub fn len(&self) -> usize {
        self.slots.len().saturating_sub(self.free.len())
    }

    /// Slots, free ones among them, that there is memory for; and keys.
    #[cfg(test)]
    pub(super) fn room(&self) -> [usize; 4] {
        [self.slots.capacity(), self.free.capacity(), self.by_engine.capacity(), self.by_own.capacity()]
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of a block; 0 until one came.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The quickest tier on which it holds the block with this hash of ours.
    pub fn tier(&self, own: u64) -> Option<Tier> {
        let slot = self.slots.get(*self.by_own.get(&own)? as usize)?;
        let tiers = [Tier::Device, Tier::Host, Tier::Disk];
        tiers.into_iter().zip(slot.held).find(|(_, held)| *held > 0).map(|(tier, _)| tier)
    }

    /// Nothing is held any more. The tables are given back: to empty them costs as much as they ever held, each time.
    pub fn clear(&mut self) {
        (self.slots, self.free) = (Vec::new(), Vec::new());
        self.by_engine = HashMap::with_hasher(*self.by_engine.hasher());
        self.by_own = HashMap::with_hasher(*self.by_own.hasher());
        (self.oldest, self.newest, self.group) = (NONE, NONE, None);
    }

    /// Blocks came. `came` is told the hash of each.
    pub fn store(&mut self, stored: &Stored, mut came: impl FnMut(u64)) -> Result<(), Odd> {
        if !stored.whole || *self.group.get_or_insert(stored.group) != stored.group {
            return Ok(());
        }
        if stored.tokens.is_empty() {
            return self.copy(stored);
        }
        let size = stored.block_tokens as usize;
        if size == 0 || stored.blocks.len().checked_mul(size) != Some(stored.tokens.len()) {
            return Err(Odd::Misshapen);
        }
        if self.block_tokens == 0 || self.is_empty() {
            self.block_tokens = stored.block_tokens;
        }
        if self.block_tokens != stored.block_tokens {
            return Err(Odd::Misshapen);
        }
        let (mut parent, mut own) = match stored.parent {
            None => (NONE, prompt::root(stored.adapter)),
            Some(engine) => {
                let slot = *self.by_engine.get(&engine).ok_or(Odd::UnknownParent)?;
                (slot, self.slots.get(slot as usize).ok_or(Odd::UnknownParent)?.own)
            }
        };
        for (at, (engine, tokens)) in stored.blocks.iter().zip(stored.tokens.chunks_exact(size)).enumerate() {
            own = prompt::next(own, tokens, stored.keys.get(at).copied().flatten());
            let known = self.by_engine.get(engine).copied().filter(|slot| self.is(*slot, own));
            let slot = match known {
                Some(slot) => slot,
                None => self.add(*engine, own, parent),
            };
            self.count(slot, stored.tier);
            came(own);
            while self.len() > self.capacity && self.oldest != NONE {
                let gone = self.oldest;
                self.drop_leaf(gone);
                if gone == slot {
                    // There is room for so much of it and no more.
                    return Ok(());
                }
            }
            parent = slot;
        }
        Ok(())
    }

    /// Blocks that are known came to another tier.
    fn copy(&mut self, stored: &Stored) -> Result<(), Odd> {
        let mut known = 0;
        for engine in &stored.blocks {
            if let Some(slot) = self.by_engine.get(engine).copied() {
                self.count(slot, stored.tier);
                known += 1;
            }
        }
        if known == stored.blocks.len() { Ok(()) } else { Err(Odd::UnknownParent) }
    }

    /// Blocks went from a tier.
    pub fn remove(&mut self, blocks: &[u64], tier: Tier, group: u32) {
        if self.group.is_some_and(|own| own != group) {
            return;
        }
        for engine in blocks {
            let Some(id) = self.by_engine.get(engine).copied() else { continue };
            let Some(slot) = self.slots.get_mut(id as usize) else { continue };
            if let Some(held) = slot.held.get_mut(tier as usize) {
                *held = held.saturating_sub(1);
            }
            if !slot.is_held() && slot.children == 0 {
                self.drop_leaf(id);
            }
        }
    }

    /// Whether the slot has this hash. An engine that gives a name to another block has forgotten the one before.
    fn is(&self, slot: u32, own: u64) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.own == own)
    }

    fn count(&mut self, id: u32, tier: Tier) {
        let Some(slot) = self.slots.get_mut(id as usize) else { return };
        if let Some(held) = slot.held.get_mut(tier as usize) {
            *held = held.saturating_add(1);
        }
        if slot.children == 0 {
            self.unlink(id);
            self.link_newest(id);
        }
    }

    fn add(&mut self, engine: u64, own: u64, parent: u32) -> u32 {
        let slot =
            Slot { engine, own, parent, children: 0, older: NONE, newer: NONE, held: [0; Tier::COUNT] };
        let id = match self.free.pop() {
            Some(id) => id,
            None => u32::try_from(self.slots.len()).unwrap_or(NONE),
        };
        match self.slots.get_mut(id as usize) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        if let Some(above) = self.slots.get_mut(parent as usize) {
            above.children = above.children.saturating_add(1);
            if above.children == 1 {
                self.unlink(parent);
            }
        }
        self.link_newest(id);
        self.by_own.insert(own, id);
        // A name that was another block's until now: that one is nobody's any more.
        if let Some(before) = self.by_engine.insert(engine, id) {
            self.disown(before);
        }
        id
    }

    /// The slot's name is another's. Where nothing hangs below it, it goes.
    fn disown(&mut self, id: u32) {
        let Some(slot) = self.slots.get_mut(id as usize) else { return };
        slot.held = [0; Tier::COUNT];
        if slot.children == 0 {
            self.drop_leaf(id);
        }
    }

    /// Frees a slot without children, and what above it is held no longer and has no other child.
    fn drop_leaf(&mut self, leaf: u32) {
        let mut id = leaf;
        while let Some(slot) = self.slots.get(id as usize).copied() {
            self.unlink(id);
            if self.by_engine.get(&slot.engine) == Some(&id) {
                self.by_engine.remove(&slot.engine);
            }
            if self.by_own.get(&slot.own) == Some(&id) {
                self.by_own.remove(&slot.own);
            }
            self.free.push(id);
            let Some(above) = self.slots.get_mut(slot.parent as usize) else { return };
            above.children = above.children.saturating_sub(1);
            match above.children {
                0 if !above.is_held() => id = slot.parent,
                0 => return self.link_oldest(slot.parent),
                _ => return,
            }
        }
    }

    fn unlink(&mut self, id: u32) {
        let Some(slot) = self.slots.get_mut(id as usize) else { return };
        let (older, newer) = (slot.older, slot.newer);
        (slot.older, slot.newer) = (NONE, NONE);
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None if self.oldest == id => self.oldest = newer,
            None => {}
        }
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None if self.newest == id => self.newest = older,
            None => {}
        }
    }

    fn link_newest(&mut self, id: u32) {
        let last = std::mem::replace(&mut self.newest, id);
        if let Some(slot) = self.slots.get_mut(last as usize) {
            slot.newer = id;
        } else {
            self.oldest = id;
        }
        if let Some(slot) = self.slots.get_mut(id as usize) {
            (slot.older, slot.newer) = (last, NONE);
        }
    }

    fn link_oldest(&mut self, id: u32) {
        let first = std::mem::replace(&mut self.oldest, id);
        if let Some(slot) = self.slots.get_mut(first as usize) {
            slot.older = id;
        } else {
            self.newest = id;
        }
        if let Some(slot) = self.slots.get_mut(id as usize) {
            (slot.older, slot.newer) = (NONE, first);
        }
    }
}
