//! What a policy sees: the request's demand, and of each candidate what is known.

use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a request brings to a choice.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Demand {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// The same in units of prefix blocks, see [`crate::block`].
    pub prompt_units: u32,
    /// The most tokens it may write; 0 when that has no bound.
    pub output_tokens: u32,
    /// Its answer comes as a stream: the first token will be seen.
    pub stream: bool,
    /// Hash of its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// Hash of its tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<u64>,
    /// [`crate::wire::name_hash`] of its LoRA adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<u64>,
    /// Milliseconds to the first token that the client asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ttft_ms: Option<u32>,
    /// Milliseconds per token that the client asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_tpot_ms: Option<u32>,
    /// It has been tried before, by the client's library or by a proxy on the way here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
}

/// What an engine says of itself. What it does not say is unknown, which is never zero.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Signals {
    /// Requests queued inside it.
    pub waiting: Option<u32>,
    /// Requests in its batch.
    pub running: Option<u32>,
    /// Part of its KV memory in use, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV memory holds.
    pub kv_tokens: Option<u64>,
    /// What it says of its utilisation as a whole (ORCA), from 0 to 1 and beyond.
    pub utilization: Option<f64>,
    /// When it said so; `None` when it never did.
    #[serde(skip)]
    pub at: Option<Instant>,
}

/// Where a LoRA adapter stands with an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Adapter {
    /// The request needs none, or the endpoint says nothing of adapters.
    #[default]
    Unknown,
    /// It is loaded there.
    Resident,
    /// It is not there, and there is a slot for it.
    Room,
    /// Requests for it wait there, and no slot is free.
    Waiting,
    /// It is not there, and no slot is free.
    Full,
    /// The endpoint lists the adapters that it serves, and this is none of them.
    Absent,
}

/// What is known of an endpoint that may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Its place among the endpoints that [`super::Score::meet`] was told of.
    pub place: usize,
    /// Hash of its address: the same in every gateway.
    pub seed: u64,
    /// Requests accepted and not finished.
    pub in_flight: u32,
    /// Uncached prompt tokens of requests whose first token has not come.
    pub queued_tokens: u64,
    /// Prompt tokens of all requests in flight: what they hold of its KV memory, before they write.
    pub held_tokens: u64,
    /// Tokens of this request's prompt that it holds in its cache.
    pub cached_tokens: u32,
    /// How long it has been an endpoint; `None` when it was one from the start.
    pub age: Option<Duration>,
    /// What its engine says.
    pub engine: Signals,
    /// Requests sent there and not finished since its engine said so.
    pub unseen: u32,
    /// Their uncached prompt tokens.
    pub unseen_tokens: u64,
    /// Where the request's adapter stands.
    pub adapter: Adapter,
}

impl Candidate {
    /// Prompt tokens that this endpoint would have to compute for `demand`.
    pub fn uncached_tokens(&self, demand: &Demand) -> u32 {
        demand.prompt_tokens.saturating_sub(self.cached_tokens)
    }

    /// The part of the prompt that it holds, from 0 to 1.
    pub fn hit(&self, demand: &Demand) -> f64 {
        f64::from(self.cached_tokens) / f64::from(demand.prompt_tokens.max(1))
    }

    /// Requests queued inside the engine: what it said, and what was sent since.
    pub fn waiting(&self) -> Option<f64> {
        self.engine.waiting.map(|waiting| f64::from(waiting) + f64::from(self.unseen))
    }

    /// Requests in its batch: what it said, and what was sent since.
    pub fn running(&self) -> Option<f64> {
        self.engine.running.map(|running| f64::from(running) + f64::from(self.unseen))
    }

    /// Part of its KV memory in use: what it said, and what was sent since, where its size is known.
    pub fn kv_usage(&self) -> Option<f64> {
        let sent = self.engine.kv_tokens.filter(|tokens| *tokens > 0);
        let sent = sent.map_or(0.0, |tokens| self.unseen_tokens as f64 / tokens as f64);
        self.engine.kv_usage.map(|usage| usage + sent)
    }

    /// Requests it has, running and waiting: the engine's word where that is more than ours, since others may send there
    /// too.
    pub fn requests(&self) -> f64 {
        let own = f64::from(self.in_flight);
        match (self.engine.waiting, self.engine.running) {
            (None, None) => own,
            (waiting, running) => {
                let said = f64::from(waiting.unwrap_or(0)) + f64::from(running.unwrap_or(0));
                own.max(said + f64::from(self.unseen))
            }
        }
    }
}
