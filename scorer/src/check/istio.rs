//! Istio's manifests: filters inside an `EnvoyFilter`, and the short form, a `WasmPlugin`.

use super::report::{Report, join};
use super::walk::Walk;
use super::{document, fields, filters, plugin};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// A Kubernetes object of that kind. Kinds that hold no configuration of ours pass.
pub(super) fn manifest(kind: &str, map: &Object, at: &str, report: &mut Report) {
    let spec = map.get("spec").and_then(Value::as_object);
    match (kind, spec) {
        ("EnvoyFilter" | "WasmPlugin", None) => report.error(join(at, "spec"), "missing"),
        ("EnvoyFilter", Some(spec)) => envoy_filter(spec, &join(at, "spec"), report),
        ("WasmPlugin", Some(spec)) => wasm_plugin(spec, &join(at, "spec"), report),
        ("ConfigMap", _) => config_map(map, at, report),
        _ => {}
    }
}

/// What each kind of patch holds.
const PATCHED: [(&str, &str); 10] = [
    ("BOOTSTRAP", "envoy.config.bootstrap.v3.Bootstrap"),
    ("CLUSTER", "envoy.config.cluster.v3.Cluster"),
    ("EXTENSION_CONFIG", "envoy.config.core.v3.TypedExtensionConfig"),
    ("FILTER_CHAIN", "envoy.config.listener.v3.FilterChain"),
    ("HTTP_FILTER", "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"),
    ("HTTP_ROUTE", "envoy.config.route.v3.Route"),
    ("LISTENER", "envoy.config.listener.v3.Listener"),
    ("NETWORK_FILTER", "envoy.config.listener.v3.Filter"),
    ("ROUTE_CONFIGURATION", "envoy.config.route.v3.RouteConfiguration"),
    ("VIRTUAL_HOST", "envoy.config.route.v3.VirtualHost"),
];

fn envoy_filter(spec: &Object, at: &str, report: &mut Report) {
    known(spec, &["workloadSelector", "targetRefs", "configPatches", "priority"], at, report);
    let at = join(at, "configPatches");
    let patches = spec.get("configPatches").and_then(Value::as_array).into_iter().flatten();
    for (nth, patch) in patches.enumerate() {
        let at = format!("{at}[{nth}]");
        let Some(outer) = patch.as_object() else { continue };
        known(outer, &["applyTo", "match", "patch"], &at, report);
        let Some(patch) = outer.get("patch").and_then(Value::as_object) else { continue };
        let at = join(&at, "patch");
        known(patch, &["operation", "value", "filterClass"], &at, report);
        let kind = outer.get("applyTo").and_then(Value::as_str).unwrap_or_default();
        let message = PATCHED.iter().find(|(name, _)| *name == kind).and_then(|(_, of)| fields::message(of));
        if let Some(value) = patch.get("value") {
            Walk::new(report).value(value, message, &join(&at, "value"));
        }
    }
}

fn wasm_plugin(spec: &Object, at: &str, report: &mut Report) {
    const KNOWN: [&str; 16] = [
        "selector",
        "targetRef",
        "targetRefs",
        "url",
        "sha256",
        "imagePullPolicy",
        "imagePullSecret",
        "verificationKey",
        "pluginConfig",
        "pluginName",
        "phase",
        "priority",
        "failStrategy",
        "vmConfig",
        "match",
        "type",
    ];
    known(spec, &KNOWN, at, report);
    let text = |field: &str| spec.get(field).and_then(Value::as_str).unwrap_or_default();
    let by_name = filters::named_in(text("pluginName"));
    let Some(filter) = by_name.or_else(|| filters::named_in(filters::file_name(text("url")))) else {
        return report.warn(at, "no filter of Weir's by its pluginName or url; not checked");
    };
    if filter.holds_headers {
        let why = "cannot be a WasmPlugin, which has no allow_on_headers_stop_iteration; use an EnvoyFilter";
        report.error(at, format!("{} {why}", filter.name));
    }
    let json = spec.get("pluginConfig").map(Value::to_string).unwrap_or_default();
    plugin::read(filter, json.as_bytes(), &join(at, "pluginConfig"), report);
}

/// The files in a ConfigMap: those that are ours are checked, the others are none of our business.
fn config_map(map: &Object, at: &str, report: &mut Report) {
    let at = join(at, "data");
    for (name, text) in map.get("data").and_then(Value::as_object).into_iter().flatten() {
        let ours = ["pools:", "static_resources:"];
        let Some(text) = text.as_str().filter(|text| ours.iter().any(|key| text.contains(key))) else {
            continue;
        };
        let at = join(&at, name);
        match crate::document::read_one(text.as_bytes()) {
            Ok(value) => document(&value, &at, report),
            Err(invalid) => report.errors.push(invalid.within(&at)),
        }
    }
}

fn known(map: &Object, fields: &[&str], at: &str, report: &mut Report) {
    for key in map.keys().filter(|key| !fields.contains(&key.as_str())) {
        let meant = fields::nearest(key, fields.iter().copied());
        let meant = meant.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        report.error(join(at, key), format!("unknown field{meant}"));
    }
}
