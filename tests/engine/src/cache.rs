//! The prefix cache: which blocks of earlier prompts need no prefill.
//!
//! Blocks are known by chained hashes (`prompt.rs`), so a block can only match after all before it. The
//! least recently used go first, and of one prompt the last blocks go before the first ones, as in vLLM:
//! a prefix with its head missing would be worth nothing.

use std::num::NonZeroUsize;

use lru::LruCache;

pub(crate) struct BlockCache {
    /// `None` if caching is off.
    blocks: Option<LruCache<u64, ()>>,
}

impl BlockCache {
    pub(crate) fn new(capacity: usize) -> Self {
        // `LruCache::new` would allocate the whole capacity at once.
        let bounded = |capacity| {
            let mut cache = LruCache::unbounded();
            cache.resize(capacity);
            cache
        };
        Self { blocks: NonZeroUsize::new(capacity).map(bounded) }
    }

    /// How many blocks, from the first on, are cached.
    pub(crate) fn matched(&self, chain: &[u64]) -> usize {
        let Some(blocks) = &self.blocks else { return 0 };
        chain.iter().take_while(|hash| blocks.contains(hash)).count()
    }

    /// Stores the blocks of a prompt, or marks them as just used.
    pub(crate) fn store(&mut self, chain: &[u64]) {
        let Some(blocks) = &mut self.blocks else { return };
        for hash in chain.iter().rev() {
            blocks.put(*hash, ());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.as_ref().map_or(0, LruCache::len)
    }

    pub(crate) fn clear(&mut self) {
        if let Some(blocks) = &mut self.blocks {
            blocks.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unbroken_prefix_matches() {
        let mut cache = BlockCache::new(8);
        cache.store(&[1, 2, 3]);
        assert_eq!(cache.matched(&[1, 2, 9]), 2);
        assert_eq!(cache.matched(&[9, 2, 3]), 0);
    }

    #[test]
    fn the_tail_of_the_oldest_prompt_is_evicted_first() {
        let mut cache = BlockCache::new(4);
        cache.store(&[1, 2, 3]);
        cache.store(&[7, 8]);
        assert_eq!(cache.len(), 4);
        assert_eq!(cache.matched(&[1, 2, 3]), 2);
        assert_eq!(cache.matched(&[7, 8]), 2);
    }

    #[test]
    fn without_capacity_nothing_is_cached() {
        let mut cache = BlockCache::new(0);
        cache.store(&[1]);
        assert_eq!(cache.matched(&[1]), 0);
    }
}
