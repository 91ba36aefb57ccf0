//! Whose tokens they are: which requests share a count.
//!
//! A key is a list of parts, and requests with the same values share one count. A value that a request does not have is
//! a value too, the empty one: leaving a header out is no way around a limit. Values are never stored: all
//! that leaves this module is a hash with a secret seed.

use super::credential::{self, Ambiguous};
use super::rule::check_header;
use crate::invalid::Invalid;
use crate::request::Facts;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use xxhash_rust::xxh64::Xxh64;

/// A part of a key.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The credential, by `identity.key_headers`.
    ApiKey,
    /// Who an authentication filter says it is, by `identity.consumer_header`.
    Consumer,
    /// The tenant, by `extract`'s `request.tenant_headers`.
    Tenant,
    /// The session, by `extract`'s `request.session_headers`, or as the body says.
    Session,
    /// The tenant's user, as the body says.
    User,
    /// The first value of a header, by its name in lower case.
    Header(String),
    /// The model asked for.
    Model,
    /// The client's address, as Envoy trusts it (`use_remote_address`, `xff_num_trusted_hops`): of IPv6 the network
    /// of 64 bits, since a client commonly has all of it.
    Ip,
}

/// The headers that say who asks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// Of `consumer`. It is to be set by a filter before `limit`, which removes the client's own.
    pub consumer_header: String,
    /// Of `api_key`: the headers that authentication takes the credential from, and no others. A request in which they
    /// hold several is refused.
    pub key_headers: Vec<String>,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            consumer_header: "x-consumer-username".into(),
            key_headers: ["authorization", "x-api-key", "api-key"].map(Into::into).into(),
        }
    }
}

impl Identity {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        check_header(&self.consumer_header).map_err(|invalid| invalid.within("consumer_header"))?;
        if self.key_headers.is_empty() {
            return Err(Invalid::new("key_headers", "empty; name the header that holds the credential"));
        }
        for (at, name) in self.key_headers.iter().enumerate() {
            check_header(name).map_err(|invalid| invalid.within(&format!("key_headers[{at}]")))?;
        }
        Ok(())
    }
}

/// A request, as far as limits look at it.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// What its body told.
    pub facts: &'a Facts,
    /// The first value of a header, by its name in lower case.
    pub header: &'a dyn Fn(&str) -> Option<&'a str>,
    /// Whether it is there more than once, with different values.
    pub repeated: &'a dyn Fn(&str) -> bool,
    /// The client's address and port.
    pub address: Option<&'a str>,
}

impl std::fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").field("facts", self.facts).finish_non_exhaustive()
    }
}

impl Part {
    /// Whether it is a header.
    pub(super) fn is_header(&self) -> bool {
        matches!(self, Self::ApiKey | Self::Consumer | Self::Header(_))
    }

    /// Whether it says who asks, and not in words of the body: those every client may choose.
    pub(super) fn tells_clients(&self) -> bool {
        !matches!(self, Self::Session | Self::User | Self::Model)
    }

    fn value<'a>(&self, asked: &Asked<'a>, identity: &Identity) -> Result<Option<Cow<'a, [u8]>>, Ambiguous> {
        let Facts { tenant, session, user, model, .. } = asked.facts;
        let id = |id: &Option<u64>| id.map(|id| id.to_le_bytes().to_vec().into());
        let text = |text: Option<&'a str>| text.map(|text| text.as_bytes().into());
        let header = |name: &str| (asked.header)(name);
        Ok(match self {
            Self::ApiKey => text(credential::of(&identity.key_headers, asked)?),
            Self::Consumer => text(header(&identity.consumer_header)),
            Self::Tenant => id(tenant),
            Self::Session => id(session),
            Self::User => id(user),
            Self::Header(name) if name == "authorization" => text(credential::of(&[name], asked)?),
            Self::Header(name) => text(header(name)),
            Self::Model => text(model.as_deref()),
            Self::Ip => match asked.address.and_then(network) {
                Some(network) => Some(network.to_vec().into()),
                None => text(asked.address),
            },
        })
    }
}

/// The hash of a key's values.
pub(super) fn hash(
    parts: &[Part],
    asked: &Asked<'_>,
    identity: &Identity,
    seed: u64,
) -> Result<u64, Ambiguous> {
    let mut hash = Xxh64::new(seed);
    for part in parts {
        let value = part.value(asked, identity)?.unwrap_or_default();
        hash.update(&(value.len() as u64).to_le_bytes());
        hash.update(&value);
    }
    Ok(hash.digest())
}

/// An address without its port; of IPv6 the network of 64 bits.
fn network(address: &str) -> Option<[u8; 8]> {
    let ip = address.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| address.parse()).ok()?;
    match ip {
        IpAddr::V4(ip) => Some(u64::from(u32::from(ip)).to_be_bytes()),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => Some(u64::from(u32::from(ip)).to_be_bytes()),
            None => ip.octets().first_chunk().copied(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Dialect;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn of(parts: &[Part], headers: &'static [(&'static str, &'static str)], address: &str) -> u64 {
        let facts = Facts { model: Some("m".into()), ..Facts::of(Dialect::Chat) };
        let header = |name: &str| headers.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        let asked = Asked { facts: &facts, header: &header, repeated: &|_| false, address: Some(address) };
        hash(parts, &asked, &Identity::default(), 3).unwrap()
    }

    #[test]
    fn a_credential_is_one_key_however_its_scheme_is_written() {
        let key = |headers| of(&[Part::ApiKey], headers, "");
        let plain = key(&[("authorization", "Bearer k1")]);
        assert_eq!(key(&[("authorization", "bEARER   k1 ")]), plain);
        assert_eq!(key(&[("x-api-key", "k1")]), plain);
        assert_eq!(key(&[("authorization", "k1")]), plain);
        assert_ne!(key(&[("authorization", "Bearer k2")]), plain);
        assert_eq!(key(&[]), key(&[("authorization", "")]));
        assert_eq!(of(&[Part::Header("authorization".into())], &[("authorization", "Basic k1")], ""), plain);
    }

    #[test]
    fn who_asks_is_whom_extract_found() {
        let key = |facts: Facts| {
            let asked = Asked { facts: &facts, header: &|_| None, repeated: &|_| false, address: None };
            hash(&[Part::Tenant, Part::Session, Part::User], &asked, &Identity::default(), 3).unwrap()
        };
        let nobody = || Facts::of(Dialect::Chat);
        let all = [
            key(nobody()),
            key(Facts { tenant: Some(1), ..nobody() }),
            key(Facts { session: Some(1), ..nobody() }),
            key(Facts { user: Some(1), ..nobody() }),
            key(Facts { user: Some(2), ..nobody() }),
        ];
        assert!(all.iter().all(|one| all.iter().filter(|other| *other == one).count() == 1));
    }

    #[test]
    fn parts_do_not_run_into_each_other_and_addresses_are_networks() {
        let both = [Part::Consumer, Part::Header("x-team".into())];
        let one = of(&both, &[("x-consumer-username", "ab"), ("x-team", "c")], "");
        let other = of(&both, &[("x-consumer-username", "a"), ("x-team", "bc")], "");
        assert_ne!(one, other);
        let ip = |address| of(&[Part::Ip], &[], address);
        assert_eq!(ip("10.0.0.1:7"), ip("10.0.0.1:8"));
        assert_eq!(ip("10.0.0.1:7"), ip("[::ffff:10.0.0.1]:8"));
        assert_ne!(ip("10.0.0.1:7"), ip("10.0.0.2:7"));
        assert_eq!(ip("[2001:db8::1]:7"), ip("[2001:db8::2]:9"));
        assert_ne!(ip("[2001:db8::1]:7"), ip("[2001:db8:0:1::1]:7"));
    }
}
