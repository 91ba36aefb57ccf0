//! Errors in the shapes vLLM gives them.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::form::Api;

/// Why a request gets no answer.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
    retry_after_s: Option<u64>,
}

impl Refusal {
    /// The request does not fit the API.
    pub(crate) fn invalid(message: String, param: Option<&'static str>) -> Self {
        let message = format!("1 validation error:\n  {message}");
        Self { status: StatusCode::BAD_REQUEST, kind: "Bad Request", message, param, retry_after_s: None }
    }

    /// The model is not served here.
    pub(crate) fn unknown_model(name: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{name}` does not exist."),
            param: Some("model"),
            retry_after_s: None,
        }
    }

    /// It does not say how long it is.
    pub(crate) fn no_length() -> Self {
        Self {
            status: StatusCode::LENGTH_REQUIRED,
            kind: "BadRequestError",
            message: "Length Required".into(),
            param: None,
            retry_after_s: None,
        }
    }

    /// The request could never run.
    pub(crate) fn too_long(limit: u64, tokens: u64) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: format!(
                "This model's maximum context length is {limit} tokens. However, you requested {tokens} \
                 tokens. Please reduce the length of the input prompt or the number of output tokens."
            ),
            param: Some("input_tokens"),
            retry_after_s: None,
        }
    }

    /// A fault that says to come back later.
    pub(crate) fn later(status: StatusCode, retry_after_s: u64) -> Self {
        let kind = if status == StatusCode::TOO_MANY_REQUESTS {
            "RateLimitError"
        } else {
            "ServiceUnavailableError"
        };
        let message = "Asked to fail by a fault".into();
        Self { status, kind, message, param: None, retry_after_s: Some(retry_after_s) }
    }

    pub(crate) fn into_response(self, api: Api) -> Response {
        let body = match api {
            Api::Messages => {
                json!({"type": "error", "error": {"type": self.kind, "message": self.message}})
            }
            Api::Chat | Api::Completions => json!({"error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status.as_u16(),
            }}),
        };
        let json = [(CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json, body.to_string()).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}
