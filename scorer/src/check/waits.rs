//! How long Envoy lets a request stand still that filters hold (`stream_idle_timeout`).
//!
//! It is the only bound for one of which the filter's VM has died: what would have let it go on is gone. And it is one for those that
//! wait in a line of `limit`'s, which should have their own end before.

use super::report::{Report, join};
use super::walk::get;
use serde_json::{Map, Value};
use std::time::Duration;

/// Envoy's own, where nothing is said.
const DEFAULT: Duration = Duration::from_secs(300);

pub(super) fn check(bootstrap: &Map<String, Value>, report: &mut Report) {
    let mut managers = Vec::new();
    for (key, value) in bootstrap {
        find(value, key, &mut managers);
    }
    for (manager, at) in managers {
        let within = format!("{at}.");
        let holds = |of: &str, at: &str| ["pick", "limit", "chain"].contains(&of) && at.starts_with(&within);
        if !report.parts.iter().any(|part| holds(part.of, &part.at)) {
            continue;
        }
        let said = get(manager, "stream_idle_timeout").map(duration);
        let Some(bound) = said.unwrap_or(Some(DEFAULT)) else { continue };
        if bound.is_zero() {
            let why = "0: a request that a filter holds is never answered if the VM of its worker dies; 60s will do, where routes \
                       have an idle_timeout of their own";
            report.warn(join(&at, "stream_idle_timeout"), why);
            continue;
        }
        for (own, limit) in report.of("limit").into_iter().filter(|(own, _)| own.starts_with(&within)) {
            for (nth, one) in limit.get("limits").and_then(Value::as_array).into_iter().flatten().enumerate()
            {
                let wait =
                    one.pointer("/queue/timeout_ms").and_then(Value::as_u64).map(Duration::from_millis);
                if let Some(wait) = wait.filter(|wait| *wait >= bound) {
                    let why = format!(
                        "{}, but after {} s Envoy ends a request that waits (stream_idle_timeout)",
                        wait.as_millis(),
                        bound.as_secs_f64()
                    );
                    report.warn(format!("{own}.limits[{nth}].queue.timeout_ms"), why);
                }
            }
        }
    }
}

/// All connection managers below `value`, with their places.
fn find<'v>(value: &'v Value, at: &str, managers: &mut Vec<(&'v Map<String, Value>, String)>) {
    match value {
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(nth, value)| find(value, &format!("{at}[{nth}]"), managers));
        }
        Value::Object(map) => {
            let kind = map.get("@type").and_then(Value::as_str).unwrap_or_default();
            if kind.ends_with(".HttpConnectionManager") {
                managers.push((map, at.to_owned()));
            } else {
                map.iter().for_each(|(key, value)| find(value, &join(at, key), managers));
            }
        }
        _ => {}
    }
}

/// `60s`, as protobuf's JSON has it; `None`: it is none, of which others speak.
fn duration(value: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(value.as_str()?.strip_suffix('s')?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use crate::check;

    const GOOD: &str = include_str!("../../tests/data/envoy.yaml");

    fn said(bound: &str, filter: &str) -> Vec<String> {
        let text = GOOD
            .replacen("stat_prefix: proxy", &format!("stat_prefix: proxy{bound}"), 1)
            .replace("root_id: weir-meter", "root_id: weir-limit")
            .replace("/etc/envoy/meter.wasm", "/etc/envoy/limit.wasm")
            .replace("- name: meter", "- name: limit")
            .replace(r#"{"models": ["m"]}"#, filter);
        let report = check::text(text.as_bytes());
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        let warnings = report.warnings.iter().map(ToString::to_string);
        warnings.filter(|warning| warning.contains("stream_idle_timeout")).collect()
    }

    fn bound(value: &str) -> String {
        format!("\n                stream_idle_timeout: {value}")
    }

    #[test]
    fn a_request_that_is_held_for_ever_and_a_line_longer_than_envoys_patience_are_named() {
        let queue = |ms: u32| {
            format!(
                r#"{{"limits": [{{"name": "a", "key": ["model"], "max_in_flight": 1, "queue": {{"timeout_ms": {ms}}}}}]}}"#
            )
        };
        assert!(said("", &queue(10_000)).is_empty());
        assert!(said(&bound("60s"), &queue(10_000)).is_empty());
        let never = said(&bound("0s"), &queue(10_000));
        assert!(never[0].contains("stream_idle_timeout: 0: a request that a filter holds"), "{never:?}");
        for (bound, ms) in [(String::new(), 300_000), (bound("60s"), 60_000), (bound("0.5s"), 10_000)] {
            let long = said(&bound, &queue(ms));
            assert!(long[0].contains(&format!("limits[0].queue.timeout_ms: {ms}, but after")), "{long:?}");
        }
    }
}
