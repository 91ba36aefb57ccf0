//! Tests: windows that go by the calendar.

use super::tests::{Memory, admitted, ask, denied, facts, limits, secs, used};
use super::*;
use crate::invalid;
use crate::request::Dialect;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// 30 November 2026, 20:00 in UTC, and 21:00 where the month of [`MONTH`] is counted.
const EVENING: Duration = Duration::from_secs(1_796_068_800);
const MONTH: &str = r#"{"limits":[{"name":"l","key":["consumer"],"windows":[
    {"tokens":1000,"per":"month","zone":"+01:00","quota":true}]}]}"#;
const HOURS_3: u64 = 3 * 3_600;

fn in_the_evening(json: &str) -> Limits {
    let mut limits = limits(json);
    assert!(limits.needs_wall());
    limits.set_wall(EVENING, secs(0));
    limits
}

#[test]
fn a_quota_of_the_month_begins_anew_on_the_first_and_its_client_is_told_when() {
    let (limits, store) = (in_the_evening(MONTH), Memory::default());
    let first = admitted(ask(&limits, &store, "k", &facts(900, Some(0)), secs(60)));
    let headers = first.headers(Dialect::Messages, || EVENING + Duration::from_secs(60));
    let reset = ("anthropic-ratelimit-tokens-reset", "2026-11-30T23:00:00Z".to_owned());
    assert!(headers.contains(&reset), "{headers:?}");
    let denial = denied(ask(&limits, &store, "k", &facts(101, Some(0)), secs(60)));
    assert_eq!((denial.reason, denial.retry_after_s()), (Reason::Quota { unit: Unit::Tokens }, HOURS_3 - 60));
    let answer = denial.answer(Dialect::Chat, || Duration::ZERO);
    assert!(answer.status == 403 && answer.body.contains("1000 tokens per month, +01:00"), "{answer:?}");
    denied(ask(&limits, &store, "k", &facts(101, Some(0)), Instant::from_millis(HOURS_3 * 1_000 - 1)));
    let next = admitted(ask(&limits, &store, "k", &facts(1_000, Some(0)), secs(HOURS_3)));
    assert_eq!(next.tokens.unwrap().remaining, 0);
    // December has 31 days.
    let denial = denied(ask(&limits, &store, "k", &facts(1, Some(0)), secs(HOURS_3)));
    assert_eq!(denial.retry_after_s(), 31 * 86_400);
}

#[test]
fn what_is_over_in_the_next_month_gives_nothing_back_there_and_owes_there() {
    let (mut limits, store) = (in_the_evening(MONTH), Memory::default());
    let remaining = |limits: &Limits, at| {
        admitted(ask(limits, &store, "k", &facts(0, Some(0)), secs(at))).tokens.unwrap().remaining
    };
    let [less, much, more] =
        [(); 3].map(|()| admitted(ask(&limits, &store, "k", &facts(100, Some(200)), secs(10))).ticket);
    limits.settle(&store, less, &used(100, 50), secs(20));
    assert_eq!(remaining(&limits, 20), 1_000 - 900 + 150);
    limits.settle(&store, much, &used(100, 50), secs(HOURS_3 + 1));
    assert_eq!(remaining(&limits, HOURS_3 + 1), 1_000);
    limits.settle(&store, more, &used(100, 250), secs(HOURS_3 + 1));
    assert_eq!(remaining(&limits, HOURS_3 + 1), 950);
}

#[test]
fn a_wall_clock_that_is_set_takes_its_windows_along() {
    let (mut limits, store) = (in_the_evening(MONTH), Memory::default());
    admitted(ask(&limits, &store, "k", &facts(900, Some(0)), secs(0)));
    denied(ask(&limits, &store, "k", &facts(900, Some(0)), secs(10)));
    // It was four hours late.
    limits.set_wall(EVENING + Duration::from_secs(4 * 3_600), secs(10));
    admitted(ask(&limits, &store, "k", &facts(900, Some(0)), secs(10)));
    // And is set back: what was charged in the meantime counts on.
    limits.set_wall(EVENING, secs(20));
    denied(ask(&limits, &store, "k", &facts(200, Some(0)), secs(20)));
}

#[test]
fn a_wrong_calendar_names_the_place() {
    for (window, says) in [
        (r#"{"tokens":1,"per":"fortnight"}"#, "limits[0].windows[0].per: "),
        (
            r#"{"tokens":1,"per":"day","zone":"Europe/Berlin"}"#,
            "limits[0].windows[0].zone: \"Europe/Berlin\" is no zone",
        ),
        (r#"{"tokens":1,"per":"day","per_s":60}"#, "limits[0].windows[0].per: either per_s or per"),
        (
            r#"{"tokens":1,"per":"day","total":true}"#,
            "limits[0].windows[0].total: one of per_s, per and total",
        ),
        (r#"{"tokens":1,"per_s":60,"zone":"UTC"}"#, "limits[0].windows[0].zone: without per"),
        (r#"{"tokens":1,"zone":"UTC"}"#, "limits[0].windows[0].per_s: missing; or per, or total"),
    ] {
        let config = invalid::read::<Config>(
            format!(r#"{{"limits":[{{"name":"l","windows":[{window}]}}]}}"#).as_bytes(),
        );
        let said = config.and_then(|config| Limits::new(&config, 0)).unwrap_err().to_string();
        assert!(said.starts_with(says), "{window}: {said}");
    }
}

#[test]
fn other_periods_and_zones_begin_anew_and_others_say_so() {
    let store = Memory::default();
    let form = |json: &str| {
        let limits = in_the_evening(json);
        admitted(ask(&limits, &store, "k", &facts(100, Some(0)), secs(1))).tokens.unwrap().remaining
    };
    assert_eq!(form(MONTH), 900);
    assert_eq!(form(MONTH), 800);
    assert_eq!(form(&MONTH.replace("+01:00", "UTC")), 900);
    assert_eq!(form(&MONTH.replace("month", "week")), 900);
}
