//! A piece of the prompt, in the order in which the engine sees them.

use super::sink::Inner;
use super::size::Size;
use crate::block::Blocks;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use xxhash_rust::xxh64::xxh64;

/// What a piece of the prompt holds.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// Text, unescaped.
    Text(Cow<'a, str>),
    /// Anything else, as the client wrote it: tools, a tool call.
    Raw(&'a RawValue),
    /// Token ids, four bytes each, little end first.
    Tokens(Vec<u8>),
    /// An image, a sound, a document: as the client wrote it, or the file that it uploaded.
    Media(&'a [u8]),
}

/// A piece of the prompt.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// Who speaks, or the name of the field where nobody does; empty for a bare prompt.
    pub role: Cow<'a, str>,
    /// What is said.
    pub content: Content<'a>,
}

/// The fields of a message's parts that hold images, sounds and documents, of OpenAI's API and of vLLM's and SGLang's
/// extensions of it. Anthropic's are in `source`.
const MEDIA: [&str; 11] = [
    "image_url",
    "image",
    "image_embeds",
    "input_audio",
    "audio_url",
    "audio_embeds",
    "video_url",
    "file",
    "file_data",
    "file_id",
    "file_url",
];

impl<'a> Content<'a> {
    /// What the field of a part holds, if it is not its text.
    pub(super) fn of(field: &str, json: &'a RawValue) -> Self {
        let media = match field {
            // A document may come as text too.
            "source" => {
                let kind = Inner::of(Some(json), "type").text;
                kind.is_some_and(|kind| ["base64", "url", "file"].contains(&&*kind))
            }
            field => MEDIA.contains(&field),
        };
        if media { Self::Media(json.get().as_bytes()) } else { Self::Raw(json) }
    }
}

/// What images and the like of one prompt count as.
pub(super) struct Media {
    tokens: u16,
    bytes: usize,
    room: u32,
}

impl Media {
    /// Each as so many tokens, of so many bytes.
    pub(super) fn new(tokens: u16, bytes_per_token: u32) -> Self {
        // That count, of one request, and bytes of each: there is more to hash of one than to send.
        const MOST: u32 = 1_000;
        const MOST_BYTES: u32 = 1 << 18;
        let bytes = u32::from(tokens).saturating_mul(bytes_per_token).min(MOST_BYTES) as usize;
        Self { tokens, bytes, room: MOST }
    }

    /// An engine turns an image into tokens by its content, about as many whatever its bytes: here its digest is repeated
    /// to the length that those would have.
    fn feed(&mut self, content: &[u8], blocks: &mut Blocks) -> u64 {
        let digest = xxh64(content, 0).to_le_bytes();
        blocks.feed(&digest);
        let Some(room) = self.room.checked_sub(1) else { return 0 };
        self.room = room;
        let mut line = [0; 512];
        line.as_chunks_mut().0.iter_mut().for_each(|eight| *eight = digest);
        let mut left = self.bytes.saturating_sub(digest.len());
        while left > 0 {
            let piece = line.get(..left).unwrap_or(&line);
            blocks.feed(piece);
            left = left.saturating_sub(piece.len());
        }
        u64::from(self.tokens)
    }
}

impl Segment<'_> {
    /// Feeds the segment to the blocks, and says how long it is: the role counts as well as the text, and both are marked
    /// off, since a chat template marks them off too.
    pub(super) fn feed(&self, blocks: &mut Blocks, media: &mut Media, size: &mut Size) {
        let mut text = 0;
        if !self.role.is_empty() {
            blocks.feed(b"\x01");
            blocks.feed(self.role.as_bytes());
            blocks.feed(b"\x02");
            text = self.role.len() + 2;
        }
        match &self.content {
            Content::Text(said) => {
                blocks.feed(said.as_bytes());
                text += said.len();
            }
            Content::Raw(json) => {
                blocks.feed(json.get().as_bytes());
                text += json.get().len();
            }
            Content::Tokens(ids) => {
                blocks.feed(ids);
                size.tokens = size.tokens.saturating_add((ids.len() / 4) as u64);
            }
            Content::Media(content) => {
                size.tokens = size.tokens.saturating_add(media.feed(content, blocks));
            }
        }
        size.text = size.text.saturating_add(text as u64);
    }
}

/// `role: text`; what is not text stands in brackets.
impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = &self.role;
        match &self.content {
            Content::Text(text) if role.is_empty() => f.write_str(text),
            Content::Text(text) => write!(f, "{role}: {text}"),
            Content::Raw(json) if role == "tools" => write!(f, "[tools: {}]", tool_names(json).join(", ")),
            Content::Raw(json) => write!(f, "[{role}: {} bytes]", json.get().len()),
            Content::Tokens(ids) => write!(f, "[{} token ids]", ids.len() / 4),
            Content::Media(bytes) => write!(f, "[{role}: {} bytes]", bytes.len()),
        }
    }
}

/// The names in a list of tools, in OpenAI's shape or Anthropic's.
fn tool_names(tools: &RawValue) -> Vec<String> {
    let tools: Vec<serde_json::Value> = serde_json::from_str(tools.get()).unwrap_or_default();
    let name = |tool: &serde_json::Value| {
        let name = tool.get("function").unwrap_or(tool).get("name").or_else(|| tool.get("type"));
        name.and_then(|name| name.as_str()).unwrap_or("?").to_owned()
    };
    tools.iter().map(name).collect()
}
