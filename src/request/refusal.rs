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
}

impl Refusal {
    /// Refuses a request of `dialect` with an HTTP status and a reason.
    pub fn new(dialect: Dialect, status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), dialect }
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
            false => json!({"error": {"message": self.message, "type": kind, "param": null, "code": null}}),
        };
        body.to_string()
    }
}
