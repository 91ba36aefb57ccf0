//! Policies: llm-d's `EndpointPickerConfig` by itself, and what of one inside another configuration does nothing.

use super::report::{Part, Report, join};
use super::{POLICY, hinted};
use serde_json::Value;
use weir::policy::{self, Policy};

/// A document of that kind.
pub(super) fn document(document: &Value, at: &str, report: &mut Report) {
    match Policy::read(document) {
        Ok(policy) => {
            report.warnings.extend(policy.notes().iter().map(|note| note.clone().within(at)));
            report.parts.push(Part { of: POLICY, at: at.to_owned(), effective: policy.effective().clone() });
        }
        Err(invalid) => report.errors.push(hinted(invalid).within(at)),
    }
}

/// Says of every such configuration inside `value` what is accepted and does nothing.
pub(super) fn notes(value: &Value, at: &str, report: &mut Report) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let at = join(at, key);
                let config = value.as_object().filter(|map| key == "policy" && policy::is_config(map));
                match config.and_then(|_| Policy::read(value).ok()) {
                    Some(policy) => {
                        report.warnings.extend(policy.notes().iter().map(|note| note.clone().within(&at)));
                    }
                    None => notes(value, &at, report),
                }
            }
        }
        Value::Array(all) => {
            for (nth, value) in all.iter().enumerate() {
                notes(value, &format!("{at}[{nth}]"), report);
            }
        }
        _ => {}
    }
}
