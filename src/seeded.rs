//! A hasher for keys that are hashes already: one multiplication with a secret seed.
//!
//! The keys are chosen by clients (whose prompts they are hashes of), and std's seed is a constant on wasm32.

use std::hash::{BuildHasher, Hasher};

/// Builds the hasher; the number is the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded(pub(crate) u64);

/// Mixes one `u64`.
#[derive(Debug)]
pub(crate) struct Mix(u64);

impl BuildHasher for Seeded {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        Mix(self.0)
    }
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        let mixed = (key ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
