//! The prompt in a request, as a chat template would lay it out, and its tokens and blocks.
//!
//! Text: tools (raw JSON), Anthropic's `system`, then role and content of each message, with nothing in
//! between. Four bytes make a token, the last one rounded up; a block's hash is that of its bytes, seeded
//! with the hash of the block before and, for the first, with that of the model and the cache salt.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use xxhash_rust::xxh64::xxh64;

/// Bytes of text in a token.
const TOKEN_BYTES: usize = 4;

/// One message of a chat.
#[derive(Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct TextPart<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// A prompt, tokenised.
pub(crate) struct Prompt {
    pub(crate) tokens: u64,
    /// The chained hashes of its full blocks.
    pub(crate) blocks: Vec<u64>,
    /// Decides the words of the answer.
    pub(crate) hash: u64,
}

impl Prompt {
    pub(crate) fn new(text: &[u8], model: &str, salt: Option<&str>, block_size: usize) -> Self {
        let salt = salt.map_or(0, |salt| xxh64(salt.as_bytes(), 1));
        let seed = xxh64(model.as_bytes(), salt);
        let blocks = text.chunks_exact(block_size.max(1) * TOKEN_BYTES).scan(seed, |before, block| {
            *before = xxh64(block, *before);
            Some(*before)
        });
        Self {
            tokens: text.len().div_ceil(TOKEN_BYTES).max(1) as u64,
            blocks: blocks.collect(),
            hash: xxh64(text, seed),
        }
    }

    /// The tokens that need no prefill when the first `blocks` blocks are cached: whole blocks only, and
    /// never all tokens, since the last must be computed to give the first of the answer.
    pub(crate) fn cached(&self, blocks: usize, block_size: usize) -> u64 {
        let block = block_size.max(1) as u64;
        (blocks as u64).min((self.tokens - 1) / block) * block
    }
}

/// The text of a chat.
pub(crate) fn of_chat(
    tools: Option<&RawValue>,
    system: Option<&RawValue>,
    messages: &[Message<'_>],
) -> Vec<u8> {
    let mut text = Vec::new();
    if let Some(tools) = tools {
        text.extend_from_slice(tools.get().as_bytes());
    }
    push_content(&mut text, system);
    for message in messages {
        text.extend_from_slice(message.role.as_bytes());
        push_content(&mut text, message.content);
    }
    text
}

/// The text of a completion's `prompt`: a string, strings one after the other, or four bytes a token id.
pub(crate) fn of_completion(prompt: &RawValue) -> Vec<u8> {
    match serde_json::from_str::<Vec<u32>>(prompt.get()) {
        Ok(ids) => ids.into_iter().flat_map(u32::to_le_bytes).collect(),
        Err(_) => {
            let mut text = Vec::new();
            push_content(&mut text, Some(prompt));
            text
        }
    }
}

/// Adds a content: a string, or the texts in an array of parts, or else the raw JSON.
fn push_content(text: &mut Vec<u8>, content: Option<&RawValue>) {
    let Some(raw) = content.map(RawValue::get).filter(|raw| *raw != "null") else { return };
    if let Some(string) = string(raw) {
        text.extend_from_slice(string.as_bytes());
    } else if let Ok(parts) = serde_json::from_str::<Vec<&RawValue>>(raw) {
        for part in parts {
            push_part(text, part.get());
        }
    } else {
        text.extend_from_slice(raw.as_bytes());
    }
}

fn push_part(text: &mut Vec<u8>, raw: &str) {
    let part = match serde_json::from_str::<TextPart>(raw) {
        Ok(part) => Some(part.text),
        Err(_) => string(raw),
    };
    text.extend_from_slice(part.as_deref().unwrap_or(raw).as_bytes());
}

fn string(raw: &str) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str(raw).ok().map(|Text(text)| text)
}

/// Token `n` of the answer to a prompt: four bytes, so that it is one token again in the next prompt.
pub(crate) fn word(hash: u64, n: u64) -> &'static str {
    const WORDS: [&str; 16] = [
        " the", " sun", " sea", " and", " one", " old", " fox", " ran", " far", " out", " for", " its",
        " own", " new", " day", " now",
    ];
    let mixed = (hash ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    WORDS.get((mixed >> 60) as usize).copied().unwrap_or(" the")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(json: &str) -> String {
        let mut text = Vec::new();
        push_content(&mut text, Some(&RawValue::from_string(json.into()).unwrap()));
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn text_parts_give_their_text_and_others_their_json() {
        assert_eq!(content(r#""a\nb""#), "a\nb");
        assert_eq!(content(r#"[{"type":"text","text":"a"},{"type":"image"},"b"]"#), r#"a{"type":"image"}b"#);
        assert_eq!(content("null"), "");
    }

    #[test]
    fn a_common_prefix_gives_common_blocks_for_the_same_model_and_salt_only() {
        let (short, long) = ("x".repeat(130), "x".repeat(130) + "yz");
        let prompt = |text: &str, model, salt| Prompt::new(text.as_bytes(), model, salt, 16);
        let first = prompt(&short, "m", None);
        assert_eq!((first.tokens, first.blocks.len()), (33, 2));
        assert_eq!(first.blocks, prompt(&long, "m", None).blocks);
        assert_ne!(first.blocks, prompt(&long, "other", None).blocks);
        assert_ne!(first.blocks, prompt(&long, "m", Some("salt")).blocks);
    }

    #[test]
    fn at_least_one_token_is_computed() {
        let prompt = Prompt::new(&[b'x'; 128], "m", None, 16);
        assert_eq!((prompt.tokens, prompt.cached(2, 16)), (32, 16));
    }

    #[test]
    fn words_are_one_token_long() {
        assert!((0..100).all(|n| word(7, n).len() == TOKEN_BYTES));
    }
}
