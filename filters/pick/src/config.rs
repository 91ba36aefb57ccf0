//! The plugin's configuration.

use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};
use weir::invalid::{self, Invalid};
use weir::limit::FailureMode;
use weir::pool::{self, Pools, Spec};
use weir::signals;

/// Configuration of the plugin.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Pools of endpoints, by the models they serve. Only these endpoints are ever set as a destination.
    pub pools: Vec<Spec>,
    /// How an endpoint is chosen.
    #[serde(default)]
    pub choose: pool::Config,
    /// Every choice is explained, and not only those of which `extract` says so: filter state `weir.why` has each endpoint
    /// that might have been chosen and what the policy made of it, as JSON, for the access log. Costs about a microsecond an
    /// endpoint.
    #[serde(default)]
    pub explain: bool,
    /// How engines are asked how they are; without this they are not. Where there is a scorer, it asks them, and what is
    /// heard here is for choices without it.
    #[serde(default)]
    pub signals: Option<signals::Config>,
    /// How long a request may take.
    #[serde(default)]
    pub deadline: Deadline,
    /// The scorer that several proxies share; without one, the filter chooses by itself.
    #[serde(default)]
    pub scorer: Option<Scorer>,
}

/// How long a request may take, all attempts together and with the whole answer.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deadline {
    /// Milliseconds at the most, whatever the client says. Envoy takes them in the place of the route's `timeout`, so where that is
    /// not 0 it is to be said here too, or a client could lengthen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_ms: Option<NonZeroU32>,
    /// A client can make it shorter by its headers.
    pub from_client: bool,
}

impl Default for Deadline {
    fn default() -> Self {
        Self { most_ms: None, from_client: true }
    }
}

/// Where the scorer is, and how long it may take.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scorer {
    /// The cluster, in Envoy's configuration, that leads to it.
    pub cluster: String,
    /// The clusters that lead to others, which keep the same books, one each. Each pool has its own order of all of them, by
    /// their names: the first that answers chooses.
    #[serde(default)]
    pub replicas: Vec<String>,
    /// Who chooses while it is there.
    #[serde(default)]
    pub mode: Mode,
    /// Mode `push`: milliseconds between two calls in which a proxy tells what it did and hears what others did; at most 1000.
    #[serde(default = "Scorer::push_ms")]
    pub push_ms: NonZeroU64,
    /// Mode `push`: milliseconds for which what was heard last is trusted; then the scorer is asked, as in mode `ask`.
    #[serde(default = "Scorer::trust_ms")]
    pub trust_ms: NonZeroU64,
    /// Milliseconds that a request waits for it at the most; then another is asked, or the choice is made here.
    #[serde(default = "Scorer::timeout_ms")]
    pub timeout_ms: NonZeroU64,
    /// Milliseconds between two reports of what became of requests; under load they travel with requests.
    #[serde(default = "Scorer::report_ms")]
    pub report_ms: NonZeroU64,
    /// It is also told the trace context of requests (`traceparent`) and how their answers went, for its `otel`.
    #[serde(default)]
    pub telemetry: bool,
    /// Bodies of up to so many bytes are sent to it, too: a scorer that knows what engines' caches hold (`precise`) needs the prompt
    /// itself. 0, none is. `extract` must leave them (its `publish_body_bytes`; in `chain` that is seen to), and no more than
    /// the scorer's `tokens.max_bytes` is of use.
    #[serde(default)]
    pub max_body_bytes: usize,
    /// Milliseconds for which it is left alone after a failure; then one request tries it again.
    #[serde(default = "Scorer::retry_ms")]
    pub retry_ms: NonZeroU64,
    /// Where no scorer answers: `open`, the choice is made here; `closed`, the request is answered with 503.
    #[serde(default)]
    pub failure_mode: FailureMode,
}

/// Who chooses while the scorer is there.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The scorer, which each request asks.
    #[default]
    Ask,
    /// This proxy, by what the scorer keeps telling it.
    Push,
}

impl Scorer {
    const fn push_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(5).unwrap();
        DEFAULT
    }

    const fn trust_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(500).unwrap();
        DEFAULT
    }

    const fn timeout_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(50).unwrap();
        DEFAULT
    }

    const fn report_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(20).unwrap();
        DEFAULT
    }

    const fn retry_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(1000).unwrap();
        DEFAULT
    }
}

impl Scorer {
    /// Checks what is said of mode `push`.
    fn check(&self) -> Result<(), Invalid> {
        const MOST_MS: u64 = 1_000;
        let [push, trust] = [self.push_ms, self.trust_ms].map(NonZeroU64::get);
        if self.mode == Mode::Ask {
            return Ok(());
        }
        if push > MOST_MS {
            return Err(Invalid::new("push_ms", format!("{push} is more than {MOST_MS}")));
        }
        let least = push.saturating_mul(4);
        if trust < least {
            let why = format!(
                "{trust} is less than four times push_ms, {least}: a call or two that are late would end the trust"
            );
            return Err(Invalid::new("trust_ms", why));
        }
        if self.telemetry {
            let why = "in mode push the scorer is not asked, and has no span of a choice; use mode ask";
            return Err(Invalid::new("telemetry", why));
        }
        Ok(())
    }
}

impl Config {
    /// Reads the configuration and checks all of it, the pools too.
    pub fn read(json: &[u8]) -> Result<Self, Invalid> {
        let config: Self = invalid::read(json)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what its types cannot say.
    pub fn check(&self) -> Result<(), Invalid> {
        self.pools(0)?;
        if let Some(scorer) = &self.scorer {
            scorer.check().map_err(|invalid| invalid.within("scorer"))?;
            let Scorer { cluster, replicas, .. } = scorer;
            if cluster.is_empty() {
                return Err(Invalid::new(
                    "scorer.cluster",
                    "empty; name the cluster that leads to the scorer",
                ));
            }
            for (nth, other) in replicas.iter().enumerate() {
                let before = replicas.iter().take(nth).chain([cluster]);
                if other.is_empty() || before.into_iter().any(|known| known == other) {
                    let why = format!("{other:?} is no cluster's name, or named before");
                    return Err(Invalid::new(format!("scorer.replicas[{nth}]"), why));
                }
            }
        }
        match &self.signals {
            Some(signals) => signals.check().map_err(|invalid| invalid.within("signals")),
            None => Ok(()),
        }
    }

    /// The pools; `seed` fixes their random choices.
    pub(crate) fn pools(&self, seed: u64) -> Result<Pools, Invalid> {
        Pools::new(&self.pools, &self.choose, seed)
    }
}
