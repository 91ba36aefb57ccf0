//! Trace contexts and spans.

use serde_json::{Value, json};
use weir::random::Random;

/// The trace that a request is part of (W3C Trace Context), where somebody wants to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) trace: u128,
    pub(super) parent: SpanId,
}

/// One span's number; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanId(u64);

impl SpanId {
    /// The span of that kind of a lease: both spans of a request know each other's, though word of them comes at
    /// different times.
    pub(super) fn of(lease: u64, kind: &str) -> Self {
        Self(Random::new(lease ^ weir::wire::name_hash(kind)).next().max(1))
    }
}

impl Context {
    /// Reads `traceparent`: `version-trace-parent-flags`, in lower-case hex. `None` where it is malformed, or where the trace
    /// is not sampled.
    pub(super) fn read(header: &str) -> Option<Self> {
        let mut fields = header.split('-');
        let (version, trace, parent, flags) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let version = hex(version, 2)?;
        // A later version may have more fields; version 255 is none.
        if version == 255 || (version == 0 && fields.next().is_some()) {
            return None;
        }
        let (trace, parent) = (hex(trace, 32)?, u64::try_from(hex(parent, 16)?).ok()?);
        let is_sampled = hex(flags, 2)? & 1 == 1;
        (trace != 0 && parent != 0 && is_sampled).then_some(Self { trace, parent: SpanId(parent) })
    }
}

fn hex(digits: &str, len: usize) -> Option<u128> {
    let fits = digits.len() == len && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| u128::from_str_radix(digits, 16).ok())?
}

/// One span.
#[derive(Debug)]
pub(super) struct Span {
    trace: u128,
    id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) name: String,
    is_client: bool,
    start: u64,
    end: u64,
    attributes: Vec<Value>,
    error: Option<String>,
}

impl Span {
    pub(super) fn new(trace: u128, id: SpanId, name: impl Into<String>) -> Self {
        Self {
            trace,
            id,
            parent: None,
            name: name.into(),
            is_client: false,
            start: 0,
            end: 0,
            attributes: Vec::new(),
            error: None,
        }
    }

    /// It is a call to somebody else.
    pub(super) fn client(mut self) -> Self {
        self.is_client = true;
        self
    }

    /// When it began and ended, in nanoseconds since 1970.
    pub(super) fn times(&mut self, start: u64, end: u64) {
        (self.start, self.end) = (start, end);
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.attributes.push(text(key, value));
    }

    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.attributes.push(json!({"key": key, "value": {"intValue": value.to_string()}}));
    }

    pub(super) fn real(&mut self, key: &str, value: f64) {
        self.attributes.push(json!({"key": key, "value": {"doubleValue": value}}));
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.attributes.push(json!({"key": key, "value": {"boolValue": value}}));
    }

    pub(super) fn texts(&mut self, key: &str, values: &[&str]) {
        let values: Vec<Value> = values.iter().map(|value| json!({ "stringValue": value })).collect();
        self.attributes.push(json!({"key": key, "value": {"arrayValue": {"values": values}}}));
    }

    /// It failed.
    pub(super) fn failed(&mut self, kind: &str, why: &str) {
        self.text("error.type", kind);
        self.error = Some(why.to_owned());
    }

    /// As OTLP has it in JSON: numbers of 64 bits are texts.
    pub(super) fn json(&self) -> Value {
        const INTERNAL: u32 = 1;
        const CLIENT: u32 = 3;
        const ERROR: u32 = 2;
        let mut span = json!({
            "traceId": format!("{:032x}", self.trace),
            "spanId": format!("{:016x}", self.id.0),
            "name": self.name,
            "kind": if self.is_client { CLIENT } else { INTERNAL },
            "startTimeUnixNano": self.start.to_string(),
            "endTimeUnixNano": self.end.to_string(),
            "attributes": self.attributes,
            "status": self.error.as_ref().map_or(json!({}), |why| json!({"code": ERROR, "message": why})),
        });
        if let (Some(parent), Some(map)) = (self.parent, span.as_object_mut()) {
            map.insert("parentSpanId".into(), format!("{:016x}", parent.0).into());
        }
        span
    }
}

/// An attribute that is text.
pub(super) fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_read_as_the_standard_has_it_or_not_at_all() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        let expected = Context {
            trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            parent: SpanId(0x00f0_67aa_0ba9_02b7),
        };
        for good in [format!("00-{trace}-01"), format!("00-{trace}-03"), format!("cc-{trace}-01-what-comes")]
        {
            assert_eq!(Context::read(&good), Some(expected), "{good}");
        }
        let bad = [
            format!("00-{trace}-00"),
            format!("ff-{trace}-01"),
            format!("00-{trace}-01-more"),
            format!("00-{}-01", trace.to_uppercase()),
            format!("0-{trace}-01"),
            format!("00-{trace}"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16)),
            "00-é-é-01".to_owned(),
            String::new(),
        ];
        for bad in bad {
            assert_eq!(Context::read(&bad), None, "{bad}");
        }
    }
}
