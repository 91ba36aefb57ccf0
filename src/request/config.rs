//! How bodies are read: bounds, and the size of a prefix block.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// How bodies are read. Every field has a default.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Largest body read, in bytes; a larger one is answered 413. Envoy's buffer limit must be above it.
    pub max_body_bytes: usize,
    /// Size of the smallest prefix block, in tokens: the engine's block size or a multiple of it. Blocks grow with what
    /// precedes them, see [`crate::block`].
    pub block_tokens: NonZeroU32,
    /// Bytes of prompt per token, for estimates: 4 suits English text in most vocabularies.
    pub bytes_per_token: NonZeroU32,
    /// Most blocks hashed per prompt; what follows them counts as tokens, but not for affinity.
    pub max_blocks: usize,
}

impl Default for Config {
    fn default() -> Self {
        const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
        const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();
        Self { max_body_bytes: 32 << 20, block_tokens: SIXTEEN, bytes_per_token: FOUR, max_blocks: 4096 }
    }
}

impl Config {
    /// Bytes of a unit.
    pub(super) fn unit_bytes(&self) -> usize {
        self.block_tokens.get().saturating_mul(self.bytes_per_token.get()) as usize
    }
}
