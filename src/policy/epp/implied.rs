//! What a file leaves out and llm-d puts in.
//!
//! Without profiles there is one, `default`, of every filter, scorer and picker that is declared, in their order and at
//! weight 1. Where nothing is declared at all it is llm-d's own configuration: queue 2, KV cache 2, prefix 3. A profile
//! without a picker gets the first that is declared, and `max-score-picker` where none is.

use super::table::{self, Make};
use super::{Config, Declared, Listed, Reference};
use crate::invalid::Invalid;
use crate::policy::number::Amount;

const BEST: &str = "max-score-picker";

/// Puts it in, and says so where that leaves the choice to chance.
pub(super) fn fill_in(config: &mut Config) -> Result<Option<Invalid>, Invalid> {
    let mut note = None;
    if config.scheduling_profiles.is_empty() {
        let plugins = if config.plugins.is_empty() { llm_ds_own(config) } else { declared(config)? };
        if !config.plugins.iter().any(|declared| judges(&declared.kind)) {
            note = Some(Invalid::new("plugins", "no scorer is among them: endpoints are chosen at random"));
        }
        config.scheduling_profiles.push(Listed { name: "default".to_owned(), plugins });
    }
    pickers(config);
    Ok(note)
}

/// Whether it is a scorer, or a picker, which may be meant to do without.
fn judges(kind: &str) -> bool {
    let make = table::plugin(kind).map(|plugin| plugin.make);
    matches!(make, Ok(Make::Score(_) | Make::Pick(_)))
}

fn pickers(config: &mut Config) {
    let is_picker = |kind: &str| matches!(table::plugin(kind).map(|plugin| plugin.make), Ok(Make::Pick(_)));
    let all = config.plugins.iter().filter(|declared| is_picker(&declared.kind));
    let all: Vec<String> = all.map(|declared| declared.name().to_owned()).collect();
    let picks = |listed: &Listed| listed.plugins.iter().any(|reference| all.contains(&reference.plugin_ref));
    if all.is_empty() {
        config.plugins.push(Declared { kind: BEST.to_owned(), name: None, parameters: None });
    }
    let first = all.first().map_or(BEST, String::as_str);
    for listed in config.scheduling_profiles.iter_mut().filter(|listed| !picks(listed)) {
        listed.plugins.push(Reference { plugin_ref: first.to_owned(), weight: None });
    }
}

fn llm_ds_own(config: &mut Config) -> Vec<Reference> {
    let weights = [("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0)];
    let own = weights.map(|(kind, weight)| {
        config.plugins.push(Declared { kind: kind.to_owned(), name: None, parameters: None });
        Reference { plugin_ref: kind.to_owned(), weight: Some(Amount::of(weight)) }
    });
    own.into()
}

/// What is declared and may stand in a profile. Unknown types are left to whoever reads them.
fn declared(config: &Config) -> Result<Vec<Reference>, Invalid> {
    let mut picks = false;
    let mut plugins = Vec::new();
    for (nth, declared) in config.plugins.iter().enumerate() {
        match table::plugin(&declared.kind).map(|plugin| plugin.make) {
            Ok(Make::Pick(_)) if std::mem::replace(&mut picks, true) => {
                let why = "a second picker, and no profile says which is for what";
                return Err(Invalid::new(format!("plugins[{nth}].type"), why));
            }
            Ok(Make::Score(_) | Make::Keep(_) | Make::Pick(_)) => {
                plugins.push(Reference { plugin_ref: declared.name().to_owned(), weight: None });
            }
            _ => {}
        }
    }
    Ok(plugins)
}
