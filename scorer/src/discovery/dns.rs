//! Endpoints from DNS: the addresses of names, with a port, or SRV records, which have the ports.
//!
//! All addresses of a name are endpoints, IPv4 and IPv6; of SRV records priority and weight are not looked at, since load is
//! measured here. A name whose lookup fails, or that has no records, keeps the addresses that it had, and the others
//! are asked all the same. So it is with each host of SRV records: one that has no address is left out, one of which nobody can say
//! keeps those that it had. An address at which nobody can be reached is left out.

use super::{Found, Source};
use hickory_resolver::config::{LookupIpStrategy, NameServerConfigGroup, ResolverConfig};
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::name_server::TokioConnectionProvider;
use hickory_resolver::{ResolveError, TokioResolver};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use weir::pool::unreachable;

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
    names: Vec<(Asked, Hosts)>,
    interval: Option<Duration>,
}

/// The addresses of hosts, with a port each.
type Hosts = BTreeMap<(String, u16), BTreeSet<SocketAddr>>;

/// What a name has, for how long that may be kept, and what was left out.
struct Answer {
    found: Hosts,
    until: Instant,
    left_out: Option<String>,
}

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
            names: names.map(|asked| (asked, Hosts::new())).collect(),
            interval: source.interval_ms.map(|ms| Duration::from_millis(ms.get())),
        })
    }

    pub(super) async fn follow(mut self, mut pool: Found) {
        loop {
            let (mut next, mut trouble) = (LONGEST, None);
            for (asked, known) in &mut self.names {
                match look(&self.resolver, asked, known).await {
                    Ok(Answer { found, until, left_out }) => {
                        if found.values().any(|own| !own.is_empty()) {
                            *known = found;
                        }
                        next = next.min(until.saturating_duration_since(now()));
                        if let Some(why) = left_out {
                            next = next.min(AGAIN);
                            trouble = trouble.or(Some(format!("{}, in part: {why}", asked.name())));
                        }
                    }
                    Err(error) => {
                        next = next.min(AGAIN);
                        trouble = trouble.or(Some(format!("{}: {error}", asked.name())));
                    }
                }
            }
            let all: BTreeSet<SocketAddr> =
                self.names.iter().flat_map(|(_, known)| known.values().flatten()).copied().collect();
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

/// What a name has; `known` is what it had.
async fn look(resolver: &TokioResolver, asked: &Asked, known: &Hosts) -> Result<Answer, ResolveError> {
    let mut answer = Answer { found: Hosts::new(), until: now() + LONGEST, left_out: None };
    match asked {
        Asked::Addresses(host, port) => answer.add(host, *port, resolver.lookup_ip(host).await?),
        Asked::Services(name) => {
            let services = resolver.srv_lookup(name.as_str()).await?;
            answer.until = services.as_lookup().valid_until();
            for service in services.iter() {
                let (host, port) = (service.target().to_utf8(), service.port());
                let error = match resolver.lookup_ip(&host).await {
                    Ok(looked) => {
                        answer.add(&host, port, looked);
                        continue;
                    }
                    Err(error) => error,
                };
                answer.left_out.get_or_insert_with(|| format!("{host:?}: {error}"));
                let had = known.get(&(host.clone(), port)).filter(|_| !error.is_no_records_found());
                answer.found.extend(had.map(|had| ((host, port), had.clone())));
            }
        }
    }
    Ok(answer)
}

impl Answer {
    /// These are a host's.
    fn add(&mut self, host: &str, port: u16, looked: LookupIp) {
        self.until = self.until.min(looked.as_lookup().valid_until());
        let own = self.found.entry((host.to_owned(), port)).or_default();
        for ip in looked.iter() {
            let address = SocketAddr::new(ip, port);
            match unreachable(address) {
                None => drop(own.insert(address)),
                Some(why) => drop(self.left_out.get_or_insert_with(|| format!("{address}: {why}"))),
            }
        }
    }
}

// Records count their time by std's clock; this crate is never compiled to wasm32.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}
