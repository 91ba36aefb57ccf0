//! The kinds of configuration that llm-d ships, as `weir check` takes them: written by us, each with what is theirs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use serde_json::{Value, json};
use weir_scorer::check;

/// A configuration of these plugins and one profile of these references.
fn config(plugins: &str, profile: &str) -> String {
    format!(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{plugins}\n\
         schedulingProfiles:\n- name: default\n  plugins: [{profile}]\n"
    )
}

/// What became of one: its effective configuration and where something does nothing; or the error.
fn checked(text: &str) -> Result<(Value, Vec<String>), String> {
    let report = check::text(text.as_bytes());
    match report.errors.first() {
        Some(error) => Err(error.to_string()),
        None => {
            assert_eq!(report.summary(), "1 policy");
            let places = report.warnings.iter().map(|warning| warning.at.clone()).collect();
            Ok((report.parts[0].effective.clone(), places))
        }
    }
}

fn runs(plugins: &str, profile: &str, notes: &[&str]) {
    let (effective, places) = checked(&config(plugins, profile)).unwrap();
    assert_eq!(places, notes, "{plugins}");
    // What is printed is a configuration again, and needs no note.
    let (again, _) = checked(&effective.to_string()).unwrap();
    assert_eq!(again, effective);
}

fn refused(plugins: &str, profile: &str, why: &str) {
    let error = checked(&config(plugins, profile)).unwrap_err();
    assert!(error.starts_with(why), "{error}");
}

const COMMON: &str = "- {type: decode-filter}\n- {type: max-score-picker}\n- {type: single-profile-handler}";
const PROFILE: &str = "{pluginRef: decode-filter}, {pluginRef: max-score-picker}";

/// `COMMON` and more of both.
fn with(plugins: &str, profile: &str) -> (String, String) {
    (format!("{COMMON}\n{plugins}"), format!("{PROFILE}, {profile}"))
}

fn common_runs(plugins: &str, profile: &str, notes: &[&str]) {
    let (plugins, profile) = with(plugins, profile);
    runs(&plugins, &profile, notes);
}

fn common_refused(plugins: &str, profile: &str, why: &str) {
    let (plugins, profile) = with(plugins, profile);
    refused(&plugins, &profile, why);
}

const PREFIX: &str = "{pluginRef: prefix-cache-scorer, weight: 2}";

#[test]
fn prefix_affinity_estimated_precise_and_from_metadata() {
    common_runs("- {type: prefix-cache-scorer}", PREFIX, &[]);
    common_runs(
        "- {type: prefix-cache-scorer}\n- {type: approx-prefix-cache-producer, parameters: {prefixHashSource: metadata, lruCapacityPerServer: 9}}",
        PREFIX,
        &[
            "plugins[4].parameters.lruCapacityPerServer",
            "plugins[4].parameters.prefixHashSource",
            "plugins[4].type",
        ],
    );
    let precise = "- {type: precise-prefix-cache-producer, parameters: {tokenProcessorConfig: {blockSize: 16}, kvEventsConfig: {zmqEndpoint: 'tcp://[::]:5557'}, indexerConfig: {}}}";
    common_runs(
        &format!(
            "- {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}\n{precise}"
        ),
        PREFIX,
        &[
            "plugins[3].parameters.prefixMatchInfoProducerName",
            "plugins[4].parameters.tokenProcessorConfig",
            "plugins[4].parameters.kvEventsConfig",
            "plugins[4].parameters.indexerConfig",
            "plugins[4].type",
        ],
    );
    common_runs(
        "- {type: precise-prefix-cache-scorer, parameters: {kvEventsConfig: {}}}\n- {type: token-producer, parameters: {modelName: m, vllm: {url: x}}}",
        "{pluginRef: precise-prefix-cache-scorer, weight: 10}",
        &[
            "plugins[3].parameters.kvEventsConfig",
            "plugins[3].type",
            "plugins[4].parameters.modelName",
            "plugins[4].parameters.vllm",
            "plugins[4].type",
        ],
    );
}

#[test]
fn cold_prompts_load_and_sessions() {
    common_runs(
        "- {type: prefix-cache-scorer}\n- {type: no-hit-lru-scorer, parameters: {lruSize: 2048}}",
        "{pluginRef: prefix-cache-scorer, weight: 2}, {pluginRef: no-hit-lru-scorer}",
        &[],
    );
    common_runs(
        "- {type: passthrough-parser}\n- {type: active-request-scorer}\n- {type: session-affinity-scorer}",
        "{pluginRef: active-request-scorer}, {pluginRef: session-affinity-scorer}",
        &["plugins[3].type"],
    );
    common_runs(
        "- {type: prefix-cache-affinity-filter}\n- {type: token-load-scorer}\n- {type: inflight-load-producer}",
        "{pluginRef: prefix-cache-affinity-filter}, {pluginRef: token-load-scorer}",
        &["plugins[5].type"],
    );
    common_runs(
        "- {type: utilization-detector, parameters: {headroom: 0.2}}\n- {type: queue-scorer}\n- {type: kv-cache-utilization-scorer}\n- {type: lora-affinity-scorer}",
        "{pluginRef: utilization-detector}, {pluginRef: queue-scorer}, {pluginRef: kv-cache-utilization-scorer}, {pluginRef: lora-affinity-scorer}",
        &[],
    );
    runs(
        "- {type: encode-filter}\n- {type: max-score-picker}",
        "{pluginRef: encode-filter}, {pluginRef: max-score-picker}",
        &[],
    );
    runs(
        "- {type: prefill-filter}\n- {type: queue-scorer}",
        "{pluginRef: prefill-filter}, {pluginRef: queue-scorer}",
        &[],
    );
    common_runs(
        "- {type: predicted-latency-producer, parameters: {streamingMode: true}}\n- {type: latency-scorer}\n- {type: slo-headroom-tier-filter}",
        "{pluginRef: predicted-latency-producer}, {pluginRef: slo-headroom-tier-filter}, {pluginRef: latency-scorer}",
        &["plugins[3].parameters.streamingMode", "plugins[3].type"],
    );
    common_runs(
        "- {type: context-length-aware, parameters: {enableFiltering: true}}\n- {type: load-aware-scorer}",
        "{pluginRef: context-length-aware, weight: 3}, {pluginRef: load-aware-scorer}",
        &[],
    );
}

#[test]
fn prefill_and_decode() {
    let text = |decider: &str| {
        format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n\
             - {{type: prefix-cache-scorer}}\n- {{type: queue-scorer}}\n- {{type: prefill-filter}}\n- {{type: decode-filter}}\n\
             - {{type: {decider}}}\n- {{type: disagg-profile-handler, parameters: {{deciders: {{prefill: {decider}}}}}}}\n\
             schedulingProfiles:\n- name: prefill\n  plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: queue-scorer}}]\n\
             - name: decode\n  plugins: [{{pluginRef: decode-filter}}, {{pluginRef: prefix-cache-scorer, weight: 2}}]\n"
        )
    };
    let (effective, notes) = checked(&text("prefix-based-pd-decider")).unwrap();
    assert!(notes.is_empty());
    let names: Vec<&Value> =
        effective["schedulingProfiles"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, [&json!("decode"), &json!("prefill")]);
    let error = checked(&text("always-disagg-multimodal-decider")).unwrap_err();
    assert!(
        error.starts_with("plugins[4].type: always-disagg-multimodal-decider is not carried: "),
        "{error}"
    );
}

#[test]
fn adapters_requests_in_flight_and_what_else_is_new() {
    common_runs(
        "- {type: lora-residency-filter, parameters: {maxReplicas: 2}}\n- {type: lmetric-scorer, parameters: {inFlightLoadProducerName: inflight-load-producer}}",
        "{pluginRef: lora-residency-filter}, {pluginRef: lmetric-scorer}",
        &["plugins[4].parameters.inFlightLoadProducerName"],
    );
    common_runs(
        "- {type: active-request-filter, parameters: {maxRequests: 10, fallbackOnEmpty: true}}\n- {type: token-load-scorer}",
        "{pluginRef: active-request-filter}, {pluginRef: token-load-scorer}",
        &[],
    );
    common_runs(
        "- {type: models-data-source}\n- {type: models-data-extractor}\n- {type: served-model-filter}\n- {type: queue-scorer}",
        "{pluginRef: served-model-filter}, {pluginRef: queue-scorer}",
        &["plugins[3].type", "plugins[4].type"],
    );
    common_runs(
        "- {type: file-discovery, parameters: {path: /etc/epp/endpoints.yaml, watchFile: true}}\n- {type: queue-scorer}",
        "{pluginRef: queue-scorer}",
        &["plugins[3].parameters.path", "plugins[3].parameters.watchFile", "plugins[3].type"],
    );
}

#[test]
fn what_is_not_carried_is_refused_with_the_reason() {
    for (plugins, why) in [
        ("- {type: label-producer}", "plugins[3].type: label-producer is not carried: labels are attributes"),
        ("- {type: lora-load-state-scorer}", "plugins[3].type: lora-load-state-scorer is not carried: "),
        (
            "- {type: multicluster-queue-scorer}",
            "plugins[3].type: multicluster-queue-scorer is not carried: ",
        ),
        ("- {type: dcgm-data-source}", "plugins[3].type: dcgm-data-source is not carried: "),
        (
            "- {type: mm-embeddings-cache-scorer}",
            "plugins[3].type: mm-embeddings-cache-scorer is not carried: ",
        ),
        (
            "- {type: burst-prefix-cache-producer}",
            "plugins[3].type: burst-prefix-cache-producer is not carried: ",
        ),
        ("- {type: dp-rank-header-handler}", "plugins[3].type: dp-rank-header-handler is not carried: "),
        ("- {type: thunder-agent, name: thunder}", "plugins[3].type: thunder-agent is not carried: "),
        ("- {type: queue-scorer, parameters: {x: 1}}", "plugins[3].parameters.x: unknown field `x`"),
        ("- {type: quue-scorer}", "plugins[3].type: unknown plugin `quue-scorer`"),
    ] {
        common_refused(plugins, "{pluginRef: decode-filter}", why);
    }
}

#[test]
fn a_policy_inside_a_scorers_configuration_is_checked_and_printed_with_its_defaults() {
    let text = "pools: [{name: a, models: [], endpoints: ['[::1]:1'], choose: {policy: {plugins: [{type: token-producer}, {type: queue-scorer}]}}}]\n\
                choose: {policy: cache_aware}";
    let report = check::text(text.as_bytes());
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert_eq!(report.warnings[0].at, "pools[0].choose.policy.plugins[0].type");
    let policy = &report.parts[0].effective["choose"]["policy"]["cache_aware"];
    assert_eq!((&policy["cache_threshold"], &policy["balance_abs_threshold"]), (&json!(0.3), &json!(64.0)));
    let own = &report.parts[0].effective["pools"][0]["choose"]["policy"]["schedulingProfiles"][0]["plugins"];
    assert_eq!(own[0], json!({"pluginRef": "queue-scorer", "weight": 1.0}), "what is declared");
    let wrong = check::text(text.replace("token-producer", "tokn-producer").as_bytes());
    assert!(wrong.errors[0].at.starts_with("pools[0].choose.policy.plugins[0].type"), "{}", wrong.errors[0]);
}
