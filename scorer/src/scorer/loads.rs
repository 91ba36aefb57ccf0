//! What the scorer shows: load, decisions, shared limits, metrics. It is read from the book at each look, and nothing is decided here.

use super::{Decision, Scorer};
use serde::Serialize;
use weir::breaker::Standing;
use weir::limit::Tally;
use weir::pool::{FirstTokens, Load, Precise, Pressure, Said};

/// What is known of one pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolLoad {
    /// Its name.
    pub name: String,
    /// Leases out.
    pub leases: usize,
    /// Probes out.
    pub probes: u32,
    /// Endpoints that get nothing, or probes only.
    pub out: Vec<Out>,
    /// Its endpoints, in the order of the configuration.
    pub endpoints: Vec<Load>,
    /// What their engines said of themselves, of those that did.
    pub engines: Vec<Said>,
    /// What they said of their caches, where they are listened to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub precise: Vec<Precise>,
    /// How hard it is pressed.
    pub pressure: Pressure,
    /// How streams' first tokens came.
    pub first_tokens: FirstTokens,
    /// The policy that chooses.
    pub policy: String,
    /// Requests that were booked since the scorer started.
    pub booked: u64,
    /// Requests that got no endpoint since then.
    pub turned_away: u64,
}

/// An endpoint that gets nothing, or probes only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Out {
    /// Its address.
    pub address: String,
    /// `held`, `cooldown` or `probing`.
    pub standing: &'static str,
    /// Milliseconds until that ends.
    pub wait_ms: u64,
}

impl Scorer {
    /// What is known of every pool.
    pub fn loads(&self) -> Vec<PoolLoad> {
        let now = self.clock.now();
        let load = |(name, pool): (&str, &weir::pool::Pool)| {
            let (booked, turned_away) = self.metrics.requests(name);
            PoolLoad {
                name: name.to_owned(),
                pressure: pool.pressure(now),
                first_tokens: pool.first_tokens(),
                policy: pool.policy().to_owned(),
                booked,
                turned_away,
                leases: pool.leases(),
                probes: pool.probing(),
                out: pool
                    .standings(now)
                    .filter(|(_, standing, _)| !matches!(standing, Standing::Closed | Standing::Ramp))
                    .map(|(address, standing, wait)| Out {
                        address: address.to_owned(),
                        standing: standing.name(),
                        wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                    })
                    .collect(),
                endpoints: pool.loads(),
                engines: pool.said(now).collect(),
                precise: pool.precise(now).collect(),
            }
        };
        self.pools().iter().map(load).collect()
    }

    /// The decisions after a number; for a while more will be kept.
    pub(crate) fn decisions(&self, after: u64) -> Vec<Decision> {
        self.decisions.look(after, self.clock.now())
    }

    /// Keys of shared limits, whether their store answers (`None`: there is none), and those of which most is used.
    pub(crate) fn shared(&self, most: usize) -> (usize, Option<bool>, Vec<Tally>) {
        let tallies = self.shares.tallies(most, self.clock.now());
        (self.shares.keys(), self.shares.store_up(), tallies)
    }

    /// Everything counted, as Prometheus reads it.
    pub fn metrics(&self) -> anyhow::Result<String> {
        if let Some(telemetry) = &self.telemetry {
            self.metrics.exported(telemetry.counts());
        }
        self.metrics.shares(self.shares.keys(), self.shares.store_up());
        self.metrics.listening(self.listeners().len());
        if let Some(link) = &self.link {
            link.count(&self.metrics.replicas, self.clock.now());
        }
        Ok(self.metrics.text(&self.loads())?)
    }
}
