//! What an operator says of endpoints.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// What the configuration says of one endpoint; all of it may be left out.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Attributes {
    /// Its share against others', for policies that weigh; 1 unless given.
    pub weight: f64,
    /// Its group: those of the smallest number serve what they can, the next what they cannot; see `docs/backends.md`.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// The most requests in flight there; one for which all endpoints are full is answered 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<NonZeroU32>,
    /// Labels, as Kubernetes has them: `llm-d.ai/role: decode`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Tokens per minute that its provider allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<u64>,
    /// Requests per minute that its provider allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpm: Option<u64>,
    /// Price of an input token, in any currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_cost_per_token: Option<f64>,
    /// Price of an output token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_cost_per_token: Option<f64>,
    /// The longest prompt that it takes, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u32>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            weight: 1.0,
            priority: 0,
            max_in_flight: None,
            labels: BTreeMap::new(),
            tpm: None,
            rpm: None,
            input_cost_per_token: None,
            output_cost_per_token: None,
            max_input_tokens: None,
        }
    }
}

impl Attributes {
    /// Checks what its types cannot say: the field, and why it is refused.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let numbers = [
            ("weight", Some(self.weight)),
            ("input_cost_per_token", self.input_cost_per_token),
            ("output_cost_per_token", self.output_cost_per_token),
        ];
        for (field, number) in numbers {
            if let Some(number) = number.filter(|number| !number.is_finite() || *number < 0.0) {
                return Err((field, format!("{number} is not a number from 0 up")));
            }
        }
        Ok(())
    }
}

/// An endpoint, as policies meet it.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Told apart from an endpoint that had the same address before.
    pub id: u64,
    /// Its address and port.
    pub address: &'a str,
    /// What the configuration says of it.
    pub attributes: &'a Attributes,
}
