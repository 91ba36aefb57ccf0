//! How much is remembered of engines' caches, and what a block on a slower tier is worth.

use crate::invalid::Invalid;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// The configuration of the index of a pool.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The most blocks remembered per endpoint, all tiers together, some 100 bytes each. An engine says itself what it
    /// gives up, so this is a guard: above what it has.
    pub max_blocks: NonZeroU32,
    /// Milliseconds for which a prompt that was sent counts as held while the engine has not told of it; and for which an
    /// engine may say nothing at all of prompts that are new to it.
    pub predicted_ms: NonZeroU64,
    /// What a token in the host's memory counts, against 1 on the device: from 0 to 1.
    pub host_credit: f64,
    /// What a token on disk counts: from 0 to 1.
    pub disk_credit: f64,
}

impl Default for Config {
    fn default() -> Self {
        const BLOCKS: NonZeroU32 = NonZeroU32::new(1 << 18).unwrap();
        const PREDICTED: NonZeroU64 = NonZeroU64::new(10_000).unwrap();
        // As NVIDIA Dynamo's router has them.
        Self { max_blocks: BLOCKS, predicted_ms: PREDICTED, host_credit: 0.75, disk_credit: 0.25 }
    }
}

impl Config {
    /// Checks what its types leave open.
    pub fn check(&self) -> Result<(), Invalid> {
        for (name, credit) in [("host_credit", self.host_credit), ("disk_credit", self.disk_credit)] {
            if !(0.0..=1.0).contains(&credit) {
                return Err(Invalid::new(name, format!("{credit} is not from 0 to 1")));
            }
        }
        Ok(())
    }

    pub(super) fn predicted(&self) -> Duration {
        Duration::from_millis(self.predicted_ms.get())
    }
}
