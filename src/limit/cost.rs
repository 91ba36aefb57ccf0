//! What a request costs: in advance by estimate, afterwards by what it used.
//!
//! ```text
//! cost = input * (input - cached) + cached_input * cached + output * (output - reasoning) + reasoning * reasoning
//! ```
//!
//! with tokens on the right and weights in front. All is counted in thousandths of a token, in integers: what is
//! charged is what was used, to the token. The weights are all 1 unless configured: then a token of a limit
//! is a token of the engine's `usage`, and the sums agree with the bill. Where cached input costs nothing to serve, set
//! `cached_input` to 0, as Anthropic's input limits do; where tokens are priced, set the weights to the ratio of the prices.
//!
//! **The estimate** is the prompt, as `extract` estimates its tokens ([`crate::request::Ratios`]), none of it cached; and
//! the output, by the client's bound (`max_tokens`), as OpenAI's and Anthropic's limits have it. Without a bound it is
//! what answers of this model usually come to (`usual.rs`), and `output_tokens` until that is known, for each choice; and no less
//! than the client has the engine write (`min_tokens`), which is no guess. A guess may be wrong by much, so it never makes a
//! request too large: it is cut to what the limits allow. Nor does what was learned of the prompt ([`Facts::firm_prompt_tokens`]).

use super::money::Prices;
use super::usual::Usual;
use super::verdict::Hold;
use crate::invalid::{Invalid, figure};
use crate::request::Facts;
use crate::response::{Report, Status, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Thousandths of a token in a token.
pub(super) const TOKEN: u64 = 1_000;

/// How cost is counted.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Weights of all models but those below.
    pub weights: Weights,
    /// Weights by model: a name, or the beginning of names with `*` behind it. The longest that fits is taken, and
    /// counts whole: a weight it leaves out is 1.
    pub models: BTreeMap<String, Weights>,
    /// Output tokens expected of an answer without a bound, until answers to several keys tell. 1 to 2^32 - 1.
    pub output_tokens: NonZeroU32,
    /// How much output is reserved for a request that has a bound.
    pub reserve: Reserve,
    /// What tokens cost in money, for limits that count it.
    pub prices: Option<Prices>,
}

impl Default for Config {
    fn default() -> Self {
        const OUTPUT_TOKENS: NonZeroU32 = NonZeroU32::new(512).unwrap();
        Self {
            weights: Weights::default(),
            models: BTreeMap::new(),
            output_tokens: OUTPUT_TOKENS,
            reserve: Reserve::Bound,
            prices: None,
        }
    }
}

/// How much output is reserved for a request that has a bound.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reserve {
    /// The bound: nothing admitted can go over a limit later.
    Bound,
    /// What answers usually come to, if that is less: for clients that always ask for the most. What an answer takes
    /// beyond it becomes a debt.
    Usual,
}

/// What a token of each class counts. 0 to 1,000, in steps of 0.001; 1 unless set.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// Prompt tokens that were computed.
    pub input: Weight,
    /// Prompt tokens that were found in a cache.
    pub cached_input: Weight,
    /// Tokens of the answer.
    pub output: Weight,
    /// Tokens of hidden reasoning.
    pub reasoning: Weight,
}

/// A weight, in thousandths.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Weight(u32);

impl Default for Weight {
    fn default() -> Self {
        Self(1_000)
    }
}

impl From<Weight> for f64 {
    fn from(weight: Weight) -> Self {
        Self::from(weight.0) / 1e3
    }
}

impl TryFrom<f64> for Weight {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let thousandths = (number * 1e3).round();
        if !(0.0..=1e6).contains(&thousandths) || (thousandths - number * 1e3).abs() > 1e-6 {
            return Err(format!("{} is no weight: 0 to 1000, in steps of 0.001", figure(number)));
        }
        Ok(Self(thousandths as u32))
    }
}

impl Weights {
    /// The cost of what was used, in thousandths of a token. Parts that exceed their whole count as the whole.
    pub fn cost(&self, usage: &Usage) -> u64 {
        let cached = usage.cached.min(usage.input);
        let reasoning = usage.reasoning.min(usage.output);
        let classes = [
            (usage.input - cached, self.input),
            (cached, self.cached_input),
            (usage.output - reasoning, self.output),
            (reasoning, self.reasoning),
        ];
        let cost = |(tokens, weight): (u64, Weight)| tokens.saturating_mul(u64::from(weight.0));
        classes.into_iter().map(cost).fold(0, u64::saturating_add)
    }

    /// The most that so much input and output can cost.
    fn most(&self, input: u64, output: u64) -> u64 {
        let input = input.saturating_mul(u64::from(self.input.0));
        input.saturating_add(output.saturating_mul(u64::from(self.output.0.max(self.reasoning.0))))
    }
}

/// What something costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spend {
    /// Thousandths of a weighted token.
    pub tokens: u64,
    /// Billionths of a unit of money; 0 where there are no prices.
    pub money: u64,
}

impl Spend {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            money: self.money.saturating_add(other.money),
        }
    }

    /// The larger of both, each by itself.
    fn or_more(self, other: Self) -> Self {
        Self { tokens: self.tokens.max(other.tokens), money: self.money.max(other.money) }
    }

    /// Without the other.
    pub fn minus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            money: self.money.saturating_sub(other.money),
        }
    }
}

/// What a request is expected to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// What it may cost at the most.
    pub cost: Spend,
    /// What must fit into a limit: a guess of the output is left out.
    pub firm: Spend,
    /// What its prompt costs, in thousandths of a token.
    pub prompt: u64,
    /// What is known of its parts.
    pub expected: Expected,
}

/// What is known of a request's parts in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Prompt tokens, estimated.
    pub input: u32,
    /// Output tokens that the client allows each answer; 0 where it sets no bound.
    pub bound: u32,
}

/// A client's bound of so many times `output_tokens` does not shape an answer: there are clients that always ask for the most.
const NO_BOUND: u64 = 8;

/// Why engines say that they stopped when the model had nothing more to say: OpenAI's words, those of its responses, and
/// Anthropic's. Of any other it is not certain.
const ENDED: [&str; 6] = ["stop", "tool_calls", "function_call", "completed", "end_turn", "tool_use"];

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No answer: an error, or the client left before one came.
    Nothing,
    /// The engine's count.
    Used(Usage),
    /// The engine's count, of an answer that the model ended: no bound did.
    Ended(Usage),
    /// The engine's count so far, of an answer that broke off. Here and below an input of zero is one that nobody said.
    Cut(Usage),
    /// No count: the prompt, and so many tokens that were delivered.
    Delivered(u64),
    /// So much was delivered until the client's bound ended it: at least that was written.
    Filled(Usage),
    /// So much at the least, and nobody knows how much more.
    Least(Usage),
    /// No count, and the answer could not be read.
    Unknown,
}

/// Why engines say that they stopped at the client's bound: OpenAI's word, Anthropic's, and that of the responses API.
const FILLED: [&str; 3] = ["length", "max_tokens", "incomplete"];

impl Outcome {
    /// The outcome of an answer with this report and status. Only of a stream that was read as one it is known what was delivered:
    /// that the client asked for a stream does not make one.
    pub fn of(report: &Report, status: u16) -> Self {
        let delivered = report.delivered();
        let finish = report.finish.as_deref();
        let is_filled = finish.is_some_and(|finish| FILLED.contains(&finish));
        match report.usage {
            Some(usage) if report.status == Status::Complete => match finish {
                Some(finish) if ENDED.contains(&finish) => Self::Ended(usage),
                _ => Self::Used(usage),
            },
            // Cut off: the engine's last word may be older than the last token.
            Some(usage) => {
                let usage = Usage { output: usage.output.max(delivered), ..usage };
                match report.unread {
                    true => Self::Least(usage),
                    false if is_filled => Self::Filled(usage),
                    false => Self::Cut(usage),
                }
            }
            None if delivered > 0 && report.unread => Self::Unknown,
            None if delivered > 0 && is_filled => {
                Self::Filled(Usage { output: delivered, ..Usage::default() })
            }
            None if delivered > 0 => Self::Delivered(delivered),
            None if status >= 400 || report.error.is_some() && !report.unread => Self::Nothing,
            None if report.streamed && !report.unread => Self::Delivered(0),
            None => Self::Unknown,
        }
    }
}

/// Counts cost, and learns what answers come to.
#[derive(Debug)]
pub struct Cost {
    config: Config,
    usual: Usual,
}

impl Cost {
    /// Counts cost as configured.
    pub fn new(config: Config) -> Result<Self, Invalid> {
        for name in config.models.keys() {
            check_pattern(name).map_err(|invalid| invalid.within(&format!("models.{name}")))?;
        }
        if let Some(prices) = &config.prices {
            prices.check().map_err(|invalid| invalid.within("prices"))?;
        }
        Ok(Self { config, usual: Usual::default() })
    }

    /// The weights of a model.
    pub fn weights(&self, model: Option<&str>) -> &Weights {
        let model = model.unwrap_or_default();
        let fits = |name: &&String| fits(name, model);
        let longest =
            self.config.models.keys().filter(fits).max_by_key(|name| (!name.ends_with('*'), name.len()));
        longest.and_then(|name| self.config.models.get(name)).unwrap_or(&self.config.weights)
    }

    /// What a request may cost, that of a client with these counts.
    pub(super) fn estimate(&self, facts: &Facts, teacher: &[Hold]) -> Estimate {
        let model = facts.model.as_deref();
        let input = u64::from(facts.prompt_tokens);
        // It will be written for certain, so it is no guess.
        let least = u64::from(facts.min_output_tokens);
        let expected = || {
            let one = self.usual.output(model, teacher, u64::from(self.config.output_tokens.get()));
            one.saturating_mul(facts.choices.map_or(u64::MAX, u64::from)).max(least)
        };
        let (output, firm) = match (facts.max_output_tokens.map(u64::from), self.config.reserve) {
            (Some(bound), Reserve::Bound) => (bound, bound),
            (Some(bound), Reserve::Usual) => (bound.min(expected()), bound.min(least)),
            (None, _) => (expected(), least),
        };
        Estimate {
            cost: self.most(model, input, output),
            firm: self.most(model, facts.firm_prompt_tokens.map_or(input, u64::from), firm),
            prompt: self.weights(model).most(input, 0),
            expected: Expected {
                input: facts.prompt_tokens,
                bound: facts.max_output_tokens.unwrap_or(0) / facts.choices.unwrap_or(1).max(1),
            },
        }
    }

    /// How many answers of this request the model may make as long as it likes; `None`: none, or nobody knows.
    pub(super) fn unbounded(&self, facts: &Facts) -> Option<u32> {
        let choices = facts.choices?;
        let far = u64::from(self.config.output_tokens.get())
            .saturating_mul(NO_BOUND)
            .saturating_mul(choices.into());
        facts.max_output_tokens.is_none_or(|bound| u64::from(bound) >= far).then_some(choices)
    }

    /// The most that so much input and output can cost.
    fn most(&self, model: Option<&str>, input: u64, output: u64) -> Spend {
        let money = self.prices().map_or(0, |prices| prices.of(model).most(input, output));
        Spend { tokens: self.weights(model).most(input, output), money }
    }

    /// Prices, if there are any.
    pub(super) fn prices(&self) -> Option<&Prices> {
        self.config.prices.as_ref()
    }

    /// What a request did cost, and whether that is an estimate.
    pub(super) fn charge(
        &self,
        model: Option<&str>,
        expected: Expected,
        reserved: Spend,
        outcome: &Outcome,
    ) -> (Spend, bool) {
        let cost = |usage: &Usage| Spend {
            tokens: self.weights(model).cost(usage),
            money: self.prices().map_or(0, |prices| prices.of(model).cost(usage)),
        };
        let Expected { input, bound } = expected;
        let (input, bound) = (u64::from(input), u64::from(bound));
        let known = |usage: &Usage| match usage.input {
            0 => Usage { input, ..*usage },
            _ => *usage,
        };
        match outcome {
            Outcome::Nothing => (Spend::default(), false),
            Outcome::Used(usage) | Outcome::Ended(usage) => (cost(usage), false),
            Outcome::Cut(usage) => (cost(&known(usage)), true),
            Outcome::Delivered(output) => (cost(&Usage { input, output: *output, ..Usage::default() }), true),
            Outcome::Filled(usage) => {
                let output = usage.output.max(bound);
                (cost(&Usage { output, ..known(usage) }), true)
            }
            Outcome::Least(usage) => (reserved.or_more(cost(&known(usage))), true),
            Outcome::Unknown => (reserved, true),
        }
    }

    /// Learns from [unbounded](Self::unbounded) answers that the model ended, to a client with these counts.
    pub(super) fn learn(&mut self, model: &str, teacher: &[Hold], usage: &Usage, choices: u32) {
        self.usual.learn(model, teacher, usage.output, choices);
    }
}

/// Checks a name, or a beginning with `*` behind it. A `*` elsewhere is of no name, and what it is meant for would never be met.
pub(super) fn check_pattern(pattern: &str) -> Result<(), Invalid> {
    match pattern.strip_suffix('*').unwrap_or(pattern) {
        _ if pattern.is_empty() => {
            Err(Invalid::new("", "empty; a name, or its beginning with `*`, is expected"))
        }
        beginning if beginning.contains('*') => Err(Invalid::new(
            "",
            format!("{pattern:?} has a `*` that is not its end: only beginnings are matched"),
        )),
        _ => Ok(()),
    }
}

/// Whether a name, or a beginning with `*` behind it, fits a text.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |beginning| text.starts_with(beginning))
}
