//! The configuration of limits, and what is made of it once it has been checked.

use super::cost::{self, Spend, TOKEN, fits};
use super::key::{Asked, Identity, Part};
use super::money::{MONEY, Money};
use super::window::Span;
use crate::invalid::Invalid;
use crate::queue::Order;
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
    fn check(&self) -> Result<(), Invalid> {
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
    /// In the place of `per_s`: what was used is never forgotten.
    pub total: bool,
    /// When it is used up the answer is 403, which clients do not retry, instead of 429.
    pub quota: bool,
    /// When so much of it is used, 1 to 99 percent, request and answer say so.
    pub soft_percent: Option<u8>,
    /// From then on requests have this objective: another priority, and what routes make of the header.
    pub demote: Option<String>,
}

/// What a window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths of a token.
    Tokens,
    /// Requests.
    Requests,
    /// Billionths of a unit of money.
    Money,
}

impl Unit {
    /// What a request of this cost counts.
    pub(super) fn amount(self, cost: Spend) -> u64 {
        match self {
            Self::Tokens => cost.tokens,
            Self::Requests => 1,
            Self::Money => cost.money,
        }
    }

    /// What the window counts per token or request.
    pub(super) fn scale(self) -> u64 {
        match self {
            Self::Tokens => TOKEN,
            Self::Requests => 1,
            Self::Money => MONEY,
        }
    }

    /// Its word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Requests => "requests",
            Self::Money => "money",
        }
    }
}

/// A window of a rule.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) unit: Unit,
    /// In the unit.
    pub(super) limit: u64,
    /// 0: for ever.
    pub(super) secs: u32,
    pub(super) span: Span,
    pub(super) quota: bool,
    pub(super) soft_percent: Option<u8>,
    pub(super) demote: Option<String>,
}

/// Where requests of a rule wait.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) size: usize,
    pub(super) timeout: Duration,
    pub(super) fair_by: Vec<Part>,
    pub(super) order: Order,
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
    pub(super) queue: Option<Waiting>,
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
/// All of a line is read and written with every request of its key while somebody waits.
const MOST_WAITING: u32 = 1_000;
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
        check_key(&limit.key, "key")?;
        if let Some(queue) = &limit.queue {
            queue.check().map_err(|invalid| invalid.within("queue"))?;
            if limit.max_in_flight.is_none() {
                return Err(Invalid::new("queue", "without max_in_flight there is nothing to wait for"));
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
        let line = limit.queue.as_ref().map(|queue| queue.order);
        let own_form = match line {
            Some(order) => format!("{form} {books} {lease_ms} {order:?}"),
            None => format!("{form} {books} {lease_ms}"),
        };
        let shared_form = format!("{form} {}", limit.max_in_flight.is_some());
        Ok(Self {
            name: limit.name.clone(),
            key: limit.key.clone(),
            when: limit.when.clone(),
            unless: limit.unless.clone(),
            windows,
            max_in_flight: limit.max_in_flight,
            queue: limit.queue.as_ref().map(|queue| Waiting {
                size: usize::try_from(queue.size.get()).unwrap_or(usize::MAX),
                timeout: Duration::from_millis(queue.timeout_ms.get()),
                fair_by: queue.fair_by.clone(),
                order: queue.order,
            }),
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

    /// All that its keys are made of.
    pub(super) fn parts_of_keys(&self) -> impl Iterator<Item = &Part> {
        self.key.iter().chain(self.queue.iter().flat_map(|queue| &queue.fair_by))
    }

    /// Whether it looks at headers.
    pub(super) fn needs_headers(&self) -> bool {
        self.parts_of_keys().any(Part::is_header)
            || !self.when.headers.is_empty()
            || !self.unless.headers.is_empty()
    }

    /// The least that one of its windows of a unit allows, and that window's length in seconds.
    pub(super) fn least(&self, unit: Unit) -> Option<(u64, u32)> {
        let windows = self.windows.iter().filter(|window| window.unit == unit);
        windows.map(|window| (window.limit, window.secs)).min()
    }

    /// Whether what was used is known only when a request is over.
    pub(super) fn counts_use(&self) -> bool {
        self.windows.iter().any(|window| window.unit != Unit::Requests)
    }

    /// Whether a window has a soft stage.
    pub(super) fn softens(&self) -> bool {
        self.windows.iter().any(|window| window.soft_percent.is_some())
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
    fn window(&self) -> Result<Window, Invalid> {
        let (unit, amount) = match (self.tokens, self.requests, self.money) {
            (Some(tokens), None, None) => (Unit::Tokens, tokens.get()),
            (None, Some(requests), None) => (Unit::Requests, requests.get()),
            (None, None, Some(money)) => (Unit::Money, money.nanos()),
            _ => return Err(Invalid::new("", "one of tokens, requests and money is expected")),
        };
        if unit != Unit::Money && amount > MOST_AMOUNT {
            return Err(Invalid::new(unit.name(), format!("{amount} is above {MOST_AMOUNT}")));
        }
        let limit = if unit == Unit::Money { amount } else { amount.saturating_mul(unit.scale()) };
        let (secs, span) = match (self.per_s, self.total) {
            (Some(secs), false) if secs.get() > MOST_SECS => {
                return Err(Invalid::new("per_s", format!("{secs} is above {MOST_SECS}, 366 days")));
            }
            (Some(secs), false) => (secs.get(), Span::of_secs(secs)),
            (None, true) => (0, Span::of_nanos(u64::MAX)),
            (Some(_), true) => return Err(Invalid::new("total", "either per_s or total is expected")),
            (None, false) => return Err(Invalid::new("per_s", "missing; or total: true")),
        };
        if self.soft_percent.is_some_and(|percent| !(1..=99).contains(&percent)) {
            return Err(Invalid::new("soft_percent", "1 to 99 is expected"));
        }
        if self.demote.is_some() && self.soft_percent.is_none() {
            return Err(Invalid::new("demote", "without soft_percent it is not said from when on"));
        }
        let (quota, soft_percent) = (self.quota || unit == Unit::Money, self.soft_percent);
        Ok(Window { unit, limit, secs, span, quota, soft_percent, demote: self.demote.clone() })
    }
}

fn check_key(parts: &[Part], field: &str) -> Result<(), Invalid> {
    for (at, part) in parts.iter().enumerate() {
        if let Part::Header(name) = part {
            check_header(name).map_err(|invalid| invalid.within(&format!("{field}[{at}].header")))?;
        }
    }
    Ok(())
}

fn check_header(name: &str) -> Result<(), Invalid> {
    let lower = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
    match !name.is_empty() && name.bytes().all(lower) {
        true => Ok(()),
        false => Err(Invalid::new("", "the name of a header, in lower case, is expected")),
    }
}
