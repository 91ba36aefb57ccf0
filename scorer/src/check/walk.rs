//! Goes through an Envoy document: every field known, every filter of ours found, wherever it is.
//!
//! What a value is, is known from the field that holds it or from its `@type`; a value of a type that is not in the
//! table is gone through all the same, for what may be inside it.

use super::fields::{self, Message};
use super::plugin;
use super::report::{Report, join};
use serde_json::{Map, Value};

/// What Envoy is started with.
pub(super) const BOOTSTRAP: &str = "envoy.config.bootstrap.v3.Bootstrap";
const LISTENER: &str = "envoy.config.listener.v3.Listener";
const PLUGIN: &str = "envoy.extensions.wasm.v3.PluginConfig";

/// Envoy's own limit of a listener that names none, in bytes.
const DEFAULT_BUFFER: u64 = 1 << 20;

/// A walk through one document.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    report: &'a mut Report,
    /// The buffer limit of the listener that the walk is in.
    buffer_bytes: Option<u64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(report: &'a mut Report) -> Self {
        Self { report, buffer_bytes: None }
    }

    /// Goes through `value`, which is a `message` if that is known.
    pub(super) fn value(&mut self, value: &Value, message: Option<&'static Message>, at: &str) {
        match value {
            Value::Array(list) => {
                for (nth, value) in list.iter().enumerate() {
                    self.value(value, message, &format!("{at}[{nth}]"));
                }
            }
            Value::Object(map) => self.object(map, message, at),
            _ => {}
        }
    }

    fn object(&mut self, map: &Map<String, Value>, message: Option<&'static Message>, at: &str) {
        let url = map.get("@type").and_then(Value::as_str);
        if let Some("xds.type.v3.TypedStruct" | "udpa.type.v1.TypedStruct") = url.map(fields::type_name) {
            return self.typed_struct(map, at);
        }
        let message = match url {
            Some(url) => fields::of_type_url(url),
            None => message,
        };
        let outer = self.buffer_bytes;
        match message.map(|message| message.name.as_str()) {
            Some(LISTENER) => {
                let limit = get(map, "per_connection_buffer_limit_bytes").and_then(number);
                self.buffer_bytes = Some(limit.unwrap_or(DEFAULT_BUFFER));
            }
            Some(PLUGIN) => plugin::check(map, at, self.buffer_bytes, self.report),
            _ => {}
        }
        for (key, value) in map.iter().filter(|(key, _)| *key != "@type") {
            let at = join(at, key);
            let holds = match message.map(|message| (message, message.field(key))) {
                Some((message, None)) => {
                    let meant = message.nearest(key).map(|near| format!("; did you mean {near}?"));
                    let why = format!("unknown field of {}{}", message.name, meant.unwrap_or_default());
                    self.report.error(at, why);
                    continue;
                }
                Some((_, Some(holds))) => holds,
                None => None,
            };
            self.value(value, holds, &at);
        }
        self.buffer_bytes = outer;
    }

    /// A message written as a mere object, with its type beside it.
    fn typed_struct(&mut self, map: &Map<String, Value>, at: &str) {
        let url = get(map, "type_url").and_then(Value::as_str).unwrap_or_default();
        for key in map.keys().filter(|key| !["@type", "type_url", "typeUrl", "value"].contains(&key.as_str()))
        {
            let meant = fields::nearest(key, ["type_url", "value"].into_iter());
            let meant = meant.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            self.report.error(join(at, key), format!("unknown field of xds.type.v3.TypedStruct{meant}"));
        }
        if let Some(value) = map.get("value") {
            self.value(value, fields::of_type_url(url), &join(at, "value"));
        }
    }
}

/// The value of a field under either of its names.
pub(super) fn get<'v>(map: &'v Map<String, Value>, field: &str) -> Option<&'v Value> {
    map.get(field).or_else(|| map.get(&fields::camel(field))).filter(|value| !value.is_null())
}

/// A number, also one written as text, as protobuf's JSON has it.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}
