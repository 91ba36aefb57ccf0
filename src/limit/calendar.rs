//! Windows that begin and end with the calendar: so much an hour, a day, a week, a month, a year.
//!
//! Contracts and bills count so, and who has used up a quota is told that it begins anew on the first. In no such period is more
//! admitted than the limit. Around its edge up to twice as much can be, at the end of one and the beginning of the next:
//! against bursts there are sliding windows (`window.rs`), and a limit may have both.
//!
//! A period is known by when it began, in seconds since 1970: an account has one cell of each such window, that of the
//! period that runs, and nothing of an earlier one counts. What is charged when a request is over, beyond what was
//! reserved, is charged to the period of that moment.
//!
//! Days begin at midnight in UTC, or so many hours and minutes before or after it. No zone has a name: rules of summer
//! time change by law, and a filter would need all of them.
//!
//! The core's clock only runs; what the calendar says is a matter of the wall clock, which is set now and then. So a
//! calendar knows when the running clock was zero, and is told anew when that is off by more than [`MOST_DRIFT`]: what
//! happens in between falls to the period that the older reading says.

use crate::instant::Instant;
use jiff::civil::Date;
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What recurs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// From the full hour.
    Hour,
    /// From midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    Month,
    /// From the first of January.
    Year,
}

impl Per {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

/// How far clocks are ahead of UTC: `UTC`, or `+HH:MM` and `-HH:MM` up to 14 hours.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(Offset);

impl Default for Zone {
    fn default() -> Self {
        Self(Offset::UTC)
    }
}

impl TryFrom<String> for Zone {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |digits: &str| match digits.as_bytes() {
            [ten @ b'0'..=b'9', one @ b'0'..=b'9'] => {
                Some(i32::from(ten - b'0') * 10 + i32::from(one - b'0'))
            }
            _ => None,
        };
        let read = || {
            let (sign, rest) = match text.strip_prefix('+') {
                Some(rest) => (1, rest),
                None => (-1, text.strip_prefix('-')?),
            };
            let (hours, minutes) = rest.split_once(':')?;
            let (hours, minutes) = (number(hours)?, number(minutes).filter(|minutes| *minutes < 60)?);
            let seconds = hours * 3_600 + minutes * 60;
            Offset::from_seconds(sign * seconds).ok().filter(|_| seconds <= 14 * 3_600)
        };
        match text.as_str() {
            "UTC" => Ok(Self::default()),
            _ => read().map(Self).ok_or_else(|| {
                format!("{text:?} is no zone: UTC, or +HH:MM or -HH:MM, up to 14 hours; names have summer time, which is not kept here")
            }),
        }
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        match zone.0.seconds() {
            0 => "UTC".into(),
            seconds => {
                let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.unsigned_abs() / 60);
                format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}

/// The periods of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    per: Per,
    zone: Zone,
    /// The wall's time when the clock was zero, in nanoseconds since 1970.
    epoch: u64,
}

/// The wall clock is followed when it is further off than this. Less is only the time between two readings.
const MOST_DRIFT: Duration = Duration::from_millis(100);

impl Calendar {
    /// Periods in a zone, of a clock that began in 1970 for all that is known.
    pub fn new(per: Per, zone: Zone) -> Self {
        Self { per, zone, epoch: 0 }
    }

    /// Hears what time it is by the wall clock.
    pub fn set(&mut self, wall: Duration, now: Instant) {
        let wall = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        let epoch = wall.saturating_sub(now.nanos());
        if u128::from(epoch.abs_diff(self.epoch)) > MOST_DRIFT.as_nanos() {
            self.epoch = epoch;
        }
    }

    /// The period that a point in time belongs to.
    pub fn cell(self, at: Instant) -> u64 {
        let second = self.epoch.saturating_add(at.nanos()) / 1_000_000_000;
        self.begin_and_end(second).map_or(second, |(begin, _)| begin)
    }

    /// When a period is over.
    pub fn end(self, cell: u64) -> Instant {
        let end = self.begin_and_end(cell).map_or(u64::MAX, |(_, end)| end);
        Instant::from_nanos(end.saturating_mul(1_000_000_000).saturating_sub(self.epoch))
    }

    /// The period around a second, from its first second to the next one's first. What is before 1970 is cut off.
    fn begin_and_end(self, second: u64) -> Option<(u64, u64)> {
        let offset = self.zone.0;
        let local = offset.to_datetime(Timestamp::from_second(i64::try_from(second).ok()?).ok()?);
        let date = local.date();
        let midnights = |begin: Date, next: Date| (begin.at(0, 0, 0, 0), next.at(0, 0, 0, 0));
        let (begin, next) = match self.per {
            Per::Hour => {
                let begin = date.at(local.hour(), 0, 0, 0);
                (begin, begin.checked_add(1.hour()).ok()?)
            }
            Per::Day => midnights(date, date.tomorrow().ok()?),
            Per::Week => {
                let begin =
                    date.checked_sub(i64::from(date.weekday().to_monday_zero_offset()).days()).ok()?;
                midnights(begin, begin.checked_add(1.week()).ok()?)
            }
            Per::Month => midnights(date.first_of_month(), date.last_of_month().tomorrow().ok()?),
            Per::Year => midnights(date.first_of_year(), date.last_of_year().tomorrow().ok()?),
        };
        let seconds = |local| u64::try_from(offset.to_timestamp(local).ok()?.as_second().max(0)).ok();
        Some((seconds(begin)?, seconds(next)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const ALL: [Per; 5] = [Per::Hour, Per::Day, Per::Week, Per::Month, Per::Year];

    fn at(text: &str) -> Instant {
        let time: Timestamp = text.parse().unwrap();
        Instant::from_nanos(time.as_nanosecond().try_into().unwrap())
    }

    fn zone(text: &str) -> Zone {
        Zone::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn periods_begin_and_end_as_calendars_have_them() {
        for (per, ahead, now, begin, end) in [
            (Per::Hour, "UTC", "2026-11-30T19:59:59.9Z", "2026-11-30T19:00:00Z", "2026-11-30T20:00:00Z"),
            (Per::Hour, "+05:30", "2026-11-30T19:10:00Z", "2026-11-30T18:30:00Z", "2026-11-30T19:30:00Z"),
            (Per::Day, "UTC", "2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"),
            (Per::Day, "-08:00", "2026-12-01T07:59:59Z", "2026-11-30T08:00:00Z", "2026-12-01T08:00:00Z"),
            (Per::Week, "UTC", "2026-11-29T23:59:59Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (Per::Week, "UTC", "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"),
            (Per::Month, "UTC", "2024-02-29T12:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
            (Per::Month, "+02:00", "2026-11-30T22:00:00Z", "2026-11-30T22:00:00Z", "2026-12-31T22:00:00Z"),
            (Per::Month, "UTC", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            (Per::Year, "UTC", "2028-06-01T00:00:00Z", "2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z"),
        ] {
            let calendar = Calendar::new(per, zone(ahead));
            let cell = calendar.cell(at(now));
            assert_eq!(cell, at(begin).nanos() / 1_000_000_000, "{per:?} {ahead} {now}");
            assert_eq!(calendar.end(cell), at(end), "{per:?} {ahead} {now}");
        }
    }

    #[test]
    fn every_moment_is_in_one_period_and_the_next_begins_where_it_ends() {
        let mut random = Random::new(12);
        for per in ALL {
            for ahead in ["UTC", "+13:45", "-09:30"] {
                let mut calendar = Calendar::new(per, zone(ahead));
                calendar.set(Duration::from_secs(1_700_000_000), Instant::from_nanos(77));
                for _ in 0..500 {
                    let now = Instant::from_nanos(random.next() >> 2);
                    let cell = calendar.cell(now);
                    let end = calendar.end(cell);
                    assert!(now < end, "{per:?} {now:?}");
                    assert_eq!(calendar.cell(Instant::from_nanos(end.nanos() - 1)), cell);
                    assert!(calendar.cell(end) > cell);
                }
                for odd in [0, 1, u64::MAX, u64::MAX / 2] {
                    calendar.end(odd);
                    calendar.cell(Instant::from_nanos(odd));
                }
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_is_followed_and_its_jitter_is_not() {
        let mut calendar = Calendar::new(Per::Day, Zone::default());
        let noon = Duration::from_secs(20_000 * 86_400 + 43_200);
        calendar.set(noon, Instant::from_millis(5_000));
        let before = calendar;
        calendar.set(noon + Duration::from_millis(1_060), Instant::from_millis(6_000));
        assert_eq!(calendar, before);
        calendar.set(noon + Duration::from_secs(86_401), Instant::from_millis(6_000));
        assert_eq!(calendar.cell(Instant::from_millis(6_000)), 20_001 * 86_400);
    }

    #[test]
    fn zones_are_offsets_and_anything_else_is_refused() {
        for text in ["UTC", "+02:00", "-03:30", "+14:00"] {
            assert_eq!(String::from(zone(text)), text);
        }
        assert_eq!(zone("+00:00"), Zone::default());
        for bad in [
            "",
            "utc",
            "Europe/Berlin",
            "+2:00",
            "+02",
            "02:00",
            "+02:60",
            "+14:01",
            "+99:00",
            "++1:00",
            "+0a:00",
        ] {
            assert!(Zone::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
