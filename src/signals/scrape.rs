//! How often an engine is asked how it is, and what its answer comes to: the same in `pick` and in the scorer.
//!
//! Each endpoint is asked by itself: at a phase of its own that drifts by a tenth, or all engines would be asked, and all
//! numbers would be old, at the same moment; one request at a time, within a deadline, so that one that hangs delays nobody
//! else's numbers. One that fails is asked half as often, down to once in `MOST_WAIT`. What it said before goes stale by
//! itself (`choose.stale_ms`): a failed scrape changes nothing.
//!
//! Once a second is enough: what is sent between two scrapes is counted as it is sent. llm-d asks every 50 ms, which has
//! cost it cores and made engines unresponsive.

use crate::invalid::Invalid;
use crate::random::Random;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

/// An endpoint that fails is asked at least so often.
const MOST_WAIT: Duration = Duration::from_secs(10);

/// Where engines tell how they are, and how often they are asked.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Milliseconds from one scrape of an endpoint to the next, 50 at least.
    pub interval_ms: NonZeroU64,
    /// Milliseconds that one may take, 10 at least.
    pub timeout_ms: NonZeroU64,
    /// The path of the metrics.
    pub path: String,
    /// The path of the list of models, for the LoRA adapters in it; without this they are known from the metrics alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models_path: Option<String>,
    /// The port of both, where it is not the endpoint's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<NonZeroU16>,
}

impl Default for Config {
    fn default() -> Self {
        const SECOND: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
        let path = "/metrics".to_owned();
        Self { interval_ms: SECOND, timeout_ms: SECOND, path, models_path: None, port: None }
    }
}

impl Config {
    /// Checks what its types cannot say.
    pub fn check(&self) -> Result<(), Invalid> {
        let times = [("interval_ms", self.interval_ms, 50), ("timeout_ms", self.timeout_ms, 10)];
        for (at, ms, least) in times {
            if ms.get() < least {
                return Err(Invalid::new(at, format!("{ms} is not from {least} milliseconds up")));
            }
        }
        for (at, path) in [("path", Some(&self.path)), ("models_path", self.models_path.as_ref())] {
            if path.is_some_and(|path| !path.starts_with('/')) {
                return Err(Invalid::new(at, "a path begins with `/`"));
            }
            if path.is_some_and(|path| !path.bytes().all(|byte| byte.is_ascii_graphic())) {
                return Err(Invalid::new(
                    at,
                    "a path is ASCII without blanks; escape other characters with `%`",
                ));
            }
        }
        Ok(())
    }

    /// From one scrape of an endpoint to the next.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.get())
    }

    /// The longest that one may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.get())
    }

    /// Where the endpoint at `address` is asked; `None` when that is no address.
    pub fn asked_at(&self, address: &str) -> Option<SocketAddr> {
        let mut socket: SocketAddr = address.parse().ok()?;
        if let Some(port) = self.port {
            socket.set_port(port.get());
        }
        Some(socket)
    }
}

/// What came of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scraped {
    /// The endpoint said how it is.
    Good,
    /// It answered in time, but not with metrics that are known.
    Unknown,
    /// It did not answer in time, or not with 200.
    Failed,
}

impl Scraped {
    /// All of them, as metrics name them.
    pub const OUTCOMES: [&str; 3] = ["good", "unknown", "failed"];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        let [good, unknown, failed] = Self::OUTCOMES;
        match self {
            Self::Good => good,
            Self::Unknown => unknown,
            Self::Failed => failed,
        }
    }
}

/// When one endpoint is asked.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    interval: Duration,
    wait: Duration,
}

impl Rhythm {
    /// The rhythm of an endpoint that has not been asked yet.
    pub fn new(config: &Config) -> Self {
        Self { interval: config.interval(), wait: config.interval() }
    }

    /// How long it is until the first time.
    pub fn first(&self, random: &mut Random) -> Duration {
        self.interval.mul_f64(random.unit())
    }

    /// How long it is from the time that came to this until the next.
    pub fn next(&mut self, scraped: Scraped, random: &mut Random) -> Duration {
        let slower = self.wait.saturating_mul(2).min(MOST_WAIT.max(self.interval));
        self.wait = if scraped == Scraped::Good { self.interval } else { slower };
        self.wait.mul_f64(0.9 + 0.2 * random.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn phases_differ_drift_and_failures_slow_down() {
        let (config, mut random) = (Config::default(), Random::new(3));
        let mut rhythm = Rhythm::new(&config);
        let firsts: Vec<Duration> = (0..100).map(|_| rhythm.first(&mut random)).collect();
        let early = firsts.iter().filter(|first| **first < config.interval() / 2).count();
        assert!((30..70).contains(&early), "{early}");
        let mut within = |scraped, ms: u64| {
            let next = rhythm.next(scraped, &mut random).as_millis();
            assert!((u128::from(ms * 9 / 10)..=u128::from(ms * 11 / 10)).contains(&next), "{next} of {ms}");
        };
        within(Scraped::Good, 1_000);
        [2_000, 4_000, 8_000, 10_000, 10_000].into_iter().for_each(|ms| within(Scraped::Failed, ms));
        within(Scraped::Good, 1_000);
        within(Scraped::Unknown, 2_000);
    }

    #[test]
    fn where_it_is_asked_may_be_another_port() {
        let config = Config { port: NonZeroU16::new(9_000), ..Config::default() };
        assert_eq!(config.asked_at("[::1]:8000").map(|at| at.to_string()).as_deref(), Some("[::1]:9000"));
        assert_eq!(config.asked_at("host:1"), None);
        let wrong = Config { models_path: Some("v1".into()), ..config };
        assert_eq!(wrong.check().unwrap_err().at, "models_path");
    }
}
