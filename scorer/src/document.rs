//! Files to JSON values: one format inside, whatever a file is written in.
//!
//! JSON is YAML, so one reader does for both. It refuses a key that comes twice, which JSON readers let pass and
//! Envoy does not. A file may hold several documents, as Kubernetes manifests do.
//!
//! The reader takes time with the square of how deep lists are nested, and memory a hundred times the text's size. So
//! what is nested deeper than anything that makes sense is refused before, and files that are followed have a largest size.

use serde::Deserialize;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use weir::invalid::Invalid;

/// Most `[` and `{` that may be open at a time. They are counted wherever they stand, in texts too: so it is far more than the
/// reader's own 128.
const MOST_NESTED: usize = 512;
/// Largest file that is followed, in bytes.
pub const MOST_BYTES: u64 = 2 << 20;

/// All documents of a YAML or JSON text; empty ones are left out.
pub fn read_all(text: &[u8]) -> Result<Vec<Value>, Invalid> {
    let whole = |why: String| Invalid::new("", why);
    let text = std::str::from_utf8(text).map_err(|error| whole(error.to_string()))?;
    if let Some(line) = nested_too_deep(text) {
        return Err(whole(format!("line {line}: nested deeper than {MOST_NESTED}")));
    }
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

/// The line in which more is open than may be.
fn nested_too_deep(text: &str) -> Option<usize> {
    let (mut line, mut open) = (1, 0_usize);
    for byte in text.bytes() {
        match byte {
            b'\n' => line += 1,
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > MOST_NESTED {
            return Some(line);
        }
    }
    None
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

/// Reads a file that is followed, and makes something of it if it is not what was `seen` before. On a thread that may wait: neither
/// a disk that is slow nor a text that is long holds up who is served.
///
/// Only files are read, and none that are larger than [`MOST_BYTES`]: a pipe would never end.
pub async fn follow<T: Send + 'static>(
    file: &Path,
    seen: Option<Seen>,
    make: impl FnOnce(&[u8]) -> Result<T, Invalid> + Send + 'static,
) -> (Seen, Option<Result<T, String>>) {
    let file = file.to_owned();
    let look = move || {
        let read: Seen = bounded(&file).map_err(|error| error.to_string());
        if seen.as_ref() == Some(&read) {
            return (read, None);
        }
        let made = match &read {
            Ok(text) => make(text).map_err(|invalid| invalid.to_string()),
            Err(why) => Err(why.clone()),
        };
        (read, Some(made))
    };
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|error| (Err(error.to_string()), Some(Err(error.to_string()))))
}

/// The bytes of a file that is followed, or why there are none.
pub type Seen = Result<Vec<u8>, String>;

fn bounded(file: &Path) -> std::io::Result<Vec<u8>> {
    let refused = |why: String| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    // Before it is opened, since opening a pipe waits for who writes into it.
    if !std::fs::metadata(file)?.is_file() {
        return refused("it is not a file".into());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return refused(format!("it is larger than {MOST_BYTES} bytes"));
    }
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
    fn what_is_nested_without_end_is_refused_before_it_is_read() {
        let deep = |depth: usize| format!("a: 1\nb: {}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(read_one(deep(100_000).as_bytes()).unwrap_err().why, "line 2: nested deeper than 512");
        assert!(read_one(deep(200).as_bytes()).is_err(), "by the reader itself");
        assert!(read_one(deep(100).as_bytes()).is_ok());
        let wide = format!("[{}]", "[{a: [1]}], ".repeat(1_000));
        assert!(read_one(wide.as_bytes()).is_ok());
    }

    #[tokio::test]
    async fn of_a_followed_file_only_what_is_a_file_and_not_too_large_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let look = async |seen| follow(&file, seen, read_one).await;
        std::fs::write(&file, "a: 1\n").unwrap();
        let (seen, made) = look(None).await;
        assert_eq!(made, Some(Ok(json!({"a": 1}))));
        let (seen, made) = look(Some(seen)).await;
        assert_eq!(made, None, "nothing new");
        std::fs::write(&file, "#".repeat(MOST_BYTES as usize + 1)).unwrap();
        let (_, made) = look(Some(seen)).await;
        assert!(made.unwrap().unwrap_err().contains("larger than"));
        for odd in [dir.path(), Path::new("/dev/zero")] {
            let (_, made) = follow(odd, None, read_one).await;
            assert!(made.unwrap().unwrap_err().contains("not a file"), "{odd:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused_and_no_default() {
        for text in ["a: {b: [1, .nan]}", "a: {b: [1, .inf]}", "a: {b: [1, -.inf]}"] {
            let invalid = read_one(text.as_bytes()).unwrap_err();
            assert_eq!(invalid.at, "a.b[1]", "{invalid}");
        }
    }
}
