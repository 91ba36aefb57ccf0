//! A prompt in tokens, cut as engines cut it.
//!
//! ```text
//! root     = xxh64("weir kv", adapter)                 blocks of two adapters have nothing in common
//! h[i]     = xxh64(tokens of block i, its keys; h[i-1])   four bytes a token, little end first
//! ```
//!
//! The hashes are our own and the same for all engines: theirs need not be, and cannot be computed without what they
//! seed them with. Blocks are as long as an engine's; where two engines of a pool cut differently the prompt is cut twice.

use std::collections::BTreeSet;
use xxhash_rust::xxh64::{Xxh64, xxh64};

/// What precedes the first block.
pub(super) fn root(adapter: Option<u64>) -> u64 {
    // No adapter is not the adapter whose hash is 0.
    xxh64(b"weir kv", adapter.map_or(1, |adapter| adapter ^ 2))
}

/// The hash of the block behind the one whose hash is `parent`.
pub(super) fn next(parent: u64, tokens: &[u32], keys: Option<u64>) -> u64 {
    let mut hash = Xxh64::new(parent);
    tokens.iter().for_each(|token| hash.update(&token.to_le_bytes()));
    if let Some(keys) = keys {
        hash.update(&keys.to_le_bytes());
    }
    hash.digest()
}

/// The tokens of a prompt, and what else tells it apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The tokens, as the engine will see them.
    pub ids: Vec<u32>,
    /// [`crate::wire::name_hash`] of its LoRA adapter.
    pub adapter: Option<u64>,
    /// [`super::salt`] of its cache salt.
    pub salt: Option<u64>,
}

impl Tokens {
    /// The hashes of its full blocks of so many tokens.
    pub fn chain(&self, block_tokens: u32) -> Vec<u64> {
        let mut parent = root(self.adapter);
        let blocks = self.ids.chunks_exact(block_tokens.max(1) as usize).enumerate();
        let hash = |(at, tokens)| {
            parent = next(parent, tokens, self.salt.filter(|_| at == 0));
            parent
        };
        blocks.map(hash).collect()
    }

    /// Cuts it for engines that have blocks of these sizes.
    pub fn cut(&self, sizes: &BTreeSet<u32>) -> Prompt {
        let chains = sizes.iter().map(|size| (*size, self.chain(*size))).collect();
        Prompt { tokens: u32::try_from(self.ids.len()).unwrap_or(u32::MAX), chains }
    }
}

/// A prompt that has been cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Its length in tokens.
    pub tokens: u32,
    /// The hashes of its blocks, by their size.
    chains: Vec<(u32, Vec<u64>)>,
}

impl Prompt {
    /// The hashes of its full blocks of so many tokens; none where it was not cut so.
    pub fn chain(&self, block_tokens: u32) -> &[u64] {
        let chain = self.chains.iter().find(|(size, _)| *size == block_tokens);
        chain.map(|(_, chain)| chain.as_slice()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn tokens(ids: std::ops::Range<u32>) -> Tokens {
        Tokens { ids: ids.collect(), ..Tokens::default() }
    }

    #[test]
    fn equal_beginnings_have_equal_hashes_and_a_tail_has_none() {
        let (short, long) = (tokens(0..39), tokens(0..200));
        assert_eq!(short.chain(16).len(), 2);
        assert_eq!(long.chain(16)[..2], short.chain(16)[..]);
        let mut other = long.clone();
        other.ids[17] = 99;
        let same = long.chain(16).iter().zip(&other.chain(16)).take_while(|(a, b)| a == b).count();
        assert_eq!(same, 1);
    }

    #[test]
    fn an_adapter_and_a_salt_share_nothing_with_others() {
        let plain = tokens(0..64);
        let adapter = |adapter| Tokens { adapter, ..plain.clone() }.chain(16);
        let salted = |word| Tokens { salt: super::super::salt(word), ..plain.clone() }.chain(16);
        let all = [plain.chain(16), adapter(Some(0)), adapter(Some(1)), salted("a"), salted("b")];
        let hashes: BTreeSet<u64> = all.iter().flatten().copied().collect();
        assert_eq!(hashes.len(), 5 * 4);
    }

    #[test]
    fn a_prompt_is_cut_for_each_size_there_is() {
        let tokens = tokens(0..100);
        let prompt = tokens.cut(&BTreeSet::from([16, 32]));
        assert_eq!((prompt.chain(16).len(), prompt.chain(32).len(), prompt.chain(64).len()), (6, 3, 0));
        assert_eq!(prompt.chain(32), tokens.chain(32));
    }
}
