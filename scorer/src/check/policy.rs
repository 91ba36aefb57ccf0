//! Policies: llm-d's `EndpointPickerConfig` by itself, what of one inside another configuration does nothing, and affinity to
//! adapters that nobody names.

use super::report::{Part, Report, join};
use super::{POLICY, hinted};
use serde_json::Value;
use weir::invalid::Invalid;
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

/// Says where a policy goes by LoRA adapters and nothing in the same file says which models are adapters.
pub(super) fn adapters(report: &mut Report) {
    let extracts = report.of_filter("extract");
    let knows = |(_, extract): &(String, Value)| {
        let adapters = extract.pointer("/request/adapters").and_then(Value::as_object);
        adapters.is_some_and(|adapters| !adapters.is_empty())
    };
    if extracts.is_empty() || extracts.iter().any(knows) {
        return;
    }
    for (at, pick) in report.of_filter("pick") {
        let pools = pick.get("pools").and_then(Value::as_array).into_iter().flatten().enumerate();
        let pools =
            pools.map(|(nth, pool)| (format!("pools[{nth}].choose.policy"), pool.pointer("/choose/policy")));
        let all = std::iter::once(("choose.policy".to_owned(), pick.pointer("/choose/policy"))).chain(pools);
        for (place, _) in all.filter(|(_, policy)| policy.is_some_and(goes_by_adapter)) {
            let why = "it goes by LoRA adapters, but `extract` has no `request.adapters`, so that no request has one";
            report.warnings.push(Invalid::new(place, why).within(&at));
        }
    }
}

/// Whether an effective policy scores by the request's adapter.
fn goes_by_adapter(policy: &Value) -> bool {
    let is_lora = |plugin: &&Value| plugin.get("type").is_some_and(|kind| kind == "lora-affinity-scorer");
    let scorers = list(policy, "plugins").iter().filter(is_lora);
    let names: Vec<&Value> = scorers.filter_map(|plugin| plugin.get("name")).collect();
    let mut references =
        list(policy, "schedulingProfiles").iter().flat_map(|profile| list(profile, "plugins"));
    policy.get("lora_affinity").is_some()
        || references.any(|reference| reference.get("pluginRef").is_some_and(|name| names.contains(&name)))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use crate::check;

    const GOOD: &str = include_str!("../../tests/data/envoy.yaml");

    /// What is said of adapters where `pick` has `choose` and `extract` has `request`.
    fn said(choose: &str, request: &str) -> Vec<String> {
        let (extract, pick) = ("\"request\": {", "{\"pools\": [");
        assert!(GOOD.contains(extract) && GOOD.contains(pick));
        let text = GOOD.replacen(extract, &format!("{extract}{request}"), 1);
        let text = text.replacen(pick, &format!("{{\"choose\": {{\"policy\": {choose}}}, \"pools\": ["), 1);
        let report = check::text(text.as_bytes());
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        let warnings = report.warnings.iter().map(ToString::to_string);
        warnings.filter(|line| line.contains("LoRA adapters")).collect()
    }

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
    }

    #[test]
    fn affinity_to_adapters_that_nobody_names_is_said() {
        let config = |scorer: &str| {
            format!(r#"{{"kind": "EndpointPickerConfig", "plugins": [{{"type": "{scorer}"}}]}}"#)
        };
        for policy in [r#""lora_affinity""#, &config("lora-affinity-scorer")] {
            let warnings = said(policy, "");
            assert_eq!(warnings.len(), 1, "{policy}");
            assert!(
                warnings[0].contains(".configuration.value.choose.policy: it goes by LoRA adapters"),
                "{warnings:?}"
            );
            assert!(said(policy, r#""adapters": {"a": "b"}, "#).is_empty(), "{policy}");
        }
        assert!(said(r#""least_prefill""#, "").is_empty());
        assert!(said(&config("queue-scorer"), "").is_empty());
    }
}
