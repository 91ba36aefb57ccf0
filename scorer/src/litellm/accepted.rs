//! Whether the filters take a value, asked one by one: a single odd one is left out and named where it stands in LiteLLM's file, and the rest
//! comes over.

use serde_json::{Number, Value, json};

/// A setting as an endpoint's attribute of this name; else why it is none.
pub(super) fn attribute(name: &str, setting: &Value) -> Result<Value, String> {
    let value = number(setting)?;
    taken(&json!({"attributes": {ENDPOINT: {name: value}}}), &json!({})).map(|()| value)
}

/// Whether `choose` may have this field.
pub(super) fn in_choose(field: &str, value: &Value) -> Result<(), String> {
    taken(&json!({}), &json!({field: value}))
}

const ENDPOINT: &str = "10.0.0.1:8000";

fn taken(of_pool: &Value, choose: &Value) -> Result<(), String> {
    let mut pool = json!({"name": "a", "models": ["a"], "endpoints": [ENDPOINT]});
    if let (Some(pool), Some(more)) = (pool.as_object_mut(), of_pool.as_object()) {
        pool.extend(more.clone());
    }
    let config = json!({"pools": [pool], "choose": choose}).to_string();
    let refused = weir_pick::Config::read(config.as_bytes()).err();
    // Of the place in a text that nobody has seen nothing is said.
    let why = refused.map(|invalid| invalid.why.split(" at line ").next().unwrap_or_default().to_owned());
    why.map_or(Ok(()), Err)
}

/// Some write numbers as texts, Python's YAML takes `100_000` for one, and it has no other whole numbers than `8192.0` where it has floats.
pub(super) fn number(value: &Value) -> Result<Value, String> {
    let text = value.as_str().map(|text| text.trim().replace('_', ""));
    if let Some(text) = value.as_str().filter(|text| text.starts_with("os.environ/")) {
        return Err(format!("{text:?} is in the environment of LiteLLM; write its value here"));
    }
    let number = text.and_then(|text| serde_json::from_str::<Number>(&text).ok()).map(Value::Number);
    let number = number.unwrap_or_else(|| value.clone());
    let float = number.as_f64().filter(|_| number.is_f64());
    let whole = float.filter(|float| float.fract() == 0.0 && (0.0..=9e15).contains(float));
    Ok(whole.map_or(number, |whole| Value::from(whole as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_python_would_and_what_is_none_is_named() {
        for (setting, value) in [
            (json!("60"), json!(60)),
            (json!("100_000"), json!(100_000)),
            (json!(8192.0), json!(8192)),
            (json!(" 7 "), json!(7)),
        ] {
            assert_eq!(attribute("rpm", &setting), Ok(value), "{setting}");
        }
        for setting in [
            json!("many"),
            json!([1]),
            json!(-1),
            json!(1.5),
            json!({}),
            json!(true),
            json!("os.environ/RPM"),
        ] {
            assert!(attribute("rpm", &setting).is_err(), "{setting}");
        }
        assert!(in_choose("attempts", &json!(3)).is_ok());
        assert!(in_choose("attempts", &json!(99_999_999_999_u64)).is_err());
    }
}
