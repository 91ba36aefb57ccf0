//! How bodies are read: bounds, paths, who asks, and the size of a prefix block.

use super::caller::Names;
use super::path::Paths;
use crate::wire;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// How bodies are read. Every field has a default.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Largest body read, in bytes; a larger one is answered 413. Envoy's buffer limit must be above it.
    pub max_body_bytes: usize,
    /// Ends of paths, and the dialects they speak, besides those that are known; `off` for one not to be read.
    pub paths: Paths,
    /// What becomes of compressed bodies.
    pub compressed: Compressed,
    /// Most bytes that a compressed body is decoded to; 413 above.
    pub max_decoded_bytes: usize,
    /// Adapters (LoRA) by the names that clients use, and the models that they adapt.
    pub adapters: BTreeMap<String, String>,
    /// Headers that name the tenant, first before second.
    pub tenant_headers: Names,
    /// Headers that name the session, first before second; before what the body says.
    pub session_headers: Names,
    /// Seeds the hashes by which tenants, sessions and users are published. The same in all proxies that share limits.
    pub id_seed: u64,
    /// Size of the smallest prefix block, in tokens: the engine's block size or a multiple of it. Blocks grow with what
    /// precedes them, see [`crate::block`].
    pub block_tokens: NonZeroU32,
    /// Bytes of prompt per token: by these blocks are cut, and prompts estimated until a model's answers tell better. 4 suits
    /// English text in most vocabularies.
    pub bytes_per_token: NonZeroU32,
    /// Tokens that an image, a sound or a document counts as: their bytes say little. 1,000 is what current models
    /// make of an image of a megapixel. 0 to 65,535.
    pub media_tokens: u16,
    /// Most blocks hashed per prompt; what follows them counts as tokens, but not for affinity.
    pub max_blocks: usize,
}

/// What becomes of a body with a `content-encoding`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Compressed {
    /// It is answered 415: vLLM, SGLang and whatever else stands on FastAPI do not decode bodies, and their error for
    /// one says nothing of the cause.
    #[default]
    Refuse,
    /// It is decoded to be read, and forwarded as it came. For engines that decode it too.
    Read,
}

impl Default for Config {
    fn default() -> Self {
        const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
        const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();
        Self {
            max_body_bytes: 32 << 20,
            paths: Paths::default(),
            compressed: Compressed::default(),
            max_decoded_bytes: 32 << 20,
            adapters: BTreeMap::new(),
            tenant_headers: Names::of(&[wire::FAIRNESS_ID]),
            session_headers: Names::of(&[
                "x-session-id",
                "x-session-affinity",
                "x-claude-code-session-id",
                "session-id",
                "session_id",
            ]),
            id_seed: 0,
            block_tokens: SIXTEEN,
            bytes_per_token: FOUR,
            media_tokens: 1_000,
            max_blocks: 4096,
        }
    }
}

impl Config {
    /// Bytes of a unit.
    pub(super) fn unit_bytes(&self) -> usize {
        self.block_tokens.get().saturating_mul(self.bytes_per_token.get()) as usize
    }
}
