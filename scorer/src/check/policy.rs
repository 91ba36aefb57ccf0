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

#[cfg(test)]
mod tests {
    use crate::check;

    #[test]
    fn a_misspelt_policy_or_plugin_is_answered_with_the_nearest() {
        let error = |policy: &str| {
            let text = format!(
                "pools: [{{name: a, models: [m], endpoints: ['[::1]:1']}}]\nchoose: {{policy: {policy}}}"
            );
            check::text(text.as_bytes()).errors.first().map(ToString::to_string).unwrap_or_default()
        };
        let policy = error("least_prefil");
        assert!(policy.starts_with("choose.policy: unknown policy `least_prefil`"), "{policy}");
        assert!(policy.ends_with("; did you mean least_prefill?"), "{policy}");
        let plugin = error("{plugins: [{type: quue-scorer}]}");
        assert!(plugin.ends_with("; did you mean queue-scorer?"), "{plugin}");
        assert!(!error("fastest").contains("did you mean"));
        for (theirs, ours) in
            [("prefix-cache", "least_prefill"), ("MAGLEV", "consistent_hash"), ("pd", "disagg")]
        {
            let said = error(theirs);
            assert!(said.contains(&format!("here it is {ours}")), "{said}");
        }
    }
}
