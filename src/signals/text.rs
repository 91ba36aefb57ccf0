//! Samples of Prometheus's text format, and of OpenMetrics, as far as they are alike.
//!
//! ```text
//! line    = name [ "{" label="value" ,.. "}" ] value [ time ] [ "# " exemplar ]
//! value   = as Rust's f64, with NaN, +Inf and -Inf
//! escape  = \\  \"  \n
//! ```
//!
//! A line that is none is passed over: one odd line must not hide all others. Nothing is allocated but for labels that
//! have escapes in them.

use std::borrow::Cow;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    /// What stands between the braces.
    labels: &'a str,
    pub(super) value: f64,
}

/// The samples of a text.
pub(super) fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim_ascii();
    let name_ends = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
    let (name, rest) = line.split_at_checked(name_ends)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => {
            let end = labels_end(rest)?;
            (rest.get(..end)?, rest.get(end + 1..)?)
        }
        None => ("", rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some(Sample { name, labels, value })
}

/// Where the closing brace is: not one that is quoted.
fn labels_end(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'}' => return !quoted,
            _ => {}
        }
        false
    })
}

impl<'a> Sample<'a> {
    /// The value of a label.
    pub(super) fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once('=')?;
            let value = after.trim_start().strip_prefix('"')?;
            let end = value_end(value)?;
            if key.trim_matches([',', ' ', '\t']) == name {
                return value.get(..end).map(unescaped);
            }
            rest = value.get(end + 1..)?;
        }
    }
}

/// Where the closing quote is.
fn value_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return value.into();
    }
    let mut out = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (_, true) => out.extend(letters.next().map(|next| if next == 'n' { '\n' } else { next })),
            (letter, false) => out.push(letter),
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_line_is_a_name_labels_and_a_value_whatever_follows() {
        let text = "# HELP a b\n a 1\nb{x=\"1\", y=\"2\",} 1.2e+01 1764000000123\nc{} +Inf # {trace=\"z\"} 3 4\n\
                    d{quoted=\"a}\\\"b\\\\\",z=\"x\\ny\"} 3E0\r\nbroken{x=\"1 2\nno value\n {} 1\ne\t-5\n\n";
        let all: Vec<Sample<'_>> = samples(text).collect();
        let values: Vec<(&str, f64)> = all.iter().map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(values, [("a", 1.0), ("b", 12.0), ("c", f64::INFINITY), ("d", 3.0), ("e", -5.0)]);
        assert_eq!((all[1].label("y").as_deref(), all[1].label("z")), (Some("2"), None));
        assert_eq!(all[3].label("quoted").as_deref(), Some("a}\"b\\"));
        assert_eq!(all[3].label("z").as_deref(), Some("x\ny"));
    }

    #[test]
    fn no_cut_of_a_line_does_harm() {
        let line = "vllm:x{a=\"\\\"é}\",b=\"2\"} 1.5 7";
        for end in (0..=line.len()).filter(|end| line.is_char_boundary(*end)) {
            for sample in samples(&line[..end]) {
                let _ = (sample.label("a"), sample.label("b"), sample.label("c"));
            }
        }
    }
}
