//! The picker's part of a scorer's configuration.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use weir::invalid::Invalid;
use weir::pool::{self, Spec};
use weir::request;

/// How the scorer is an endpoint picker for gateways without our filters. Every field has a default.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address and port of the gRPC service.
    pub listen: SocketAddr,
    /// The pool of requests whose model no pool lists, or that name none, as GETs do. Without it, where there is more than
    /// one pool, models that are not known are answered 404 and other requests pass without a choice.
    pub pool: Option<String>,
    /// How bodies are read: as in `extract`.
    pub request: request::Config,
    /// Threads that read bodies and choose.
    pub threads: NonZeroUsize,
    /// Milliseconds for which requests under way may go on when the scorer is told to stop.
    pub drain_ms: u64,
    /// The two hooks of GIE's conformance tests: a request may name the endpoints that it wants, and is told which one
    /// served it. Any client can steer its requests by it: for tests only.
    pub conformance: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9002)),
            pool: None,
            request: request::Config::default(),
            threads: NonZeroUsize::MIN,
            drain_ms: 30_000,
            conformance: false,
        }
    }
}

impl Config {
    /// Checks it beside the pools.
    pub fn check(&self, pools: &[Spec], choose: &pool::Config) -> Result<(), Invalid> {
        if let Some(name) = self.pool.as_ref().filter(|name| pools.iter().all(|spec| spec.name != **name)) {
            let known: Vec<&str> = pools.iter().map(|spec| spec.name.as_str()).collect();
            return Err(Invalid::new(
                "pool",
                format!("no pool is named {name:?}; there are {}", known.join(", ")),
            ));
        }
        let own = self.request.block_tokens;
        for spec in pools {
            let blocks = spec.choose.as_ref().unwrap_or(choose).block_tokens;
            if blocks != own {
                let why = format!(
                    "{own}, but pool {:?} has blocks of {blocks} tokens; they must be equal",
                    spec.name
                );
                return Err(Invalid::new("request.block_tokens", why));
            }
        }
        Ok(())
    }

    /// The pool of requests that name none, or none that is known.
    pub(super) fn fallback<'p>(&'p self, pools: &'p [Spec]) -> Option<&'p str> {
        match (&self.pool, pools) {
            (Some(name), _) => Some(name),
            (None, [only]) => Some(&only.name),
            _ => None,
        }
    }
}
