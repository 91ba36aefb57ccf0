//! Whether an endpoint may be sent to, by how its answers went.
//!
//! Every attempt has an [`Outcome`]. Rules count failures (`rule.rs`), and an endpoint that trips gets nothing for a while, then
//! single probes, then a growing share ([`Circuit`]). One that says it is busy is left alone for as long as it asks. The pool
//! asks [`Breaker::gate`] before it chooses, so that who is out is neither chosen nor named for a retry; nothing
//! is taken away from a policy, it just does not see them. [`Budget`] bounds the retries themselves, and the copies that [`Hedge`] has sent
//! when a first token is late.
//!
//! Failures are contained only before the first token: after it an answer cannot be given by another endpoint without
//! saying something twice, and nothing here tries.
//!
//! Cost: gating looks at a few words per endpoint, noting an outcome at ten numbers per rule.

mod active;
mod answer;
mod budget;
mod circuit;
mod gate;
mod hedge;
mod outcome;
mod retry_after;
mod rule;
mod window;

pub use active::{ActiveProbe, ProbeRequest, Question};
pub use answer::Answer;
pub use budget::{Budget, Config as BudgetConfig};
pub use circuit::{Circuit, Moved, Probe, Snapshot, Standing};
pub use gate::{Gate, Shut};
pub use hedge::{Config as HedgeConfig, Hedge};
pub use outcome::{Cause, Class, Outcome, Reason};
pub use retry_after::retry_after;
pub use rule::{FailureCondition, Rule, StatusCodeRange};

use crate::invalid::Invalid;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// When endpoints are out, and how they come back.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The rules; none: nobody trips.
    pub rules: Vec<Rule>,
    /// Milliseconds for which a busy endpoint is left alone that does not say for how long; 0: it is not.
    pub hold_off_ms: u64,
    /// The most milliseconds of an endpoint's `Retry-After` that are believed; 0: none are.
    pub max_retry_after_ms: u64,
    /// The longest cooldown in milliseconds, for an endpoint whose probes fail.
    pub max_trip_duration_ms: NonZeroU64,
    /// Probes that an endpoint gets at a time, over all that share its state.
    pub probes: NonZeroU32,
    /// Probes that must succeed before it is back.
    pub probes_to_recover: NonZeroU32,
    /// Milliseconds over which its share of the requests grows afterwards; 0: it has all of it at once.
    pub ramp_ms: u64,
    /// How endpoints that are out are tried; without this, by clients' requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_probe: Option<ActiveProbe>,
    /// What becomes of a request when all endpoints have tripped.
    pub when_all_are_out: AllOut,
    /// How many retries there may be.
    pub retry_budget: BudgetConfig,
    /// When a second copy of a stream is sent; without this none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge: Option<HedgeConfig>,
}

/// What becomes of a request when all endpoints have tripped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AllOut {
    /// One attempt, where it is least bad.
    #[default]
    LeastBad,
    /// It is answered at once, with 503 and the time until the first of them is probed.
    Refuse,
}

impl Default for Config {
    fn default() -> Self {
        const MINUTE: NonZeroU64 = NonZeroU64::new(60_000).unwrap();
        Self {
            rules: Rule::usual(),
            hold_off_ms: 1_000,
            max_retry_after_ms: 60_000,
            max_trip_duration_ms: MINUTE,
            probes: NonZeroU32::MIN,
            probes_to_recover: NonZeroU32::MIN,
            ramp_ms: 10_000,
            active_probe: None,
            when_all_are_out: AllOut::default(),
            retry_budget: BudgetConfig::default(),
            hedge: None,
        }
    }
}

/// A configuration that was accepted.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: Config,
}

impl Breaker {
    /// Checks a configuration.
    pub fn new(config: &Config) -> Result<Self, Invalid> {
        for (nth, rule) in config.rules.iter().enumerate() {
            rule.check().map_err(|invalid| invalid.within(&format!("rules[{nth}]")))?;
            if config.rules.iter().take(nth).any(|other| other.name == rule.name) {
                let why = format!("{:?} is the name of another rule", rule.name);
                return Err(Invalid::new(format!("rules[{nth}].name"), why));
            }
        }
        if let Some(probe) = &config.active_probe {
            probe.check().map_err(|invalid| invalid.within("active_probe"))?;
        }
        let mut config = config.clone();
        if let Some(hedge) = &config.hedge {
            hedge.check().map_err(|invalid| invalid.within("hedge"))?;
            // A copy that wins hides that the endpoint hangs: no answer of its own ever fails.
            let counted = |rule: &Rule| rule.failure_condition.error_reasons.contains(&Reason::Slow);
            if !config.rules.iter().any(counted) {
                config.rules.push(Rule::slow());
            }
        }
        Ok(Self { config })
    }

    /// Probes that an endpoint gets at a time.
    pub fn most_probes(&self) -> usize {
        self.config.probes.get() as usize
    }

    /// How endpoints that are out are tried, where no client's request does it.
    pub fn active_probe(&self) -> Option<&ActiveProbe> {
        self.config.active_probe.as_ref()
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.config.rules.iter()
    }

    /// The longest that a cooldown lasts.
    fn longest(&self) -> Duration {
        let most = Duration::from_millis(self.config.max_trip_duration_ms.get());
        self.rules().map(Rule::trip_duration).fold(most, Duration::max)
    }

    /// The longest that an endpoint is left alone for its own word.
    fn longest_hold(&self) -> Duration {
        Duration::from_millis(self.config.max_retry_after_ms.max(self.config.hold_off_ms))
    }

    /// The endpoint's own word, as far as it is believed.
    fn hint(&self, outcome: &Outcome) -> Option<Duration> {
        let most = Duration::from_millis(self.config.max_retry_after_ms);
        outcome.retry_after.map(|wait| wait.min(most)).filter(|wait| !wait.is_zero())
    }

    /// Whether anything follows from this outcome at an endpoint that stands so. A success at one that is closed is of
    /// interest to shares only.
    pub fn concerns(&self, circuit: &Circuit, outcome: &Outcome) -> bool {
        match outcome.class() {
            Class::Neutral => self.rules().any(|rule| rule.counts(outcome)),
            Class::Success => {
                circuit.is_watched() || self.rules().any(|rule| rule.failure_condition.percentage.is_some())
            }
            Class::Busy | Class::Failure => true,
        }
    }
}

#[cfg(test)]
mod tests;
