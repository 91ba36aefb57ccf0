//! Where engines publish what becomes of their caches.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::time::Duration;
use weir::invalid::Invalid;

/// The most engines behind one address.
const MOST_RANKS: u32 = 64;

/// How an endpoint's events are come by.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Where an endpoint publishes: `{host}` is its address, `{port}` its port, `{port+100}` a hundred more.
    pub address: String,
    /// Where batches that were missed can be fetched, in the same form. Without it what is known is let go when any is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// How the topics begin that are subscribed to; all of them unless given.
    pub topic: String,
    /// Engines behind each address (data parallel): each publishes one port above the one before.
    pub ranks: u32,
    /// Milliseconds that connecting, or fetching the next batch, may take.
    pub timeout_ms: NonZeroU64,
    /// Milliseconds until a connection that was lost is tried again, at first; then twice as long, up to thirty times.
    pub retry_ms: NonZeroU64,
}

impl Default for Events {
    fn default() -> Self {
        const TIMEOUT: NonZeroU64 = NonZeroU64::new(2_000).unwrap();
        const RETRY: NonZeroU64 = NonZeroU64::new(500).unwrap();
        Self {
            address: "{host}:5557".into(),
            replay: None,
            topic: String::new(),
            ranks: 1,
            timeout_ms: TIMEOUT,
            retry_ms: RETRY,
        }
    }
}

impl Events {
    /// Checks that every address can be one.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1..=MOST_RANKS).contains(&self.ranks) {
            return Err(Invalid::new("ranks", format!("{} is not from 1 to {MOST_RANKS}", self.ranks)));
        }
        let example = SocketAddr::from(([10, 0, 0, 1], 8000));
        let templates = [("address", Some(&self.address)), ("replay", self.replay.as_ref())];
        for (field, template) in templates.into_iter().filter_map(|(field, own)| Some((field, own?))) {
            if address(template, example, self.ranks - 1).is_none() {
                let why = format!(
                    "{template:?} makes no address with a port; write it as {{host}}:5557 or {{host}}:{{port+100}}"
                );
                return Err(Invalid::new(field, why));
            }
        }
        Ok(())
    }

    /// Where that endpoint's engine of that rank publishes.
    pub(super) fn publishes_at(&self, endpoint: SocketAddr, rank: u32) -> Option<SocketAddr> {
        address(&self.address, endpoint, rank)
    }

    /// Where what it published before can be fetched.
    pub(super) fn replays_at(&self, endpoint: SocketAddr, rank: u32) -> Option<SocketAddr> {
        address(self.replay.as_deref()?, endpoint, rank)
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.get())
    }

    pub(super) fn retry(&self) -> Duration {
        Duration::from_millis(self.retry_ms.get())
    }
}

/// The address that a template makes for an endpoint.
fn address(template: &str, endpoint: SocketAddr, rank: u32) -> Option<SocketAddr> {
    let template = template.strip_prefix("tcp://").unwrap_or(template);
    let (host, port) = template.rsplit_once(':')?;
    // Within braces a colon is a part of nothing that is known.
    let host = match host {
        "{host}" => endpoint.ip(),
        host => host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok()?,
    };
    let port = match port.strip_prefix("{port").and_then(|rest| rest.strip_suffix('}')) {
        Some("") => u32::from(endpoint.port()),
        Some(more) => more.strip_prefix('+')?.parse::<u32>().ok()?.checked_add(u32::from(endpoint.port()))?,
        None => port.parse::<u32>().ok()?,
    };
    let port = u16::try_from(port.checked_add(rank)?).ok().filter(|port| *port > 0)?;
    Some(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_makes_an_address_for_each_endpoint_and_rank() {
        let cases = [
            ("{host}:5557", "10.0.0.1:8000", 0, Some("10.0.0.1:5557")),
            ("tcp://{host}:5557", "10.0.0.1:8000", 2, Some("10.0.0.1:5559")),
            ("{host}:{port}", "[fd00::1]:8000", 0, Some("[fd00::1]:8000")),
            ("{host}:{port+100}", "[fd00::1]:8000", 1, Some("[fd00::1]:8101")),
            ("127.0.0.1:{port+1}", "10.0.0.1:8000", 0, Some("127.0.0.1:8001")),
            ("[::1]:9", "10.0.0.1:8000", 0, Some("[::1]:9")),
            ("{host}:65535", "10.0.0.1:8000", 1, None),
            ("{host}:0", "10.0.0.1:8000", 0, None),
            ("{host}", "10.0.0.1:8000", 0, None),
            ("{host}:{port-1}", "10.0.0.1:8000", 0, None),
            ("engine:5557", "10.0.0.1:8000", 0, None),
            ("{host}:{port+70000}", "10.0.0.1:8000", 0, None),
        ];
        for (template, endpoint, rank, expected) in cases {
            let made = address(template, endpoint.parse().unwrap(), rank).map(|address| address.to_string());
            assert_eq!(made.as_deref(), expected, "{template}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |events: Events| events.check().unwrap_err().to_string();
        assert!(wrong(Events { ranks: 0, ..Events::default() }).starts_with("ranks: 0 is not from 1 to 64"));
        let replay = Some("{hots}:1".to_owned());
        assert!(
            wrong(Events { replay, ..Events::default() })
                .starts_with("replay: \"{hots}:1\" makes no address")
        );
        assert!(Events::default().check().is_ok());
    }
}
