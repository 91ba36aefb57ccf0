//! What a client is told when no endpoint may be sent to: 429 or 503 in the words of its API, and when to come again.

use super::gate::Shut;
use crate::request::Dialect;
use serde_json::json;

/// An answer instead of an endpoint's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers besides `content-type`.
    pub headers: Vec<(&'static str, String)>,
    /// A JSON body.
    pub body: String,
}

impl Shut {
    /// Whole seconds to wait, rounded up: after them an endpoint may be sent to.
    pub fn retry_after_s(&self) -> u64 {
        u64::try_from(self.wait.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u64::MAX).max(1)
    }

    /// The answer to a client of `dialect`.
    pub fn answer(&self, dialect: Dialect) -> Answer {
        let wait = self.retry_after_s();
        let message = match self.status {
            429 => format!("all endpoints of this model are at their limits; try again in {wait} s"),
            _ => format!("no endpoint of this model can serve at the moment; try again in {wait} s"),
        };
        let (anthropic, openai, code) = match self.status {
            429 => ("rate_limit_error", "requests", "rate_limit_exceeded"),
            _ => ("overloaded_error", "server_error", "service_unavailable"),
        };
        let body = match dialect.is_anthropic() {
            true => json!({"type": "error", "error": {"type": anthropic, "message": message}}),
            false => json!({"error": {"message": message, "type": openai, "param": null, "code": code}}),
        };
        let mut headers = vec![("retry-after", wait.to_string())];
        if !dialect.is_anthropic() {
            // OpenAI's clients prefer this one.
            headers.push(("retry-after-ms", self.wait.as_millis().max(1).to_string()));
        }
        Answer { status: self.status, headers, body: body.to_string() }
    }
}
