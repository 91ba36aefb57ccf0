//! What `meter` would make of an answer.

use serde::Serialize;
use std::num::NonZeroUsize;
use weir::response::{Reader, Report, Status};

/// What is known of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    /// What it used.
    pub usage: Usage,
    /// Why the engine stopped.
    pub finish: Option<String>,
    /// The engine's error.
    pub error: Option<String>,
    /// Events that carried output.
    pub deltas: u64,
    /// It is a stream of events.
    pub stream: bool,
}

/// Tokens, none where the engine said nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Those found in the engine's cache.
    pub cached: Option<u64>,
    /// Tokens written, reasoning included.
    pub output: Option<u64>,
    /// Tokens of hidden reasoning.
    pub reasoning: Option<u64>,
    /// How far the numbers can be trusted: complete, partial or missing.
    pub status: &'static str,
}

/// Explains an answer that comes in pieces of `cut` bytes, or in one. `name` is its file's: where no header says
/// what it is, the name does, or else how it begins.
pub fn response(
    name: &str,
    headers: &[(String, String)],
    body: &[u8],
    cut: Option<NonZeroUsize>,
) -> Response {
    let kind = super::value(headers, "content-type").unwrap_or_else(|| guess(name, body));
    let mut reader = Reader::new(kind, super::value(headers, "content-encoding").unwrap_or_default());
    for piece in body.chunks(cut.map_or(body.len().max(1), NonZeroUsize::get)) {
        reader.feed(piece);
    }
    let stream = reader.is_stream();
    let Report { usage, status, finish, error, deltas, .. } = reader.end(true);
    let usage = match (usage, status) {
        (Some(usage), Status::Complete | Status::Partial) => Usage {
            input: Some(usage.input),
            cached: Some(usage.cached),
            output: Some(usage.output),
            reasoning: Some(usage.reasoning),
            status: status.name(),
        },
        _ => Usage { input: None, cached: None, output: None, reasoning: None, status: status.name() },
    };
    Response { usage, finish, error, deltas, stream }
}

fn guess(name: &str, body: &[u8]) -> &'static str {
    const EVENTS: &str = "text/event-stream";
    const JSON: &str = "application/json";
    let start = body.trim_ascii_start();
    let begins_as_events =
        ["data:", "event:", "id:", "retry:", ":"].iter().any(|field| start.starts_with(field.as_bytes()));
    match name {
        name if name.ends_with(".sse") => EVENTS,
        name if name.ends_with(".json") => JSON,
        _ if begins_as_events => EVENTS,
        _ if start.starts_with(b"{") => JSON,
        _ => "text/plain",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
                          data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\
                          \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";

    #[test]
    fn a_stream_tells_the_same_however_it_is_cut() {
        let whole = response("-", &[], STREAM.as_bytes(), None);
        assert_eq!((whole.stream, whole.deltas, whole.usage.input), (true, 1, Some(9)));
        assert_eq!((whole.finish.as_deref(), whole.usage.status), (Some("stop"), "complete"));
        assert_eq!(response("-", &[], STREAM.as_bytes(), NonZeroUsize::new(1)), whole);
    }

    #[test]
    fn the_header_goes_before_the_name_and_nothing_known_is_null() {
        let headers = [("content-type".to_owned(), "text/plain".to_owned())];
        let plain = response("a.sse", &headers, STREAM.as_bytes(), None);
        assert_eq!((plain.stream, plain.usage.input, plain.usage.status), (false, None, "missing"));
        assert_eq!(response("a.json", &[], b"", None).usage.status, "missing");
        assert_eq!(response("a", &[], b" {\"usage\":{\"prompt_tokens\":2}}", None).usage.input, Some(2));
    }
}
