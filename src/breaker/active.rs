//! Trying an endpoint that is out without a client's request.
//!
//! By default the next request is the probe, so that nothing has to be configured and what is tried is what is wanted; its client waits for
//! a retry if it fails. With an active probe no request is risked: whoever keeps the pool (`pick`, the scorer) asks the engine's health path
//! and, since an engine can be healthy and unable to compute, has it answer a small request. Both must succeed.
//!
//! An answer below 500 that is not 429 is a success, whatever it says: an engine that has no such path is there. Were it
//! none, a mistyped path would keep every endpoint out for ever.

use super::outcome::{Outcome, Reason};
use crate::invalid::Invalid;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::num::NonZeroU64;
use std::time::Duration;

/// How endpoints that are out are tried.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveProbe {
    /// Asked by GET; `null`: nothing is.
    pub path: Option<String>,
    /// A request sent then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<ProbeRequest>,
    /// Milliseconds that an engine has for each of the two.
    pub timeout_ms: NonZeroU64,
}

/// A small request, as a client would send it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeRequest {
    /// Where it is POSTed.
    pub path: String,
    /// Its JSON body, with the model's name as the engine has it.
    pub body: Map<String, Value>,
}

impl Default for ActiveProbe {
    fn default() -> Self {
        const SECONDS: NonZeroU64 = NonZeroU64::new(2_000).unwrap();
        Self { path: Some("/health".to_owned()), request: None, timeout_ms: SECONDS }
    }
}

/// One of the questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Where.
    pub path: String,
    /// A JSON body to POST; nothing: a GET.
    pub body: Vec<u8>,
}

impl ActiveProbe {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let wrong = |path: &str| !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(path) = self.path.as_ref().filter(|path| wrong(path)) {
            return Err(Invalid::new("path", format!("{path:?} is no path")));
        }
        if let Some(ProbeRequest { path, .. }) = self.request.as_ref().filter(|request| wrong(&request.path))
        {
            return Err(Invalid::new("request.path", format!("{path:?} is no path")));
        }
        match (&self.path, &self.request) {
            (None, None) => Err(Invalid::new("", "nothing is asked; name a `path` or a `request`")),
            _ => Ok(()),
        }
    }

    /// What is asked, one after the other.
    pub fn questions(&self) -> Vec<Question> {
        let health = self.path.iter().map(|path| Question { path: path.clone(), body: Vec::new() });
        let request = self.request.iter().map(|request| Question {
            path: request.path.clone(),
            body: serde_json::to_vec(&request.body).unwrap_or_default(),
        });
        health.chain(request).collect()
    }

    /// For how long each is waited for.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.get())
    }

    /// What a question came to that was answered with this status; 0: with none. A proxy on the way says 503 and 504 of engines that
    /// do not answer.
    pub fn outcome(status: u16) -> Outcome {
        match status {
            0 | 503 => Outcome::failed(Reason::Connect),
            504 => Outcome::failed(Reason::Timeout),
            429 | 500.. => Outcome::of_status(status, None),
            _ => Outcome::of_status(200, None),
        }
    }
}
