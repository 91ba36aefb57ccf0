//! llm-d's `EndpointPickerConfig`: the same plugin names and parameters, the same profiles and weights.
//!
//! A configuration lists plugins and puts them into profiles; what a plugin is (a filter, a scorer, a picker) follows from
//! its type. Filters leave candidates out, in order; scorers, weighted, are added up; a picker takes one. What a file
//! leaves out is put in as llm-d does it (`implied.rs`). Of two profiles, `decode` chooses where the request goes and
//! `prefill` where its prompt is computed (`disagg.rs`).
//!
//! What llm-d knows falls into three: a plugin that runs here; one whose work is done elsewhere in Weir, which is
//! accepted with a note; one that is not carried, which is refused with the reason, since a policy that silently lacks a
//! part is another policy. Unknown types and parameters are refused with their path. `docs/epp.md` has the table.

mod affinity;
mod context_length;
mod disagg;
mod implied;
mod kv_cache;
mod labels;
mod latency;
mod load;
mod no_hit_lru;
mod not_carried;
mod pd;
mod prefix;
mod relative;
mod residency;
mod session;
mod table;
mod unused;
mod utilization;

pub use labels::odd_role;

pub(super) use disagg::{NoPrefill, Split};

use super::choose::{Policy, Profile, Scratch, Weighted};
use super::number::Amount;
use super::pickers::Best;
use super::{Keep, Needed, Pick, Score};
use crate::invalid::{Invalid, read_value};
use disagg::{Decider, Handler};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use table::{Make, Plugin, Scored};

/// The file, as far as it is ours.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Config {
    api_version: String,
    kind: String,
    feature_gates: Vec<String>,
    plugins: Vec<Declared>,
    scheduling_profiles: Vec<Listed>,
    /// Where metrics come from, requests are parsed, admission: done elsewhere in Weir.
    data_layer: Option<Value>,
    request_handler: Option<Value>,
    parser: Option<Value>,
    flow_control: Option<Value>,
    saturation_detector: Option<Value>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api_version: VERSIONS[1].to_owned(),
            kind: KIND.to_owned(),
            feature_gates: Vec::new(),
            plugins: Vec::new(),
            scheduling_profiles: Vec::new(),
            data_layer: None,
            request_handler: None,
            parser: None,
            flow_control: None,
            saturation_detector: None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
}

impl Declared {
    /// What profiles call it.
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.kind)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: String,
    #[serde(default)]
    plugins: Vec<Reference>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Reference {
    plugin_ref: String,
    #[serde(default)]
    weight: Option<Amount>,
}

const KIND: &str = "EndpointPickerConfig";
const VERSIONS: [&str; 3] = ["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"];

/// Whether an object is such a configuration.
pub fn is_config(map: &Map<String, Value>) -> bool {
    map.get("kind").is_some_and(|kind| kind == KIND)
        || ["plugins", "schedulingProfiles"].iter().any(|field| map.contains_key(*field))
}

/// A plugin that was declared and read.
struct Instance {
    name: String,
    plugin: &'static Plugin,
    at: String,
    parameters: Value,
}

/// Reads a configuration.
pub(super) fn read(value: &Value) -> Result<Policy, Invalid> {
    let mut config: Config = read_value(value.clone())?;
    if config.kind != KIND {
        return Err(Invalid::new("kind", format!("{:?}; expected {KIND}", config.kind)));
    }
    if !VERSIONS.contains(&config.api_version.as_str()) {
        let why = format!("{:?}; expected one of {}", config.api_version, VERSIONS.join(", "));
        return Err(Invalid::new("apiVersion", why));
    }
    let mut notes = elsewhere(&config);
    notes.extend(pd::renew(&mut config)?);
    notes.extend(implied::fill_in(&mut config)?);
    let instances = instances(&config, &mut notes)?;
    let mut profiles = profiles(&config, &instances)?;
    let (name, split) = arrange(&config, &instances, &mut profiles)?;
    let (effective, profile) = match profiles.remove(&name) {
        Some(made) => made,
        None => return Err(Invalid::new("schedulingProfiles", format!("no profile is named {name:?}"))),
    };
    let prefill = split.as_ref().map(|(.., prefill)| prefill.as_str());
    let decider = split.as_ref().and_then(|(handler, ..)| handler.decider());
    let runs: Vec<&str> = prefill.into_iter().chain([name.as_str()]).collect();
    notes.extend(unused::notes(&config, &instances, &runs, decider));
    let needs = needs(&config, &instances, &runs);
    let mut effective = vec![json!({ "name": name, "plugins": effective })];
    let split = match split {
        Some((handler, decider, prefill)) => {
            let Some((plugins, profile)) = profiles.remove(&prefill) else {
                let why = format!("no profile is named {prefill:?}, which the handler names for prefill");
                return Err(Invalid::new("schedulingProfiles", why));
            };
            effective.push(json!({ "name": prefill, "plugins": plugins }));
            Some(Split { profile, decider, no_prefill: handler.on_no_prefill })
        }
        None => None,
    };
    let declared = instances.iter().map(|instance| {
        json!({ "type": instance.plugin.kind, "name": instance.name, "parameters": instance.parameters })
    });
    Ok(Policy {
        name: "endpoint_picker".into(),
        effective: json!({
            "apiVersion": config.api_version, "kind": KIND,
            "plugins": declared.collect::<Vec<_>>(), "schedulingProfiles": effective,
        }),
        profile,
        split,
        notes,
        needs,
    })
}

/// What the plugins need that stand in a profile that runs.
fn needs(config: &Config, instances: &[Instance], runs: &[&str]) -> Vec<Needed> {
    let running = config.scheduling_profiles.iter().filter(|listed| runs.contains(&listed.name.as_str()));
    let names: Vec<&str> =
        running.flat_map(|listed| &listed.plugins).map(|reference| reference.plugin_ref.as_str()).collect();
    let named = instances.iter().filter(|instance| names.contains(&instance.name.as_str()));
    let of = |Instance { at, plugin, parameters, .. }: &Instance| {
        let (at, name) = (format!("{at}.type"), plugin.kind);
        plugin.rests_on(parameters).iter().map(move |need| Needed { at: at.clone(), name, need: *need })
    };
    named.flat_map(of).collect()
}

/// The parts of the file whose work is done elsewhere.
fn elsewhere(config: &Config) -> Vec<Invalid> {
    let parts = [
        ("dataLayer", &config.data_layer, "engines are scraped as `signals` says"),
        ("requestHandler", &config.request_handler, "`extract` knows each dialect by its path"),
        ("parser", &config.parser, "`extract` knows each dialect by its path"),
        ("flowControl", &config.flow_control, "requests wait in `limit`'s queue, in its order"),
        ("saturationDetector", &config.saturation_detector, "admission by saturation is not built"),
    ];
    let present = parts.into_iter().filter(|(_, part, _)| part.is_some());
    let mut notes: Vec<Invalid> =
        present.map(|(at, _, why)| Invalid::new(at, format!("not used: {why}"))).collect();
    if !config.feature_gates.is_empty() {
        notes.push(Invalid::new("featureGates", "not used: nothing here is behind a gate"));
    }
    notes
}

/// Reads what is declared.
fn instances(config: &Config, notes: &mut Vec<Invalid>) -> Result<Vec<Instance>, Invalid> {
    let mut instances: Vec<Instance> = Vec::new();
    for (nth, declared) in config.plugins.iter().enumerate() {
        let at = format!("plugins[{nth}]");
        let plugin = table::plugin(&declared.kind).map_err(|invalid| invalid.within(&at))?;
        let name = declared.name().to_owned();
        if instances.iter().any(|other| other.name == name) {
            return Err(Invalid::new(
                format!("{at}.name"),
                format!("{name:?} is the name of another plugin"),
            ));
        }
        let parameters = declared.parameters.clone().unwrap_or_default();
        let (parameters, passed) = plugin.read(parameters).map_err(|invalid| invalid.within(&at))?;
        notes.extend(passed.into_iter().map(|note| note.within(&at)));
        if plugin.kind != declared.kind {
            notes.push(Invalid::new(format!("{at}.type"), format!("an older name of {}", plugin.kind)));
        }
        instances.push(Instance { name, plugin, at, parameters });
    }
    Ok(instances)
}

type Profiles = BTreeMap<String, (Vec<Value>, Profile)>;

/// Makes the profiles, each with plugins of its own.
fn profiles(config: &Config, instances: &[Instance]) -> Result<Profiles, Invalid> {
    let mut profiles = Profiles::new();
    for (nth, listed) in config.scheduling_profiles.iter().enumerate() {
        let at = format!("schedulingProfiles[{nth}]");
        let made = profile(listed, instances).map_err(|invalid| invalid.within(&at))?;
        if profiles.insert(listed.name.clone(), made).is_some() {
            let why = format!("{:?} is the name of another profile", listed.name);
            return Err(Invalid::new(format!("{at}.name"), why));
        }
    }
    Ok(profiles)
}

fn profile(listed: &Listed, instances: &[Instance]) -> Result<(Vec<Value>, Profile), Invalid> {
    let mut keepers: Vec<(Cow<'static, str>, Box<dyn Keep>)> = Vec::new();
    let mut scorers: Vec<Weighted> = Vec::new();
    let mut picker: Option<Box<dyn Pick>> = None;
    let mut effective = Vec::new();
    for (nth, reference) in listed.plugins.iter().enumerate() {
        let at = |field: &str| format!("plugins[{nth}].{field}");
        let Some(instance) = instances.iter().find(|instance| instance.name == reference.plugin_ref) else {
            let why = format!("no plugin is named {:?}", reference.plugin_ref);
            return Err(Invalid::new(at("pluginRef"), why));
        };
        let (name, parameters) = (instance.name.clone(), || instance.parameters.clone());
        let inside = |invalid: Invalid| invalid.within(&at("pluginRef"));
        let mut line = json!({ "pluginRef": name });
        match instance.plugin.make {
            Make::Score(make) => {
                let (score, keeper) = make(parameters()).map_err(inside)?;
                let weight = reference.weight.map_or(1.0, Amount::get);
                line = json!({ "pluginRef": name, "weight": weight });
                keepers.extend(keeper.map(|keeper| (name.clone().into(), keeper)));
                scorers.push(Weighted { name: name.into(), weight, score });
            }
            Make::Keep(make) => keepers.push((name.into(), make(parameters()).map_err(inside)?)),
            Make::Pick(make) if picker.is_none() => picker = Some(make(parameters()).map_err(inside)?),
            Make::Pick(_) => return Err(Invalid::new(at("pluginRef"), "a second picker in one profile")),
            Make::Elsewhere(_) => {}
            Make::Handler | Make::Decider(_) => {
                let why = format!("{} belongs to no profile", instance.plugin.kind);
                return Err(Invalid::new(at("pluginRef"), why));
            }
        }
        effective.push(line);
    }
    let picker = picker.unwrap_or_else(|| Box::new(Best));
    Ok((effective, Profile { keepers, scorers, picker, scratch: Scratch::default() }))
}

/// Which profile chooses the endpoint; and the handler, the decider and the profile that split off prefill, if any.
type Arranged = (String, Option<(Handler, Box<dyn Decider>, String)>);

fn arrange(config: &Config, instances: &[Instance], profiles: &mut Profiles) -> Result<Arranged, Invalid> {
    let handlers = || instances.iter().filter(|instance| matches!(instance.plugin.make, Make::Handler));
    if let Some(second) = handlers().nth(1) {
        return Err(Invalid::new(format!("{}.type", second.at), "a second profile handler"));
    }
    let handler = handlers().next();
    let single = handler.is_none_or(|handler| handler.plugin.kind == table::SINGLE);
    let first = config.scheduling_profiles.first().map(|listed| listed.name.clone()).unwrap_or_default();
    match handler.filter(|_| !single) {
        None if profiles.len() > 1 => {
            let why = "more than one profile needs a disagg-profile-handler to say which is for what";
            Err(Invalid::new("schedulingProfiles", why))
        }
        None => Ok((first, None)),
        Some(instance) => {
            let handler: Handler = read_value(instance.parameters.clone())?;
            let decode = handler.profiles.decode.clone();
            if !handler.splits() {
                return Ok((decode, None));
            }
            let decider = match handler.decider() {
                Some(name) => decider(name, instance, instances)?,
                None => disagg::always(Value::Null)?,
            };
            let prefill = handler.profiles.prefill.clone();
            Ok((decode, Some((handler, decider, prefill))))
        }
    }
}

/// The decider of that name, which `handler` asks for.
fn decider(name: &str, handler: &Instance, instances: &[Instance]) -> Result<Box<dyn Decider>, Invalid> {
    let at = format!("{}.parameters.deciders.prefill", handler.at);
    let named = instances.iter().find(|other| other.name == name);
    let Some((named, make)) = named.and_then(|named| match named.plugin.make {
        Make::Decider(make) => Some((named, make)),
        _ => None,
    }) else {
        return Err(Invalid::new(at, format!("no decider is named {name:?}")));
    };
    make(named.parameters.clone()).map_err(|invalid| invalid.within(&at))
}

/// A plugin whose whole configuration is itself.
fn score<S>(parameters: Value) -> Result<Scored, Invalid>
where
    S: Score + serde::de::DeserializeOwned + 'static,
{
    Ok((Box::new(read_value::<S>(parameters)?), None))
}

fn keep<K>(parameters: Value) -> Result<Box<dyn Keep>, Invalid>
where
    K: Keep + serde::de::DeserializeOwned + 'static,
{
    Ok(Box::new(read_value::<K>(parameters)?))
}

/// Reads parameters and gives them back with their defaults.
fn checked<T: serde::de::DeserializeOwned + Serialize>(parameters: Value) -> Result<Value, Invalid> {
    read_value::<T>(parameters).map(|read| super::table::effective(&read))
}

#[cfg(test)]
mod tests;
