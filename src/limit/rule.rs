//! The configuration of limits, and what is made of it once it has been checked.

use super::cost::{self, TOKEN, fits};
use super::key::{Asked, Identity, Part};
use super::window::Span;
use crate::invalid::Invalid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;
use xxhash_rust::xxh64::xxh64;

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
    /// Milliseconds that a request waits for the scorer at the most.
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
        const DEFAULT: NonZeroU64 = NonZeroU64::new(50).unwrap();
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

/// What requests fit. All that is given must.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// One of these models: names, or beginnings of names with `*` behind them.
    pub models: Vec<String>,
    /// Headers, by their names in lower case, that have one of these values; `*` ends a beginning here too.
    pub headers: BTreeMap<String, Vec<String>>,
}

/// So much per so long: either `tokens` or `requests`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Quantity {
    /// Tokens, weighted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<NonZeroU64>,
    /// Requests, whatever comes of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<NonZeroU64>,
    /// Seconds, up to 366 days.
    pub per_s: NonZeroU32,
    /// A quota: when it is used up the answer is 403, which clients do not retry, instead of 429.
    #[serde(default)]
    pub quota: bool,
}

/// What a window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths of a token.
    Tokens,
    /// Requests.
    Requests,
}

impl Unit {
    /// What a request of this cost counts.
    pub(super) fn amount(self, cost: u64) -> u64 {
        match self {
            Self::Tokens => cost,
            Self::Requests => 1,
        }
    }

    /// What the window counts per token or request.
    pub(super) fn scale(self) -> u64 {
        match self {
            Self::Tokens => TOKEN,
            Self::Requests => 1,
        }
    }

    /// Its word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Requests => "requests",
        }
    }
}

/// A window of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) unit: Unit,
    /// In the unit.
    pub(super) limit: u64,
    pub(super) secs: u32,
    pub(super) span: Span,
    pub(super) quota: bool,
}

/// A limit that has been checked.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) key: Vec<Part>,
    when: When,
    unless: When,
    pub(super) windows: Vec<Window>,
    pub(super) max_in_flight: Option<NonZeroU32>,
    pub(super) lease: Span,
    /// Other proxies count for it too.
    pub(super) shared: bool,
    /// Books its accounts are in.
    pub(super) books: u64,
    /// The stored values of a rule with the same name, key and lengths of windows are its own: amounts may change.
    pub(super) id: u64,
    /// What proxies call it among each other, whatever memory each has for it.
    pub(super) shared_id: u64,
}

const MOST_SECS: u32 = 366 * 86_400;
const MOST_KEYS: u32 = 1 << 20;
/// Beyond this sums of thousandths could overflow.
const MOST_AMOUNT: u64 = 1 << 50;
/// A book holds twice as many accounts as there are keys per book, so that chance leaves none full.
const KEYS_PER_BOOK: u64 = super::book::MOST as u64 / 2;

impl Rule {
    /// Checks a limit.
    pub(super) fn new(limit: &Limit, lease_ms: NonZeroU64, shared: bool) -> Result<Self, Invalid> {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if limit.name.is_empty() || limit.name.len() > 64 || !limit.name.chars().all(letters) {
            return Err(Invalid::new("name", "1 to 64 letters, digits, `-`, `_` or `.` are expected"));
        }
        if limit.windows.is_empty() && limit.max_in_flight.is_none() {
            return Err(Invalid::new("windows", "empty; a limit needs a window or max_in_flight"));
        }
        if limit.max_keys.get() > MOST_KEYS {
            return Err(Invalid::new("max_keys", format!("{} is above {MOST_KEYS}", limit.max_keys)));
        }
        for (at, part) in limit.key.iter().enumerate() {
            if let Part::Header(name) = part {
                check_header(name).map_err(|invalid| invalid.within(&format!("key[{at}].header")))?;
            }
        }
        for (side, when) in [("when", &limit.when), ("unless", &limit.unless)] {
            for name in when.headers.keys() {
                check_header(name).map_err(|invalid| invalid.within(&format!("{side}.headers.{name}")))?;
            }
        }
        let window = |(at, quantity): (usize, &Quantity)| {
            quantity.window().map_err(|invalid| invalid.within(&format!("windows[{at}]")))
        };
        let windows: Vec<Window> = limit.windows.iter().enumerate().map(window).collect::<Result<_, _>>()?;
        let books = match limit.key.is_empty() {
            true => 1,
            false => u64::from(limit.max_keys.get()).div_ceil(KEYS_PER_BOOK),
        };
        let lengths: Vec<_> = windows.iter().map(|window| (window.unit.name(), window.secs)).collect();
        let form = format!("{} {:?} {lengths:?}", limit.name, limit.key);
        let own_form = format!("{form} {books} {lease_ms}");
        let shared_form = format!("{form} {}", limit.max_in_flight.is_some());
        Ok(Self {
            name: limit.name.clone(),
            key: limit.key.clone(),
            when: limit.when.clone(),
            unless: limit.unless.clone(),
            windows,
            max_in_flight: limit.max_in_flight,
            lease: Span::of_nanos(lease_ms.get().saturating_mul(1_000_000)),
            shared,
            books,
            id: xxh64(own_form.as_bytes(), u64::from(shared)),
            shared_id: xxh64(shared_form.as_bytes(), 0),
        })
    }

    /// Its windows and, if they are limited, the requests in flight.
    pub(super) fn parts(&self) -> usize {
        self.windows.len() + usize::from(self.max_in_flight.is_some())
    }

    /// Whether it is for this request.
    pub(super) fn matches(&self, asked: &Asked<'_>) -> bool {
        self.when.fits(asked) && (self.unless.is_empty() || !self.unless.fits(asked))
    }

    /// Whether it looks at headers.
    pub(super) fn needs_headers(&self) -> bool {
        self.key.iter().any(Part::is_header)
            || !self.when.headers.is_empty()
            || !self.unless.headers.is_empty()
    }

    /// The least that one of its windows of tokens allows, and that window's length in seconds.
    pub(super) fn tokens(&self) -> Option<(u64, u32)> {
        let tokens = self.windows.iter().filter(|window| window.unit == Unit::Tokens);
        tokens.map(|window| (window.limit, window.secs)).min()
    }
}

impl When {
    fn is_empty(&self) -> bool {
        self.models.is_empty() && self.headers.is_empty()
    }

    fn fits(&self, asked: &Asked<'_>) -> bool {
        let model = asked.facts.model.as_deref().unwrap_or_default();
        let one_of = |patterns: &[String], text: &str| patterns.iter().any(|pattern| fits(pattern, text));
        let header = |(name, values): (&String, &Vec<String>)| {
            (asked.header)(name).is_some_and(|value| one_of(values, value))
        };
        (self.models.is_empty() || one_of(&self.models, model)) && self.headers.iter().all(header)
    }
}

impl Quantity {
    fn window(self) -> Result<Window, Invalid> {
        let (unit, amount) = match (self.tokens, self.requests) {
            (Some(tokens), None) => (Unit::Tokens, tokens.get()),
            (None, Some(requests)) => (Unit::Requests, requests.get()),
            _ => return Err(Invalid::new("", "either tokens or requests is expected")),
        };
        if amount > MOST_AMOUNT {
            return Err(Invalid::new(unit.name(), format!("{amount} is above {MOST_AMOUNT}")));
        }
        if self.per_s.get() > MOST_SECS {
            return Err(Invalid::new("per_s", format!("{} is above {MOST_SECS}, 366 days", self.per_s)));
        }
        let limit = amount.saturating_mul(unit.scale());
        let secs = self.per_s.get();
        Ok(Window { unit, limit, secs, span: Span::of_secs(self.per_s), quota: self.quota })
    }
}

fn check_header(name: &str) -> Result<(), Invalid> {
    let lower = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
    match !name.is_empty() && name.bytes().all(lower) {
        true => Ok(()),
        false => Err(Invalid::new("", "the name of a header, in lower case, is expected")),
    }
}
