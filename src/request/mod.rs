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
//! `docs/bodies.md` has the table of such cases, and what is made of each.
//!
//! A body this cannot read is refused (415) on the paths of a known dialect, and passed
//! untouched elsewhere.

mod body;
mod caller;
mod coding;
mod config;
mod deadline;
mod dialect;
mod facts;
mod head;
mod multipart;
mod parameters;
mod path;
mod refusal;
mod segment;
mod sink;
mod size;
mod unread;

pub(crate) use caller::word;
pub use caller::{Caller, Kind, Names};
pub use config::{Compressed, Config};
pub use dialect::Dialect;
pub use facts::Facts;
pub use head::{Head, Incoming, Plan, plan};
pub use path::Paths;
pub use refusal::Refusal;
pub use segment::{Content, Segment};
pub use size::{Ratio, Ratios, Size};

use crate::block::Blocks;
use body::{Body, Model};
use coding::Broken;
pub(crate) use coding::Coding;
use head::Form;
use segment::Media;
use std::borrow::Cow;
use std::ops::Range;

/// The refusal of a body over `max_body_bytes`.
pub fn too_large(dialect: Dialect, config: &Config) -> Refusal {
    let limit = config.max_body_bytes;
    Refusal::new(
        dialect,
        413,
        format!("the body is larger than this gateway's limit of {limit} bytes (max_body_bytes)"),
    )
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
    /// How long the prompt is, to estimate its tokens by another ratio than the configured one.
    pub size: Size,
    /// Where the body names the model: the whole JSON string, quotes included. `None` where it cannot be changed in place.
    pub model_at: Option<Range<usize>>,
}

impl Incoming {
    /// The body to [`read`](Self::read), decoded where it came compressed.
    pub fn decode<'a>(&self, body: &'a [u8], config: &Config) -> Result<Cow<'a, [u8]>, Refusal> {
        if body.len() > config.max_body_bytes {
            return Err(too_large(self.dialect, config));
        }
        let Some(coding) = self.coding else { return Ok(body.into()) };
        let most = config.max_decoded_bytes;
        coding.decode(body, most).map(Cow::Owned).map_err(|broken| {
            let (status, why) = match broken {
                Broken::TooLarge => {
                    (413, format!("the decoded body is larger than this gateway's limit of {most} bytes (max_decoded_bytes)"))
                }
                Broken::Damaged => (400, "the body is not what its content-encoding says, or is cut off".into()),
                Broken::Plain => (400, "the body has a content-encoding and is plain JSON all the same".into()),
            };
            Refusal::new(self.dialect, status, why)
        })
    }

    /// Who sends it, to tell one client from another.
    pub fn client(&self) -> Option<u64> {
        self.caller.client()
    }

    /// Reads a complete and decoded body.
    pub fn read<'a>(&self, body: &'a [u8], config: &Config) -> Result<Reading<'a>, Refusal> {
        self.read_as(body, config, |_, _| None)
    }

    /// Reads a complete and decoded body whose model may be served by another: `rename` is given its name and what stands
    /// for the session, if there is one, and gives the other's. Facts and blocks are the other's, as the engine will see it.
    pub fn read_as<'a>(
        &self,
        whole: &'a [u8],
        config: &Config,
        rename: impl FnOnce(&str, Option<u64>) -> Option<String>,
    ) -> Result<Reading<'a>, Refusal> {
        let dialect = self.dialect;
        let refuse = |why: String| Refusal::new(dialect, 400, why);
        let body = match &self.form {
            Form::Json => read_json(whole, dialect),
            Form::Parts(boundary) => multipart::read(whole, boundary, dialect),
        };
        let body = body.map_err(refuse)?;
        let model = match &body.model {
            _ if body.twice.is_some() => None,
            Model::One(name) => Some(check_model(name).map_err(refuse)?.to_owned()),
            Model::Absent if dialect.needs_model() => {
                return Err(refuse("model: missing; name the model to use".into()));
            }
            Model::Absent => None,
            Model::Wrong(why) => return Err(refuse(format!("model: {why}"))),
        };
        if let Some(field) = body.twice {
            return Err(refuse(format!("{field}: given more than once")));
        }
        if body.has_too_many_pieces() {
            return Err(refuse(format!("the prompt has {} pieces or more", body::MOST_PIECES)));
        }
        let model_at = body.model_at(whole).filter(|_| self.coding.is_none());
        let session = self.caller.session().or_else(|| Some(config.id(Kind::Session, &body.session()?)));
        let (model, rewritten_from) = match model.as_deref().and_then(|model| rename(model, session)) {
            Some(target) if model.as_ref() != Some(&target) => (Some(target), model),
            _ => (model, None),
        };
        let seed = body.seed(model.as_deref());
        let mut facts = Facts::new(self, model, &body, config);
        let mut size = body.unread;
        let prompt = body.into_prompt(dialect);
        let mut blocks = Blocks::new(&seed, config.unit_bytes(), config.max_blocks);
        let bytes_per_token = config.bytes_per_token.get();
        let mut media = Media::new(config.media_tokens, bytes_per_token);
        for segment in &prompt {
            segment.feed(&mut blocks, &mut media, &mut size);
        }
        let (hashes, bytes) = blocks.finish();
        facts.prompt_tokens = size.tokens(Ratio::of(bytes_per_token));
        facts.prompt_units = u32::try_from(bytes.div_ceil(config.unit_bytes())).unwrap_or(u32::MAX);
        facts.rewritten_from = rewritten_from;
        facts.session = session;
        Ok(Reading { facts, prompt, blocks: hashes, size, model_at })
    }
}

/// Reads a complete body of plain JSON.
pub fn read<'a>(dialect: Dialect, body: &'a [u8], config: &Config) -> Result<Reading<'a>, Refusal> {
    if body.len() > config.max_body_bytes {
        return Err(too_large(dialect, config));
    }
    Incoming::from(dialect).read(body, config)
}

fn read_json(body: &[u8], dialect: Dialect) -> Result<Body<'_>, String> {
    // Python's json takes these two for their marks, or for the NULs they have in them.
    if let [0xfe, 0xff, ..] | [0xff, 0xfe, ..] | [0, ..] | [_, 0, ..] = body {
        return Err("the body looks like UTF-16 or UTF-32; send UTF-8".into());
    }
    let text = simdutf8::basic::from_utf8(body).map_err(|_| "the body is not valid UTF-8")?;
    // A byte order mark is skipped by engines too (Python's json reads it).
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Body::read(text, dialect).map_err(|why| not_json(&why))
}

/// Why a body is no JSON object. Of a value of another type serde quotes all, and that may be the prompt.
fn not_json(why: &serde_json::Error) -> String {
    match why.is_data() {
        true => "the body is not a JSON object".into(),
        false => format!("the body is not the JSON expected here: {why}"),
    }
}

/// A model's name: short, and without anything that must not come near a header. What else no header can hold,
/// [`crate::wire::encode`] takes care of.
pub(crate) fn check_model(name: &str) -> Result<&str, String> {
    const MOST: usize = 256;
    if name.trim().is_empty() {
        return Err("model: empty; name the model to use".into());
    }
    if name.len() > MOST {
        return Err(format!("model: {} bytes long; at most {MOST} are accepted", name.len()));
    }
    match name.chars().find(|char| char.is_control()) {
        Some(char) => Err(format!("model: has the control character U+{:04X}", u32::from(char))),
        None => Ok(name),
    }
}

#[cfg(test)]
mod tests;
