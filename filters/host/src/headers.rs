//! A map of headers, in the form in which the host hands it over.

use std::ops::Range;

/// Headers: names in lower case, in their order, repeated ones repeated.
///
/// The bytes stay as they came and are cut on demand: a request has a dozen headers, of which a filter looks at
/// three or four.
#[derive(Clone, Default)]
pub struct Headers {
    bytes: Vec<u8>,
    spans: Vec<(Range<usize>, Range<usize>)>,
}

impl Headers {
    /// Reads the ABI's form: a count, then the lengths of each name and value, then each with a NUL behind it;
    /// numbers have four bytes, little end first. Stops where it makes no sense.
    pub fn decode(bytes: Vec<u8>) -> Self {
        let number = |at: usize| {
            let bytes = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
        };
        let count = number(0).unwrap_or(0).min(bytes.len() / 8);
        let mut at = 4 + 8 * count;
        let mut span = |len: usize| {
            let span = at..at.checked_add(len).filter(|end| *end <= bytes.len())?;
            at = span.end.checked_add(1)?;
            Some(span)
        };
        let pair = |n: usize| Some((span(number(4 + 8 * n)?)?, span(number(8 + 8 * n)?)?));
        let spans = (0..count).map_while(pair).collect();
        Self { bytes, spans }
    }

    /// Writes what [`Headers::decode`] reads.
    pub fn encode(headers: &[(&str, &str)]) -> Vec<u8> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = number(headers.len()).to_vec();
        for (name, value) in headers {
            bytes.extend(number(name.len()));
            bytes.extend(number(value.len()));
        }
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// All names and values. One that is not UTF-8 reads as the replacement character.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |span: &Range<usize>| {
            let bytes = self.bytes.get(span.clone()).unwrap_or_default();
            std::str::from_utf8(bytes).unwrap_or("\u{fffd}")
        };
        self.spans.iter().map(move |(name, value)| (text(name), text(value)))
    }

    /// The first value of a header, by its name in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// Whether a header is there more than once, with different values.
    pub fn differs(&self, name: &str) -> bool {
        let mut values = self.iter().filter(|(own, _)| *own == name).map(|(_, value)| value);
        let first = values.next();
        values.any(|value| Some(value) != first)
    }
}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Headers {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(headers: T) -> Self {
        let headers: Vec<_> = headers.into_iter().collect();
        Self::decode(Self::encode(&headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_way_and_damage_is_survived() {
        let pairs = [(":method", "POST"), ("a", ""), ("a", "2")];
        let bytes = Headers::encode(&pairs);
        assert_eq!(Headers::decode(bytes.clone()).iter().collect::<Vec<_>>(), pairs);
        assert_eq!(Headers::decode(bytes.clone()).get("a"), Some(""));
        let differs = |name| Headers::decode(bytes.clone()).differs(name);
        assert_eq!(["a", ":method", "b"].map(differs), [true, false, false]);
        for cut in 0..bytes.len() {
            Headers::decode(bytes[..cut].to_vec()).iter().for_each(drop);
        }
        let mut wrong = bytes.clone();
        wrong[..12].fill(0xff);
        assert_eq!(Headers::decode(wrong).iter().count(), 0);
        let mut not_text = bytes;
        let at = not_text.len() - 2;
        not_text[at] = 0xff;
        assert_eq!(Headers::decode(not_text).iter().last(), Some(("a", "\u{fffd}")));
    }
}
