//! What is declared and stands nowhere, or cannot do anything: llm-d passes over it in silence, here it is said.

use super::table::{Make, SINGLE};
use super::{Config, Instance, Listed, Reference};
use crate::invalid::Invalid;
use serde_json::Value;

/// Of plugins and profiles, those that do nothing. `runs`: the profiles that do; `decider`: who decides for the handler.
pub(super) fn notes(
    config: &Config,
    instances: &[Instance],
    runs: &[&str],
    decider: Option<&str>,
) -> Vec<Invalid> {
    let is_running = |listed: &&Listed| runs.contains(&listed.name.as_str());
    let references = config.scheduling_profiles.iter().filter(is_running).flat_map(|listed| &listed.plugins);
    let references: Vec<&str> = references.map(|reference| reference.plugin_ref.as_str()).collect();
    let mut notes = Vec::new();
    for (nth, listed) in config.scheduling_profiles.iter().enumerate() {
        if !is_running(&listed) {
            let at = format!("schedulingProfiles[{nth}]");
            notes.push(Invalid::new(at, "not used: the profile handler has nothing for it to do"));
        } else {
            notes.extend(
                idle(listed, instances).map(|note| note.within(&format!("schedulingProfiles[{nth}]"))),
            );
        }
    }
    for Instance { name, plugin, at, parameters } in instances {
        let is_named = references.contains(&name.as_str());
        match plugin.make {
            Make::Score(_) | Make::Keep(_) | Make::Pick(_) if !is_named => {
                notes.push(Invalid::new(format!("{at}.type"), "not used: no profile that runs names it"));
            }
            Make::Decider(_) if decider != Some(name.as_str()) => {
                notes.push(Invalid::new(format!("{at}.type"), "not used: no profile handler names it"));
            }
            Make::Keep(_)
                if parameters.get("conditions").and_then(Value::as_array).is_some_and(Vec::is_empty) =>
            {
                notes.push(Invalid::new(format!("{at}.parameters.conditions"), "none: everybody is kept"));
            }
            Make::Handler if plugin.kind != SINGLE && runs.len() < 2 => {
                let why =
                    "without deciders.prefill no prefill is split off: the endpoint for decode does it all";
                notes.push(Invalid::new(format!("{at}.parameters"), why));
            }
            _ => {}
        }
    }
    notes
}

/// What does nothing in a profile: weights of what does not score, and scorers that all weigh nothing.
fn idle<'a>(listed: &'a Listed, instances: &'a [Instance]) -> impl Iterator<Item = Invalid> + 'a {
    let make = |name: &str| instances.iter().find(|own| own.name == name).map(|own| own.plugin.make);
    let is_scorer = move |name: &str| matches!(make(name), Some(Make::Score(_)));
    let weighs = move |(nth, reference): (usize, &Reference)| {
        let is_idle = reference.weight.is_some() && !is_scorer(&reference.plugin_ref);
        is_idle.then(|| Invalid::new(format!("plugins[{nth}].weight"), "not used: only scorers weigh"))
    };
    let mut scorers =
        listed.plugins.iter().filter(move |reference| is_scorer(&reference.plugin_ref)).peekable();
    let has_some = scorers.peek().is_some();
    let is_even =
        has_some && scorers.all(|reference| reference.weight.is_some_and(|weight| weight.get() == 0.0));
    let even =
        is_even.then(|| Invalid::new("plugins", "every scorer weighs 0: endpoints are chosen at random"));
    listed.plugins.iter().enumerate().filter_map(weighs).chain(even)
}
