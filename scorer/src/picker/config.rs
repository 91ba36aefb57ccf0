//! The picker's part of a scorer's configuration.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;
use weir::invalid::Invalid;
use weir::pool::{self, Spec};
use weir::request;

/// 32 MiB at 2 Mbit/s.
const BODY_TIMEOUT: NonZeroU64 = NonZeroU64::new(120_000).unwrap();

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
    /// Bytes of bodies that are awaited or on their way back, all together. A body may be as long as what is left of it:
    /// those who hold most are answered 503 first. At least twice `request.max_body_bytes`; eight times that if it is not
    /// given.
    pub max_held_bytes: Option<usize>,
    /// Milliseconds from a request's headers to the end of its body, after which it is answered 408.
    pub body_timeout_ms: NonZeroU64,
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
            max_held_bytes: None,
            body_timeout_ms: BODY_TIMEOUT,
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
        let (held, most) = (self.held(), self.request.max_body_bytes);
        if held / 2 < most {
            let why =
                format!("{held}, but one body may have {most} (request.max_body_bytes); at least twice that");
            return Err(Invalid::new("max_held_bytes", why));
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

    /// What bodies may hold, all together.
    pub(super) fn held(&self) -> usize {
        self.max_held_bytes.unwrap_or(self.request.max_body_bytes.saturating_mul(8))
    }

    /// How long a body may take.
    pub(super) fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms.get())
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
