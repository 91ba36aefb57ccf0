//! Fields of a body that are not read here, by what they may be to the engine.
//!
//! A template can put any of them before the model: `documents` is vLLM's for that, `chat_template` may be the client's own, and what other
//! engines have nobody knows. Left out of the estimate they would let more through at once than a limit allows, so what is long
//! counts as text. What is short is a setting; what is known never to reach the prompt is not counted.

use super::size::Size;

/// A setting is shorter, with its quotes and brackets.
const SHORT: usize = 256;

/// Long, and no text of the prompt: what it steers is how tokens are picked, where the request runs, or what it is called.
const SETTINGS: [&str; 25] = [
    "logit_bias",
    "stop",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
    "custom_logit_processor",
    "custom_params",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "structural_tag",
    "json_schema",
    "regex",
    "ebnf",
    "kv_transfer_params",
    "vllm_xargs",
    "nvext",
    "lora_path",
    "request_id",
    "rid",
    "session_id",
    "litellm_metadata",
];

/// Vectors, pictures and sounds, as numbers or in base64. No engine makes a token of less than so many bytes of them: a vector of a
/// model's is longer.
const BINARY: [&str; 9] = [
    "prompt_embeds",
    "input_embeds",
    "features",
    "image",
    "images",
    "mask",
    "audio",
    "ref_audio",
    "ref_image",
];
const BYTES_PER_VECTOR: u64 = 1_024;

impl Size {
    /// Adds a field that is not read, of so many bytes.
    pub(super) fn add_unread(&mut self, field: &str, bytes: usize) {
        if bytes <= SHORT || SETTINGS.contains(&field) {
            return;
        }
        match BINARY.contains(&field) {
            true => self.tokens = self.tokens.saturating_add((bytes as u64).div_ceil(BYTES_PER_VECTOR)),
            false => self.unread = self.unread.saturating_add(bytes as u64),
        }
    }
}
