//! The messages between `pick` and the scorer.

use super::Blocks;
use crate::breaker::{Outcome, Shut};
use crate::invalid::{self, Invalid};
use crate::policy::Demand;
use crate::pool::{Answered, Ask, Message, Spill};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Asks the scorer for an endpoint.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// The pool, by its name.
    pub pool: String,
    /// The lease's name, chosen by who asks, so that a lost answer leaves nothing that cannot be ended.
    pub lease: u64,
    /// What the request brings.
    pub demand: Demand,
    /// The request's trace context (`traceparent`), where the filter was told to say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Say why, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explain: bool,
    /// Chained block hashes, sixteen hex digits each, one after the other.
    pub blocks: Blocks,
    /// What became of earlier leases: under load they need no call of their own.
    #[serde(default)]
    pub events: Vec<Event>,
}

impl Reserve {
    /// A call that says all of `ask`.
    pub fn of(pool: &str, lease: u64, ask: &Ask<'_>) -> Self {
        let (pool, blocks) = (pool.to_owned(), Blocks(ask.blocks.to_vec()));
        Self { pool, lease, demand: ask.demand, trace: None, explain: false, blocks, events: Vec::new() }
    }

    /// The message, with the body of the request behind it unless that is empty.
    pub fn write(&self, body: &[u8]) -> Vec<u8> {
        let mut message = serde_json::to_vec(self).unwrap_or_default();
        if !body.is_empty() {
            message.reserve_exact(body.len().saturating_add(1));
            message.push(b'\n');
            message.extend_from_slice(body);
        }
        message
    }

    /// Reads a message, and says where the body of its request begins: behind it and a line feed. Where the body is not
    /// wanted there is none, and it begins at the end.
    pub fn read(message: &[u8]) -> Result<(Self, usize), Invalid> {
        let (ask, end): (Self, usize) = invalid::read_front(message)?;
        match message.get(end..) {
            Some([b'\n', body @ ..]) if !body.trim_ascii().is_empty() => Ok((ask, end + 1)),
            None => Ok((ask, message.len())),
            Some(rest) if rest.trim_ascii().is_empty() => Ok((ask, message.len())),
            Some(_) => Err(Invalid::new(
                "",
                "what follows the message is not the body of its request, behind a line feed",
            )),
        }
    }

    /// What it asks of a pool.
    pub fn ask(&self) -> Ask<'_> {
        Ask { blocks: &self.blocks.0, demand: self.demand, prompt: None }
    }
}

/// The scorer's answer to [`Reserve`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    /// The chosen endpoint, then fallbacks in order.
    pub endpoints: Vec<String>,
    /// Tokens of the prompt believed to be cached there.
    pub cached_tokens: u32,
    /// Uncached prompt tokens that were waiting there.
    pub queued_tokens: u64,
    /// Requests that were in flight there.
    pub in_flight: u32,
    /// The policy that chose.
    pub policy: String,
    /// The first is tried whether it serves again.
    #[serde(default)]
    pub probe: bool,
    /// No endpoint may be sent to, and there are none above: how to answer the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shut: Option<Closed>,
    /// Why it was chosen, where that was asked: as [`crate::pool::Why`] is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<serde_json::Value>,
    /// The endpoint that is to compute the prompt, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<String>,
    /// The endpoint is of a later group than the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<Spill>,
}

/// No endpoint of the pool may be sent to.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Milliseconds until the first of them may be.
    pub retry_after_ms: u64,
    /// The status for the client.
    pub status: u16,
}

impl From<Shut> for Closed {
    fn from(shut: Shut) -> Self {
        let retry_after_ms = u64::try_from(shut.wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Self { retry_after_ms, status: shut.status }
    }
}

impl From<Closed> for Shut {
    fn from(closed: Closed) -> Self {
        let status = if closed.status == 429 { 429 } else { 503 };
        Self { wait: Duration::from_millis(closed.retry_after_ms), status }
    }
}

/// What became of a lease.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was booked by the proxy, since no scorer answered in time. Of its prompt no more is told than its size.
    Booked {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// The endpoint.
        endpoint: String,
        /// What the request brings.
        demand: Demand,
    },
    /// Its first token came.
    FirstToken {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// The endpoint it came from.
        served: String,
    },
    /// An attempt came to something that concerns its endpoint.
    Attempted {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// The endpoint.
        endpoint: String,
        /// What it came to.
        #[serde(with = "outcome")]
        outcome: Outcome,
    },
    /// How its answer went, for telemetry; only where the filter was told to say it, and before [`Event::End`].
    Went {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// All of that.
        went: Box<Went>,
    },
    /// It is over.
    End {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// How its answer went, where the policy learns from that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<Answered>,
    },
}

impl Event {
    /// The same among those who keep the same pools, if it concerns them; its pool is at this place.
    pub fn message(&self, place: u16) -> Option<Message> {
        Some(match self.clone() {
            Self::Booked { lease, endpoint, demand, .. } => {
                let ask = Ask { blocks: &[], demand, prompt: None };
                Message::booked(place, lease, &endpoint, &ask, false)
            }
            Self::FirstToken { lease, served, .. } => Message::FirstToken { pool: place, lease, served },
            Self::Attempted { lease, endpoint, outcome, .. } => {
                Message::Attempted { pool: place, lease, endpoint, outcome }
            }
            Self::Went { .. } => return None,
            Self::End { lease, answered, .. } => Message::End { pool: place, lease, answered },
        })
    }
}

/// How an answer went, for telemetry.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Went {
    /// The short name of its dialect.
    pub dialect: String,
    /// The model that served.
    pub model: String,
    /// The status that the client got; 0: none.
    pub status: u16,
    /// Milliseconds from when the endpoint was asked for to the end of the answer.
    pub ms: f64,
    /// The endpoint that served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<String>,
    /// What was used, as [`super::write_usage`] has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    /// The request's trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// An outcome in a message, as [`Outcome::write`] has it.
mod outcome {
    use super::Outcome;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(outcome: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&outcome.write())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Outcome, D::Error> {
        let line = String::deserialize(deserializer)?;
        Outcome::read(&line).ok_or_else(|| D::Error::custom(format!("{line:?} is no outcome")))
    }
}
