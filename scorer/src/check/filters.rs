//! The filters by name, and how each reads its configuration: one row a filter.

use serde::Serialize;
use serde_json::Value;
use weir::invalid::{self, Invalid};

/// A filter of ours.
#[derive(Debug)]
pub(super) struct Filter {
    /// Its name: of its folder, its .wasm file, and at the end of its `root_id`.
    pub name: &'static str,
    /// Whether it holds headers until the body comes, and so needs `allow_on_headers_stop_iteration`. Any other
    /// filter that has the flag lets requests through undecided while it waits for a call.
    pub holds_headers: bool,
    /// Reads a configuration as the filter does; gives it back with defaults filled in.
    pub read: fn(&[u8]) -> Result<Value, Invalid>,
}

/// Every filter.
const FILTERS: &[Filter] = &[
    Filter {
        name: "breaker",
        holds_headers: false,
        read: |json| Ok(effective(&invalid::read::<weir_breaker::Config>(json)?)),
    },
    Filter {
        name: "chain",
        holds_headers: true,
        read: |json| Ok(effective(&weir_chain::Config::read(json)?)),
    },
    Filter {
        name: "extract",
        holds_headers: true,
        read: |json| Ok(effective(&weir_extract::Config::read(json)?)),
    },
    Filter {
        name: "opening",
        holds_headers: true,
        read: |json| Ok(effective(&invalid::read::<weir_opening::Config>(json)?)),
    },
    Filter { name: "limit", holds_headers: false, read: |json| Ok(effective(&weir_limit::read(json)?)) },
    Filter {
        name: "pick",
        holds_headers: false,
        read: |json| Ok(effective(&weir_pick::Config::read(json)?)),
    },
    Filter {
        name: "meter",
        holds_headers: false,
        read: |json| Ok(effective(&invalid::read::<weir_meter::Config>(json)?)),
    },
];

fn effective(config: &impl Serialize) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

/// The filter whose name is a word of `text`: of a `root_id`, a plugin's name, or the name of its code.
pub(super) fn named_in(text: &str) -> Option<&'static Filter> {
    let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.find_map(|word| FILTERS.iter().find(|filter| filter.name == word))
}

/// The last part of a file's path, a URL, or an image's name without its tag.
pub(super) fn file_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.split(['@', ':', '?']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_known_by_a_word() {
        let name = |text| named_in(text).map(|filter| filter.name);
        assert_eq!(name("weir-extract"), Some("extract"));
        assert_eq!(name("weir_meter.wasm"), Some("meter"));
        assert_eq!(name("parameters.wasm"), None);
        assert_eq!(file_name("oci://host:5000/weir/meter:0.1"), "meter");
        assert_eq!(file_name("/etc/envoy/extract.wasm"), "extract.wasm");
    }
}
