//! Numbers with a range, for parameters: what has been read is in it.

use serde::{Deserialize, Serialize};

/// A share, from 0 to 1.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub(super) struct Ratio(f64);

/// A finite number from 0 up.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub(super) struct Amount(f64);

impl Ratio {
    /// A constant of ours.
    pub(super) const fn of(number: f64) -> Self {
        Self(number)
    }

    pub(super) fn get(self) -> f64 {
        self.0
    }
}

impl Amount {
    /// A constant of ours.
    pub(super) const fn of(number: f64) -> Self {
        Self(number)
    }

    pub(super) fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Ratio {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        if (0.0..=1.0).contains(&number) {
            Ok(Self(number))
        } else {
            Err(format!("{number} is not from 0 to 1"))
        }
    }
}

impl TryFrom<f64> for Amount {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let fits = number.is_finite() && number >= 0.0;
        if fits { Ok(Self(number)) } else { Err(format!("{number} is not a number from 0 up")) }
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.0
    }
}

impl From<Amount> for f64 {
    fn from(amount: Amount) -> Self {
        amount.0
    }
}
