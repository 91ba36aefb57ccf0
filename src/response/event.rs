//! The JSON of an answer, or of one event of a stream, in every dialect: where usage, errors and endings stand.
//!
//! | dialect | usage | end of the stream |
//! |---|---|---|
//! | OpenAI chat, completions, embeddings | `usage`, with `prompt_tokens_details` and `completion_tokens_details` | `[DONE]` |
//! | OpenAI responses | `usage`, in a stream inside `response` of `response.completed` | that event |
//! | Anthropic | `usage`, in a stream inside `message` first, then at the top; its input leaves cached tokens out | `message_stop` |
//! | SGLang `/generate` | `meta_info` | `[DONE]` |

use super::Usage;
use super::overflow::{TOO_LONG, is_overflow};
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

/// What an event of a stream is worth, from a look at its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// A keep-alive, or half an event.
    Nothing,
    /// `[DONE]`.
    End,
    /// Some more output, and nothing to know.
    Delta,
    /// It may hold something to know.
    Parsing,
}

impl Worth {
    pub(super) fn of(data: &[u8], awaiting_first: bool) -> Self {
        match data.trim_ascii() {
            [] => Self::Nothing,
            b"[DONE]" => Self::End,
            // Anthropic and `responses` name their events: only deltas are output, the rest is rare.
            _ if awaiting_first => Self::Parsing,
            data if NOTABLE.iter().any(|key| has_value(data, key)) => Self::Parsing,
            data if data.ends_with(b"}") => Self::Delta,
            _ => Self::Nothing,
        }
    }
}

/// Fields whose value, unless it is null, makes an event worth parsing. `"type"` catches all named events but
/// the deltas of content (see [`has_value`]).
const NOTABLE: [&[u8]; 6] =
    [b"\"usage\"", b"\"finish_reason\"", b"\"stop_reason\"", b"\"error\"", b"\"meta_info\"", b"\"type\""];

/// Whether `key` stands before a value that is not null, nor the type of a mere delta. It may stand inside a
/// text and then the event is parsed for nothing; it is never overlooked.
fn has_value(data: &[u8], key: &[u8]) -> bool {
    memmem::find_iter(data, key).any(|at| {
        let rest = data.get(at.saturating_add(key.len())..).unwrap_or_default().trim_ascii_start();
        rest.strip_prefix(b":").is_some_and(|value| {
            let value = value.trim_ascii_start();
            let mere_delta = key == b"\"type\""
                && [&b"\"content_block_delta\""[..], b"\"text_delta\"", b"\"response.output_text.delta\""]
                    .iter()
                    .any(|mere| value.starts_with(mere));
            !value.starts_with(b"null") && !mere_delta
        })
    })
}

/// What stands in the place of an error where there is none.
const NO_ERROR: [&str; 4] = ["null", "\"\"", "false", "{}"];

/// The fields that tell something, each left unread until somebody asks: one of an odd type spoils no other.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    object: Option<&'a RawValue>,
    usage: Option<&'a RawValue>,
    response: Option<&'a RawValue>,
    message: Option<&'a RawValue>,
    meta_info: Option<&'a RawValue>,
    choices: Option<&'a RawValue>,
    output: Option<&'a RawValue>,
    content: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    results: Option<&'a RawValue>,
    delta: Option<&'a RawValue>,
    text: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    code: Option<&'a RawValue>,
    stop_reason: Option<&'a RawValue>,
    status: Option<&'a RawValue>,
}

/// Usage in the words of any dialect.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Counts {
    #[serde(deserialize_with = "count")]
    prompt_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    completion_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    output_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    total_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cached_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    reasoning_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
    #[serde(deserialize_with = "count")]
    cache_read_input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(deserialize_with = "count")]
    cached_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    reasoning_tokens: Option<u64>,
}

/// A number of tokens; anything else, and what no prompt can have, reads as not said. Some write it as `10.0`.
fn count<'de, D: serde::Deserializer<'de>>(json: D) -> Result<Option<u64>, D::Error> {
    let value = serde_json::Value::deserialize(json)?;
    let whole = |number: f64| (number.fract() == 0.0 && number >= 0.0).then_some(number as u64);
    let count = value.as_u64().or_else(|| whole(value.as_f64()?));
    Ok(count.filter(|count| u32::try_from(*count).is_ok()))
}

/// A usage, on top of what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) usage: Usage,
    /// It says how much was written.
    pub(super) output_said: bool,
}

impl Counts {
    /// On top of what was known; `wrote`: it is of an answer. `None` where it has no number of tokens: to say `{}`, or seconds of audio, is to say nothing.
    fn usage(self, known: Option<Usage>, wrote: bool) -> Option<Counted> {
        let input_details = self.prompt_tokens_details.or(self.input_tokens_details).unwrap_or_default();
        let output_details =
            self.completion_tokens_details.or(self.output_tokens_details).unwrap_or_default();
        // Anthropic counts cached tokens apart from its input; everybody else inside it.
        let apart = self.cache_read_input_tokens.unwrap_or(0);
        let written = self.cache_creation_input_tokens.unwrap_or(0);
        let output = self.completion_tokens.or(self.output_tokens);
        let input = self.prompt_tokens.or(self.input_tokens);
        // Rerankers say the sum and nothing else; of an answer that does not tell how much was written.
        let output_said = output.is_some() || self.total_tokens.is_some() && (input.is_some() || !wrote);
        let rest = |part: Option<u64>| Some(self.total_tokens?.saturating_sub(part.unwrap_or(0)));
        let input = input.map(|n| n.saturating_add(apart).saturating_add(written)).or_else(|| rest(output));
        let output = output.or_else(|| rest(input));
        if input.is_none() && output.is_none() {
            return None;
        }
        let cached = input_details.cached_tokens.or(self.cached_tokens).or(self.cache_read_input_tokens);
        let known = known.unwrap_or_default();
        let total = |known: u64, said: Option<u64>| said.map_or(known, |said| said.max(known));
        let reasoning = output_details.reasoning_tokens.or(self.reasoning_tokens);
        let usage = Usage {
            input: total(known.input, input),
            cached: total(known.cached, cached),
            output: total(known.output, output),
            reasoning: total(known.reasoning, reasoning),
        };
        Some(Counted { usage, output_said })
    }
}

/// The usage at the end of a document of which the beginning was not kept. The last `"usage"` before a colon is it: within a text its
/// quotes would be escaped.
pub(super) fn usage_at_end(tail: &[u8]) -> Option<Counted> {
    const KEY: &[u8] = b"\"usage\"";
    let value = memmem::rfind_iter(tail, KEY).find_map(|at| {
        let after = tail.get(at.saturating_add(KEY.len())..)?.trim_ascii_start();
        after.strip_prefix(b":")
    })?;
    let counts = serde_json::Deserializer::from_slice(value).into_iter::<Counts>().next()?.ok()?;
    counts.usage(None, true)
}

/// One choice of an OpenAI answer. An engine's `finish_reason` may be an object (SGLang).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice<'a> {
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
    delta: Option<&'a RawValue>,
    text: Option<&'a RawValue>,
}

/// `value` read as a `T`, if it is one.
fn read<'a, T: Deserialize<'a>>(value: Option<&'a RawValue>) -> Option<T> {
    value.and_then(|json| serde_json::from_str(json.get()).ok())
}

impl<'a> Event<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// The usage in this event, on top of what was known.
    pub(super) fn usage(&self, known: Option<Usage>) -> Option<Counted> {
        let inner: Option<Event<'_>> = read(self.response).or_else(|| read(self.message));
        let counts: Counts =
            read(self.usage).or_else(|| read(inner?.usage)).or_else(|| read(self.meta_info))?;
        counts.usage(known, self.is_written())
    }

    /// Why the engine stopped.
    pub(super) fn finish(&self) -> Option<String> {
        let choices: Vec<Choice<'_>> = read(self.choices).unwrap_or_default();
        let delta: Option<Event<'_>> = read(self.delta);
        let response: Option<Event<'_>> = read(self.response);
        let meta: Option<Choice<'_>> = read(self.meta_info);
        let reason = choices.iter().find_map(|choice| reason(choice.finish_reason));
        reason
            .or_else(|| self::reason(self.stop_reason))
            .or_else(|| self::reason(delta?.stop_reason))
            .or_else(|| self::reason(meta?.finish_reason))
            .or_else(|| {
                response.and_then(|response| self::reason(response.status)).filter(|_| self.is_last())
            })
    }

    /// The type of the engine's error (what is there and empty is none), or its code where it has none; [`TOO_LONG`] where it says that. In a
    /// stream of the responses API it is the response's.
    pub(super) fn error(&self) -> Option<String> {
        let response: Option<Event<'_>> = read(self.response);
        let said = self.error.or(response.and_then(|response| response.error));
        let said = said.filter(|json| !NO_ERROR.contains(&json.get()));
        let inner: Option<Event<'_>> = read(said);
        let error = match &inner {
            Some(inner) => inner,
            // vLLM before 0.10.1 put the error's fields at the top, and so does the responses API in a stream.
            None if read::<&str>(self.object) == Some("error") => self,
            None if said.is_none() && read::<&str>(self.kind) == Some("error") => self,
            None => {
                let text = said?;
                let is_overflow = is_overflow(None, None, read::<String>(Some(text)).as_deref());
                return Some(if is_overflow { TOO_LONG } else { "error" }.to_owned());
            }
        };
        // There the type says no more than that it is one.
        let kind = read::<String>(error.kind).filter(|kind| inner.is_some() || kind != "error");
        let code =
            read::<String>(error.code).or_else(|| read::<u64>(error.code).map(|code| code.to_string()));
        if is_overflow(kind.as_deref(), code.as_deref(), read::<String>(error.message).as_deref()) {
            return Some(TOO_LONG.to_owned());
        }
        Some(kind.or(code).unwrap_or_else(|| "error".to_owned()))
    }

    /// Whether something was written.
    fn is_written(&self) -> bool {
        [self.choices, self.output, self.content, self.text].into_iter().any(is_filled)
    }

    /// Whether it is a document with an answer in it, written or of another kind.
    pub(super) fn is_answer(&self) -> bool {
        self.is_written() || [self.data, self.results].into_iter().any(is_filled)
    }

    /// Whether the stream is over with this event, in the dialects that say so in JSON.
    pub(super) fn is_last(&self) -> bool {
        matches!(
            read::<&str>(self.kind),
            Some("message_stop" | "response.completed" | "response.incomplete" | "response.failed")
        )
    }

    /// Whether it is of a kind that is known here, so that what it does not carry is not there.
    pub(super) fn is_known(&self) -> bool {
        const KINDS: [&str; 5] = ["response.", "message_", "content_block_", "ping", "error"];
        let kind = read::<&str>(self.kind).unwrap_or_default();
        [self.choices, self.meta_info, self.usage, self.error].iter().any(Option::is_some)
            || read::<&str>(self.object) == Some("error")
            || KINDS.iter().any(|known| kind.starts_with(known))
    }

    /// Whether this event of a stream says no more than that an answer will come: engines send it before they have computed the prompt.
    pub(super) fn is_announcement(&self) -> bool {
        const KINDS: [&str; 5] = [
            "response.created",
            "response.queued",
            "response.in_progress",
            "message_start",
            "content_block_start",
        ];
        match read::<&str>(self.kind) {
            Some(kind) => KINDS.contains(&kind),
            None => self.choices.is_some() && self.finish().is_none() && !self.has_output(),
        }
    }

    /// Whether this event of a stream carries output: text, reasoning, a tool call.
    pub(super) fn has_output(&self) -> bool {
        if let Some(kind) = read::<&str>(self.kind) {
            return kind == "content_block_delta"
                || kind.starts_with("response.") && kind.ends_with(".delta");
        }
        let choices: Vec<Choice<'_>> = read(self.choices).unwrap_or_default();
        self.meta_info.is_some() && says_something(self.text)
            || choices.iter().any(|choice| says_something(choice.text) || says_something(choice.delta))
    }
}

/// Whether there is more than brackets and quotes.
fn is_filled(value: Option<&RawValue>) -> bool {
    value.is_some_and(|json| {
        json.get() != "null" && !json.get().bytes().all(|byte| b" \t\r\n[]{}\"".contains(&byte))
    })
}

/// A reason to finish: a string, or an object with a `type`.
fn reason(value: Option<&RawValue>) -> Option<String> {
    read::<String>(value).or_else(|| read::<String>(read::<Event<'_>>(value)?.kind))
}

/// Whether a delta is more than an announcement of the role.
fn says_something(value: Option<&RawValue>) -> bool {
    match read::<serde_json::Value>(value) {
        Some(serde_json::Value::String(text)) => !text.is_empty(),
        Some(serde_json::Value::Object(delta)) => delta.iter().any(|(key, value)| match value {
            serde_json::Value::String(text) => key != "role" && !text.is_empty(),
            serde_json::Value::Array(list) => !list.is_empty(),
            serde_json::Value::Object(_) => true,
            _ => false,
        }),
        _ => false,
    }
}
