//! How much text an event of a stream delivers, from a look at its bytes.
//!
//! Most events carry a token, but not all: an engine may send every fifth one only (`stream_interval`), several that it has
//! guessed at once, or a tool's call as a whole. So where nobody counted, what was delivered is the larger of the events and
//! this text by [`BYTES_PER_TOKEN`].
//!
//! Nothing is parsed: this looks at each event of each stream. What is in `delta` counts (chat, Anthropic's, responses), or else in
//! `text` (completions), without what only labels it.

use memchr::{memchr2, memmem};

/// As many bytes of text as make a token of English or of code, about.
pub(super) const BYTES_PER_TOKEN: u64 = 4;

/// Keys in a delta whose values no token was spent on, or none that has to do with their length.
const LABELS: [&[u8]; 6] = [b"role", b"id", b"type", b"data", b"signature", b"finish_reason"];

/// Bytes of text that an event delivers.
pub(super) fn delivered(data: &[u8]) -> u64 {
    of(data, b"\"delta\"").or_else(|| of(data, b"\"text\"")).unwrap_or(0)
}

/// Bytes of text in the values of a key; `None` where it has none. What stands within a value is not looked at again.
fn of(mut json: &[u8], key: &[u8]) -> Option<u64> {
    let mut sum = None::<u64>;
    while let Some(at) = memmem::find(json, key) {
        json = json.get(at.saturating_add(key.len())..).unwrap_or_default().trim_ascii_start();
        if let Some(behind) = json.strip_prefix(b":") {
            let (bytes, rest) = value(behind);
            sum = Some(sum.unwrap_or(0).saturating_add(bytes));
            json = rest;
        }
    }
    sum
}

/// Bytes of all texts in the JSON value that begins here, and what comes behind it.
fn value(mut json: &[u8]) -> (u64, &[u8]) {
    let (mut sum, mut depth, mut is_label) = (0_u64, 0_u32, false);
    while let Some((first, rest)) = json.split_first() {
        json = rest;
        match first {
            b'"' => {
                let (text, length, rest) = string(rest);
                json = rest;
                match rest.trim_ascii_start().first() {
                    Some(b':') if depth > 0 => is_label = LABELS.contains(&text),
                    _ if !is_label => sum = sum.saturating_add(length),
                    _ => {}
                }
            }
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => break,
            _ => continue,
        }
        if depth == 0 {
            break;
        }
    }
    (sum, json)
}

/// A string whose opening quote is gone: as it is written, its length without escapes, and what comes behind it.
fn string(json: &[u8]) -> (&[u8], u64, &[u8]) {
    let (mut length, mut at) = (0_u64, 0_usize);
    loop {
        let rest = json.get(at..).unwrap_or_default();
        let Some(next) = memchr2(b'"', b'\\', rest) else {
            return (json, length.saturating_add(rest.len() as u64), &[]);
        };
        length = length.saturating_add(next as u64);
        at = at.saturating_add(next);
        if rest.get(next) == Some(&b'"') {
            let text = json.get(..at).unwrap_or_default();
            return (text, length, json.get(at.saturating_add(1)..).unwrap_or_default());
        }
        // `\u` and four digits are a character of two or three bytes, any other escape is one of one.
        let (written, bytes) = if rest.get(next.saturating_add(1)) == Some(&b'u') { (6, 3) } else { (2, 1) };
        length = length.saturating_add(bytes);
        at = at.saturating_add(written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn text_is_counted_in_every_dialect_and_labels_are_not() {
        for (event, bytes) in [
            (r#"{"id":"x","choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#, 0),
            (r#"{"choices":[{"index":0,"delta":{"content":"five!"}},{"delta":{"content":"two"}}]}"#, 8),
            (r#"{"choices":[{"delta" : { "reasoning_content" : "ab" , "content" : null }}]}"#, 2),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}"#,
                8,
            ),
            (r#"{"choices":[{"index":0,"text":"one \n two"}],"model":"text"}"#, 9),
            (r#"{"choices":[{"text":"a","logprobs":{"tokens":["text"],"top_logprobs":[{"text":-1}]}}]}"#, 1),
            (r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"hi \"delta\": x"}}"#, 13),
            (r#"{"type":"response.output_text.delta","delta":"h\u00e9y"}"#, 5),
            (r#"{"delta":7,"text":"not this"}"#, 0),
            (r#"{"delta":{"delta":{"delta":"once"}}}"#, 4),
            (r#"{"choices":[{"delta":{"content":"cut of"#, 6),
            (r#"{"delta":{"content":"a\"#, 2),
            ("", 0),
        ] {
            assert_eq!(delivered(event.as_bytes()), bytes, "{event}");
        }
    }
}
