//! The scorer's configuration: where it listens, its pools, how they choose.

use super::{Precise, Signals, StoreConfig, precise};
use crate::{admin, discovery, document, otel, picker};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use weir::invalid::{Invalid, read_value};
use weir::pool::{self, Pools, Spec};

/// The configuration file of a scorer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address and port to listen on.
    #[serde(default = "loopback")]
    pub listen: SocketAddr,
    /// The pools, by the names that the filters use.
    pub pools: Vec<Spec>,
    /// How each of them counts and chooses: the same as in the filters.
    #[serde(default)]
    pub choose: pool::Config,
    /// How engines are asked how they are; without this they are not, and what was sent to them is all that is known.
    #[serde(default)]
    pub signals: Option<Signals>,
    /// The admin page; without this there is none.
    #[serde(default)]
    pub admin: Option<admin::Config>,
    /// Where metrics and spans go by OTLP; without this, nowhere.
    #[serde(default)]
    pub otel: Option<otel::Config>,
    /// Where limits that proxies share are kept; without this, in memory.
    #[serde(default)]
    pub store: Option<StoreConfig>,
    /// Pools whose engines say what they hold, by their names: `docs/precise.md`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub precise: BTreeMap<String, Precise>,
    /// Where the endpoints of pools come from that have none here, by the pools' names.
    #[serde(default, skip_serializing_if = "discovery::Config::is_empty")]
    pub discovery: discovery::Config,
    /// How it is an endpoint picker for gateways without our filters; without this it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picker: Option<picker::Config>,
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9090))
}

impl Config {
    /// Reads and checks YAML or JSON.
    pub fn read(text: &[u8]) -> Result<Self, Invalid> {
        Self::read_document(document::read_one(text)?)
    }

    /// Reads and checks a document that has been parsed.
    pub fn read_document(document: Value) -> Result<Self, Invalid> {
        let config: Self = read_value(document)?;
        let names: Vec<&str> = config.pools.iter().map(|spec| spec.name.as_str()).collect();
        discovery::check(&config.discovery, &names).map_err(|invalid| invalid.within("discovery"))?;
        config.pools(0)?;
        precise::check(&config)?;
        if let Some(store) = &config.store {
            store.client().map_err(|invalid| invalid.within("store"))?;
        }
        if let Some(signals) = &config.signals {
            signals.check().map_err(|invalid| invalid.within("signals"))?;
        }
        if let Some(otel) = &config.otel {
            otel.check().map_err(|invalid| invalid.within("otel"))?;
        }
        if let Some(admin) = &config.admin {
            admin.check().map_err(|invalid| invalid.within("admin"))?;
        }
        if let Some(picker) = &config.picker {
            picker.check(&config.pools, &config.choose).map_err(|invalid| invalid.within("picker"))?;
        }
        Ok(config)
    }

    /// The pools, with nothing booked.
    pub fn pools(&self, seed: u64) -> Result<Pools, Invalid> {
        let is_discovered = |pool: &str| self.discovery.contains_key(pool);
        let mut pools = Pools::with_discovered(&self.pools, &self.choose, seed, &is_discovered)?;
        for (name, pool) in pools.iter_mut() {
            if let Some(precise) = self.precise.get(name) {
                pool.listen(&precise.index, precise.events.ranks);
            }
        }
        Ok(pools)
    }

    /// The endpoints of the pool of that name.
    pub fn endpoints_of(&self, pool: &str) -> Option<&[String]> {
        self.pools.iter().find(|spec| spec.name == pool).map(|spec| spec.endpoints.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let cases = [
            ("pools: []", "pools: empty"),
            ("listen: 127.0.0.1:1", "missing field `pools`"),
            (
                "{signals: {path: metrics}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "signals.path: a path begins",
            ),
            ("{pools: [{name: a, models: [], endpoints: []}]}", "pools[0].endpoints: empty"),
            ("{pools: [{name: a, models: [], endpoints: [x]}]}", "pools[0].endpoints[0]: \"x\" is not an IP"),
            (
                "{pools: [{name: a, models: [], endpoints: ['[::1]:1']}], store: {url: 'x:secret'}}",
                "store.url: redis://[",
            ),
            (
                "{pools: [{name: a, models: [], endpoints: ['[::1]:1']}], precise: {b: {}}}",
                "precise.b: no pool has that name",
            ),
            (
                "{pools: [{name: a, models: [], endpoints: ['[::1]:1']}], precise: {a: {events: {ranks: 0}}}}",
                "precise.a.events.ranks: 0 is not",
            ),
            (
                "{pools: [{name: a, models: [], endpoints: ['[::1]:1']}], precise: {a: {index: {host_credit: 2}}}}",
                "precise.a.index.host_credit: 2 is not from 0 to 1",
            ),
            (
                "{pools: [{name: a, models: [], endpoints: ['[::1]:1']}], precise: {a: {index: {blocks: 2}}}}",
                "precise.a.index.blocks: unknown field",
            ),
            ("{pools: [{nam: a}]}", "pools[0].nam: unknown field `nam`"),
            (
                "{discovery: {b: {file: x}}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "discovery.b: no pool is named",
            ),
            (
                "{discovery: {a: {file: x}}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "pools[0].endpoints: given, and discovered",
            ),
            ("{discovery: {a: {}}, pools: [{name: a, models: []}]}", "discovery.a: give a file, or names"),
            (
                "{discovery: {a: {dns: [b]}}, pools: [{name: a, models: []}]}",
                "discovery.a.dns[0]: \"b\" is neither",
            ),
            (
                "{discovery: {a: {dns: ['b:x']}}, pools: [{name: a, models: []}]}",
                "discovery.a.dns[0]: \"x\" is no port",
            ),
            ("{pools: [{name: a, models: []}]}", "pools[0].endpoints: empty"),
            (
                "{picker: {pool: b}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "picker.pool: no pool is named \"b\"; there are a",
            ),
            (
                "{picker: {request: {block_tokens: 32}}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "picker.request.block_tokens: 32, but pool \"a\" has blocks of 16",
            ),
            (
                "{otel: {endpoint: 'https://c'}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "otel.endpoint: \"https://c\" is not http://",
            ),
            ("{admin: {port: 1}, pools: []}", "admin.port: unknown field"),
            (
                "{admin: {hosts: [a, 'http://b']}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "admin.hosts[1]: \"http://b\" is not a host name",
            ),
            ("{listen: x, pools: []}", "listen: invalid socket address"),
            (
                "{choose: {policy: x}, pools: [{name: a, models: [], endpoints: ['[::1]:1']}]}",
                "choose.policy: unknown policy",
            ),
        ];
        for (text, expected) in cases {
            let message = Config::read(text.as_bytes()).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn the_precise_index_that_the_documentation_shows_is_right_and_has_the_defaults_it_says() {
        let text = include_str!("../../../docs/precise.md");
        let (_, yaml) = text.split_once("```yaml\n").unwrap();
        let config = Config::read(yaml.split_once("```").unwrap().0.as_bytes()).unwrap();
        let precise = &config.precise["small"];
        let effective = serde_json::to_value(precise).unwrap();
        for (row, default) in [
            ("events.ranks", &effective["events"]["ranks"]),
            ("events.timeout_ms", &effective["events"]["timeout_ms"]),
            ("events.retry_ms", &effective["events"]["retry_ms"]),
            ("index.max_blocks", &effective["index"]["max_blocks"]),
            ("index.predicted_ms", &effective["index"]["predicted_ms"]),
            ("tokens.timeout_ms", &effective["tokens"]["timeout_ms"]),
            ("tokens.max_bytes", &effective["tokens"]["max_bytes"]),
            ("tokens.threads", &effective["tokens"]["threads"]),
        ] {
            assert!(text.contains(&format!("| `{row}` | {default} |")), "{row}: {default}");
        }
    }

    #[test]
    fn the_store_that_the_documentation_shows_is_right_and_its_password_is_not_printed() {
        let text = include_str!("../../../docs/limits.md");
        let (_, store) = text.split_once("```yaml\n").unwrap();
        let pools = "pools: [{name: a, models: [], endpoints: ['[::1]:1']}]\n";
        let config =
            Config::read((pools.to_owned() + store.split_once("```").unwrap().0).as_bytes()).unwrap();
        assert_eq!(config.store.as_ref().unwrap().timeout_ms.get(), 100);
        let printed = serde_json::to_string(&config).unwrap();
        assert!(printed.contains("redis://…@redis:6379/0") && !printed.contains("password"), "{printed}");
    }
}
