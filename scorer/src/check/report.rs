//! What was found in one file.

pub(super) use crate::document::join;
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
    /// Whose it is: a filter's name, `scorer`, or `policy`.
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

    /// The places and the configurations of a filter or a scorer: by itself, or as one of the chain's.
    pub(super) fn of(&self, name: &str) -> Vec<(String, Value)> {
        let config = |part: &Part| match part.of {
            of if of == name => Some((part.at.clone(), part.effective.clone())),
            "chain" => Some((join(&part.at, name), part.effective.get(name)?.clone())),
            _ => None,
        };
        self.parts.iter().filter_map(config).collect()
    }

    /// The file's parts in a few words: `3 filters: extract, pick, meter`.
    pub fn summary(&self) -> String {
        let of = |what: &str| self.parts.iter().filter(|part| part.of == what).count();
        let others = [(of(super::SCORER), "scorer", "scorers"), (of(super::POLICY), "policy", "policies")];
        let filters: Vec<&str> = self.parts.iter().map(|part| part.of).collect();
        let filters: Vec<&str> =
            filters.into_iter().filter(|of| ![super::SCORER, super::POLICY].contains(of)).collect();
        let mut parts = Vec::new();
        if !filters.is_empty() {
            parts.push(format!("{}: {}", counted(filters.len(), "filter", "filters"), filters.join(", ")));
        }
        let others = others.into_iter().filter(|(number, ..)| *number > 0);
        parts.extend(others.map(|(number, one, many)| counted(number, one, many)));
        if parts.is_empty() { "0 filters".into() } else { parts.join("; ") }
    }
}

fn counted(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
