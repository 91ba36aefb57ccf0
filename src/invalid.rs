//! The one error of configuration: where it is, and why.
//!
//! Every configuration, whether Envoy hands it to a filter or a file holds it, is a JSON value read by
//! [`read`]; so every message has the same shape, `pools[0].endpoints[1]: …`, and names the place to mend.

use serde::de::DeserializeOwned;
use std::fmt;

/// A configuration that cannot be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The path of the value, as `pools[0].endpoints`; empty for the whole.
    pub at: String,
    /// What is wrong with it, and where it helps what would be right.
    pub why: String,
}

impl Invalid {
    /// `why` the value at path `at` is refused.
    pub fn new(at: impl Into<String>, why: impl Into<String>) -> Self {
        Self { at: at.into(), why: why.into() }
    }

    /// The value at path `at` names a `what` that there is not; in the words that serde has for fields and variants.
    pub fn unknown<'a>(
        at: impl Into<String>,
        what: &str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        let known: Vec<String> = known.map(|known| format!("`{known}`")).collect();
        Self::new(at, format!("unknown {what} `{name}`, expected one of {}", known.join(", ")))
    }

    /// The same error seen from further out: `outer` goes in front of its path.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        let dot = if self.at.is_empty() || self.at.starts_with('[') || outer.is_empty() { "" } else { "." };
        self.at = format!("{outer}{dot}{}", self.at);
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() { f.write_str(&self.why) } else { write!(f, "{}: {}", self.at, self.why) }
    }
}

impl std::error::Error for Invalid {}

/// A number as somebody would write it: `1e300`, and not all of its zeros.
pub(crate) fn figure(number: f64) -> String {
    let is_usual = number == 0.0 || (1e-9..1e15).contains(&number.abs());
    if is_usual { number.to_string() } else { format!("{number:e}") }
}

/// Reads a configuration from JSON text. Nothing at all reads as `{}`: a plugin without configuration.
pub fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, Invalid> {
    let json = if json.trim_ascii().is_empty() { b"{}" } else { json };
    let mut text = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut text).map_err(placed)?;
    text.end().map_err(|error| Invalid::new("", error.to_string()))?;
    Ok(value)
}

/// Reads a message from the front of `bytes`, and says where it ends: what follows is another's.
pub fn read_front<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), Invalid> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value = match T::deserialize(&mut text) {
        Ok(value) => value,
        // To know the place all the time costs as much again, and hardly any message has a mistake.
        Err(_) => {
            text = serde_json::Deserializer::from_slice(bytes);
            serde_path_to_error::deserialize(&mut text).map_err(placed)?
        }
    };
    let end = text.into_iter::<serde::de::IgnoredAny>().byte_offset();
    Ok((value, end))
}

/// Reads a configuration, or a part of one, that has already been parsed to a JSON value.
pub fn read_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Invalid> {
    serde_path_to_error::deserialize(value).map_err(placed)
}

fn placed(error: serde_path_to_error::Error<serde_json::Error>) -> Invalid {
    let at = error.path().to_string();
    Invalid::new(if at == "." { "" } else { &at }, error.into_inner().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[allow(dead_code)]
        list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[allow(dead_code)]
        number: u32,
    }

    #[test]
    fn message_names_the_place() {
        let wrong = read::<Outer>(br#"{"list":[{"number":1},{"number":"x"}]}"#).unwrap_err();
        assert_eq!(wrong.at, "list[1].number");
        let unknown = read::<Outer>(br#"{"list":[{"nmber":1}]}"#).unwrap_err();
        assert!(unknown.to_string().starts_with("list[0].nmber: unknown field `nmber`"), "{unknown}");
        assert!(read::<Outer>(br#"{"list":[]} x"#).is_err());
    }

    #[test]
    fn within_joins_paths() {
        assert_eq!(Invalid::new("a", "no").within("b").at, "b.a");
        assert_eq!(Invalid::new("[0]", "no").within("b").at, "b[0]");
        assert_eq!(Invalid::new("", "no").within("b").to_string(), "b: no");
    }
}
