//! `opening`: an answer begins when there is something in it.
//!
//! Engines send the headers of a stream at once and compute the prompt then (vLLM and SGLang do, as everything that streams by
//! Starlette). For Envoy an answer has begun with its headers: from there on it retries nothing, and hedges nothing. So an engine that
//! dies while it computes the prompt would break a stream in which there was not one token yet.
//!
//! This filter stands in the cluster like `breaker`, behind it, and holds the headers of a stream back until an event has come that says
//! something, however it is cut. Events that announce an answer say nothing: engines of the responses API send them before they compute the prompt.
//! Until then Envoy tries elsewhere, and "before the first token" means what it says. If that event is an error, as engines send one
//! in an answer of status 200, and it is the engine's, the answer gets the status that it should have had, and is retried like any of
//! that status. A stream that ends and has said nothing gets 502.
//!
//! Engines' comments that keep a stream alive count as an event: the client is to see them.
//!
//! A refusal is held back too, until it is whole, where `pick`'s list goes on into another group of endpoints: if the engine says that the request does
//! not fit into its context, a header says so to Envoy, which tries the next. Nothing else tells that 400 from the others, which no
//! other endpoint would answer better; and where there is no other group it passes at once, as the client's fault that it is. The same holds for
//! engines that say it as the first event of a stream. What is no stream and no refusal passes as it comes.
//!
//! What comes in pieces is waited for only so long (`MOST_TIME`, `MOST_BYTES`): after that it passes with its next piece. If
//! there is none, Envoy's limit for an answer that stands still (`per_try_idle_timeout`) ends the attempt, and the next endpoint is tried.
//!
//! It is a module of its own since it costs a callback for each piece of an answer, which `breaker` does not need. Its plugin needs
//! `allow_on_headers_stop_iteration: true`: without it Envoy would keep the body back as well, for ever.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use weir::breaker::{Cause, Class, Outcome};
use weir::instant::Instant;
use weir::invalid::{self, Invalid};
use weir::response::Reader;
use weir::wire;
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
    held: Option<Held>,
}

/// What is held back: a stream until its first event that says something, or a refusal until its end.
#[derive(Debug)]
struct Held {
    reader: Reader,
    is_stream: bool,
    /// So much of it has been read.
    read: usize,
    /// It passes then, whole or not.
    until: Option<Instant>,
}

/// An error fits in there; a longer first event is none, nor is a longer refusal read.
const MOST_BYTES: usize = 16 << 10;

/// From the first bytes on: an engine sends an error in one go, and a network cuts it by milliseconds.
const MOST_TIME: Duration = Duration::from_secs(1);

/// The status of a stream in which there is nothing: as if its connection had been lost.
const NOTHING: &str = "502";

/// Statuses with which engines and APIs say that a request is too long, among other things.
const REFUSALS: [&str; 3] = ["400", "413", "422"];

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
        // That word is this filter's, and no engine's.
        if headers.get(wire::TOO_LONG).is_some() {
            host.remove_header(Of::Response, wire::TOO_LONG);
        }
        let value = |name: &str| headers.get(name).unwrap_or_default();
        let reader = Reader::new(value("content-type"), value("content-encoding"));
        let refuses = REFUSALS.contains(&value(":status"));
        let is_stream = reader.is_stream();
        let holds = match is_stream {
            true => value(":status") == "200",
            false => refuses && reader.reads() && goes_on(host).is_some(),
        };
        if end && is_stream && holds {
            return host.set_header(Of::Response, ":status", NOTHING);
        }
        if holds && !end {
            stream.held = Some(Held { reader, is_stream, read: 0, until: None });
            host.hold_answer();
        }
    }

    fn response_body(&mut self, stream: &mut Stream, host: &dyn Host, piece: Body) {
        let Some(mut held) = stream.held.take().filter(|_| piece.len <= MOST_BYTES) else { return };
        // What is held comes again, with what follows.
        held.reader.feed(&host.body(Of::Response, held.read, piece.len.saturating_sub(held.read)));
        held.read = piece.len;
        let is_whole = piece.end || held.is_stream && held.reader.has_begun();
        if !is_whole && host.now() < *held.until.get_or_insert(host.now() + MOST_TIME) {
            host.hold_answer();
            stream.held = Some(held);
            return;
        }
        let Held { reader, is_stream, .. } = held;
        let report = reader.end(!is_stream);
        if piece.end && report.says_nothing() {
            return host.set_header(Of::Response, ":status", NOTHING);
        }
        let Some(outcome) = report.error.map(|kind| Outcome::of_error(&kind)) else { return };
        let status = match outcome.cause {
            Cause::TooLong if let Some(address) = goes_on(host) => {
                // `breaker` goes by it: an endpoint could have sent that header too.
                host.set_property(&wire::attempt(&address), outcome.write().as_bytes());
                return host.set_header(Of::Response, wire::TOO_LONG, "1");
            }
            Cause::Status(status) => status,
            _ => 500,
        };
        if is_stream && matches!(outcome.class(), Class::Busy | Class::Failure) {
            host.set_header(Of::Response, ":status", &status.to_string());
        }
    }
}

/// The endpoint of this attempt, where the list goes on into another group after it.
fn goes_on(host: &dyn Host) -> Option<String> {
    let last = host.text(&["filter_state", &format!("wasm.{}", wire::SPILLS_TO)])?;
    host.text(&["upstream", "address"]).filter(|own| *own != last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_host::fake::{Exchange, Worker, World};

    const STREAM: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];
    const REFUSAL: [(&str, &str); 2] = [(":status", "400"), ("content-type", "application/json")];
    const TOO_LONG: &[u8] =
        br#"{"error":{"message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}}"#;

    fn begin(headers: &[(&str, &str)]) -> (Worker<Opening>, Exchange<Opening>) {
        begin_of("", headers)
    }

    /// An attempt at the first endpoint of a list that goes on into another group, there to end with `last`.
    fn begin_of(last: &str, headers: &[(&str, &str)]) -> (Worker<Opening>, Exchange<Opening>) {
        let mut worker = Worker::new("");
        let state = [("filter_state.wasm.weir.spills_to", last.as_bytes())];
        let mut exchange = worker.request(&[], if last.is_empty() { &[] } else { &state }, true);
        worker.response(&mut exchange, "10.0.0.1:1", headers);
        (worker, exchange)
    }

    #[test]
    fn a_request_that_is_too_long_here_is_marked_where_another_group_follows() {
        for cut in [1, 40, TOO_LONG.len() - 1] {
            let (mut worker, mut exchange) = begin_of("10.0.0.9:1", &REFUSAL);
            assert!(exchange.see().holds_answer());
            let (first, rest) = TOO_LONG.split_at(cut);
            assert_eq!(worker.piece(&mut exchange, first, false), b"");
            assert!(exchange.see().holds_answer());
            assert_eq!(worker.piece(&mut exchange, rest, true), TOO_LONG);
            assert_eq!(exchange.see().answer_header(wire::TOO_LONG), ["1"]);
            assert_eq!(exchange.see().answer_header(":status"), ["400"]);
            assert_eq!(exchange.see().state("weir.attempt.10.0.0.1:1").as_deref(), Some("too_long=1"));
        }
        let (mut worker, mut exchange) = begin_of("10.0.0.9:1", &STREAM);
        let event = [b"data: ", TOO_LONG, b"\n\n"].concat();
        assert_eq!(worker.piece(&mut exchange, &event, false), event);
        assert_eq!(exchange.see().answer_header(wire::TOO_LONG), ["1"]);
    }

    #[test]
    fn an_engines_own_mark_is_taken_off() {
        for status in ["200", "400", "500"] {
            let (_, exchange) = begin(&[(":status", status), (wire::TOO_LONG, "1")]);
            assert!(exchange.see().answer_header(wire::TOO_LONG).is_empty(), "{status}");
        }
    }

    #[test]
    fn a_refusal_passes_at_once_where_nobody_follows_and_unmarked_where_it_is_another() {
        for last in ["", "10.0.0.1:1"] {
            let (mut worker, mut exchange) = begin_of(last, &REFUSAL);
            assert!(!exchange.see().holds_answer(), "{last}");
            assert_eq!(worker.piece(&mut exchange, TOO_LONG, true), TOO_LONG);
            assert!(exchange.see().answer_header(wire::TOO_LONG).is_empty());
        }
        let other =
            br#"{"error":{"message":"max_tokens must be at least 1","type":"BadRequestError","code":400}}"#;
        let (mut worker, mut exchange) = begin_of("10.0.0.9:1", &REFUSAL);
        assert_eq!(worker.piece(&mut exchange, other, true), other);
        assert!(exchange.see().answer_header(wire::TOO_LONG).is_empty());
        // Too long to be one; what is held goes on.
        let (mut worker, mut exchange) = begin_of("10.0.0.9:1", &REFUSAL);
        let long = vec![b' '; MOST_BYTES];
        assert_eq!(worker.piece(&mut exchange, &long, false), b"");
        assert_eq!(worker.piece(&mut exchange, b"  ", false).len(), MOST_BYTES + 2);
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
    fn an_error_is_known_wherever_it_is_cut_and_a_token_waits_for_nothing_but_its_event() {
        let error = b"event: error\ndata: {\"error\":{\"message\":\"x\",\"type\":\"overloaded_error\"}}\n\n";
        for cut in 1..error.len() - 1 {
            let (mut worker, mut exchange) = begin(&STREAM);
            let (first, rest) = error.split_at(cut);
            assert_eq!(worker.piece(&mut exchange, first, false), b"", "{cut}");
            assert_eq!(worker.piece(&mut exchange, rest, false), error);
            assert_eq!(exchange.see().answer_header(":status"), ["529"], "{cut}");
        }
        let (mut worker, mut exchange) = begin(&STREAM);
        assert_eq!(worker.piece(&mut exchange, b"data: {\"choices\":", false), b"");
        let rest = b"[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {";
        assert!(worker.piece(&mut exchange, rest, false).ends_with(rest));
        for at_once in
            [&b": ping\n"[..], b"data: {}\n\n", b"{\"no\": \"event\"", b"event: message_start\r\n\r\n"]
        {
            let (mut worker, mut exchange) = begin(&STREAM);
            assert_eq!(worker.piece(&mut exchange, at_once, false), at_once);
        }
    }

    #[test]
    fn what_announces_an_answer_is_held_until_there_is_one() {
        let role = &b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"[..];
        let created = &b"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\n"[..];
        let start = &b"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n"[..];
        let failed = &b"data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\",\"message\":\"x\"}}}\n\n"[..];
        let overloaded =
            &b"data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n"[..];
        let token = &b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"[..];
        for (first, then, status) in [
            (role, token, "200"),
            (role, failed, "500"),
            (created, failed, "500"),
            (created, &b"data: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"[..], "200"),
            (start, overloaded, "529"),
            (start, b"event: ping\ndata: {\"type\":\"ping\"}\n\n", "200"),
        ] {
            let (mut worker, mut exchange) = begin(&STREAM);
            assert_eq!(worker.piece(&mut exchange, first, false), b"");
            // However long the engine computes.
            worker.world().pass(Duration::from_secs(60));
            assert_eq!(worker.piece(&mut exchange, then, false), [first, then].concat());
            assert_eq!(exchange.see().answer_header(":status"), [status]);
        }
    }

    #[test]
    fn a_stream_in_which_there_was_nothing_is_no_success() {
        let stop = &b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"[..];
        let unknown = &b"data: {\"type\":\"transcript.text.delta\"}\n\n"[..];
        for (body, status) in [
            (&b""[..], "502"),
            (b"data: [DONE]\n\n", "502"),
            (b": ping\n\n", "502"),
            (stop, "200"),
            (unknown, "200"),
            (b"x", "200"),
        ] {
            let (mut worker, mut exchange) = begin(&STREAM);
            assert_eq!(worker.piece(&mut exchange, body, true), body);
            assert_eq!(exchange.see().answer_header(":status"), [status], "{}", body.escape_ascii());
        }
    }

    #[test]
    fn what_comes_in_slow_pieces_passes_after_a_second() {
        for headers in [STREAM, REFUSAL] {
            let (mut worker, mut exchange) = begin_of("10.0.0.9:1", &headers);
            worker.world().pass(Duration::from_secs(60));
            assert_eq!(worker.piece(&mut exchange, b"data", false), b"", "an engine may compute");
            worker.world().pass(Duration::from_millis(900));
            assert_eq!(worker.piece(&mut exchange, b": ", false), b"");
            worker.world().pass(Duration::from_millis(200));
            assert_eq!(worker.piece(&mut exchange, b"{", false), b"data: {");
            assert_eq!(worker.piece(&mut exchange, b"}", true), b"}");
        }
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
