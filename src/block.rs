//! Cuts a prompt into prefix blocks: which requests share how much of their beginning.
//!
//! The prompt, in the order in which the engine's chat template renders it, is a stream of bytes. It is cut
//! every `block_bytes`, and each block's hash is seeded with the hash of the block before it:
//!
//! ```text
//! h[0] = xxh64(seed text, 0)      everything that must not be shared: model, adapter, cache salt
//! h[i] = xxh64(block i, h[i-1])   so equal hashes mean equal beginnings, and a match stops at the first miss
//! ```
//!
//! A tail shorter than a block has no hash: the engine could not reuse it either. Bytes and not tokens are
//! cut, since a filter has no tokenizer; 64 bytes are about the 16 tokens of vLLM's default block. xxh64 with
//! a seed is the quickest standard hash in Envoy's V8 at this size and needs no SIMD. It does not resist an
//! attacker who looks for collisions: the hashes are a routing hint, and the worst a collision can do is send
//! a request to an endpoint that has to compute its prompt.

use xxhash_rust::xxh64::xxh64;

/// Collects the hashes of a prompt that is fed piece by piece.
#[derive(Debug)]
pub struct Blocks {
    block_bytes: usize,
    most: usize,
    parent: u64,
    partial: Vec<u8>,
    hashes: Vec<u64>,
    bytes: usize,
}

impl Blocks {
    /// Starts a prompt. `seed` is all that must not be shared between prompts; at most `most` blocks are
    /// hashed, and what follows them is counted but not told apart.
    pub fn new(seed: &[u8], block_bytes: usize, most: usize) -> Self {
        Self {
            block_bytes: block_bytes.max(1),
            most,
            parent: xxh64(seed, 0),
            partial: Vec::new(),
            hashes: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds the next bytes of the prompt.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len());
        if self.hashes.len() >= self.most {
            return;
        }
        if !self.partial.is_empty() {
            let missing = self.block_bytes.saturating_sub(self.partial.len());
            let Some((head, rest)) = bytes.split_at_checked(missing) else {
                return self.partial.extend_from_slice(bytes);
            };
            self.partial.extend_from_slice(head);
            let block = std::mem::take(&mut self.partial);
            self.close(&block);
            self.partial = block;
            self.partial.clear();
            bytes = rest;
        }
        let mut blocks = bytes.chunks_exact(self.block_bytes);
        for block in &mut blocks {
            if self.hashes.len() >= self.most {
                return;
            }
            self.close(block);
        }
        self.partial.extend_from_slice(blocks.remainder());
    }

    fn close(&mut self, block: &[u8]) {
        self.parent = xxh64(block, self.parent);
        self.hashes.push(self.parent);
    }

    /// The hashes of the full blocks, first block first, and the length of the whole prompt in bytes.
    pub fn finish(self) -> (Vec<u64>, usize) {
        (self.hashes, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn hashes(seed: &[u8], pieces: &[&[u8]]) -> Vec<u64> {
        let mut blocks = Blocks::new(seed, 8, 100);
        pieces.iter().for_each(|piece| blocks.feed(piece));
        blocks.finish().0
    }

    #[test]
    fn cuts_do_not_depend_on_the_pieces() {
        let text: Vec<u8> = (0..100).collect();
        let whole = hashes(b"m", &[&text]);
        assert_eq!(whole.len(), 12);
        for cut in 0..=text.len() {
            assert_eq!(hashes(b"m", &[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(hashes(b"m", &bytes), whole);
    }

    #[test]
    fn a_longer_prompt_keeps_the_blocks_of_the_shorter() {
        let short = hashes(b"m", &[b"0123456789abcdef"]);
        let long = hashes(b"m", &[b"0123456789abcdefXYZ and more"]);
        assert_eq!(long[..2], short[..]);
    }

    #[test]
    fn an_early_difference_changes_every_later_block() {
        let a = hashes(b"m", &[b"0123456789abcdefghijklmn"]);
        let b = hashes(b"m", &[b"0_23456789abcdefghijklmn"]);
        assert!(a.iter().zip(&b).all(|(a, b)| a != b));
        assert!(a.iter().zip(&hashes(b"n", &[b"0123456789abcdefghijklmn"])).all(|(a, b)| a != b), "seed");
    }

    #[test]
    fn the_number_of_blocks_is_bounded_and_the_length_still_counted() {
        let mut blocks = Blocks::new(b"", 8, 3);
        blocks.feed(&[b'x'; 30]);
        blocks.feed(&[b'y'; 70]);
        let (hashes, bytes) = blocks.finish();
        assert_eq!((hashes.len(), bytes), (3, 100));
    }
}
