//! An answer that the gateway gives itself, in the words of the client's API.

use super::Dialect;
use serde_json::json;

/// Why a request goes no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The reason, for a person. Holds nothing of the prompt.
    pub message: String,
    dialect: Dialect,
    /// OpenAI's word for it, where clients go by that.
    code: Option<&'static str>,
}

impl Refusal {
    /// Refuses a request of `dialect` with an HTTP status and a reason.
    pub fn new(dialect: Dialect, status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), dialect, code: None }
    }

    /// Refuses a prompt of about `tokens` tokens that no endpoint can hold; `most` is the longest that one takes.
    pub fn too_long(dialect: Dialect, tokens: u32, most: u32) -> Self {
        let why = format!(
            "the prompt is too long: about {tokens} tokens, and no endpoint of this model takes more than {most}"
        );
        Self { code: Some("context_length_exceeded"), ..Self::new(dialect, 400, why) }
    }

    /// Refuses a request whose client gave it so many milliseconds, all of which have passed.
    pub fn too_late(dialect: Dialect, timeout_ms: u64) -> Self {
        let why =
            format!("the {timeout_ms} ms that this request may take were over before an endpoint was asked");
        Self::new(dialect, 504, why)
    }

    /// The JSON body: Anthropic's error shape for its dialect, OpenAI's for all others.
    pub fn body(&self) -> String {
        let kind = match self.status {
            413 => "request_too_large",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        let body = match self.dialect.is_anthropic() {
            true => json!({"type": "error", "error": {"type": kind, "message": self.message}}),
            false => {
                json!({"error": {"message": self.message, "type": kind, "param": null, "code": self.code}})
            }
        };
        body.to_string()
    }
}
