//! Who the endpoints of each pool are, by a configuration or as they were found, and what they say of themselves.

use super::{Config, Scorer};
use std::collections::{BTreeMap, BTreeSet};
use weir::invalid::Invalid;
use weir::kv::News;
use weir::policy::Attributes;
use weir::pool::{Message, Report};

impl Scorer {
    /// Gives every pool the endpoints that a configuration, accepted as a whole, has for it.
    pub fn set_endpoints(&self, config: &Config) {
        let is_found = |name: &str| self.discovered.contains(name) || config.discovery.contains_key(name);
        for (name, pool) in self.pools().iter_mut().filter(|(name, _)| !is_found(name)) {
            let set = config.endpoints_of(name).map_or(Ok(()), |endpoints| pool.set_endpoints(endpoints));
            if let Err(invalid) = set {
                log::error!("pool {name:?} keeps its endpoints: {invalid}");
            }
        }
    }

    /// Gives one pool the endpoints that were found for it, and, where that was found too, what is known of them. Says how
    /// many it had.
    pub(crate) fn set_pool(
        &self,
        name: &str,
        endpoints: &[String],
        attributes: Option<BTreeMap<String, Attributes>>,
    ) -> Result<usize, Invalid> {
        let mut pools = self.pools();
        let place = pools.of_name(name);
        let Some((_, pool)) = place.and_then(|place| pools.get(place)) else { return Ok(0) };
        let before = pool.addresses().count();
        attributes.as_ref().map_or(Ok(()), |attributes| pool.check(attributes))?;
        pool.set_endpoints(endpoints)?;
        if let Some(attributes) = attributes {
            pool.describe(attributes);
        }
        Ok(before)
    }

    /// The addresses of all endpoints, each once.
    pub fn addresses(&self) -> BTreeSet<String> {
        self.pools().iter().flat_map(|(_, pool)| pool.addresses()).map(str::to_owned).collect()
    }

    /// The addresses of the endpoints of the pool of that name.
    pub fn addresses_of(&self, pool: &str) -> BTreeSet<String> {
        let pools = self.pools();
        let own = pools.iter().filter(|(name, _)| *name == pool);
        own.flat_map(|(_, pool)| pool.addresses()).map(str::to_owned).collect()
    }

    /// Something was heard of what an engine holds: of the one of that rank behind an endpoint of a pool.
    pub fn told(&self, pool: &str, endpoint: &str, rank: u32, news: &News) {
        let mut pools = self.pools();
        if let Some((_, pool)) = pools.of_name(pool).and_then(|place| pools.get(place)) {
            pool.told(endpoint, rank, news);
        }
    }

    /// An endpoint said how it is.
    pub fn hear(&self, address: &str, report: &Report) {
        let said = Message::Said { endpoint: address.to_owned(), report: report.clone() };
        let mut pools = self.pools();
        pools.hear(&said, self.clock.now());
        self.listeners().note(None, said);
    }
}
