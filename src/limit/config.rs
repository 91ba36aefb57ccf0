//! The configuration of limits, as it is written; `rule.rs` has what is made of it.

use super::calendar::{Per, Zone};
use super::cost;
use super::key::{Identity, Part};
use super::money::Money;
use super::rule::check_key;
use crate::invalid::Invalid;
use crate::queue::Order;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// All of a line is read and written with every request of its key while somebody waits.
const MOST_WAITING: u32 = 1_000;

/// Configuration of limits.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The limits. Every one that matches a request must admit it.
    pub limits: Vec<Limit>,
    /// What a request costs.
    #[serde(default)]
    pub cost: cost::Config,
    /// The headers that say who asks.
    #[serde(default)]
    pub identity: Identity,
    /// Milliseconds after which a request that was never seen to end no longer counts as in flight; longer than any
    /// answer takes.
    #[serde(default = "Config::lease_ms")]
    pub lease_ms: NonZeroU64,
    /// Whether answers carry `x-ratelimit-…` or `anthropic-ratelimit-…` headers.
    #[serde(default = "Config::headers")]
    pub headers: bool,
    /// The priorities of objectives, as clients name them in `x-llm-d-inference-objective`. Higher goes first; negative: shed
    /// at once when a limit's slots are taken. Any other objective, or none, is 0.
    #[serde(default)]
    pub objectives: BTreeMap<String, i32>,
    /// With whom the limits are shared; without this each proxy has them for itself.
    #[serde(default)]
    pub share: Option<Share>,
}

/// How several proxies share the limits, through a scorer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The cluster, in Envoy's configuration, that leads to the scorer.
    pub cluster: String,
    /// The secret that keys are hashed with, the same in all proxies that share.
    pub id_seed: u64,
    /// Milliseconds that a request waits for the scorer at the most. It is no aim but the point from which on waiting costs more than
    /// not knowing: who gives up leaves the scorer alone for `retry_ms`, and limits are not shared for as long.
    #[serde(default = "Share::timeout_ms")]
    pub timeout_ms: NonZeroU64,
    /// Milliseconds between two looks at what is to be renewed.
    #[serde(default = "Share::renew_ms")]
    pub renew_ms: NonZeroU64,
    /// Milliseconds for which what was granted holds without being renewed; at most an hour.
    #[serde(default = "Share::lease_ms")]
    pub lease_ms: NonZeroU64,
    /// Milliseconds for which the scorer is left alone after a failure.
    #[serde(default = "Share::retry_ms")]
    pub retry_ms: NonZeroU64,
    /// What becomes of requests that need more than is granted, when the scorer cannot be asked.
    #[serde(default)]
    pub failure_mode: FailureMode,
}

/// What becomes of requests when nobody can be asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureMode {
    /// Each goes on by itself, with the whole limit.
    #[default]
    Open,
    /// They are refused.
    Closed,
}

impl Share {
    const fn timeout_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(250).unwrap();
        DEFAULT
    }

    const fn renew_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(150).unwrap();
        DEFAULT
    }

    const fn lease_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(3_000).unwrap();
        DEFAULT
    }

    const fn retry_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
        DEFAULT
    }

    /// How long what was granted holds.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.get())
    }

    /// Between two looks at what is to be renewed; for so long asking again is in vain.
    pub fn renew(&self) -> Duration {
        Duration::from_millis(self.renew_ms.get())
    }

    fn check(&self) -> Result<(), Invalid> {
        if self.cluster.is_empty() {
            return Err(Invalid::new("cluster", "empty; name the cluster that leads to the scorer"));
        }
        let (lease, renew) = (self.lease_ms.get(), self.renew_ms.get());
        if lease > 3_600_000 {
            return Err(Invalid::new("lease_ms", format!("{lease} is above 3600000, an hour")));
        }
        if lease / 4 < renew {
            return Err(Invalid::new(
                "lease_ms",
                format!("{lease} is less than four times renew_ms, {renew}: what is in use would lapse"),
            ));
        }
        Ok(())
    }
}

impl Config {
    const fn lease_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(600_000).unwrap();
        DEFAULT
    }

    const fn headers() -> bool {
        true
    }

    /// Checks whom the limits are shared with.
    pub(super) fn check_share(&self) -> Result<(), Invalid> {
        self.share.as_ref().map_or(Ok(()), Share::check).map_err(|invalid| invalid.within("share"))
    }
}

/// A limit: so much per key and window.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Its name, in messages and stats: of letters, digits, `-`, `_` and `.`, at most 64.
    pub name: String,
    /// Requests with the same values share one count. Without parts all requests share one.
    #[serde(default)]
    pub key: Vec<Part>,
    /// Only requests that fit this; all, if it is left out.
    #[serde(default)]
    pub when: When,
    /// Not requests that fit this; none are left out, if it is.
    #[serde(default)]
    pub unless: When,
    /// How much per how long. Every window must have room.
    #[serde(default)]
    pub windows: Vec<Quantity>,
    /// Most requests at once. Without it there is no bound.
    #[serde(default)]
    pub max_in_flight: Option<NonZeroU32>,
    /// What becomes of requests that find no slot; without it they are refused.
    #[serde(default)]
    pub queue: Option<Queue>,
    /// Keys that are counted at a time, up to 2^20: memory is bounded by it. When more are in use, those that have used
    /// least are forgotten.
    #[serde(default = "Limit::max_keys")]
    pub max_keys: NonZeroU32,
}

impl Limit {
    const fn max_keys() -> NonZeroU32 {
        const DEFAULT: NonZeroU32 = NonZeroU32::new(100_000).unwrap();
        DEFAULT
    }
}

/// Where requests wait for one of `max_in_flight` slots.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// Most that wait per key of the limit, 1 to 1,000.
    pub size: NonZeroU32,
    /// Milliseconds that each waits at the most; at most an hour.
    pub timeout_ms: NonZeroU64,
    /// Who takes turns: requests with the same values are one client's.
    pub fair_by: Vec<Part>,
    /// How they take turns.
    pub order: Order,
}

impl Default for Queue {
    fn default() -> Self {
        const SIZE: NonZeroU32 = NonZeroU32::new(100).unwrap();
        const TIMEOUT_MS: NonZeroU64 = NonZeroU64::new(10_000).unwrap();
        Self { size: SIZE, timeout_ms: TIMEOUT_MS, fair_by: vec![Part::Tenant], order: Order::default() }
    }
}

impl Queue {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.size.get() > MOST_WAITING {
            return Err(Invalid::new("size", format!("{} is above {MOST_WAITING}", self.size)));
        }
        if self.timeout_ms.get() > 3_600_000 {
            return Err(Invalid::new("timeout_ms", format!("{} is above 3600000, an hour", self.timeout_ms)));
        }
        check_key(&self.fair_by, "fair_by")
    }
}

/// What requests fit. All that is given must.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// One of these models: names, or beginnings of names with `*` behind them.
    pub models: Vec<String>,
    /// Headers, by their names in lower case, that have one of these values; `*` ends a beginning here too.
    pub headers: BTreeMap<String, Vec<String>>,
}

/// So much per so long: one of `tokens`, `requests` and `money`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quantity {
    /// Tokens, weighted.
    pub tokens: Option<NonZeroU64>,
    /// Requests.
    pub requests: Option<NonZeroU64>,
    /// Money, by `cost.prices`. It is a quota.
    pub money: Option<Money>,
    /// Length of the window in seconds, at most 366 days.
    pub per_s: Option<NonZeroU32>,
    /// In the place of `per_s`: it begins anew with the calendar.
    pub per: Option<Per>,
    /// Where days begin, for `per`; UTC unless set.
    pub zone: Option<Zone>,
    /// In the place of `per_s`: what was used is never forgotten.
    pub total: bool,
    /// When it is used up the answer is 403, which clients do not retry, instead of 429.
    pub quota: bool,
    /// When so much of it is used, 1 to 99 percent, request and answer say so.
    pub soft_percent: Option<u8>,
    /// From then on requests have this objective: another priority, and what routes make of the header.
    pub demote: Option<String>,
}
