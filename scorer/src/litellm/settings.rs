//! `router_settings` as `choose`: policy, attempts, breaker.

use super::accepted;
use serde_json::{Map, Value, json};
use weir::invalid::Invalid;

pub(super) fn choose(settings: Option<&Value>, left_out: &mut Vec<Invalid>) -> Value {
    let mut choose = Map::new();
    if settings.is_some_and(|settings| !settings.is_object()) {
        left_out.push(Invalid::new("router_settings", "is no object; it is left out"));
    }
    let (mut fails, mut cooldown_s, mut disabled) = (None, None, false);
    for (key, value) in settings.and_then(Value::as_object).into_iter().flatten() {
        let at = format!("router_settings.{key}");
        let number = accepted::number(value).unwrap_or_default();
        match key.as_str() {
            "routing_strategy" => match weir::policy::Policy::read(value) {
                Ok(_) => drop(choose.insert("policy".into(), value.clone())),
                Err(invalid) => left_out.push(Invalid::new(at, invalid.why)),
            },
            "num_retries" if number.is_u64() => {
                let attempts = number.as_u64().unwrap_or(0).saturating_add(1).into();
                match accepted::in_choose("attempts", &attempts) {
                    Ok(()) => drop(choose.insert("attempts".into(), attempts)),
                    Err(why) => left_out.push(Invalid::new(at, format!("{attempts} attempts: {why}"))),
                }
            }
            "allowed_fails" if number.is_u64() => fails = number.as_u64(),
            "cooldown_time" if number.as_f64().is_some_and(|seconds| seconds >= 0.0) => {
                cooldown_s = number.as_f64()
            }
            "disable_cooldowns" if value.is_boolean() => disabled = *value == Value::Bool(true),
            // What it turns on is always done here: `max_input_tokens` is kept to.
            "enable_pre_call_checks" if *value == Value::Bool(true) => {}
            "model_group_alias" if value.is_object() || value.is_null() => {}
            _ => left_out.push(Invalid::new(at, "not carried over")),
        }
    }
    let breaker = match disabled {
        true => Some(json!({"rules": [], "hold_off_ms": 0, "max_retry_after_ms": 0})),
        false => (fails.is_some() || cooldown_s.is_some()).then(|| breaker(fails, cooldown_s)),
    };
    if let Some(breaker) = breaker {
        match accepted::in_choose("breaker", &breaker) {
            Ok(()) => drop(choose.insert("breaker".into(), breaker)),
            Err(why) => left_out.push(Invalid::new("router_settings.cooldown_time", why)),
        }
    }
    choose.into()
}

/// Of these two LiteLLM's own default counts where only the other is given.
fn breaker(fails: Option<u64>, cooldown_s: Option<f64>) -> Value {
    let cooldown_ms = ((cooldown_s.unwrap_or(5.0) * 1e3) as u64).max(1);
    json!({
        "rules": [{
            "name": "allowed_fails",
            "failure_condition": {
                "count": fails.unwrap_or(3).saturating_add(1),
                "interval_ms": 60_000,
                "status_code_ranges": [{"min": 401, "max": 401}, {"min": 404, "max": 404}, {"min": 408, "max": 408},
                                       {"min": 500, "max": 599}],
                "error_reasons": ["connect", "reset", "timeout", "cut", "error", "garbage"],
            },
            "trip_duration_ms": cooldown_ms,
        }],
        "hold_off_ms": cooldown_ms,
    })
}
