//! Which endpoints a gateway allows: the protocol's subset hint.
//!
//! A list of addresses, as a list of strings or as one string with commas. `IP:port` is that endpoint; `IP` alone, every
//! endpoint of that host. IPv6 with a port is in brackets, without one it may be. What is none of these allows nothing, and a
//! hint that allows nothing is still a hint: the protocol wants 503 then, not any endpoint.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::google::protobuf::value::Kind;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// The namespace of the hint, and its key.
const HINT: [&str; 2] = ["envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"];

/// The most that is read of one: more than a pool has endpoints. What comes after is not allowed.
const MOST: usize = 10_000;

/// Endpoints that a request may go to. They are looked up under the book's lock, and so not one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subset(HashSet<Allowed>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Allowed {
    One(SocketAddr),
    AllOf(IpAddr),
}

impl Subset {
    /// The hint of a request's metadata, if there is one.
    pub(super) fn of(metadata: &Metadata) -> Option<Self> {
        let [namespace, key] = HINT;
        let value = metadata.filter_metadata.get(namespace)?.fields.get(key)?;
        Some(match value.kind.as_ref()? {
            Kind::NullValue(_) => return None,
            Kind::StringValue(text) => Self::read(text),
            Kind::ListValue(list) => {
                let texts = list.values.iter().filter_map(|value| match value.kind.as_ref()? {
                    Kind::StringValue(text) => Some(text.as_str()),
                    _ => None,
                });
                Self(texts.flat_map(addresses).take(MOST).collect())
            }
            _ => Self::default(),
        })
    }

    /// Addresses with commas between them.
    pub(super) fn read(text: &str) -> Self {
        Self(addresses(text).take(MOST).collect())
    }

    /// Whether it allows the endpoint of this address.
    pub(super) fn allows(&self, address: &str) -> bool {
        let Ok(address) = address.parse::<SocketAddr>() else { return false };
        self.0.contains(&Allowed::One(address)) || self.0.contains(&Allowed::AllOf(address.ip()))
    }
}

fn addresses(text: &str) -> impl Iterator<Item = Allowed> {
    text.split(',').filter_map(|one| {
        let one = one.trim();
        let host = one.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(one);
        one.parse().map(Allowed::One).or_else(|_| host.parse().map(Allowed::AllOf)).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};

    fn hint(kind: Kind) -> Option<Subset> {
        let value = Value { kind: Some(kind) };
        let fields = [(HINT[1].to_owned(), value)].into();
        Subset::of(&Metadata {
            filter_metadata: [(HINT[0].to_owned(), Struct { fields })].into(),
            ..Metadata::default()
        })
    }

    fn list(texts: &[&str]) -> Kind {
        let text = |text: &&str| Value { kind: Some(Kind::StringValue((*text).to_owned())) };
        Kind::ListValue(ListValue { values: texts.iter().map(text).collect() })
    }

    #[test]
    fn a_list_and_a_string_mean_the_same_and_ports_count() {
        let texts = ["10.0.0.1:8000", "[fd00::1]:8000"];
        for hint in
            [hint(list(&texts)), hint(Kind::StringValue(texts.join(" , "))), hint(list(&[&texts.join(",")]))]
        {
            let hint = hint.unwrap();
            assert!(texts.iter().all(|text| hint.allows(text)));
            for other in
                ["10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8001", "[fd00::2]:8000", "10.0.0.1", ""]
            {
                assert!(!hint.allows(other), "{other}");
            }
        }
    }

    #[test]
    fn a_host_alone_is_all_its_ports() {
        let hint = hint(list(&["10.0.0.1", "fd00::1", "[fd00::2]"])).unwrap();
        for (address, allowed) in [
            ("10.0.0.1:1", true),
            ("[fd00::1]:2", true),
            ("[fd00:0::1]:3", true),
            ("[fd00::2]:4", true),
            ("10.0.0.11:1", false),
        ] {
            assert_eq!(hint.allows(address), allowed, "{address}");
        }
    }

    #[test]
    fn a_hint_of_nothing_allows_nothing_and_no_hint_is_none() {
        let number = Kind::NumberValue(1.0);
        let odd = Kind::ListValue(ListValue { values: vec![Value { kind: Some(number.clone()) }] });
        for kind in [list(&[]), list(&["nonsense"]), Kind::StringValue(String::new()), number, odd] {
            assert_eq!(hint(kind), Some(Subset::default()));
        }
        assert_eq!(hint(Kind::NullValue(0)), None);
        assert_eq!(Subset::of(&Metadata::default()), None);
    }

    #[test]
    fn of_a_hint_without_end_only_so_much_is_read() {
        let text = (0..MOST).map(|n| format!("10.0.{}.{}:80,", n / 250, n % 250)).collect::<String>();
        let hint = hint(Kind::StringValue(text + "10.9.9.9:80")).unwrap();
        assert!(hint.allows("10.0.0.0:80") && hint.allows("10.0.39.249:80"));
        assert!(!hint.allows("10.9.9.9:80"));
    }
}
