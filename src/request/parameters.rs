//! `value; name=value; name="quoted value"`: the headers `content-type` and `content-disposition`.
//!
//! Readers differ on what a backslash means between quotes and on who wins of two equal names, so neither is
//! accepted: what is read here has one reading.

/// A header's value, and its parameters, names in lower case.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Parameters<'a> {
    /// What stands before the parameters, as it came.
    pub value: &'a str,
    parameters: Vec<(String, &'a str)>,
}

/// More parameters than this have no use.
const MOST: usize = 16;

impl<'a> Parameters<'a> {
    /// Reads a header; `None` when it could be read in two ways, or in none.
    pub(super) fn read(header: &'a str) -> Option<Self> {
        let (value, mut rest) = header.split_once(';').unwrap_or((header, ""));
        let mut read = Self { value: value.trim(), parameters: Vec::new() };
        loop {
            rest = rest.trim_start_matches([' ', '\t', ';']);
            if rest.is_empty() {
                return Some(read);
            }
            let (name, after) = rest.split_once('=')?;
            let name = name.trim().to_ascii_lowercase();
            let value;
            (value, rest) = match after.trim_start().strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_at_checked(after.find(';').unwrap_or(after.len()))?,
            };
            let value = value.trim_matches([' ', '\t']);
            let ended = rest.trim_start().is_empty() || rest.trim_start().starts_with(';');
            let plain = !name.is_empty() && !name.contains(['"', ';', ' ']) && !value.contains(['\\', '"']);
            if !ended || !plain || read.get(&name).is_some() || read.parameters.len() == MOST {
                return None;
            }
            read.parameters.push((name, value));
        }
    }

    /// A parameter, by its name in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn quoted_and_bare_values_are_read() {
        let read = Parameters::read(r#"form-data; Name="a; b=c" ;filename=x.wav;"#).unwrap();
        assert_eq!(
            (read.value, read.get("name"), read.get("filename")),
            ("form-data", Some("a; b=c"), Some("x.wav"))
        );
        assert_eq!(Parameters::read("application/json").unwrap().get("charset"), None);
        assert_eq!(Parameters::read("a/b;charset = UTF-8").unwrap().get("charset"), Some("UTF-8"));
    }

    #[test]
    fn what_readers_disagree_on_is_not_read() {
        for header in [
            r#"form-data; name="a\"b""#,
            r#"form-data; name="a"; name="b""#,
            r#"form-data; name="a"; NAME=b"#,
            r#"form-data; name="a"#,
            r#"form-data; name="a"x"#,
            r#"form-data; name=a"b"#,
            r#"form-data; name"#,
            r#"form-data; ="a""#,
        ] {
            assert_eq!(Parameters::read(header), None, "{header}");
        }
    }
}
