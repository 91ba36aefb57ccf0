//! `pd-profile-handler`: read as `disagg-profile-handler`, which has followed it.
//!
//! It names its profiles and its decider in fields of their own. Its first releases had no deciders: prefill was split off
//! where `threshold` or more of the prompt was not cached on the decode endpoint, and always at 0, which was the default.

use super::disagg::{Deciders, Handler, Names};
use super::{Config, Declared};
use crate::invalid::{Invalid, read_value};
use crate::policy::table::effective;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const KIND: &str = "pd-profile-handler";
const NOW: &str = "disagg-profile-handler";
const BY_PREFIX: &str = "prefix-based-pd-decider";
const ALWAYS: &str = "always-disagg-pd-decider";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Old {
    decode_profile: String,
    prefill_profile: String,
    decider_plugin_name: Option<String>,
    threshold: Option<u32>,
    primary_port: u16,
    // These have no use: there is one index, and `extract` cuts its blocks.
    #[serde(rename = "prefixPluginType")]
    _prefix_plugin_type: Value,
    #[serde(rename = "prefixPluginName")]
    _prefix_plugin_name: Value,
    #[serde(rename = "prefixMatchInfoProducerName")]
    _producer_name: Value,
    #[serde(rename = "hashBlockSize")]
    _hash_block_size: Value,
}

impl Default for Old {
    fn default() -> Self {
        let Names { decode, prefill } = Names::default();
        Self {
            decode_profile: decode,
            prefill_profile: prefill,
            decider_plugin_name: None,
            threshold: None,
            primary_port: 0,
            _prefix_plugin_type: Value::Null,
            _prefix_plugin_name: Value::Null,
            _producer_name: Value::Null,
            _hash_block_size: Value::Null,
        }
    }
}

/// Makes the new one of every old one, and says so.
pub(super) fn renew(config: &mut Config) -> Result<Vec<Invalid>, Invalid> {
    let mut notes = Vec::new();
    let mut deciders = Vec::new();
    let names: Vec<String> = config.plugins.iter().map(|declared| declared.name().to_owned()).collect();
    let has = |name: &str| names.iter().any(|own| own == name);
    let olds = config.plugins.iter_mut().enumerate().filter(|(_, declared)| declared.kind == KIND);
    for (nth, declared) in olds {
        let at = format!("plugins[{nth}]");
        let parameters = Value::Object(declared.parameters.take().unwrap_or_default());
        let old = read_value(parameters).and_then(|old: Old| Ok((decider(&old, has)?, old)));
        let ((name, implied), old) = old.map_err(|invalid| invalid.within(&format!("{at}.parameters")))?;
        let new = Handler {
            profiles: Names { decode: old.decode_profile, prefill: old.prefill_profile },
            deciders: Deciders { prefill: Some(name) },
            ..Handler::default()
        };
        let mut instead = vec![json!({ "type": NOW, "parameters": effective(&new) })];
        instead.extend(
            implied.iter().map(|implied| json!({ "type": implied.kind, "parameters": implied.parameters })),
        );
        let instead: Vec<String> = instead.iter().map(Value::to_string).collect();
        let why = format!("deprecated; read as {}", instead.join(" and "));
        notes.push(Invalid::new(format!("{at}.type"), why));
        declared.name.get_or_insert_with(|| KIND.to_owned());
        NOW.clone_into(&mut declared.kind);
        declared.parameters = effective(&new).as_object().cloned();
        deciders.extend(implied);
    }
    config.plugins.extend(deciders);
    Ok(notes)
}

/// Who decides; and that one, where it is yet to be declared.
fn decider(old: &Old, has: impl Fn(&str) -> bool) -> Result<(String, Option<Declared>), Invalid> {
    if old.primary_port != 0 {
        return Err(Invalid::new("primaryPort", "list each rank as an endpoint of its own"));
    }
    if old.threshold.is_some() && (old.decider_plugin_name.is_some() || has(BY_PREFIX)) {
        let why = format!("there is a decider: write nonCachedTokens of {BY_PREFIX}");
        return Err(Invalid::new("threshold", why));
    }
    let (name, tokens) = match (&old.decider_plugin_name, old.threshold.filter(|tokens| *tokens > 0)) {
        (Some(name), _) if has(name) => return Ok((name.clone(), None)),
        (Some(name), _) => {
            return Err(Invalid::new("deciderPluginName", format!("no plugin is named {name:?}")));
        }
        (None, None) if has(BY_PREFIX) => return Ok((BY_PREFIX.to_owned(), None)),
        (None, None) => (ALWAYS, None),
        (None, Some(tokens)) => (BY_PREFIX, Some(tokens)),
    };
    let parameters = tokens.map(|tokens| Map::from_iter([("nonCachedTokens".to_owned(), tokens.into())]));
    let implied = Declared { kind: name.to_owned(), name: None, parameters: parameters.or(Some(Map::new())) };
    Ok((name.to_owned(), (!has(name)).then_some(implied)))
}
