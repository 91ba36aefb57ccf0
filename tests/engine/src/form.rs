//! The form of an answer: which API, and the parts common to all its pieces.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::{anthropic, openai};

/// The APIs served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/messages`
    Messages,
}

/// Tokens used by a request.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

/// Writes the answer to one request.
pub(crate) struct Form {
    pub(crate) api: Api,
    /// The number in the answer's id, in hex.
    pub(crate) id: String,
    pub(crate) created: u64,
    /// The model's name as JSON.
    pub(crate) model: String,
    pub(crate) include_usage: bool,
}

impl Form {
    pub(crate) fn new(api: Api, id: u64, model: &str, include_usage: bool) -> Self {
        Self {
            api,
            id: format!("{id:016x}"),
            created: unix_s(),
            model: json!(model).to_string(),
            include_usage,
        }
    }

    /// A whole answer.
    pub(crate) fn whole(&self, text: &str, usage: Usage) -> String {
        match self.api {
            Api::Messages => anthropic::whole(self, text, usage),
            Api::Chat | Api::Completions => openai::whole(self, text, usage),
        }
    }

    /// What a stream opens with; may be empty.
    pub(crate) fn head(&self, usage: Usage) -> String {
        match self.api {
            Api::Messages => anthropic::head(self, usage),
            Api::Chat => openai::head(self),
            Api::Completions => String::new(),
        }
    }

    /// One token in a stream.
    pub(crate) fn token(&self, text: &str) -> String {
        match self.api {
            Api::Messages => anthropic::token(text),
            Api::Chat | Api::Completions => openai::token(self, text),
        }
    }

    /// What a stream ends with.
    pub(crate) fn tail(&self, usage: Usage) -> String {
        match self.api {
            Api::Messages => anthropic::tail(usage),
            Api::Chat | Api::Completions => openai::tail(self, usage),
        }
    }
}

/// The time, as the APIs give it.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
