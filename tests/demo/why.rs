//! Why a request went where it went, in plain words, from what `pick` wrote into the access log.
//!
//! `pick` notes what it believed of the endpoint that it chose. It does not note the others, so the words say what
//! spoke for the endpoint, not by how much.

use serde_json::Value;

/// A choice, in words.
#[derive(Debug)]
pub(crate) struct Why {
    /// Who chose: `scorer`, `local`, or `fallback` when the scorer did not answer in time.
    pub(crate) by: String,
    pub(crate) words: String,
}

impl Why {
    /// Reads the `pick` of an access log line. `shared` is the number of tokens with which every conversation with
    /// the model begins: a match no longer than that says nothing about this conversation.
    pub(crate) fn read(line: &Value, shared: u64) -> Self {
        let pick = rig::fields(line, "pick");
        let field = |name: &str| pick.get(name).map(String::as_str);
        let number = |name: &str| field(name).and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(0);
        let (cached, of) = (number("cached_tokens"), number("prompt_tokens"));
        let words = match field("policy") {
            None => "not chosen by pick: Envoy's own balancing".into(),
            Some("round_robin") => "next in turn".into(),
            Some("least_requests" | "p2c") => format!("fewest in flight: {}", number("in_flight")),
            Some(_) if cached > shared => format!("prefix: {cached} of {of} tokens cached there"),
            Some(_) if cached > 0 => format!("system prompt: {cached} of {of} cached there"),
            Some(_) => "least queued, nothing cached".into(),
        };
        Self { by: field("by").unwrap_or("-").into(), words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_match_within_the_shared_beginning_is_not_called_the_conversations() {
        let why = |cached: u64| {
            let pick = format!(
                "endpoint=127.0.0.1:1 by=local policy=least_prefill prompt_tokens=700 cached_tokens={cached} \
                 queued_tokens=0 in_flight=0"
            );
            Why::read(&json!({ "pick": pick }), 384)
        };
        assert_eq!(why(0).words, "least queued, nothing cached");
        assert_eq!(why(384).words, "system prompt: 384 of 700 cached there");
        assert_eq!(
            (why(640).by, why(640).words),
            ("local".into(), "prefix: 640 of 700 tokens cached there".into())
        );
        assert_eq!(Why::read(&Value::Null, 0).by, "-");
    }
}
