//! The only clock: the core takes `now` as an argument, and it comes from here.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;
use weir::instant::Instant;

/// Counts from when it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// A clock that starts now.
    // The ban is for wasm32, where std's clock panics; this crate is never compiled to it.
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// The time since the start, as the core counts it.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The time since 1970, by the machine's clock: for dates that others wrote, and for telemetry.
// The ban is for wasm32 here too.
#[allow(clippy::disallowed_methods)]
pub fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The same in nanoseconds.
pub fn unix_nanos() -> u64 {
    u64::try_from(wall().as_nanos()).unwrap_or(u64::MAX)
}

/// A number that nobody knows beforehand: std seeds its hash maps from the system's entropy, and the hash of nothing is
/// such a number.
pub fn seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
