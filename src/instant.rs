//! A point in time that the caller supplies.
//!
//! `std::time::Instant` panics on wasm32-unknown-unknown and cannot be built from a number, so the core has its
//! own: nanoseconds since a start that only has to stay the same within one process.

use serde::{Deserialize, Serialize};
use std::ops::Add;
use std::time::Duration;

/// Nanoseconds since a start that the caller chooses.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Instant(u64);

impl Instant {
    /// The point `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the start.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero when the clock went back.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}
