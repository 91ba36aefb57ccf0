//! What engines say of their KV cache: which blocks came, which went.
//!
//! Their hashes are names and nothing more: an engine may salt them, truncate them, or start anew with others. What a
//! block holds is told by its tokens, its parent, and its keys.

use serde::Serialize;
use xxhash_rust::xxh64::xxh64;

/// Where a block lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In the device's memory: nothing is to be done to use it.
    #[default]
    Device,
    /// In the host's.
    Host,
    /// On disk, or further away.
    Disk,
}

impl Tier {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// The tier that an engine calls so; no name at all is the device. One that is not known is taken for the slowest.
    pub fn of_medium(medium: Option<&str>) -> Self {
        let Some(medium) = medium else { return Self::Device };
        let medium = medium.to_ascii_lowercase();
        let begins = |words: &[&str]| words.iter().any(|word| medium.starts_with(word));
        match () {
            () if begins(&["gpu", "device", "hbm", "xpu", "tpu", "npu"]) => Self::Device,
            () if begins(&["cpu_tier2"]) => Self::Disk,
            () if begins(&["cpu", "host", "dram"]) => Self::Host,
            () => Self::Disk,
        }
    }
}

/// Blocks that came, each the child of the one before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// The engine's names of them.
    pub blocks: Vec<u64>,
    /// The engine's name of the block before the first; `None` when that one begins a prompt.
    pub parent: Option<u64>,
    /// The tokens of all of them. None at all: they are copies of blocks that were told of before, on another tier.
    pub tokens: Vec<u32>,
    /// Tokens of each.
    pub block_tokens: u32,
    /// Where they lie.
    pub tier: Tier,
    /// [`crate::wire::name_hash`] of the LoRA adapter, or [`unnamed`] where it has none.
    pub adapter: Option<u64>,
    /// What else tells each of them apart ([`keys`]): images, a cache salt. Shorter than the blocks: the rest have nothing.
    pub keys: Vec<Option<u64>>,
    /// Which of the engine's groups of layers it is of.
    pub group: u32,
    /// Whether those layers look at all that precedes a token. A window or a state says nothing of a prefix.
    pub whole: bool,
}

/// One thing that became of blocks.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// They came.
    Stored(Stored),
    /// They went.
    Removed {
        /// The engine's names of them.
        blocks: Vec<u64>,
        /// From where.
        tier: Tier,
        /// Of which group of layers.
        group: u32,
    },
    /// All went.
    Cleared,
}

/// What it costs to forget all, beside what it costs to hash a token.
const CLEAR: usize = 64;

impl Event {
    /// What it costs to take it, in tokens that are hashed.
    pub fn effort(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.tokens.len().saturating_add(stored.blocks.len()).saturating_add(1),
            Self::Removed { blocks, .. } => blocks.len().saturating_add(1),
            Self::Cleared => CLEAR,
        }
    }

    /// The same in parts, none of which costs much more than `most`.
    pub fn parts(self, most: usize) -> Vec<Self> {
        if self.effort() <= most {
            return vec![self];
        }
        match self {
            Self::Stored(stored) => stored.parts(most).into_iter().map(Self::Stored).collect(),
            Self::Removed { blocks, tier, group } => blocks
                .chunks(most.max(1))
                .map(|blocks| Self::Removed { blocks: blocks.to_vec(), tier, group })
                .collect(),
            Self::Cleared => vec![Self::Cleared],
        }
    }
}

impl Stored {
    /// Each part is the child of the one before it. What makes no sense stays whole, since it is not taken.
    fn parts(self, most: usize) -> Vec<Self> {
        let size = if self.tokens.is_empty() { 0 } else { self.block_tokens as usize };
        if self.blocks.len().checked_mul(size) != Some(self.tokens.len()) {
            return vec![self];
        }
        let at_once = most.checked_div(size.saturating_add(1)).unwrap_or(1).max(1);
        let mut tokens = self.tokens.chunks(at_once.saturating_mul(size).max(1));
        let mut keys = self.keys.chunks(at_once);
        let mut parent = self.parent;
        let part = |blocks: &[u64]| Self {
            blocks: blocks.to_vec(),
            parent: std::mem::replace(&mut parent, blocks.last().copied()),
            tokens: tokens.next().unwrap_or_default().to_vec(),
            keys: keys.next().unwrap_or_default().to_vec(),
            block_tokens: self.block_tokens,
            tier: self.tier,
            adapter: self.adapter,
            group: self.group,
            whole: self.whole,
        };
        self.blocks.chunks(at_once).map(part).collect()
    }
}

/// What an engine says at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Its clock, in seconds: with the sequence number it names the batch.
    pub at: f64,
    /// What became of blocks, in order.
    pub events: Vec<Event>,
    /// Events that could not be read.
    pub odd: u64,
}

impl Batch {
    /// The same in parts, one at least, none of which costs much more than `most`: [`Event::effort`].
    pub fn parts(self, most: usize) -> impl Iterator<Item = Self> {
        let Self { at, events, odd } = self;
        let mut events = events.into_iter().flat_map(move |event| event.parts(most)).peekable();
        let mut first = Some(odd);
        std::iter::from_fn(move || {
            if events.peek().is_none() && first.is_none() {
                return None;
            }
            let mut part = Self { at, events: Vec::new(), odd: first.take().unwrap_or(0) };
            let mut effort = 0_usize;
            while effort <= most
                && let Some(event) = events.next()
            {
                effort = effort.saturating_add(event.effort());
                part.events.push(event);
            }
            Some(part)
        })
    }
}

/// The keys of one block as a number; `None` where there are none.
pub fn keys<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Option<u64> {
    keys.into_iter().fold(None, |before, key| Some(xxh64(key, before.unwrap_or(0x6b65_7973))))
}

/// The key that a cache salt is.
pub fn salt(salt: &str) -> Option<u64> {
    keys([salt.as_bytes()])
}

/// An adapter of which only a number is known: no request names it so.
pub fn unnamed(id: u64) -> u64 {
    xxh64(&id.to_le_bytes(), 0x6c6f_7261)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_parts_of_a_long_event_are_a_chain_and_none_is_long() {
        let stored = Stored {
            blocks: (1..=1_000).collect(),
            parent: Some(7),
            tokens: (0..16_000).collect(),
            block_tokens: 16,
            keys: vec![Some(5); 100],
            whole: true,
            ..Stored::default()
        };
        let parts = Event::Stored(stored.clone()).parts(500);
        let (mut parent, mut blocks, mut tokens, mut keys) = (Some(7), vec![], vec![], vec![]);
        for part in &parts {
            assert!(part.effort() <= 501);
            let Event::Stored(part) = part else { panic!() };
            assert_eq!(part.parent, parent);
            parent = part.blocks.last().copied();
            blocks.extend(&part.blocks);
            tokens.extend(&part.tokens);
            keys.extend(&part.keys);
        }
        assert_eq!(
            (blocks, tokens, keys),
            (stored.blocks.clone(), stored.tokens.clone(), stored.keys.clone())
        );
        let copies = Event::Stored(Stored { tokens: vec![], ..stored.clone() });
        assert_eq!(copies.parts(500).len(), 2);
        let odd = Event::Stored(Stored { block_tokens: 15, ..stored });
        assert_eq!(odd.clone().parts(500), [odd]);
        let removed = Event::Removed { blocks: (0..1_000).collect(), tier: Tier::Device, group: 0 };
        assert_eq!(removed.parts(300).len(), 4);
    }

    #[test]
    fn a_batch_is_taken_in_parts_whatever_it_is_made_of() {
        let removed = Event::Removed { blocks: vec![], tier: Tier::Device, group: 0 };
        let copied = Event::Stored(Stored { blocks: vec![1], ..Stored::default() });
        for event in [Event::Cleared, removed, copied] {
            let batch = Batch { at: 1.0, events: vec![event.clone(); 100_000], odd: 3 };
            let parts: Vec<Batch> = batch.clone().parts(10_000).collect();
            for part in &parts {
                let effort: usize = part.events.iter().map(Event::effort).sum();
                assert!(effort <= 10_000 + event.effort(), "{event:?}: {effort}");
            }
            assert_eq!(parts.iter().map(|part| part.odd).sum::<u64>(), 3);
            let events: Vec<Event> = parts.into_iter().flat_map(|part| part.events).collect();
            assert_eq!(events, batch.events);
        }
        assert_eq!(Batch::default().parts(10).count(), 1, "that nothing happened is a word too");
    }

    #[test]
    fn the_names_of_tiers_that_engines_use_are_known() {
        let tiers = [
            (None, Tier::Device),
            (Some("GPU"), Tier::Device),
            (Some("cpu"), Tier::Host),
            (Some("CPU"), Tier::Host),
            (Some("CPU_PINNED"), Tier::Host),
            (Some("CPU_TIER1"), Tier::Host),
            (Some("CPU_TIER2"), Tier::Disk),
            (Some("disk"), Tier::Disk),
            (Some("STORAGE"), Tier::Disk),
        ];
        for (medium, tier) in tiers {
            assert_eq!(Tier::of_medium(medium), tier, "{medium:?}");
        }
    }

    #[test]
    fn keys_depend_on_each_and_on_their_order() {
        let of = |list: &[&str]| keys(list.iter().map(|key| key.as_bytes()));
        assert_eq!(of(&[]), None);
        assert_ne!(of(&["a", "b"]), of(&["b", "a"]));
        assert_ne!(of(&["a"]), of(&["a", "a"]));
        assert_eq!(of(&["a"]), salt("a"));
    }
}
