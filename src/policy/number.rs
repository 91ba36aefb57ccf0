//! Numbers with a range, for parameters: what has been read is in it.
//!
//! A number in the wrong unit is mostly out of range: percent where a share or a factor is meant, seconds where
//! milliseconds are. So each kind has a type, and what it refuses it says with the range and the unit. To add a kind: one
//! `ranged!`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

macro_rules! ranged {
    ($(#[$about: meta])+ $name: ident($number: ty), $fits: expr, $range: literal) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
        pub(super) struct $name($number);

        impl $name {
            /// A constant of ours.
            pub(super) const fn of(number: $number) -> Self {
                Self(number)
            }

            pub(super) fn get(self) -> $number {
                self.0
            }
        }

        impl TryFrom<$number> for $name {
            type Error = String;

            fn try_from(number: $number) -> Result<Self, String> {
                let fits: fn($number) -> bool = $fits;
                if fits(number) { Ok(Self(number)) } else { Err(format!(concat!("{} is not ", $range), number)) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <$number>::deserialize(from)?.try_into().map_err(D::Error::custom)
            }
        }
    };
}

ranged!(
    /// A share, from 0 to 1.
    Ratio(f64), |number| (0.0..=1.0).contains(&number), "from 0 to 1"
);
ranged!(
    /// A finite number from 0 up.
    Amount(f64), |number| number.is_finite() && number >= 0.0, "a number from 0 up"
);
ranged!(
    /// How many times as much: 1.25 is a quarter more.
    Factor(f64), |number| (1.0..=20.0).contains(&number), "a factor from 1 to 20: 1.25 is a quarter more"
);
ranged!(
    /// The same, where 0 is no bound.
    Bound(f64),
    |number| number == 0.0 || (1.0..=20.0).contains(&number),
    "a factor from 1 to 20 (1.25 is a quarter more), or 0 for no bound"
);
ranged!(
    /// How much more, as a part of the whole: 0.1 is a tenth.
    Excess(f64), |number| (0.0..=5.0).contains(&number), "from 0 to 5: 0.1 is a tenth more"
);
ranged!(
    /// Percent of a whole, but not none.
    Percent(u32), |number| (1..=100).contains(&number), "from 1 to 100 percent"
);
ranged!(
    /// A time that is not to be 0.
    Millis(u64), |number| number >= 100, "from 100 milliseconds up"
);
ranged!(
    /// A time, where 0 turns something off.
    MillisOrOff(u64), |number| number == 0 || number >= 100, "0 (off) or from 100 milliseconds up"
);

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_is_no_number_is_in_no_range() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Ratio::try_from(number).is_err() && Amount::try_from(number).is_err());
            assert!(Factor::try_from(number).is_err() && Bound::try_from(number).is_err());
            assert!(Excess::try_from(number).is_err());
        }
    }
}
