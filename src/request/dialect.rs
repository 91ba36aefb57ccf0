//! The APIs that clients speak: where they are found, and what bounds their output. One row each.

use super::body::Body;

/// An API for inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI `/v1/chat/completions`.
    Chat,
    /// OpenAI `/v1/completions`.
    Completions,
    /// OpenAI `/v1/responses`.
    Responses,
    /// OpenAI `/v1/embeddings`.
    Embeddings,
    /// Anthropic `/v1/messages`.
    Messages,
    /// SGLang `/generate`.
    Generate,
}

/// The end of the path and the short name of each dialect. A longer suffix stands before one that it ends in.
const TABLE: [(Dialect, &str, &str); 6] = [
    (Dialect::Chat, "/chat/completions", "chat"),
    (Dialect::Completions, "/completions", "completions"),
    (Dialect::Responses, "/responses", "responses"),
    (Dialect::Embeddings, "/embeddings", "embeddings"),
    (Dialect::Messages, "/messages", "messages"),
    (Dialect::Generate, "/generate", "generate"),
];

impl Dialect {
    /// The dialect of a path, by its end: gateways put prefixes before it. The query string does not count.
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        TABLE.iter().find(|(_, suffix, _)| path.ends_with(suffix)).map(|(dialect, ..)| *dialect)
    }

    /// The short name used between filters and in logs.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|(dialect, ..)| *dialect == self).map_or("", |(_, _, name)| name)
    }

    /// The dialect of a short name.
    pub fn of_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|(_, _, own)| *own == name).map(|(dialect, ..)| *dialect)
    }

    /// The fields that hold the prompt, besides tools and system.
    pub(super) fn prompt_fields(self) -> &'static [&'static str] {
        match self {
            Self::Chat | Self::Messages => &["messages"],
            Self::Completions => &["prompt"],
            Self::Responses => &["input"],
            Self::Embeddings => &["input", "messages"],
            Self::Generate => &["text", "input_ids"],
        }
    }

    /// Whether a request without a model is an error here. An SGLang engine serves one model and asks for none.
    pub(super) fn needs_model(self) -> bool {
        self != Self::Generate
    }

    /// The most tokens that the client lets the engine write, over all prompts and choices. Where the API
    /// documents a default it is used: 16 for completions, 128 for SGLang.
    pub(super) fn output_bound(self, body: &Body<'_>) -> Option<u32> {
        let tokens = match self {
            Self::Chat => body.max_tokens.max(body.max_completion_tokens)?.saturating_mul(body.choices()),
            Self::Completions => {
                body.max_tokens.unwrap_or(16).saturating_mul(body.choices()).saturating_mul(body.prompts())
            }
            Self::Responses => body.max_output_tokens?,
            Self::Embeddings => 0,
            Self::Messages => body.max_tokens?,
            Self::Generate => body
                .max_new_tokens
                .unwrap_or(128)
                .saturating_mul(body.choices())
                .saturating_mul(body.prompts()),
        };
        Some(u32::try_from(tokens).unwrap_or(u32::MAX))
    }
}
