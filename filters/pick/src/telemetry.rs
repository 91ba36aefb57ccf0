//! What the scorer is told of a request besides its load, where the configuration says so: the trace that it is part of, and
//! how its answer went.
//!
//! The trace context is the one that the request came with. Envoy makes its own span's known to endpoints, not to filters.

use crate::{Lease, attempts};
use weir::instant::Instant;
use weir::request::Facts;
use weir::wire::{self, Event, Went};
use weir_host::Host;

/// Longest `traceparent` that is handed on; the ones that are known have 55 bytes.
const MOST_BYTES: usize = 128;

/// A request whose end is to be told.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) trace: Option<String>,
    model: String,
    since: Instant,
}

impl Telemetry {
    pub(crate) fn begin(host: &dyn Host, facts: &Facts) -> Self {
        let trace = host.text(&["request", "headers", wire::TRACEPARENT]);
        Self {
            trace: trace.filter(|trace| !trace.is_empty() && trace.len() <= MOST_BYTES),
            model: facts.model.clone().unwrap_or_default(),
            since: host.now(),
        }
    }

    /// Its answer is over.
    pub(crate) fn end(self, host: &dyn Host, pool: &str, lease: Lease) -> Event {
        let went = Went {
            dialect: lease.dialect.name().to_owned(),
            model: self.model,
            status: attempts::status(host),
            ms: host.now().since(self.since).as_secs_f64() * 1e3,
            served: attempts::served(host),
            usage: host.text(&[wire::USAGE]),
            trace: self.trace,
        };
        Event::Went { pool: pool.to_owned(), lease: lease.id, went: Box::new(went) }
    }
}
