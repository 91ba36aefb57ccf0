//! Files to JSON values: one format inside, whatever a file is written in.
//!
//! JSON is YAML, so one reader does for both. It refuses a key that comes twice, which JSON readers let pass and
//! Envoy does not. A file may hold several documents, as Kubernetes manifests do.

use serde::Deserialize;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use weir::invalid::Invalid;

/// All documents of a YAML or JSON text; empty ones are left out.
pub fn read_all(text: &[u8]) -> Result<Vec<Value>, Invalid> {
    let whole = |why: String| Invalid::new("", why);
    let text = std::str::from_utf8(text).map_err(|error| whole(error.to_string()))?;
    let mut documents = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let yaml = serde_yaml_ng::Value::deserialize(document).map_err(|error| whole(error.to_string()))?;
        finite(&yaml, "")?;
        match serde_json::to_value(yaml).map_err(|error| whole(error.to_string()))? {
            Value::Null => {}
            value => documents.push(value),
        }
    }
    Ok(documents)
}

/// Refuses `.nan` and `.inf`, which YAML has and JSON has not: they would become `null`, that is a default.
fn finite(yaml: &serde_yaml_ng::Value, at: &str) -> Result<(), Invalid> {
    use serde_yaml_ng::Value;
    match yaml {
        Value::Number(number) if !number.is_finite() => {
            Err(Invalid::new(at, format!("{number} is no number that can be used")))
        }
        Value::Sequence(all) => {
            all.iter().enumerate().try_for_each(|(nth, value)| finite(value, &format!("{at}[{nth}]")))
        }
        Value::Mapping(map) => {
            map.iter().try_for_each(|(key, value)| finite(value, &join(at, key.as_str().unwrap_or_default())))
        }
        Value::Tagged(tagged) => finite(&tagged.value, at),
        _ => Ok(()),
    }
}

/// The only document of a text; an empty text is `{}`.
pub fn read_one(text: &[u8]) -> Result<Value, Invalid> {
    let mut documents = read_all(text)?;
    match documents.len() {
        0 => Ok(Value::Object(serde_json::Map::new())),
        1 => Ok(documents.remove(0)),
        more => Err(Invalid::new("", format!("{more} documents where one is expected"))),
    }
}

/// The bytes of a file; `-` is standard input.
pub fn bytes_of(file: &Path) -> std::io::Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The path of `key` in the object at `at`.
pub(crate) fn join(at: &str, key: &str) -> String {
    let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'@'));
    match (is_plain, at.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{at}.{key}"),
        (false, _) => format!("{at}[{key:?}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_and_yaml_read_alike() {
        let yaml = read_one(b"# note\na: [1, {b: x}]\n80: y\n").unwrap();
        assert_eq!(yaml, json!({"a": [1, {"b": "x"}], "80": "y"}));
        assert_eq!(read_one(br#"{"a": [1, {"b": "x"}], "80": "y"}"#).unwrap(), yaml);
        assert_eq!(read_one(b" \n").unwrap(), json!({}));
    }

    #[test]
    fn a_manifest_has_many_documents_and_a_key_only_one_value() {
        assert_eq!(read_all(b"a: 1\n---\n---\nb: 2\n").unwrap(), [json!({"a": 1}), json!({"b": 2})]);
        assert!(read_one(b"a: 1\n---\nb: 2\n").is_err());
        assert!(read_one(b"a: 1\na: 2\n").unwrap_err().why.contains("duplicate"));
        assert!(read_one(b"a: [").unwrap_err().why.contains("line"));
    }

    #[test]
    fn what_is_no_number_is_refused_and_no_default() {
        for text in ["a: {b: [1, .nan]}", "a: {b: [1, .inf]}", "a: {b: [1, -.inf]}"] {
            let invalid = read_one(text.as_bytes()).unwrap_err();
            assert_eq!(invalid.at, "a.b[1]", "{invalid}");
        }
    }
}
