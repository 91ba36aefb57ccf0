//! What is declared and stands nowhere: llm-d passes over it in silence, here it is said.

use super::table::{Make, SINGLE};
use super::{Config, Instance, Listed};
use crate::invalid::Invalid;

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
        }
    }
    for Instance { name, plugin, at, .. } in instances {
        let is_named = references.contains(&name.as_str());
        match plugin.make {
            Make::Score(_) | Make::Keep(_) | Make::Pick(_) if !is_named => {
                notes.push(Invalid::new(format!("{at}.type"), "not used: no profile that runs names it"));
            }
            Make::Decider(_) if decider != Some(name.as_str()) => {
                notes.push(Invalid::new(format!("{at}.type"), "not used: no profile handler names it"));
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
