//! `opening`: an answer begins when there is something in it.
//!
//! Engines send the headers of a stream at once and compute the prompt then (vLLM and SGLang do, as everything that streams by
//! Starlette). For Envoy an answer has begun with its headers: from there on it retries nothing, and hedges nothing. So an engine that
//! dies while it computes the prompt would break a stream in which there was not one token yet.
//!
//! This filter stands in the cluster like `breaker`, behind it, and holds the headers of a stream back until its first bytes come. Until then
//! Envoy tries elsewhere, and "before the first token" means what it says. If these bytes are an error, as engines send one
//! in an answer of status 200, and it is the engine's, the answer gets the status that it should have had, and is retried like any of
//! that status.
//!
//! Engines' comments that keep a stream alive count as bytes. What is no stream, or no success, passes as it comes.
//!
//! It is a module of its own since it costs a callback for each piece of an answer, which `breaker` does not need. Its plugin needs
//! `allow_on_headers_stop_iteration: true`: without it Envoy would keep the body back as well, for ever.

use serde::{Deserialize, Serialize};
use weir::breaker::{Cause, Class, Outcome};
use weir::invalid::{self, Invalid};
use weir::response::Reader;
use weir_host::{Body, Callback, Filter, Host, Of};

weir_host::serve!(Opening);

/// Configuration of the plugin: there is nothing to choose.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {}

/// The filter.
#[derive(Debug)]
pub struct Opening;

/// One attempt.
#[derive(Debug, Default)]
pub struct Stream {
    held: Option<Reader>,
}

/// An error fits in there; a longer first piece is none.
const MOST_BYTES: usize = 16 << 10;

impl Filter for Opening {
    const NAME: &'static str = "weir-opening";
    const CALLBACKS: &'static [Callback] = &[Callback::ResponseHeaders, Callback::ResponseBody];
    type Stream = Stream;

    fn configure(json: &[u8], _: &dyn Host) -> Result<Self, Invalid> {
        invalid::read::<Config>(json)?;
        Ok(Self)
    }

    fn open(&mut self, _: &dyn Host) -> Stream {
        Stream::default()
    }

    fn response_headers(&mut self, stream: &mut Stream, host: &dyn Host, end: bool) {
        let headers = host.headers(Of::Response);
        let value = |name: &str| headers.get(name).unwrap_or_default();
        let reader = Reader::new(value("content-type"), value("content-encoding"));
        if !end && value(":status") == "200" && reader.is_stream() {
            stream.held = Some(reader);
            host.hold_answer();
        }
    }

    fn response_body(&mut self, stream: &mut Stream, host: &dyn Host, piece: Body) {
        let Some(mut reader) = stream.held.take() else { return };
        if piece.len > MOST_BYTES {
            return;
        }
        reader.feed(&host.body(Of::Response, 0, piece.len));
        let Some(outcome) = reader.end(false).error.map(|kind| Outcome::of_error(&kind)) else { return };
        let status = match outcome.cause {
            Cause::Status(status) => status,
            _ => 500,
        };
        if matches!(outcome.class(), Class::Busy | Class::Failure) {
            host.set_header(Of::Response, ":status", &status.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_host::fake::{Exchange, Worker, World};

    const STREAM: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];

    fn begin(headers: &[(&str, &str)]) -> (Worker<Opening>, Exchange<Opening>) {
        let mut worker = Worker::new("");
        let mut exchange = worker.request(&[], &[], true);
        worker.response(&mut exchange, "10.0.0.1:1", headers);
        (worker, exchange)
    }

    #[test]
    fn a_stream_is_held_until_its_first_bytes_and_passes_unchanged() {
        let (mut worker, mut exchange) = begin(&STREAM);
        assert!(exchange.see().holds_answer());
        let first = b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
        assert_eq!(worker.piece(&mut exchange, first, false), first);
        assert!(!exchange.see().holds_answer());
        assert_eq!(exchange.see().answer_header(":status"), ["200"]);
        let error = b"data: {\"error\":{\"type\":\"InternalServerError\",\"code\":500}}\n\n";
        assert_eq!(worker.piece(&mut exchange, error, true), error, "too late to be more than an event");
        assert_eq!(exchange.see().answer_header(":status"), ["200"]);
    }

    #[test]
    fn what_is_no_stream_or_no_success_passes_at_once() {
        for headers in [
            [(":status", "200"), ("content-type", "application/json")],
            [(":status", "503"), ("content-type", "text/event-stream")],
        ] {
            assert!(!begin(&headers).1.see().holds_answer());
        }
    }

    #[test]
    fn an_engines_error_in_the_first_bytes_becomes_its_status_and_a_clients_does_not() {
        for (error, status) in [
            (r#"{"error":{"message":"x","type":"InternalServerError","param":null,"code":500}}"#, "500"),
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, "529"),
            (r#"{"error":{"message":"x","type":"rate_limit_error","code":429}}"#, "429"),
            (r#"{"error":{"message":"x","type":"BadRequestError","code":400}}"#, "200"),
        ] {
            let (mut worker, mut exchange) = begin(&STREAM);
            let piece = format!("event: error\ndata: {error}\n\n");
            assert_eq!(worker.piece(&mut exchange, piece.as_bytes(), false), piece.as_bytes());
            assert_eq!(exchange.see().answer_header(":status"), [status], "{error}");
        }
    }

    #[test]
    fn there_is_nothing_to_configure() {
        let wrong = Worker::<Opening>::of(&World::new(), r#"{"wait":1}"#).unwrap_err();
        assert!(wrong.to_string().starts_with("wait: unknown field"), "{wrong}");
    }
}
