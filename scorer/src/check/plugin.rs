//! One plugin of Envoy's wasm filter: whose it is, what it is told, and the switches around it.

use super::filters::{self, Filter};
use super::report::{Part, Report, join};
use super::walk::get;
use super::{fields, hinted, policy};
use serde_json::{Map, Value};

/// The plugin in `map`, an Envoy `PluginConfig`, under a listener that buffers `buffer_bytes`.
pub(super) fn check(map: &Map<String, Value>, at: &str, buffer_bytes: Option<u64>, report: &mut Report) {
    let text = |field: &str| get(map, field).and_then(Value::as_str).unwrap_or_default();
    let code = code(map).map(filters::file_name);
    let by_code = code.and_then(filters::named_in);
    let by_name = filters::named_in(text("root_id")).or_else(|| filters::named_in(text("name")));
    let Some(filter) = by_name.or(by_code) else {
        return report.warn(at, "no filter of Weir's by its root_id, name or file; not checked");
    };
    if let (Some(code), Some(other)) = (code, by_code.filter(|other| other.name != filter.name)) {
        let why = format!("{code} is the filter {}, but root_id or name says {}", other.name, filter.name);
        report.error(join(at, "vm_config"), why);
    }
    switches(filter, map, at, report);
    let at = join(at, "configuration");
    let Some((json, at)) = configuration(map, &at, report) else { return };
    let Some(effective) = read(filter, &json, &at, report) else { return };
    let extract = effective.get("extract").unwrap_or(&effective);
    let max_body = extract.pointer("/request/max_body_bytes").and_then(Value::as_u64);
    if let (Some(limit), Some(most)) = (buffer_bytes, max_body)
        && limit < most
    {
        let why = format!(
            "bodies of up to {most} bytes are to be read (max_body_bytes), but the listener holds no more than \
             {limit} (per_connection_buffer_limit_bytes)"
        );
        report.warn(at, why);
    }
}

/// Reads a configuration as `filter` does, and notes it.
pub(super) fn read(filter: &'static Filter, json: &[u8], at: &str, report: &mut Report) -> Option<Value> {
    match (filter.read)(json) {
        Ok(effective) => {
            if let Ok(value) = serde_json::from_slice(json) {
                policy::notes(&value, at, report);
            }
            let part = Part { of: filter.name, at: at.to_owned(), effective: effective.clone() };
            report.parts.push(part);
            Some(effective)
        }
        Err(invalid) => {
            report.errors.push(hinted(invalid).within(at));
            None
        }
    }
}

/// The file or address that the plugin's code comes from.
fn code(map: &Map<String, Value>) -> Option<&str> {
    let object = |map, field| get(map, field)?.as_object();
    let code = object(object(map, "vm_config")?, "code")?;
    let local = object(code, "local").and_then(|local| get(local, "filename"));
    let remote = || get(object(object(code, "remote")?, "http_uri")?, "uri");
    local.or_else(remote)?.as_str()
}

fn switches(filter: &Filter, map: &Map<String, Value>, at: &str, report: &mut Report) {
    let flag = "allow_on_headers_stop_iteration";
    let is_set = get(map, flag).and_then(Value::as_bool) == Some(true);
    match (filter.holds_headers, is_set) {
        (true, false) => report.error(
            join(at, flag),
            format!("{} needs `true` here; without it no request body can be read", filter.name),
        ),
        (false, true) => report.error(
            join(at, flag),
            format!("{} must not have it: requests would pass undecided while it waits", filter.name),
        ),
        _ => {}
    }
    let policy = get(map, "failure_policy");
    if policy.is_none_or(|policy| policy != "FAIL_RELOAD" && policy != 1) {
        report.warn(
            join(at, "failure_policy"),
            "FAIL_RELOAD is better: without it one crash of the filter stops all traffic until Envoy restarts",
        );
    }
}

/// The JSON that the filter is given, and the path to it; `None` when it is given none that can be judged.
fn configuration(map: &Map<String, Value>, at: &str, report: &mut Report) -> Option<(Vec<u8>, String)> {
    let Some(configuration) = get(map, "configuration") else { return Some((Vec::new(), at.to_owned())) };
    let url = configuration.get("@type").and_then(Value::as_str).map(fields::type_name);
    let value = configuration.get("value");
    let inside = join(at, "value");
    match (url, value) {
        (Some("google.protobuf.StringValue"), None) => Some((Vec::new(), at.to_owned())),
        (Some("google.protobuf.StringValue"), Some(Value::String(text))) => {
            Some((text.clone().into_bytes(), inside))
        }
        (Some("google.protobuf.StringValue"), Some(_)) => {
            report.error(inside, "not a string; write the JSON as text");
            None
        }
        (Some("google.protobuf.Struct"), value) => {
            report.error(
                at,
                "Envoy hands a Struct to the filter as protobuf bytes, which it cannot read; write the JSON as \
                 text in a google.protobuf.StringValue",
            );
            value.map(|value| (value.to_string().into_bytes(), inside))
        }
        (url, _) => {
            let got = url.unwrap_or("no @type");
            report.error(join(at, "@type"), format!("{got}; expected google.protobuf.StringValue"));
            None
        }
    }
}
