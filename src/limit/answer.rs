//! What the client is told, in the words of its API.
//!
//! OpenAI's dialects get `x-ratelimit-{limit,remaining,reset}-{tokens,requests}` with times to go (`1m2.5s`), Anthropic's
//! gets `anthropic-ratelimit-{tokens,requests}-{limit,remaining,reset}` with points in time (RFC 3339), which need the
//! wall clock. `retry-after` is in whole seconds, rounded up: after it the request is admitted, if nothing else came.

use super::account::Standing;
use super::verdict::{Admitted, Denied, Reason};
use crate::request::{Dialect, Refusal};
use crate::wire::DROPPED_REASON;
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

/// Beyond this nobody waits: four years.
const FOR_EVER: Duration = Duration::from_secs(4 * 366 * 86_400);

/// An answer instead of the endpoint's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers besides `content-type`.
    pub headers: Vec<(&'static str, String)>,
    /// A JSON body.
    pub body: String,
}

impl Answer {
    /// The answer when it cannot be known whether a request may be admitted.
    pub fn unavailable(dialect: Dialect, wait: Duration) -> Self {
        let wait = wait.as_nanos().div_ceil(1_000_000_000).max(1);
        let message =
            format!("it cannot be known at the moment how much of the limits is left; try again in {wait} s");
        let headers = vec![("retry-after", wait.to_string())];
        Self { status: 503, headers, body: Refusal::new(dialect, 503, message).body() }
    }
}

impl Denied {
    /// The answer to a request that is not admitted. `wall` gives the time since 1970, and is asked only if needed.
    pub fn answer(&self, dialect: Dialect, wall: impl FnOnce() -> Duration) -> Answer {
        let (kind, code) = match (self.reason, dialect) {
            (Reason::TooLarge | Reason::Ambiguous, _) => {
                let body = Refusal::new(dialect, self.status(), self.message()).body();
                return Answer { status: self.status(), headers: Vec::new(), body };
            }
            (Reason::Quota { .. }, Dialect::Messages) => ("permission_error", ""),
            (Reason::Full { .. }, Dialect::Messages) => ("rate_limit_error", ""),
            (Reason::Quota { .. }, _) => ("insufficient_quota", "insufficient_quota"),
            (Reason::Full { unit, .. }, _) => (unit.name(), "rate_limit_exceeded"),
            (Reason::Expired, _) => {
                return Answer {
                    status: self.status(),
                    headers: self.waiting_headers(dialect),
                    body: Refusal::new(dialect, self.status(), self.message()).body(),
                };
            }
            (_, Dialect::Messages) => ("rate_limit_error", ""),
            (_, _) => ("requests", "rate_limit_exceeded"),
        };
        let message = self.message();
        let body = match dialect {
            Dialect::Messages => json!({"type": "error", "error": {"type": kind, "message": message}}),
            _ => json!({"error": {"message": message, "type": kind, "param": null, "code": code}}),
        };
        let mut headers = self.waiting_headers(dialect);
        headers.extend(standing_headers(self.tokens, self.requests, dialect, wall));
        Answer { status: self.status(), headers, body: body.to_string() }
    }

    /// When to come again, unless it is never; and, of those that were in line or might have been, why they are not.
    fn waiting_headers(&self, dialect: Dialect) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if !self.is_for_ever() {
            headers.push(("retry-after", self.retry_after_s().to_string()));
            if dialect != Dialect::Messages {
                // OpenAI's clients prefer this one.
                headers.push(("retry-after-ms", self.wait.as_nanos().div_ceil(1_000_000).max(1).to_string()));
            }
        }
        match self.reason {
            Reason::LineFull | Reason::Shed => headers.push((DROPPED_REASON, "rejected-saturated".into())),
            Reason::Expired => headers.push((DROPPED_REASON, "rejected-ttl-expired".into())),
            _ => {}
        }
        headers
    }

    /// Whether waiting is of no use: what was used counts for ever.
    fn is_for_ever(&self) -> bool {
        self.wait > FOR_EVER
    }

    /// Whole seconds to wait.
    pub fn retry_after_s(&self) -> u64 {
        self.wait.as_nanos().div_ceil(1_000_000_000).clamp(1, u128::from(u64::MAX)) as u64
    }

    fn status(&self) -> u16 {
        match self.reason {
            Reason::TooLarge | Reason::Ambiguous => 400,
            Reason::Quota { .. } => 403,
            Reason::Expired => 503,
            _ => 429,
        }
    }

    fn message(&self) -> String {
        let Self { limit, cost, allows, .. } = self;
        let wait = self.retry_after_s();
        match self.reason {
            Reason::TooLarge => format!(
                "this request is estimated at {cost}, more than the limit {limit} allows at all: {allows}; send less, or ask for less output"
            ),
            Reason::Ambiguous => {
                "more than one credential: send one, in one header, as a scheme and a word or as a word"
                    .into()
            }
            Reason::Full { .. } => format!(
                "limit {limit} reached: {allows}; this request is estimated at {cost}; try again in {wait} s"
            ),
            Reason::Quota { .. } if self.is_for_ever() => format!("quota {limit} used up: {allows}"),
            Reason::Quota { .. } => {
                format!("quota {limit} used up: {allows}; there will be room for this request in {wait} s")
            }
            Reason::Crowded => format!("limit {limit} reached: {allows}; try again in {wait} s"),
            Reason::LineFull => {
                format!("limit {limit} reached: {allows}, and no more can wait; try again in {wait} s")
            }
            Reason::Shed => format!(
                "limit {limit} reached: {allows}, and requests of this priority do not wait; try again in {wait} s"
            ),
            Reason::Expired => format!(
                "limit {limit} reached: {allows}, and it was not this request's turn in time; try again in {wait} s"
            ),
            Reason::Contended => {
                format!("limit {limit} could not be counted just now; try again in {wait} s")
            }
        }
    }
}

impl Admitted {
    /// Headers for the answer of a request that was admitted; `wall` as in [`Denied::answer`].
    pub fn headers(&self, dialect: Dialect, wall: impl FnOnce() -> Duration) -> Vec<(&'static str, String)> {
        standing_headers(self.tokens, self.requests, dialect, wall)
    }
}

const OPENAI: [[&str; 3]; 2] = [
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
];
const ANTHROPIC: [[&str; 3]; 2] = [
    [
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ],
    [
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ],
];

fn standing_headers(
    tokens: Option<Standing>,
    requests: Option<Standing>,
    dialect: Dialect,
    wall: impl FnOnce() -> Duration,
) -> Vec<(&'static str, String)> {
    if tokens.is_none() && requests.is_none() {
        return Vec::new();
    }
    let (names, now) = match dialect {
        Dialect::Messages => (ANTHROPIC, Some(wall())),
        _ => (OPENAI, None),
    };
    let mut headers = Vec::with_capacity(6);
    for ([limit, remaining, reset], standing) in names.into_iter().zip([tokens, requests]) {
        let Some(standing) = standing else { continue };
        let until =
            now.map_or_else(|| duration(standing.reset), |now| date(now.saturating_add(standing.reset)));
        headers.push((limit, standing.limit.to_string()));
        headers.push((remaining, standing.remaining.to_string()));
        headers.push((reset, until));
    }
    headers
}

/// A duration as OpenAI writes it: `12ms`, `1.5s`, `6m0s`, `1h0m2s`. Rounded up to a millisecond.
fn duration(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    let (minutes, millis) = (millis / 60_000, millis % 60_000);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let seconds = match (millis / 1_000, millis % 1_000) {
        (0, part) if part > 0 && minutes == 0 && hours == 0 => return format!("{part}ms"),
        (seconds, 0) => format!("{seconds}s"),
        (seconds, part) => format!("{}s", format!("{seconds}.{part:03}").trim_end_matches('0')),
    };
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// A point in time since 1970 by RFC 3339, rounded up to a second.
fn date(time: Duration) -> String {
    let secs = i64::try_from(time.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX);
    Timestamp::from_second(secs).unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn times_are_written_as_clients_read_them() {
        for (millis, text) in [
            (0, "0s"),
            (12, "12ms"),
            (1_500, "1.5s"),
            (59_999, "59.999s"),
            (60_000, "1m0s"),
            (62_500, "1m2.5s"),
            (3_600_010, "1h0m0.01s"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(duration(Duration::from_nanos(1)), "1ms");
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(Duration::from_secs(secs)), text);
        }
        assert_eq!(date(Duration::from_millis(999)), "1970-01-01T00:00:01Z");
    }
}
