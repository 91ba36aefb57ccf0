//! All pools of a filter or a scorer: by their names, and by the models they serve.

use super::{Config, Pool};
use crate::invalid::Invalid;
use crate::policy::Attributes;
use crate::random::Random;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// One pool as it is configured.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name, the same in filters and scorer.
    pub name: String,
    /// The models its endpoints serve, as clients name them.
    pub models: Vec<String>,
    /// Its endpoints, each `address:port`.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// The cluster of Envoy's that leads to its endpoints, through which `pick` asks them how they are; the pool's name
    /// unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// How an endpoint of this pool is chosen, in the place of what holds for all of them; what it leaves out has its
    /// default. Two pools of the same endpoints compare two policies; each counts its own requests only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choose: Option<Config>,
    /// What policies are to know of endpoints, by their addresses; see `docs/policies.md`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Attributes>,
}

/// Pools that were accepted.
#[derive(Debug)]
pub struct Pools {
    pools: Vec<(String, Pool)>,
    by_name: HashMap<String, usize>,
    by_model: HashMap<String, usize>,
}

impl Pools {
    /// Checks and makes all pools; `config` holds for each that has none of its own.
    pub fn new(specs: &[Spec], config: &Config, seed: u64) -> Result<Self, Invalid> {
        Self::with_discovered(specs, config, seed, &|_| false)
    }

    /// The same, where the endpoints of some pools, by their names, will come from elsewhere. Those begin with none.
    pub fn with_discovered(
        specs: &[Spec],
        config: &Config,
        seed: u64,
        discovered: &dyn Fn(&str) -> bool,
    ) -> Result<Self, Invalid> {
        if specs.is_empty() {
            return Err(Invalid::new("pools", "empty; name at least one pool"));
        }
        let mut random = Random::new(seed);
        let mut made = Self { pools: Vec::new(), by_name: HashMap::new(), by_model: HashMap::new() };
        for (at, spec) in specs.iter().enumerate() {
            let place = |field: &str| format!("pools[{at}].{field}");
            // It is a part of the names of stats, where `;` begins a label.
            let is_odd = |letter: char| letter == ';' || letter.is_whitespace() || letter.is_control();
            if spec.name.is_empty() || spec.name.contains(is_odd) {
                let why = format!(
                    "{:?} is no name of a pool: without blanks, `;` and control characters",
                    spec.name
                );
                return Err(Invalid::new(place("name"), why));
            }
            if made.by_name.insert(spec.name.clone(), at).is_some() {
                return Err(Invalid::new(
                    place("name"),
                    format!("{:?} is the name of another pool", spec.name),
                ));
            }
            for (nth, model) in spec.models.iter().enumerate() {
                if made.by_model.insert(model.clone(), at).is_some() {
                    let why = format!("{model:?} is listed twice; a model belongs to one pool");
                    return Err(Invalid::new(place(&format!("models[{nth}]")), why));
                }
            }
            let found = discovered(&spec.name);
            if found && !spec.endpoints.is_empty() {
                return Err(Invalid::new(
                    place("endpoints"),
                    "given, and discovered as well: one of the two",
                ));
            }
            if spec.endpoints.is_empty() && !found {
                return Err(Invalid::new(place("endpoints"), "empty; name at least one endpoint"));
            }
            if spec.cluster.as_ref().is_some_and(String::is_empty) {
                return Err(Invalid::new(
                    place("cluster"),
                    "empty; name the cluster that leads to the endpoints",
                ));
            }
            for (address, attributes) in &spec.attributes {
                attributes.check().map_err(|(field, why)| {
                    Invalid::new(place(&format!("attributes[{address:?}].{field}")), why)
                })?;
                if !found && !spec.endpoints.contains(address) {
                    let why = format!("{address} is no endpoint of this pool");
                    return Err(Invalid::new(place(&format!("attributes[{address:?}]")), why));
                }
            }
            let own = spec.choose.as_ref();
            let mut pool = Pool::new(own.unwrap_or(config), &spec.endpoints, random.next()).map_err(
                |invalid| match (invalid.at.starts_with("endpoints"), own) {
                    (false, None) => invalid.within("choose"),
                    (false, Some(_)) => invalid.within(&place("choose")),
                    (true, _) => invalid.within(&format!("pools[{at}]")),
                },
            )?;
            pool.check(&spec.attributes).map_err(|invalid| invalid.within(&format!("pools[{at}]")))?;
            pool.describe(spec.attributes.clone());
            made.pools.push((spec.name.clone(), pool));
        }
        Ok(made)
    }

    /// The place of the pool that serves `model`.
    pub fn of_model(&self, model: &str) -> Option<usize> {
        self.by_model.get(model).copied()
    }

    /// The place of the pool of that name.
    pub fn of_name(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The pool at a place, and its name.
    pub fn get(&mut self, place: usize) -> Option<(&str, &mut Pool)> {
        self.pools.get_mut(place).map(|(name, pool)| (name.as_str(), pool))
    }

    /// All pools with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Pool)> {
        self.pools.iter().map(|(name, pool)| (name.as_str(), pool))
    }

    /// All pools, to act on.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Pool)> {
        self.pools.iter_mut().map(|(name, pool)| (name.as_str(), pool))
    }
}
