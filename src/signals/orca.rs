//! ORCA: what an endpoint says of itself beside an answer.
//!
//! ```text
//! endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2
//! endpoint-load-metrics: JSON {"application_utilization": 0.7, "named_metrics": {"kv_cache_usage_perc": 0.4}}
//! ```
//!
//! vLLM writes it when the request has `endpoint-load-metrics-format`. It tells of the moment at which headers were sent,
//! which for a stream is its beginning. Anything else, the binary form too, is nothing.

use crate::policy::Signals;
use serde_json::Value;

/// The header of the answer.
pub const HEADER: &str = "endpoint-load-metrics";

/// Reads the header's value. `None` when nothing in it is known.
pub fn read(value: &str) -> Option<Signals> {
    let mut signals = Signals::default();
    let (format, rest) = value.trim_ascii().split_once(' ')?;
    match format {
        "TEXT" => {
            for (name, value) in rest.split(',').filter_map(|pair| pair.split_once('=')) {
                take(&mut signals, name.trim_ascii(), value.trim_ascii().parse().ok()?);
            }
        }
        "JSON" => {
            let value: Value = serde_json::from_str(rest).ok()?;
            for (name, value) in value.as_object()? {
                match value {
                    Value::Object(named) => named.iter().for_each(|(name, value)| {
                        value.as_f64().into_iter().for_each(|value| take(&mut signals, name, value));
                    }),
                    value => value.as_f64().into_iter().for_each(|value| take(&mut signals, name, value)),
                }
            }
        }
        _ => return None,
    }
    (signals != Signals::default()).then_some(signals)
}

fn take(signals: &mut Signals, name: &str, value: f64) {
    if !value.is_finite() || value < 0.0 {
        return;
    }
    let whole = value.min(f64::from(u32::MAX)) as u32;
    match name.strip_prefix("named_metrics.").unwrap_or(name) {
        "application_utilization" => signals.utilization = Some(value),
        // The machine's, where nothing better is said.
        "cpu_utilization" => signals.utilization = signals.utilization.or(Some(value)),
        "kv_cache_usage_perc" | "kv_cache_utilization" => signals.kv_usage = Some(value.min(1.0)),
        "num_requests_waiting" => signals.waiting = Some(whole),
        "num_requests_running" => signals.running = Some(whole),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn both_forms_say_the_same_and_what_is_unknown_is_left_out() {
        let expected = Signals { kv_usage: Some(0.4), waiting: Some(2), ..Signals::default() };
        let text =
            "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2, other=9";
        let json = r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2.0}, "rps_fractional": 7}"#;
        assert_eq!([read(text), read(json)], [Some(expected); 2]);
        let used = read(r#"JSON {"cpu_utilization": 0.9, "application_utilization": 1.5}"#).unwrap();
        assert_eq!(used.utilization, Some(1.5));
        for nothing in
            ["", "TEXT ", "BIN AAAA", "JSON [", "JSON 3", "TEXT a=b", "TEXT x=1", "TEXT cpu_utilization=-1"]
        {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }
}
