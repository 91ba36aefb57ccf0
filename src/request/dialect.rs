//! The APIs that clients speak: where they are found, and what of a body matters there. One row each.

use super::body::Body;

/// An API for inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI completions.
    Completions,
    /// OpenAI responses.
    Responses,
    /// OpenAI embeddings.
    Embeddings,
    /// OpenAI moderations.
    Moderations,
    /// OpenAI images: generations, and edits and variations, which upload some.
    Images,
    /// OpenAI speech from text.
    Speech,
    /// OpenAI text from speech: transcriptions and translations, which upload it.
    Transcriptions,
    /// Anthropic messages.
    Messages,
    /// Anthropic's count of a message's tokens.
    CountTokens,
    /// vLLM's tokens in, tokens out.
    Tokens,
    /// SGLang's own.
    Generate,
    /// Documents by how well they answer a query: Jina's and Cohere's, as vLLM and SGLang serve them.
    Rerank,
    /// vLLM's and SGLang's scores of pairs.
    Score,
    /// vLLM's and SGLang's classes.
    Classify,
    /// vLLM's hidden states.
    Pooling,
}

/// What is known of a dialect.
struct Row {
    dialect: Dialect,
    /// Its short name, between filters, in logs and in configuration.
    name: &'static str,
    /// Ends of its paths. The longest that fits a path wins.
    paths: &'static [&'static str],
    /// The fields that hold the prompt, besides tools and system.
    prompt: &'static [&'static str],
    /// A request without a model is an error here. Elsewhere the API has a default, or the engine has one model.
    needs_model: bool,
    /// The body may be `multipart/form-data`.
    uploads: bool,
    /// The most tokens that the client lets the engine write per answer. Where the API documents a default it is used.
    output: fn(&Body<'_>) -> Option<u64>,
}

#[rustfmt::skip]
static TABLE: [Row; 16] = {
    use Dialect::{
        Chat, Classify, Completions, CountTokens, Embeddings, Generate, Images, Messages, Moderations, Pooling, Rerank,
        Responses, Score, Speech, Tokens, Transcriptions,
    };
    const fn row(
        dialect: Dialect, name: &'static str, paths: &'static [&'static str], prompt: &'static [&'static str],
        needs_model: bool, uploads: bool, output: fn(&Body<'_>) -> Option<u64>,
    ) -> Row {
        Row { dialect, name, paths, prompt, needs_model, uploads, output }
    }
    const IMAGE_PATHS: &[&str] = &["/images/generations", "/images/edits", "/images/variations"];
    const SPOKEN: &[&str] = &["/audio/transcriptions", "/audio/translations"];
    const PAIRS: &[&str] = &["text_1", "text_2", "query", "queries", "documents", "items"];
    [
        //  dialect         name              paths                         prompt                 model? uploads? output
        row(Chat,           "chat",           &["/chat/completions"],       &["messages"],         true,  false, chat),
        row(Completions,    "completions",    &["/completions"],            &["prompt"],           true,  false, completions),
        row(Responses,      "responses",      &["/responses"],              &["input"],            true,  false, responses),
        row(Embeddings,     "embeddings",     &["/embeddings"],             &["input", "messages"], true, false, nothing),
        row(Moderations,    "moderations",    &["/moderations"],            &["input"],            false, false, nothing),
        row(Images,         "images",         IMAGE_PATHS,                  &["prompt"],           false, true,  unknown),
        row(Speech,         "speech",         &["/audio/speech"],           &["input"],            true,  false, unknown),
        row(Transcriptions, "transcriptions", SPOKEN,                       &["prompt"],           true,  true,  spoken_words),
        row(Messages,       "messages",       &["/v1/messages"],            &["messages"],         true,  false, messages),
        row(CountTokens,    "count_tokens",   &["/v1/messages/count_tokens"], &["messages"],       true,  false, nothing),
        row(Tokens,         "tokens",         &["/inference/v1/generate"],  &["token_ids"],        false, false, tokens),
        row(Generate,       "generate",       &["/generate"],               &["text", "input_ids"], false, false, generate),
        row(Rerank,         "rerank",         &["/rerank"],                 &["query", "documents"], false, false, nothing),
        row(Score,          "score",          &["/score"],                  PAIRS,                 false, false, nothing),
        row(Classify,       "classify",       &["/classify"],               &["input", "text", "messages"], false, false, nothing),
        row(Pooling,        "pooling",        &["/pooling"],                &["input", "messages"], false, false, nothing),
    ]
};

/// It writes none.
fn nothing(_: &Body<'_>) -> Option<u64> {
    Some(0)
}

/// The API has no such bound.
fn unknown(_: &Body<'_>) -> Option<u64> {
    None
}

fn chat(body: &Body<'_>) -> Option<u64> {
    body.max_tokens.larger(body.max_completion_tokens).or(None)
}

fn completions(body: &Body<'_>) -> Option<u64> {
    body.max_tokens.or(Some(16))
}

fn responses(body: &Body<'_>) -> Option<u64> {
    body.max_output_tokens.or(None)
}

fn messages(body: &Body<'_>) -> Option<u64> {
    body.max_tokens.or(None)
}

fn spoken_words(body: &Body<'_>) -> Option<u64> {
    body.max_completion_tokens.or(None)
}

fn tokens(body: &Body<'_>) -> Option<u64> {
    body.sampled.or(Some(16))
}

fn generate(body: &Body<'_>) -> Option<u64> {
    body.sampled.or(Some(128))
}

impl Dialect {
    /// All of them, in the table's order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.dialect)
    }

    /// The dialect whose path a path ends in, if there is one, and how long that end is.
    pub(super) fn of_end(path: &str) -> Option<(Self, usize)> {
        let ends = TABLE.iter().flat_map(|row| row.paths.iter().map(|end| (row.dialect, *end)));
        ends.filter(|(_, end)| path.ends_with(end))
            .map(|(dialect, end)| (dialect, end.len()))
            .max_by_key(|(_, length)| *length)
    }

    /// The short name used between filters, in logs and in configuration.
    pub fn name(self) -> &'static str {
        self.row().map_or("", |row| row.name)
    }

    /// The dialect of a short name.
    pub fn of_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.dialect)
    }

    /// Its errors have Anthropic's shape; those of all others have OpenAI's.
    pub(crate) fn is_anthropic(self) -> bool {
        matches!(self, Self::Messages | Self::CountTokens)
    }

    pub(super) fn prompt_fields(self) -> &'static [&'static str] {
        self.row().map_or(&[], |row| row.prompt)
    }

    pub(super) fn needs_model(self) -> bool {
        self.row().is_some_and(|row| row.needs_model)
    }

    pub(super) fn uploads(self) -> bool {
        self.row().is_some_and(|row| row.uploads)
    }

    /// The most tokens that the client lets the engine write, over all answers.
    pub(super) fn output_bound(self, body: &Body<'_>) -> Option<u32> {
        let tokens = (self.row()?.output)(body)?.saturating_mul(self.answers(body)?);
        Some(u32::try_from(tokens).unwrap_or(u32::MAX))
    }

    /// Tokens that the client has the engine write at the least, over all answers.
    pub(super) fn output_floor(self, body: &Body<'_>) -> u32 {
        let each = body.min_tokens.or(None).unwrap_or(0);
        let tokens = each.saturating_mul(self.answers(body).unwrap_or(1));
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Answers asked for, over all prompts.
    pub(super) fn choices(self, body: &Body<'_>) -> Option<u32> {
        Some(u32::try_from(self.answers(body)?).unwrap_or(u32::MAX))
    }

    fn answers(self, body: &Body<'_>) -> Option<u64> {
        match self {
            Self::Chat | Self::Images | Self::Tokens => body.choices(),
            Self::Completions | Self::Generate => Some(body.choices()?.saturating_mul(body.prompts())),
            _ => Some(1),
        }
    }

    fn row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.dialect == self)
    }
}
