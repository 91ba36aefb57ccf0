//! Faults on demand: what goes wrong, when, and for how many requests.
//!
//! A fault hits inference requests in order of arrival until its count is used up; everything else
//! (health, metrics, `/requests`) goes on, as it does in an engine whose model is stuck.

use std::sync::Mutex;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing.
    #[default]
    None,
    /// The listener closes and every open connection is reset: at once, or once a request has given
    /// `after_tokens` tokens.
    Die,
    /// The request is accepted and never answered; with `after_tokens`, it stalls after so many tokens.
    Hang,
    /// Status 503 with `Retry-After`.
    #[serde(rename = "http_503")]
    #[value(name = "http_503")]
    Http503,
    /// Status 429 with `Retry-After`.
    #[serde(rename = "http_429")]
    #[value(name = "http_429")]
    Http429,
    /// The answer breaks off after `after_tokens` tokens (0 if not given), without a proper end.
    CutStream,
    /// Status 200 with bytes that are neither JSON nor SSE.
    Garbage,
    /// Everything takes ten times as long.
    Slow,
}

/// A fault, as `POST /fault` takes it. A new one replaces the one before.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    #[arg(id = "fault", long = "fault", value_name = "KIND", value_enum, default_value_t = Kind::None)]
    pub kind: Kind,
    /// After how many tokens of an answer (die, hang, cut_stream).
    #[arg(long = "fault-after-tokens", value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_tokens: Option<u64>,
    /// The value of `Retry-After`, 1 if not given (http_503, http_429).
    #[arg(long = "fault-retry-after-s", value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// How many requests it hits; all if not given.
    #[arg(long = "fault-count", value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl Fault {
    /// A fault of this kind that hits every request.
    pub fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// The same, from the moment an answer has given `tokens` tokens.
    pub fn after_tokens(self, tokens: u64) -> Self {
        Self { after_tokens: Some(tokens), ..self }
    }

    /// The same, for the next `count` requests only.
    pub fn count(self, count: u64) -> Self {
        Self { count: Some(count), ..self }
    }

    pub(crate) fn dies_at_once(&self) -> bool {
        self.kind == Kind::Die && self.after_tokens.is_none()
    }
}

/// The fault in force.
pub(crate) struct Faults(Mutex<Fault>);

impl Faults {
    pub(crate) fn new(fault: Fault) -> Self {
        Self(Mutex::new(fault))
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.0.lock().unwrap() = fault;
    }

    /// What the request that has just arrived meets.
    pub(crate) fn meet(&self) -> Fault {
        let mut fault = self.0.lock().unwrap();
        match &mut fault.count {
            Some(0) => return Fault::default(),
            Some(left) => *left -= 1,
            None => {}
        }
        fault.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_fault_hits_that_many_requests() {
        let faults = Faults::new(Fault::new(Kind::Hang).count(2));
        let met: Vec<Kind> = (0..3).map(|_| faults.meet().kind).collect();
        assert_eq!(met, [Kind::Hang, Kind::Hang, Kind::None]);
    }

    #[test]
    fn kinds_have_the_same_names_in_json_and_on_the_command_line() {
        for kind in Kind::value_variants() {
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json.as_str(), Some(kind.to_possible_value().unwrap().get_name()));
        }
    }
}
