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
