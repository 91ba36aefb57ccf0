//! What an attempt at an endpoint came to, and what that says of the endpoint.
//!
//! | class | outcomes | says |
//! |---|---|---|
//! | success | a status below 400, and an answer that came to its end | it serves |
//! | neutral | other statuses of 4xx, 501; a request that is too long for this one; the client left | nothing: the endpoint did what was right |
//! | busy | 429, 529, 503 with a `Retry-After`; a rate limit or overload inside a 200 | leave it alone for a while; it is not broken |
//! | failure | all other statuses from 500 on; no connection, a lost one, no answer in time or a later one than a copy's, an answer that broke off, an error or garbage inside a 200 | count it |
//!
//! A too long prompt, answered with 400, is the commonest "error" of LLM engines, and a full queue the second: counting
//! either as a failure takes healthy endpoints out of a pool.

use crate::response::{BROKEN_OFF, TOO_LONG};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How an attempt failed, where no status of the endpoint's says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// There was no connection to be had.
    Connect,
    /// The connection was lost before the answer began.
    Reset,
    /// No answer began in time, or it fell silent for too long.
    Timeout,
    /// The answer broke off.
    Cut,
    /// The engine's error inside an answer of status 200.
    Error,
    /// An answer of status 200 that is none.
    Garbage,
    /// A copy of the request, sent elsewhere later, was answered first.
    Slow,
}

impl Reason {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Connect, "connect"),
        (Self::Reset, "reset"),
        (Self::Timeout, "timeout"),
        (Self::Cut, "cut"),
        (Self::Error, "error"),
        (Self::Garbage, "garbage"),
        (Self::Slow, "slow"),
    ];

    /// As written in configuration and logs.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(own, _)| *own == self).map_or("", |(_, name)| name)
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The endpoint answered with this status, and the answer came to its end.
    Status(u16),
    /// It did not.
    Failed(Reason),
    /// The endpoint said that the request does not fit into its context; another one's may be larger.
    TooLong,
    /// The client left, or the request never got so far.
    Gone,
}

/// What that says of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It serves.
    Success,
    /// Nothing.
    Neutral,
    /// It asks to be left alone for a while.
    Busy,
    /// It fails.
    Failure,
}

/// The outcome of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What happened.
    pub cause: Cause,
    /// For how long the endpoint asked to be left alone.
    pub retry_after: Option<Duration>,
}

impl Outcome {
    /// An answer of this status, and its hint when to come again. Zero is no status: nobody answered.
    pub fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        let cause = if status == 0 { Cause::Gone } else { Cause::Status(status) };
        Self { cause, retry_after }
    }

    /// No answer, or none that counts.
    pub fn failed(reason: Reason) -> Self {
        Self { cause: Cause::Failed(reason), retry_after: None }
    }

    /// The request does not fit into this endpoint's context.
    pub fn too_long() -> Self {
        Self { cause: Cause::TooLong, retry_after: None }
    }

    /// The client left.
    pub fn gone() -> Self {
        Self { cause: Cause::Gone, retry_after: None }
    }

    /// An error inside an answer of status 200, by its type or code, in the words of any engine or API.
    pub fn of_error(kind: &str) -> Self {
        let kind = kind.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| kind.contains(word));
        match kind.parse::<u16>() {
            Ok(status @ 400..=599) => Self::of_status(status, None),
            _ if kind == BROKEN_OFF => Self::failed(Reason::Cut),
            _ if kind == TOO_LONG => Self::too_long(),
            _ if says(&["rate_limit", "ratelimit", "too_many_requests", "toomanyrequests"]) => {
                Self::of_status(429, None)
            }
            _ if says(&["overloaded"]) => Self::of_status(529, None),
            _ if says(&[
                "invalid",
                "badrequest",
                "bad_request",
                "context_length",
                "not_found",
                "notfound",
            ]) || says(&[
                "authentication",
                "permission",
                "unprocessable",
                "content_filter",
                "too_large",
            ]) =>
            {
                Self::of_status(400, None)
            }
            _ => Self::failed(Reason::Error),
        }
    }

    /// What it says of the endpoint.
    pub fn class(&self) -> Class {
        match self.cause {
            Cause::Gone | Cause::TooLong => Class::Neutral,
            Cause::Failed(_) => Class::Failure,
            Cause::Status(429 | 529) => Class::Busy,
            Cause::Status(503) if self.retry_after.is_some() => Class::Busy,
            Cause::Status(501 | 400..=499) => Class::Neutral,
            Cause::Status(500..) => Class::Failure,
            Cause::Status(_) => Class::Success,
        }
    }

    /// What happened, in a word: `status=429`, `reset`, `too_long`.
    pub fn word(&self) -> String {
        match self.cause {
            Cause::Status(status) => format!("status={status}"),
            Cause::Failed(reason) => reason.name().to_owned(),
            Cause::TooLong => "too_long".to_owned(),
            Cause::Gone => "gone".to_owned(),
        }
    }

    /// As one line of `key=value`.
    pub fn write(&self) -> String {
        let mut line = match self.cause {
            Cause::Status(status) => format!("status={status}"),
            Cause::Failed(reason) => format!("failed={}", reason.name()),
            Cause::TooLong => "too_long=1".to_owned(),
            Cause::Gone => "gone=1".to_owned(),
        };
        if let Some(wait) = self.retry_after {
            line += &format!(" retry_after_ms={}", wait.as_millis());
        }
        line
    }

    /// Reads what [`Outcome::write`] wrote.
    pub fn read(line: &str) -> Option<Self> {
        let (first, rest) = line.split_once(' ').map_or((line, None), |(first, rest)| (first, Some(rest)));
        let cause = match first.split_once('=')? {
            ("status", digits) => Cause::Status(digits.parse().ok().filter(|status| *status > 0)?),
            ("failed", name) => Cause::Failed(Reason::ALL.iter().find(|(_, own)| *own == name)?.0),
            ("too_long", "1") => Cause::TooLong,
            ("gone", "1") => Cause::Gone,
            _ => return None,
        };
        let millis = rest.map(|rest| rest.strip_prefix("retry_after_ms=")?.parse().ok());
        let retry_after = match millis {
            Some(millis) => Some(Duration::from_millis(millis?)),
            None => None,
        };
        Some(Self { cause, retry_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_clients_fault_says_nothing_and_a_full_queue_is_no_failure() {
        let hint = Some(Duration::from_secs(1));
        for (status, retry_after, class) in [
            (200, None, Class::Success),
            (400, None, Class::Neutral),
            (404, None, Class::Neutral),
            (422, None, Class::Neutral),
            (501, None, Class::Neutral),
            (429, None, Class::Busy),
            (529, None, Class::Busy),
            (503, hint, Class::Busy),
            (503, None, Class::Failure),
            (500, hint, Class::Failure),
            (0, None, Class::Neutral),
        ] {
            assert_eq!(Outcome::of_status(status, retry_after).class(), class, "{status} {retry_after:?}");
        }
    }

    #[test]
    fn an_error_inside_a_200_counts_as_what_it_is() {
        for (kind, class) in [
            ("BadRequestError", Class::Neutral),
            ("invalid_request_error", Class::Neutral),
            ("400", Class::Neutral),
            (TOO_LONG, Class::Neutral),
            ("rate_limit_error", Class::Busy),
            ("RateLimitError", Class::Busy),
            ("overloaded_error", Class::Busy),
            ("429", Class::Busy),
            (BROKEN_OFF, Class::Failure),
            ("InternalServerError", Class::Failure),
            ("api_error", Class::Failure),
            ("500", Class::Failure),
            ("error", Class::Failure),
        ] {
            assert_eq!(Outcome::of_error(kind).class(), class, "{kind}");
        }
    }

    #[test]
    fn outcomes_survive_the_way() {
        let reasons = Reason::ALL.map(|(reason, _)| Outcome::failed(reason));
        let hint = Some(Duration::from_millis(1_500));
        let others = [
            Outcome::gone(),
            Outcome::too_long(),
            Outcome::of_status(200, None),
            Outcome::of_status(503, hint),
        ];
        for outcome in reasons.into_iter().chain(others) {
            assert_eq!(Outcome::read(&outcome.write()), Some(outcome));
        }
        for line in
            ["", "status=", "status=0", "failed=x", "gone=0", "status=503 x", "status=503 retry_after_ms="]
        {
            assert_eq!(Outcome::read(line), None, "{line}");
        }
    }
}
