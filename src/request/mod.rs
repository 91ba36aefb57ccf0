//! What a request asks for, or why it is refused.
//!
//! Two steps, as the proxy sees a request: [`plan`] decides from the headers alone whether the body is worth
//! holding; [`read`] makes [`Facts`], the prompt and its blocks from the body. A gateway that read another
//! model than the engine does would be a hole in every limit behind it, so whatever could be read two ways
//! (a repeated `model`, bytes after the document, bad UTF-8) is refused with its reason, never guessed at.
//!
//! The body is read in one pass, straight into the few things wanted: no tree is built, and what is not
//! wanted is skipped without recursion. It is never changed here; [`crate::rewrite`] changes the model's bytes, and needs
//! to know where they are.
//!
//! Not here: compressed and multipart bodies. A body this cannot read is refused (415) on
//! the paths of a known dialect, and passed untouched elsewhere.

mod body;
mod config;
mod dialect;
mod refusal;
mod segment;
mod sink;

pub use config::Config;
pub use dialect::Dialect;
pub use refusal::Refusal;
pub use segment::{Content, Segment};

use crate::block::Blocks;
use body::{Body, Model};
use std::ops::Range;

/// What the headers of a request say about its body.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// `:method`.
    pub method: String,
    /// `:path`, with the query string.
    pub path: String,
    /// `content-type`, empty when there is none.
    pub content_type: String,
    /// `content-encoding`, empty when there is none.
    pub content_encoding: String,
    /// `content-length`, when it is a number.
    pub content_length: Option<u64>,
    /// The client wants another protocol on this connection (`upgrade`, or an extended CONNECT).
    pub upgrade: bool,
}

impl Head {
    /// Collects what matters from header names (lower case) and values.
    pub fn new<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut head = Self::default();
        for (name, value) in headers {
            match name {
                ":method" => head.method = value.into(),
                ":path" => head.path = value.into(),
                "content-type" => head.content_type = value.into(),
                "content-encoding" => head.content_encoding = value.into(),
                "content-length" => head.content_length = value.parse().ok(),
                "upgrade" | ":protocol" => head.upgrade = true,
                _ => {}
            }
        }
        head
    }
}

/// What to do with a request whose headers have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// No inference request that this gateway reads: let it pass untouched, at once.
    Pass,
    /// Hold it until the body is complete, then [`read`] that.
    Read(Dialect),
    /// Answer it now.
    Refuse(Refusal),
}

/// Decides from the headers. `no_body` says that the request ended with them.
pub fn plan(head: &Head, no_body: bool, config: &Config) -> Plan {
    if head.method != "POST" || head.upgrade || head.content_type.starts_with("application/grpc") {
        return Plan::Pass;
    }
    let Some(dialect) = Dialect::of_path(&head.path) else { return Plan::Pass };
    let refuse = |status, why: String| Plan::Refuse(Refusal::new(dialect, status, why));
    if no_body {
        return refuse(400, "the request has no body".into());
    }
    if !matches!(head.content_encoding.as_str(), "" | "identity") {
        return refuse(
            415,
            format!(
                "content-encoding {:?} cannot be read here; send the body as it is",
                head.content_encoding
            ),
        );
    }
    if head.content_type.starts_with("multipart/") {
        return refuse(415, "multipart bodies cannot be read here; send application/json".into());
    }
    if head.content_length.is_some_and(|length| length > config.max_body_bytes as u64) {
        return Plan::Refuse(too_large(dialect, config));
    }
    Plan::Read(dialect)
}

/// The refusal of a body over `max_body_bytes`.
pub fn too_large(dialect: Dialect, config: &Config) -> Refusal {
    let limit = config.max_body_bytes;
    Refusal::new(
        dialect,
        413,
        format!("the body is larger than this gateway's limit of {limit} bytes (max_body_bytes)"),
    )
}

/// What the body told us, without a byte of the prompt: what filters behind `extract` act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The API the client speaks.
    pub dialect: Dialect,
    /// The model to be served: the one asked for, unless [`crate::rewrite`] chose another. `None` only in dialects where
    /// the path alone says it (SGLang `/generate`).
    pub model: Option<String>,
    /// The model asked for, where another is served.
    pub rewritten_from: Option<String>,
    /// The client asks for a stream. A hint: what comes is decided by the answer's content type.
    pub stream: bool,
    /// Estimate of the prompt, in tokens: its bytes, templated, by `bytes_per_token`.
    pub prompt_tokens: u32,
    /// The most output tokens the client allows over all choices; `None` when it set no bound.
    pub max_output_tokens: Option<u32>,
}

/// A body that has been read.
#[derive(Debug)]
pub struct Reading<'a> {
    /// What to publish.
    pub facts: Facts,
    /// The prompt in the order the engine sees it.
    pub prompt: Vec<Segment<'a>>,
    /// Chained hashes of the prompt's full blocks.
    pub blocks: Vec<u64>,
    /// Where the body names the model: the whole JSON string, quotes included. `None` where it cannot be changed in place.
    pub model_at: Option<Range<usize>>,
}

/// Reads a complete body.
pub fn read<'a>(dialect: Dialect, body: &'a [u8], config: &Config) -> Result<Reading<'a>, Refusal> {
    read_as(dialect, body, config, |_| None)
}

/// Reads a complete body whose model may be served by another: `rename` gives that one's name. Facts and blocks are the
/// other's, as the engine will see it.
pub fn read_as<'a>(
    dialect: Dialect,
    whole: &'a [u8],
    config: &Config,
    rename: impl FnOnce(&str) -> Option<String>,
) -> Result<Reading<'a>, Refusal> {
    let refuse = |why: String| Refusal::new(dialect, 400, why);
    if whole.len() > config.max_body_bytes {
        return Err(too_large(dialect, config));
    }
    let text = simdutf8::basic::from_utf8(whole).map_err(|_| refuse("the body is not valid UTF-8".into()))?;
    // A byte order mark is skipped by engines too (Python's json reads it).
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let body = Body::read(text, dialect)
        .map_err(|why| refuse(format!("the body is not the JSON expected here: {why}")))?;
    let model = match &body.model {
        Model::One(name) => Some(check_model(name).map_err(refuse)?.to_owned()),
        Model::Absent if dialect.needs_model() => {
            return Err(refuse("model: missing; name the model to use".into()));
        }
        Model::Absent => None,
        Model::Wrong(why) => return Err(refuse(format!("model: {why}"))),
    };
    if body.has_too_many_pieces() {
        return Err(refuse(format!("the prompt has {} pieces or more", body::MOST_PIECES)));
    }
    let model_at = body.model_at(whole);
    let (model, rewritten_from) = match model.as_deref().and_then(rename) {
        Some(target) if model.as_ref() != Some(&target) => (Some(target), model),
        _ => (model, None),
    };
    let max_output_tokens = dialect.output_bound(&body);
    let seed = body.seed(model.as_deref());
    let stream = body.stream;
    let prompt = body.into_prompt(dialect);
    let mut blocks = Blocks::new(&seed, config.block_bytes(), config.max_blocks);
    for segment in &prompt {
        segment.feed(&mut blocks);
    }
    let (hashes, bytes) = blocks.finish();
    let tokens = bytes.div_ceil(config.bytes_per_token.get() as usize);
    Ok(Reading {
        facts: Facts {
            dialect,
            model,
            rewritten_from,
            stream,
            prompt_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            max_output_tokens,
        },
        prompt,
        blocks: hashes,
        model_at,
    })
}

/// A model's name becomes a header: only what is visible ASCII, and not long.
pub(crate) fn check_model(name: &str) -> Result<&str, String> {
    const MOST: usize = 256;
    if name.is_empty() {
        return Err("model: empty; name the model to use".into());
    }
    if name.len() > MOST {
        return Err(format!("model: {} bytes long; at most {MOST} are accepted", name.len()));
    }
    match name.bytes().find(|byte| !byte.is_ascii_graphic()) {
        Some(byte) => {
            Err(format!("model: has byte 0x{byte:02x}; only visible ASCII without spaces is accepted"))
        }
        None => Ok(name),
    }
}

#[cfg(test)]
mod tests;
