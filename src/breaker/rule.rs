//! When an endpoint is out: rules in the shape of Azure API Management's backend circuit breaker.
//!
//! A rule counts what it names (statuses, reasons) and trips when, within its interval, that is so many, or so large a
//! share of all answers. Differences from Azure's: an endpoint may have several rules; durations are in milliseconds; after the
//! trip come probes and a ramp, not everybody at once; and of statuses from 500 on only failures count, whatever a range has in
//! it: not 501, not 529, and not a 503 that says when to come again, which is a full queue. Statuses of 4xx count where a rule names them.

use super::outcome::{Cause, Class, Outcome, Reason};
use super::window::Counts;
use crate::invalid::Invalid;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// A rule by which an endpoint trips.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, for logs.
    pub name: String,
    /// What trips it.
    pub failure_condition: FailureCondition,
    /// Milliseconds for which the endpoint gets nothing; twice as long after each probe that fails, up to
    /// `max_trip_duration_ms`.
    pub trip_duration_ms: NonZeroU64,
    /// A failure's own `Retry-After` can make the trip longer, up to `max_retry_after_ms`.
    #[serde(default = "yes")]
    pub accept_retry_after: bool,
}

fn yes() -> bool {
    true
}

/// So many failures within an interval, or so large a share.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FailureCondition {
    /// This many failures trip. Either this or `percentage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU32>,
    /// This share of successes and failures trips, 1 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentage: Option<u32>,
    /// With `percentage`: not before there were this many.
    #[serde(default = "FailureCondition::min_requests")]
    pub min_requests: NonZeroU32,
    /// The interval that slides, in milliseconds.
    pub interval_ms: NonZeroU64,
    /// Statuses that are failures, from 400 on.
    #[serde(default)]
    pub status_code_ranges: Vec<StatusCodeRange>,
    /// Reasons that are.
    #[serde(default)]
    pub error_reasons: Vec<Reason>,
}

impl FailureCondition {
    const fn min_requests() -> NonZeroU32 {
        const TEN: NonZeroU32 = NonZeroU32::new(10).unwrap();
        TEN
    }
}

/// Statuses from `min` to `max`, both included.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StatusCodeRange {
    /// The first.
    pub min: u16,
    /// The last.
    pub max: u16,
}

impl Rule {
    /// The rules of a configuration that has none: an endpoint that cannot be reached is out after the second try, one that
    /// answers badly after the fifth.
    pub(super) fn usual() -> Vec<Self> {
        const MS_5000: NonZeroU64 = NonZeroU64::new(5_000).unwrap();
        const MS_10000: NonZeroU64 = NonZeroU64::new(10_000).unwrap();
        let rule = |name: &str, count, statuses, error_reasons| Self {
            name: name.to_owned(),
            failure_condition: FailureCondition {
                count: NonZeroU32::new(count),
                percentage: None,
                min_requests: FailureCondition::min_requests(),
                interval_ms: MS_10000,
                status_code_ranges: statuses,
                error_reasons,
            },
            trip_duration_ms: MS_5000,
            accept_retry_after: true,
        };
        use Reason::{Connect, Cut, Error, Garbage, Reset, Timeout};
        vec![
            rule("unreachable", 2, Vec::new(), vec![Connect, Reset, Timeout]),
            rule("failing", 5, vec![StatusCodeRange { min: 500, max: 599 }], vec![Cut, Error, Garbage]),
        ]
    }

    /// Where requests are hedged and no rule says when an endpoint is too slow: it is out when a copy sent later was sooner every second
    /// time.
    pub(super) fn slow() -> Self {
        const MS_5000: NonZeroU64 = NonZeroU64::new(5_000).unwrap();
        const MS_10000: NonZeroU64 = NonZeroU64::new(10_000).unwrap();
        Self {
            name: "slow".to_owned(),
            failure_condition: FailureCondition {
                count: None,
                percentage: Some(50),
                min_requests: FailureCondition::min_requests(),
                interval_ms: MS_10000,
                status_code_ranges: Vec::new(),
                error_reasons: vec![Reason::Slow],
            },
            trip_duration_ms: MS_5000,
            accept_retry_after: true,
        }
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.name.is_empty() {
            return Err(Invalid::new("name", "empty"));
        }
        self.failure_condition.check().map_err(|invalid| invalid.within("failure_condition"))
    }

    /// Whether the rule counts this outcome as a failure.
    pub(super) fn counts(&self, outcome: &Outcome) -> bool {
        let condition = &self.failure_condition;
        match outcome.cause {
            Cause::Failed(reason) => condition.error_reasons.contains(&reason),
            Cause::Status(500..) if outcome.class() != Class::Failure => false,
            Cause::Status(status) => {
                let named = |range: &StatusCodeRange| (range.min..=range.max).contains(&status);
                condition.status_code_ranges.iter().any(named)
            }
            Cause::Gone | Cause::TooLong => false,
        }
    }

    /// Whether so many failures trip.
    pub(super) fn trips(&self, counts: Counts) -> bool {
        let condition = &self.failure_condition;
        let by_count = condition.count.is_some_and(|count| counts.failed >= count.get());
        let by_share = condition.percentage.is_some_and(|percentage| {
            let enough = counts.all >= condition.min_requests.get();
            enough && u64::from(counts.failed) * 100 >= u64::from(counts.all) * u64::from(percentage)
        });
        by_count || by_share
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_millis(self.failure_condition.interval_ms.get())
    }

    pub(super) fn trip_duration(&self) -> Duration {
        Duration::from_millis(self.trip_duration_ms.get())
    }
}

impl FailureCondition {
    fn check(&self) -> Result<(), Invalid> {
        match (self.count, self.percentage) {
            (None, None) => return Err(Invalid::new("", "say `count` or `percentage`")),
            (Some(_), Some(_)) => {
                return Err(Invalid::new("percentage", "there is a `count` already; a rule has one of them"));
            }
            (None, Some(percentage)) if !(1..=100).contains(&percentage) => {
                return Err(Invalid::new("percentage", format!("{percentage} is not from 1 to 100")));
            }
            _ => {}
        }
        if self.status_code_ranges.is_empty() && self.error_reasons.is_empty() {
            return Err(Invalid::new(
                "",
                "nothing counts as a failure; name `status_code_ranges` or `error_reasons`",
            ));
        }
        for (nth, StatusCodeRange { min, max }) in self.status_code_ranges.iter().enumerate() {
            if min > max || *min < 400 || *max > 599 {
                let why = format!("{min} to {max} is no range of statuses from 400 to 599");
                return Err(Invalid::new(format!("status_code_ranges[{nth}]"), why));
            }
        }
        Ok(())
    }
}
