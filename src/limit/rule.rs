//! Limits that have been checked: what requests they are for, and what they allow.

use super::calendar::{Calendar, Per, Zone};
use super::config::{Config, Limit, Quantity, When};
use super::cost::{Spend, TOKEN, check_pattern, fits};
use super::key::{Asked, Part};
use super::money::MONEY;
use super::window::Span;
use crate::invalid::Invalid;
use crate::queue::Order;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;
use xxhash_rust::xxh64::xxh64;

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

/// How long a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// It slides over so many seconds.
    Secs(NonZeroU32),
    /// It goes by the calendar.
    Per(Per, Zone),
    /// For ever.
    Total,
}

impl fmt::Display for Length {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secs(secs) => write!(to, "in {secs} s"),
            Self::Per(per, zone) => write!(to, "per {}, {}", per.name(), String::from(*zone)),
            Self::Total => to.write_str("in total"),
        }
    }
}

impl Length {
    fn span(self) -> Span {
        match self {
            Self::Secs(secs) => Span::of_secs(secs),
            Self::Per(per, zone) => Span::Calendar(Calendar::new(per, zone)),
            Self::Total => Span::of_nanos(u64::MAX),
        }
    }
}

/// A window of a rule.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) unit: Unit,
    /// In the unit.
    pub(super) limit: u64,
    pub(super) length: Length,
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
            check_patterns(&when.models, &format!("{side}.models"))?;
            for (name, values) in &when.headers {
                let within = |invalid: Invalid| invalid.within(&format!("{side}.headers.{name}"));
                check_header(name).map_err(within)?;
                if values.is_empty() {
                    return Err(within(Invalid::new(
                        "",
                        "empty; no request would fit: name the values, or `*`",
                    )));
                }
                check_patterns(values, &format!("{side}.headers.{name}"))?;
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
        let lengths: Vec<_> =
            windows.iter().map(|window| (window.unit.name(), window.length.to_string())).collect();
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

    /// Checks what it refers to elsewhere in the configuration.
    pub(super) fn check(&self, config: &Config) -> Result<(), Invalid> {
        for (at, window) in self.windows.iter().enumerate() {
            let invalid = |field: &str, why: String| Invalid::new(format!("windows[{at}].{field}"), why);
            let unknown = |name: &&String| !config.objectives.contains_key(*name);
            if let Some(name) = window.demote.as_ref().filter(unknown) {
                return Err(invalid("demote", format!("{name} is not among objectives")));
            }
            if window.unit == Unit::Money && config.cost.prices.is_none() {
                return Err(invalid("money", "nothing has a price: cost.prices is missing".into()));
            }
        }
        Ok(())
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

    /// Whether its keys tell clients apart.
    pub(super) fn tells_clients(&self) -> bool {
        self.key.iter().any(Part::tells_clients)
    }

    /// Whether it looks at headers.
    pub(super) fn needs_headers(&self) -> bool {
        self.parts_of_keys().any(Part::is_header)
            || !self.when.headers.is_empty()
            || !self.unless.headers.is_empty()
    }

    /// The least that one of its windows of a unit allows, and that window's length.
    pub(super) fn least(&self, unit: Unit) -> Option<(u64, Length)> {
        let windows = self.windows.iter().filter(|window| window.unit == unit);
        windows.map(|window| (window.limit, window.length)).min_by_key(|(limit, _)| *limit)
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
        let length = match (self.per_s, self.per, self.total) {
            (Some(secs), None, false) if secs.get() > MOST_SECS => {
                return Err(Invalid::new("per_s", format!("{secs} is above {MOST_SECS}, 366 days")));
            }
            (Some(secs), None, false) => Length::Secs(secs),
            (None, Some(per), false) => Length::Per(per, self.zone.unwrap_or_default()),
            (None, None, true) => Length::Total,
            (None, None, false) => return Err(Invalid::new("per_s", "missing; or per, or total: true")),
            (Some(_), Some(_), _) => return Err(Invalid::new("per", "either per_s or per is expected")),
            (.., true) => return Err(Invalid::new("total", "one of per_s, per and total is expected")),
        };
        if self.zone.is_some() && self.per.is_none() {
            return Err(Invalid::new("zone", "without per nothing goes by the calendar"));
        }
        if self.soft_percent.is_some_and(|percent| !(1..=99).contains(&percent)) {
            return Err(Invalid::new("soft_percent", "1 to 99 is expected"));
        }
        if self.demote.is_some() && self.soft_percent.is_none() {
            return Err(Invalid::new("demote", "without soft_percent it is not said from when on"));
        }
        let (quota, soft_percent) = (self.quota || unit == Unit::Money, self.soft_percent);
        let span = length.span();
        Ok(Window { unit, limit, length, span, quota, soft_percent, demote: self.demote.clone() })
    }
}

fn check_patterns(patterns: &[String], field: &str) -> Result<(), Invalid> {
    patterns.iter().enumerate().try_for_each(|(at, pattern)| {
        // A header may be there and empty.
        let checked = if pattern.is_empty() { Ok(()) } else { check_pattern(pattern) };
        checked.map_err(|invalid| invalid.within(&format!("{field}[{at}]")))
    })
}

pub(super) fn check_key(parts: &[Part], field: &str) -> Result<(), Invalid> {
    for (at, part) in parts.iter().enumerate() {
        if let Part::Header(name) = part {
            check_header(name).map_err(|invalid| invalid.within(&format!("{field}[{at}].header")))?;
        }
    }
    Ok(())
}

pub(super) fn check_header(name: &str) -> Result<(), Invalid> {
    let lower = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
    match !name.is_empty() && name.bytes().all(lower) {
        true => Ok(()),
        false => Err(Invalid::new("", "the name of a header, in lower case, is expected")),
    }
}
