//! The configuration of a pool.

use crate::breaker;
use crate::policy::Policy;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::num::{NonZeroU32, NonZeroU64};

/// How a pool counts and chooses; the same in filters and scorer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The policy: a name, a name with parameters, or llm-d's `EndpointPickerConfig`. See [`crate::policy`]. Written
    /// again, it has all defaults filled in.
    #[serde(serialize_with = "effective")]
    pub policy: Value,
    /// Milliseconds after which a lease of which nothing more was heard ends by itself; a first token starts
    /// them anew. Longer than any answer takes.
    pub lease_ms: NonZeroU64,
    /// Tokens of prefixes remembered per endpoint, at most: the size of its cache. Of an engine that says how much its KV memory
    /// holds no more is believed than that.
    pub index_tokens: NonZeroU64,
    /// Tokens of the smallest prefix block, as `extract` cuts them (`block_tokens` there).
    pub block_tokens: NonZeroU32,
    /// Endpoints named per request: the chosen one and fallbacks for retries.
    pub attempts: NonZeroU32,
    /// Prompt tokens that an endpoint computes per second, until streams have shown it. Only for requests that are
    /// not streamed, whose first token nobody sees.
    pub prefill_tokens_per_s: NonZeroU32,
    /// Milliseconds of queued prompts at which an endpoint counts as full: about the time to the first token that one does not
    /// want to be above. Nothing is chosen by it; the pool's saturation, for autoscaling, is in parts of it.
    pub saturated_ms: NonZeroU64,
    /// Milliseconds over which an endpoint that has joined takes its full part: at first a tenth of the requests may go
    /// there, whatever the policy. 0 turns this off. Endpoints that were there from the start are not held back.
    pub slow_start_ms: u64,
    /// Milliseconds after which what an engine said of itself is forgotten: its endpoint is judged by what was sent there.
    pub stale_ms: NonZeroU64,
    /// When endpoints are out.
    pub breaker: breaker::Config,
}

/// The policy with its defaults filled in; one that is wrong stays as it is.
fn effective<S: Serializer>(policy: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    match Policy::read(policy) {
        Ok(read) => read.effective().serialize(serializer),
        Err(_) => policy.serialize(serializer),
    }
}

impl Default for Config {
    fn default() -> Self {
        const LEASE: NonZeroU64 = NonZeroU64::new(600_000).unwrap();
        const TOKENS: NonZeroU64 = NonZeroU64::new(1 << 20).unwrap();
        const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
        const THREE: NonZeroU32 = NonZeroU32::new(3).unwrap();
        const PACE: NonZeroU32 = NonZeroU32::new(5_000).unwrap();
        const SATURATED: NonZeroU64 = NonZeroU64::new(2_000).unwrap();
        const STALE: NonZeroU64 = NonZeroU64::new(10_000).unwrap();
        let policy = Value::String("least_prefill".into());
        Self {
            prefill_tokens_per_s: PACE,
            saturated_ms: SATURATED,
            policy,
            lease_ms: LEASE,
            index_tokens: TOKENS,
            block_tokens: SIXTEEN,
            attempts: THREE,
            slow_start_ms: 10_000,
            stale_ms: STALE,
            breaker: breaker::Config::default(),
        }
    }
}
