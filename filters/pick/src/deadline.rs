//! How long a request may still take: what its client gives it, or the configuration, less what has passed.
//!
//! Envoy holds it to that, over all attempts, and answers 504 then. The time counts from the request's first byte, so uploading the body and
//! waiting in line are part of it.

use crate::config::Deadline;
use std::time::Duration;
use weir_host::Host;

/// What is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Of it, now.
    pub(crate) time: Duration,
    /// Milliseconds that there were in the beginning.
    pub(crate) of_ms: u64,
    /// The client asked for so little.
    pub(crate) is_clients: bool,
}

impl Deadline {
    /// What is left of the time of a request whose client gives it `timeout_ms`; `None`: it has no end.
    pub(crate) fn left(&self, host: &dyn Host, timeout_ms: Option<u32>) -> Option<Left> {
        let clients = timeout_ms.filter(|_| self.from_client);
        let most = self.most_ms.map(u32::from);
        let of_ms = u64::from(clients.into_iter().chain(most).min()?);
        let begun = host
            .property(&["request", "time"])
            .and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        let passed =
            begun.map_or(Duration::ZERO, |begun| host.wall().saturating_sub(Duration::from_nanos(begun)));
        let time = Duration::from_millis(of_ms).saturating_sub(passed);
        let is_clients = clients.is_some_and(|clients| most.is_none_or(|most| clients < most));
        Some(Left { time, of_ms, is_clients })
    }
}
