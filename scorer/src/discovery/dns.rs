//! Endpoints from DNS: the addresses of names, with a port, or SRV records, which have the ports.
//!
//! All addresses of a name are endpoints, IPv4 and IPv6; of SRV records priority and weight are not looked at, since load is
//! measured here. A name whose lookup fails, or that has no records, keeps the addresses that it had, and the others
//! are asked all the same.

use super::{Found, Source};
use hickory_resolver::config::{LookupIpStrategy, NameServerConfigGroup, ResolverConfig};
use hickory_resolver::name_server::TokioConnectionProvider;
use hickory_resolver::{ResolveError, TokioResolver};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Between two lookups, whatever the records say.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// After a lookup that failed.
const AGAIN: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Addresses(String, u16),
    Services(String),
}

impl Asked {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let fits =
            |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        match text.rsplit_once(':') {
            None if text.starts_with('_') && fits(text) => Ok(Self::Services(text.to_owned())),
            Some((host, port)) if fits(host) => match port.parse() {
                Ok(port) if port > 0 => Ok(Self::Addresses(host.to_owned(), port)),
                _ => Err(format!("{port:?} is no port")),
            },
            _ => Err(format!(
                "{text:?} is neither host:port nor the name of SRV records, as _http._tcp.engines.local"
            )),
        }
    }
}

/// The names of one pool.
pub(super) struct Lookup {
    resolver: TokioResolver,
    /// Each with the addresses that it last had.
    names: Vec<(Asked, BTreeSet<SocketAddr>)>,
    interval: Option<Duration>,
}

/// What a name has, and for how long that may be kept.
type Answer = (BTreeSet<SocketAddr>, Instant);

impl Lookup {
    pub(super) fn new(source: &Source) -> anyhow::Result<Self> {
        let provider = TokioConnectionProvider::default();
        let mut builder = match source.server {
            Some(server) => {
                let servers = NameServerConfigGroup::from_ips_clear(&[server.ip()], server.port(), true);
                TokioResolver::builder_with_config(
                    ResolverConfig::from_parts(None, Vec::new(), servers),
                    provider,
                )
            }
            None => TokioResolver::builder(provider)?,
        };
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // It is asked when an answer is wanted, and keeps none.
        options.cache_size = 0;
        let names = source.dns.iter().filter_map(|text| Asked::read(text).ok());
        Ok(Self {
            resolver: builder.build(),
            names: names.map(|asked| (asked, BTreeSet::new())).collect(),
            interval: source.interval_ms.map(|ms| Duration::from_millis(ms.get())),
        })
    }

    pub(super) async fn follow(mut self, mut pool: Found) {
        loop {
            let (mut next, mut trouble) = (LONGEST, None);
            for (asked, known) in &mut self.names {
                match look(&self.resolver, asked).await {
                    Ok((found, until)) => {
                        *known = found;
                        next = next.min(until.saturating_duration_since(now()));
                    }
                    Err(error) => {
                        next = next.min(AGAIN);
                        trouble = trouble.or(Some(format!("{}: {error}", asked.name())));
                    }
                }
            }
            let all: BTreeSet<SocketAddr> = self.names.iter().flat_map(|(_, known)| known).copied().collect();
            let all: Vec<String> = all.iter().map(SocketAddr::to_string).collect();
            match trouble {
                None => pool.endpoints(&all, None),
                Some(why) => {
                    if !all.is_empty() {
                        pool.partly(&all);
                    }
                    pool.nothing(&why);
                }
            }
            tokio::time::sleep(self.interval.unwrap_or(next.max(SHORTEST))).await;
        }
    }
}

impl Asked {
    fn name(&self) -> &str {
        match self {
            Self::Addresses(name, _) | Self::Services(name) => name,
        }
    }
}

async fn look(resolver: &TokioResolver, asked: &Asked) -> Result<Answer, ResolveError> {
    match asked {
        Asked::Addresses(host, port) => addresses(resolver, host, *port).await,
        Asked::Services(name) => {
            let services = resolver.srv_lookup(name.as_str()).await?;
            let (mut all, mut until) = (BTreeSet::new(), services.as_lookup().valid_until());
            for service in services.iter() {
                let (found, host_until) =
                    addresses(resolver, &service.target().to_utf8(), service.port()).await?;
                all.extend(found);
                until = until.min(host_until);
            }
            Ok((all, until))
        }
    }
}

async fn addresses(resolver: &TokioResolver, host: &str, port: u16) -> Result<Answer, ResolveError> {
    let found = resolver.lookup_ip(host).await?;
    let all = found.iter().map(|ip: IpAddr| SocketAddr::new(ip, port)).collect();
    Ok((all, found.valid_until()))
}

// Records count their time by std's clock; this crate is never compiled to wasm32.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}
