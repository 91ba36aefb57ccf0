//! How load and prefixes are shared with other scorers.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use weir::invalid::Invalid;

/// The `replicas` of a scorer's configuration.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Scorers of the same group keep each other's books; 1 to 64 letters, digits, `-`, `_` or `.`.
    pub group: String,
    /// Milliseconds for which what happens is gathered before it is told.
    pub flush_ms: NonZeroU64,
    /// Milliseconds between two signs of life, with which all leases are named; who gives none for four is taken to be gone.
    pub beat_ms: NonZeroU64,
    /// Milliseconds after which one that has joined is ready, whatever it has heard.
    pub join_ms: NonZeroU64,
    /// Milliseconds for which the store is left alone after a failure.
    pub retry_ms: NonZeroU64,
}

impl Default for Config {
    fn default() -> Self {
        fn ms(ms: u64) -> NonZeroU64 {
            NonZeroU64::new(ms).unwrap_or(NonZeroU64::MIN)
        }
        Self {
            group: "default".into(),
            flush_ms: ms(2),
            beat_ms: ms(1_000),
            join_ms: ms(3_000),
            retry_ms: ms(200),
        }
    }
}

impl Config {
    /// Checks what its types cannot say.
    pub(in crate::scorer) fn check(&self) -> Result<(), Invalid> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !(1..=64).contains(&self.group.len()) || !self.group.bytes().all(fits) {
            return Err(Invalid::new("group", "1 to 64 letters, digits, '-', '_' or '.' are expected"));
        }
        Ok(())
    }
}
