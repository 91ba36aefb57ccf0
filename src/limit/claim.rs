//! What a proxy and the scorer say to each other about limits.
//!
//! A proxy *claims*: so much of each limit it keeps, so much it has used, so much it wants. The scorer *grants*: so
//! much it may use. Both speak in amounts that stand, never in differences, so a message told twice does no harm;
//! turns tell the order (`ledger.rs`). Keys are hashes with a secret seed, never what clients sent.

use serde::{Deserialize, Serialize};

/// A window is long from this length on, exclusive: what is lost to it is lost for long.
pub(super) const LONG_MS: u64 = 3_600_000;

/// What a proxy says of the keys that it counts.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The proxy, by a number that it has drawn.
    pub proxy: u64,
    /// Milliseconds for which what it is granted holds.
    pub lease_ms: u64,
    /// Its keys.
    pub keys: Vec<Claim>,
}

/// One key of one limit.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The hash of the limit: its name, key and lengths of windows.
    pub rule: u64,
    /// The hash of the key's values.
    pub key: u64,
    /// Goes up whenever something is given back. Within a turn an allowance only grows.
    pub turn: u64,
    /// Its windows, as they are configured, and then the requests in flight, if they are limited.
    pub parts: Vec<Claimed>,
}

/// One window of a key, or its requests in flight.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Claimed {
    /// What all proxies may use together.
    pub limit: u64,
    /// Milliseconds that use counts.
    pub window_ms: u64,
    /// What the proxy allows itself from now on.
    pub keep: u64,
    /// What it has used within the window.
    pub used: u64,
    /// Milliseconds until none of that counts.
    pub reset_ms: u64,
    /// What it would like to be allowed.
    pub want: u64,
}

/// The answer to [`Claims`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// In the order of the claims.
    pub keys: Vec<Grant>,
    /// Milliseconds until anything is granted anew: who has lost its memory first hears what proxies hold.
    #[serde(default)]
    pub settling_ms: u64,
}

/// One key of one limit.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The turn that it is for. A later one than the claim's: the claim came too late and changed nothing.
    pub turn: u64,
    /// There was less than was wanted.
    pub lacks: bool,
    /// Another proxy wants more than it has got: what is not needed should be given back.
    pub sought: bool,
    /// In the order of the claim.
    pub parts: Vec<Granted>,
}

/// One window of a key, or its requests in flight.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Granted {
    /// What the proxy may have used at any time within the lease.
    pub amount: u64,
    /// What all others have used.
    pub others: u64,
    /// Milliseconds until the others have used so little that there is room for what was wanted; `None`: never, if
    /// nothing is given back.
    pub wait_ms: Option<u64>,
    /// While another proxy wants more of it: what each that wants it should keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair: Option<u64>,
}
