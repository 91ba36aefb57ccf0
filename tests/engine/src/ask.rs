//! What a request asks for: the part of its body that matters to the engine.

use std::borrow::Cow;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::config::Config;
use crate::form::Api;
use crate::prompt::{self, Message, Prompt};
use crate::refusal::Refusal;

/// Tokens answered when the request sets no limit.
const OUTPUT: u64 = 16;

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default)]
    system: Option<&'a RawValue>,
    #[serde(borrow, default)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache_salt: Option<Cow<'a, str>>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

/// A request understood.
pub(crate) struct Ask {
    pub(crate) model: String,
    pub(crate) prompt: Prompt,
    pub(crate) output: u64,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

impl Ask {
    pub(crate) fn read(api: Api, headers: &HeaderMap, body: &[u8], config: &Config) -> Result<Self, Refusal> {
        let content_type = headers.get(CONTENT_TYPE).map_or("".as_bytes(), |value| value.as_bytes());
        if !content_type.starts_with(b"application/json") {
            let message = "Unsupported Media Type: Only 'application/json' is allowed";
            return Err(Refusal::invalid(message.into(), None));
        }
        let body: Body<'_> = serde_json::from_slice(body)
            .map_err(|error| Refusal::invalid(format!("JSON decode error: {error}"), None))?;

        let default = config.models.first().map_or("", String::as_str);
        let model = body.model.as_deref().unwrap_or(default);
        if !config.models.iter().any(|served| served == model) {
            return Err(Refusal::unknown_model(model));
        }

        let text = match (api, &body.messages, body.prompt) {
            (Api::Completions, _, Some(prompt)) => prompt::of_completion(prompt),
            (Api::Completions, _, None) => return Err(missing("body.prompt")),
            (_, Some(messages), _) => prompt::of_chat(body.tools, body.system, messages),
            (_, None, _) => return Err(missing("body.messages")),
        };
        let prompt = Prompt::new(&text, model, body.cache_salt.as_deref(), config.block_size);

        let output = body.max_completion_tokens.or(body.max_tokens).unwrap_or(OUTPUT);
        if output == 0 {
            return Err(Refusal::invalid("max_tokens must be at least 1".into(), Some("max_tokens")));
        }
        let needed = prompt.tokens.saturating_add(output);
        if needed > config.kv_tokens {
            return Err(Refusal::too_long(config.kv_tokens, needed));
        }
        let include_usage = body.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let stream = body.stream.unwrap_or(false);
        Ok(Self { model: model.to_owned(), prompt, output, stream, include_usage })
    }
}

fn missing(at: &'static str) -> Refusal {
    Refusal::invalid(format!("{{'type': 'missing', 'loc': '{at}', 'msg': 'Field required'}}"), Some(at))
}
