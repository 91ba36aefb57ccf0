//! A piece of the prompt, in the order in which the engine sees them.

use crate::block::Blocks;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// What a piece of the prompt holds.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// Text, unescaped.
    Text(Cow<'a, str>),
    /// Anything else, as the client wrote it: tools, an image, a tool call.
    Raw(&'a RawValue),
    /// Token ids, four bytes each, little end first.
    Tokens(Vec<u8>),
    /// A file that was uploaded.
    File(&'a [u8]),
}

/// A piece of the prompt.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// Who speaks, or the name of the field where nobody does; empty for a bare prompt.
    pub role: Cow<'a, str>,
    /// What is said.
    pub content: Content<'a>,
}

impl Segment<'_> {
    /// Feeds the segment to the blocks: the role counts as well as the text, and both are marked off, since a
    /// chat template marks them off too.
    pub(super) fn feed(&self, blocks: &mut Blocks) {
        if !self.role.is_empty() {
            blocks.feed(b"\x01");
            blocks.feed(self.role.as_bytes());
            blocks.feed(b"\x02");
        }
        match &self.content {
            Content::Text(text) => blocks.feed(text.as_bytes()),
            Content::Raw(json) => blocks.feed(json.get().as_bytes()),
            Content::Tokens(ids) => blocks.feed(ids),
            Content::File(bytes) => blocks.feed(bytes),
        }
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
            Content::File(bytes) => write!(f, "[{role}: {} bytes]", bytes.len()),
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
