//! The rules as they are configured, and the choice of a target.

use crate::invalid::Invalid;
use crate::request::check_model;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use xxhash_rust::xxh64::xxh64;

/// Largest weight of a target, as in the Gateway API's `InferenceModelRewrite`.
const MOST_WEIGHT: u32 = 1_000_000;

/// Which models are served by others. Without rules, none.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The rules, in any order.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it matches: a name, a prefix with `*` behind it, or `*` for every model.
    pub models: Vec<String>,
    /// What serves them. Several share by their weights.
    pub targets: Vec<Target>,
}

/// A model that serves others.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Its name, as the engine knows it.
    pub model: String,
    /// Its share, 1 to 1,000,000, relative to the other targets' of the rule. All of them have one, or none (equal shares).
    #[serde(default)]
    pub weight: Option<u32>,
}

/// Rules that were accepted.
#[derive(Debug, Default)]
pub struct Rules {
    exact: HashMap<String, usize>,
    /// Longest first. `*` is the empty prefix.
    prefixes: Vec<(String, usize)>,
    rules: Vec<Vec<Weighted>>,
    /// Each target once.
    names: Vec<String>,
}

#[derive(Debug)]
struct Weighted {
    place: usize,
    weight: f64,
}

/// A target that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen<'r> {
    /// The model that serves.
    pub model: &'r str,
    /// Its place in [`Rules::targets`].
    pub place: usize,
}

impl Rules {
    /// Checks and takes over the rules of a configuration.
    pub fn new(config: &Config) -> Result<Self, Invalid> {
        let mut made = Self::default();
        let mut patterns = HashMap::new();
        for (at, rule) in config.rules.iter().enumerate() {
            let place = |field: &str| format!("rules[{at}].{field}");
            if rule.models.is_empty() {
                return Err(Invalid::new(place("models"), "empty; `*` matches every model"));
            }
            for (nth, pattern) in rule.models.iter().enumerate() {
                let place = place(&format!("models[{nth}]"));
                if pattern.is_empty() {
                    return Err(Invalid::new(place, "empty; `*` matches every model"));
                }
                if let Some(first) = patterns.insert(pattern.as_str(), at) {
                    let why = format!("{pattern:?} is matched by rules[{first}] already");
                    return Err(Invalid::new(place, why));
                }
                match pattern.strip_suffix('*') {
                    prefix if prefix.unwrap_or(pattern).contains('*') => {
                        let why =
                            format!("{pattern:?} has a `*` that is not its end: only beginnings are matched");
                        return Err(Invalid::new(place, why));
                    }
                    Some(prefix) => made.prefixes.push((prefix.to_owned(), at)),
                    None => drop(made.exact.insert(pattern.clone(), at)),
                }
            }
            let targets = made.take_targets(&rule.targets, &place("targets"))?;
            made.rules.push(targets);
        }
        made.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Ok(made)
    }

    fn take_targets(&mut self, targets: &[Target], at: &str) -> Result<Vec<Weighted>, Invalid> {
        if targets.is_empty() {
            return Err(Invalid::new(at, "empty; name the model that serves"));
        }
        let weighted = targets.iter().any(|target| target.weight.is_some());
        let mut taken: Vec<Weighted> = Vec::with_capacity(targets.len());
        for (nth, target) in targets.iter().enumerate() {
            let wrong = |field: &str, why: String| Err(Invalid::new(format!("{at}[{nth}].{field}"), why));
            if let Err(why) = check_model(&target.model) {
                return wrong("model", why.trim_start_matches("model: ").to_owned());
            }
            let weight = match target.weight {
                None if weighted => {
                    return wrong("weight", "missing; give weights to all targets or to none".into());
                }
                Some(weight) if !(1..=MOST_WEIGHT).contains(&weight) => {
                    return wrong("weight", format!("{weight}; expected 1 to {MOST_WEIGHT}"));
                }
                weight => f64::from(weight.unwrap_or(1)),
            };
            let place = self.names.iter().position(|name| *name == target.model).unwrap_or_else(|| {
                self.names.push(target.model.clone());
                self.names.len() - 1
            });
            if taken.iter().any(|other| other.place == place) {
                return wrong("model", format!("{:?} is a target of this rule already", target.model));
            }
            taken.push(Weighted { place, weight });
        }
        Ok(taken)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Every target, once.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The target that serves `model`, if a rule matches it. `key` is the hash that stands for its session, or random; it is
    /// asked for only where there is a choice.
    pub fn choose(&self, model: &str, key: impl FnOnce() -> u64) -> Option<Chosen<'_>> {
        let by_prefix =
            || self.prefixes.iter().find(|(prefix, _)| model.starts_with(prefix)).map(|(_, at)| at);
        let targets = self.rules.get(*self.exact.get(model).or_else(by_prefix)?)?;
        let chosen = match targets.as_slice() {
            [only] => only,
            several => {
                let key = key();
                let score = |target: &Weighted| {
                    let name = self.name(target).unwrap_or_default();
                    target.weight / -unit(xxh64(name.as_bytes(), key)).ln()
                };
                several.iter().max_by(|a, b| score(a).total_cmp(&score(b)))?
            }
        };
        Some(Chosen { model: self.name(chosen)?, place: chosen.place })
    }

    fn name(&self, target: &Weighted) -> Option<&str> {
        self.names.get(target.place).map(String::as_str)
    }
}

/// Uniform in (0, 1), without either end.
fn unit(hash: u64) -> f64 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    ((hash >> 11) as f64 + 0.5) / STEPS
}
