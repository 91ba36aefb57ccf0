//! What tokens cost in money.
//!
//! Money is counted in billionths of whatever unit the prices are in, in integers: a price per million tokens in steps of a
//! thousandth of the unit is a whole number of billionths per token, so sums are exact, and what is charged is
//! the bill to the last digit. 2^64 billionths are 18 thousand million units.
//!
//! Providers price cached input lower and reasoning as output; each class has a price of its own, and what is left out costs as the
//! class that it is a part of.

use super::cost::{check_pattern, fits};
use crate::invalid::{Invalid, figure};
use crate::response::Usage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Billionths in a unit of money.
pub(super) const MONEY: u64 = 1_000_000_000;

/// Prices by model.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The unit, as it is called in messages.
    #[serde(default = "Prices::currency")]
    pub currency: String,
    /// Of all models but those below. It must be said, since what has no price would be free.
    pub other: Price,
    /// Prices by model: a name, or the beginning of names with `*` behind it. The longest that fits is taken.
    #[serde(default)]
    pub models: BTreeMap<String, Price>,
}

/// What a million tokens of each class cost. 0 to 1,000,000, in steps of 0.001.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Prompt tokens that were computed.
    pub input: PerMillion,
    /// Prompt tokens that were found in a cache; as `input` unless set.
    #[serde(default)]
    pub cached_input: Option<PerMillion>,
    /// Tokens of the answer.
    pub output: PerMillion,
    /// Tokens of hidden reasoning; as `output` unless set.
    #[serde(default)]
    pub reasoning: Option<PerMillion>,
}

/// A price of a million tokens: billionths of the unit for each.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct PerMillion(u64);

impl From<PerMillion> for f64 {
    fn from(price: PerMillion) -> Self {
        price.0 as Self / 1e3
    }
}

impl TryFrom<f64> for PerMillion {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let nanos = (number * 1e3).round();
        if !(0.0..=1e9).contains(&nanos) || (nanos - number * 1e3).abs() > 1e-6 * nanos.max(1.0) {
            return Err(format!(
                "{} is no price of a million tokens: 0 to 1000000, in steps of 0.001",
                figure(number)
            ));
        }
        Ok(Self(nanos as u64))
    }
}

/// An amount of money, in billionths of the unit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Money(u64);

impl Money {
    /// In billionths of the unit.
    pub fn nanos(self) -> u64 {
        self.0
    }
}

impl From<Money> for f64 {
    fn from(money: Money) -> Self {
        money.0 as Self / MONEY as Self
    }
}

impl TryFrom<f64> for Money {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let micros = (number * 1e6).round();
        if !(1.0..=1e12).contains(&micros) || (micros - number * 1e6).abs() > 1e-6 * micros {
            return Err(format!(
                "{} is no amount of money: 0.000001 to 1000000, in steps of 0.000001",
                figure(number)
            ));
        }
        Ok(Self(micros as u64 * 1_000))
    }
}

impl Prices {
    fn currency() -> String {
        "USD".into()
    }

    /// Checks what types cannot say.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.models.keys().try_for_each(|name| {
            check_pattern(name).map_err(|invalid| invalid.within(&format!("models.{name}")))
        })
    }

    /// The price of a model.
    pub fn of(&self, model: Option<&str>) -> &Price {
        let model = model.unwrap_or_default();
        // A list of prices may be long.
        self.models.get(model).unwrap_or_else(|| {
            let names = self.models.iter().filter(|(name, _)| fits(name, model));
            names.max_by_key(|(name, _)| name.len()).map_or(&self.other, |(_, price)| price)
        })
    }
}

impl Price {
    /// Whether its tokens cost nothing.
    pub fn is_free(&self) -> bool {
        self.most(1, 1) == 0
    }

    /// What was used costs, in billionths of the unit.
    pub fn cost(&self, usage: &Usage) -> u64 {
        let cached = usage.cached.min(usage.input);
        let reasoning = usage.reasoning.min(usage.output);
        let classes = [
            (usage.input - cached, self.input),
            (cached, self.cached_input.unwrap_or(self.input)),
            (usage.output - reasoning, self.output),
            (reasoning, self.reasoning.unwrap_or(self.output)),
        ];
        let cost = |(tokens, price): (u64, PerMillion)| tokens.saturating_mul(price.0);
        classes.into_iter().map(cost).fold(0, u64::saturating_add)
    }

    /// The most that so much input and output can cost.
    pub(super) fn most(&self, input: u64, output: u64) -> u64 {
        let dearest = |one: PerMillion, part: Option<PerMillion>| one.0.max(part.unwrap_or(one).0);
        let input = input.saturating_mul(dearest(self.input, self.cached_input));
        input.saturating_add(output.saturating_mul(dearest(self.output, self.reasoning)))
    }
}

/// An amount in words: to the cent, or as far as there is something to say.
pub(super) fn words(nanos: u64, currency: &str) -> String {
    let (whole, part) = (nanos / MONEY, nanos % MONEY);
    let part = format!("{part:09}");
    let part = part.trim_end_matches('0');
    match part.len() {
        0 => format!("{whole} {currency}"),
        1 => format!("{whole}.{part}0 {currency}"),
        _ => format!("{whole}.{part} {currency}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_bill_is_exact_to_the_billionth() {
        let json = r#"{"other": {"input": 1, "output": 4}, "models": {
            "gpt-*": {"input": 2.5, "cached_input": 1.25, "output": 10, "reasoning": 12}, "gpt-mini": {"input": 0.014, "output": 0.6}}}"#;
        let prices: Prices = serde_json::from_str(json).unwrap();
        let usage = Usage { input: 1_000, cached: 600, output: 50, reasoning: 20 };
        let bill = |model| prices.of(Some(model)).cost(&usage);
        assert_eq!(bill("gpt-4"), 400 * 2_500 + 600 * 1_250 + 30 * 10_000 + 20 * 12_000);
        assert_eq!(bill("gpt-mini"), 1_000 * 14 + 50 * 600);
        assert_eq!(bill("else"), 1_000 * 1_000 + 50 * 4_000);
        // A hundred million times a tenth of a cent is no rounded sum.
        let tenth =
            Price { input: PerMillion(1), cached_input: None, output: PerMillion(0), reasoning: None };
        let sum: u64 = (0..1_000_000).map(|_| tenth.cost(&Usage { input: 1, ..Usage::default() })).sum();
        assert_eq!(sum, 1_000_000);
    }

    #[test]
    fn amounts_and_prices_that_are_none_are_refused() {
        for bad in ["-1", "0.0000001", "1e7", "\"5\""] {
            assert!(serde_json::from_str::<Money>(bad).is_err(), "{bad}");
        }
        for bad in ["-1", "0.0001", "1e7"] {
            assert!(serde_json::from_str::<PerMillion>(bad).is_err(), "{bad}");
        }
        let huge = serde_json::from_str::<PerMillion>("1e300").unwrap_err().to_string();
        assert!(huge.starts_with("1e300 is no price"), "{huge}");
        let money = |text| serde_json::from_str::<Money>(text).unwrap().nanos();
        assert_eq!(
            [money("0.1"), money("19.99"), money("1000000")],
            [100_000_000, 19_990_000_000, 1_000_000_000_000_000]
        );
        assert_eq!(
            [words(100_000_000, "USD"), words(50 * MONEY, "EUR"), words(1_234_567_000, "USD")],
            ["0.10 USD", "50 EUR", "1.234567 USD"]
        );
    }
}
