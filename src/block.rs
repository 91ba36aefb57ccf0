//! Cuts a prompt into prefix blocks: which requests share how much of their beginning.
//!
//! The prompt, in the order in which the engine's chat template renders it, is a stream of bytes. It is cut
//! into blocks, and each block's hash is seeded with the hash of the block before it:
//!
//! ```text
//! h[0] = xxh64(seed text, 0)      everything that must not be shared: model, adapter, cache salt
//! h[i] = xxh64(block i, h[i-1])   so equal hashes mean equal beginnings, and a match stops at the first miss
//! ```
//!
//! Blocks grow with what precedes them. Lengths count in *units*, and a unit is about an engine's own block: 64
//! bytes for the 16 tokens of vLLM's default. A block is a sixteenth of what precedes it, in powers of two, of one
//! unit at least and 16 at most:
//!
//! ```text
//! block     0..32   32..48   48..64   64..80   80..
//! units         1        2        4        8     16
//! ```
//!
//! So what two prompts share is known to a sixteenth, which no choice of an endpoint depends on; and 128 KB have
//! 192 hashes to make, to send and to keep, not the 2,048 of equal blocks.
//!
//! A tail shorter than a block has no hash: the engine could not reuse it either. Bytes and not tokens are
//! cut, since a filter has no tokenizer. xxh64 with a seed is the quickest standard hash in Envoy's V8 at these
//! sizes and needs no SIMD. It does not resist an attacker who looks for collisions: the hashes are a routing hint,
//! and the worst a collision can do is send a request to an endpoint that has to compute its prompt.

use xxhash_rust::xxh64::xxh64;

/// For each size of block: the first that has it, the units before that one, and the units of each.
const STEPS: [(usize, usize, usize); 5] = [(0, 0, 1), (32, 32, 2), (48, 64, 4), (64, 128, 8), (80, 256, 16)];

/// Units of block `n` of a prompt, the first being 0.
fn span(n: usize) -> usize {
    STEPS.iter().rev().find(|(first, ..)| n >= *first).map_or(1, |(.., each)| *each)
}

/// Units in the first `n` blocks of a prompt.
pub fn units(n: usize) -> usize {
    let step = STEPS.iter().rev().find(|(first, ..)| n >= *first);
    step.map_or(n, |(first, before, each)| (n - first).saturating_mul(*each).saturating_add(*before))
}

/// The most first blocks of a prompt that have no more than so many units.
pub fn within(units: usize) -> usize {
    let step = STEPS.iter().rev().find(|(_, before, _)| units >= *before);
    step.map_or(units, |(first, before, each)| first + (units - before) / each)
}

/// Collects the hashes of a prompt that is fed piece by piece.
#[derive(Debug)]
pub struct Blocks {
    unit: usize,
    most: usize,
    parent: u64,
    partial: Vec<u8>,
    hashes: Vec<u64>,
    bytes: usize,
}

impl Blocks {
    /// Starts a prompt. `seed` is all that must not be shared between prompts; a unit has `unit` bytes; at most
    /// `most` blocks are hashed, and what follows them is counted but not told apart.
    pub fn new(seed: &[u8], unit: usize, most: usize) -> Self {
        Self {
            unit: unit.max(1),
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
        while self.hashes.len() < self.most {
            let length = span(self.hashes.len()).saturating_mul(self.unit);
            let Some((head, rest)) = bytes.split_at_checked(length.saturating_sub(self.partial.len())) else {
                return self.partial.extend_from_slice(bytes);
            };
            bytes = rest;
            if self.partial.is_empty() {
                self.parent = xxh64(head, self.parent);
            } else {
                self.partial.extend_from_slice(head);
                self.parent = xxh64(&self.partial, self.parent);
                self.partial.clear();
            }
            self.hashes.push(self.parent);
        }
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
        let text: Vec<u8> = (0..600).map(|n| n as u8).collect();
        let whole = hashes(b"m", &[&text]);
        assert_eq!(whole.len(), 50);
        for cut in 0..=text.len() {
            assert_eq!(hashes(b"m", &[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(hashes(b"m", &bytes), whole);
    }

    #[test]
    fn blocks_grow_with_what_precedes_them() {
        let mut before = 0;
        for n in 0..500 {
            assert_eq!(units(n), before, "block {n}");
            for part in 0..span(n) {
                assert_eq!(within(before + part), n);
            }
            assert!(
                span(n) == 1 || span(n) * 16 <= before && before < 32 * span(n) || span(n) == 16,
                "block {n}"
            );
            before += span(n);
        }
        for length in [0, 7, 8, 32 * 8 - 1, 32 * 8, 34 * 8 - 1, 34 * 8, 5000] {
            assert_eq!(
                hashes(b"m", &[&vec![b'x'; length]]).len(),
                within(length / 8).min(100),
                "{length} bytes"
            );
        }
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
