//! Names and other people's words as single words, so that a line of fields stays one.

use std::borrow::Cow;
use std::fmt::Write;

/// A name as a number: the same in every process. Of endpoints, to hash by, and of LoRA adapters.
pub fn name_hash(name: &str) -> u64 {
    xxhash_rust::xxh64::xxh64(name.as_bytes(), 0)
}

/// A name as one word of visible ASCII, for headers and lines of fields: every byte that is not visible ASCII, and `%`,
/// becomes `%` and two hex digits in capitals. Names that differ give words that differ. Most names are left as they are.
pub fn encode(name: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
    if name.bytes().all(plain) {
        return name.into();
    }
    let mut word = String::with_capacity(name.len().saturating_mul(2));
    for byte in name.bytes() {
        match plain(byte) {
            true => word.push(char::from(byte)),
            false => {
                let _ = write!(word, "%{byte:02X}");
            }
        }
    }
    word.into()
}

/// The name that [`encode`] made a word of; `None` for what it makes of none.
pub fn decode(word: &str) -> Option<String> {
    let mut pieces = word.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let name = String::from_utf8(bytes).ok()?;
    // One name, one word.
    (encode(&name) == word).then_some(name)
}

/// Somebody else's words as one word, of bounded length: it cannot forge another field of a line.
pub fn one_word(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_name_becomes_one_word_and_comes_back() {
        let names = ["m", "org/m-7b:x", "a b", "a%20b", "%", "Größe", " m", "m\u{7f}", "\r\nx: y"];
        let words = names.map(encode);
        for (name, word) in names.iter().zip(&words) {
            assert!(word.bytes().all(|byte| byte.is_ascii_graphic()), "{word}");
            assert_eq!(decode(word).as_deref(), Some(*name));
            assert_eq!(words.iter().filter(|other| *other == word).count(), 1, "{word}");
        }
        assert_eq!(encode("a b%"), "a%20b%25");
        for word in ["%", "%2", "a%zz", "%+1", "%41", "%2f", "%c3%bc", "%FF", "a b"] {
            assert_eq!(decode(word), None, "{word}");
        }
    }
}
