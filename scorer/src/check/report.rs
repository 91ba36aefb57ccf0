//! What was found in one file.

use serde_json::Value;
use weir::invalid::Invalid;

/// What was found in one file.
#[derive(Debug, Default)]
pub struct Report {
    /// Why it cannot be accepted.
    pub errors: Vec<Invalid>,
    /// What is accepted and still likely a mistake.
    pub warnings: Vec<Invalid>,
    /// The configurations of ours in it.
    pub parts: Vec<Part>,
    /// It is what Envoy is started with.
    pub is_bootstrap: bool,
}

/// A configuration of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Whose it is: a filter's name, or `scorer`.
    pub of: &'static str,
    /// Its place in the file.
    pub at: String,
    /// The configuration with defaults filled in.
    pub effective: Value,
}

impl Report {
    pub(super) fn error(&mut self, at: impl Into<String>, why: impl Into<String>) {
        self.errors.push(Invalid::new(at, why));
    }

    pub(super) fn warn(&mut self, at: impl Into<String>, why: impl Into<String>) {
        self.warnings.push(Invalid::new(at, why));
    }

    /// The file's parts in a few words: `3 filters: extract, pick, meter`.
    pub fn summary(&self) -> String {
        let filters: Vec<&str> =
            self.parts.iter().map(|part| part.of).filter(|of| *of != super::SCORER).collect();
        match self.parts.len() - filters.len() {
            0 if filters.is_empty() => "0 filters".into(),
            0 => format!("{}: {}", counted(filters.len(), "filter"), filters.join(", ")),
            scorers if filters.is_empty() => counted(scorers, "scorer"),
            scorers => {
                let filters = format!("{}: {}", counted(filters.len(), "filter"), filters.join(", "));
                format!("{filters}; {}", counted(scorers, "scorer"))
            }
        }
    }
}

fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The path of `key` in the object at `at`.
pub(super) fn join(at: &str, key: &str) -> String {
    let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'@'));
    match (is_plain, at.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{at}.{key}"),
        (false, _) => format!("{at}[{key:?}]"),
    }
}
