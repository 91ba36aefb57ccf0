//! One request, from its headers to the end of its answer.
//!
//! How much of it comes here, and when Envoy waits for an answer, its configuration says ([`Modes`]).

use super::Picker;
use super::answer::Answer;
use super::choose::{Chosen, Wish};
use super::held::{Body, Full, Held, Known};
use super::hint::Subset;
use super::message::{self, Whose};
use super::modes::Modes;
use super::outbox::{Back, Outbox};
use super::outcome::{Counted, Outcome, Refused};
use super::room::Share;
use crate::tokens::Unread;
use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Asked;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    CommonResponse, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use envoy_types::pb::google::protobuf::Struct;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::{Code, Status};
use weir::kv;
use weir::request::{self, Dialect, Facts, Head, Plan, Reading, Refusal, Size};
use weir::wire;

/// Header of GIE's conformance tests: the endpoints that a request wants.
const WANTED: &str = "test-epp-endpoint-selection";

/// One request.
pub(super) struct Exchange {
    picker: Arc<Picker>,
    /// The pool, where the gateway has named it.
    pool: Option<String>,
    modes: Modes,
    phase: Phase,
    answer: Answer,
    counted: Counted,
    /// A request that waits to be turned into tokens.
    waits: Option<(Pin<Box<Tokens>>, Box<Complete>)>,
}

/// A body on its way to tokens.
type Tokens = dyn Future<Output = Result<kv::Tokens, Unread>> + Send;

enum Phase {
    /// Nothing has come.
    Fresh,
    /// The body is awaited.
    Reading(Box<Held>),
    /// It is decided; the rest passes.
    Decided,
}

/// A request that has been read.
struct Complete {
    facts: Facts,
    blocks: Vec<u64>,
    size: Size,
    model: Option<String>,
    client: Option<u64>,
    known: Known,
    body: Bytes,
    pieces: u64,
    share: Share,
    trailers: bool,
}

impl Exchange {
    pub(super) fn new(picker: Arc<Picker>, pool: Option<&str>) -> Self {
        Self {
            answer: Answer::new(Arc::clone(&picker)),
            counted: Counted::new(picker.scorer.picker()),
            picker,
            pool: pool.map(str::to_owned),
            modes: Modes::default(),
            phase: Phase::Fresh,
            waits: None,
        }
    }

    /// Goes on with a request that waits for its tokens, once they are there, and nothing more is heard before. Gives up one
    /// whose body takes too long.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()> {
        if let Phase::Reading(held) = &mut self.phase {
            let limit = self.picker.config.body_timeout();
            if held.poll_late(limit, context).is_ready() {
                let why = format!("the body was not complete within {} ms", limit.as_millis());
                self.refuse(408, why, &[], out);
            }
        }
        if let Some((tokens, _)) = &mut self.waits {
            let read = ready!(tokens.as_mut().poll(context));
            if let Some((_, complete)) = self.waits.take() {
                self.choose(*complete, Some(&read), out);
            }
        }
        Poll::Ready(())
    }

    /// Refuses a request whose body is awaited.
    fn refuse(&mut self, status: u16, why: String, more: &[(&str, &str)], out: &mut Outbox) {
        let Phase::Reading(held) = &self.phase else { return };
        let refusal = Refusal::new(held.incoming.dialect, status, why);
        self.refused(*Refused::of(&refusal, more), out);
    }

    /// It goes no further.
    fn refused(&mut self, refused: Refused, out: &mut Outbox) {
        self.phase = Phase::Decided;
        self.counted.came_to(refused.outcome);
        out.push(refused.told);
    }

    /// Its stream ends with an error.
    pub(super) fn failed(&mut self, status: &Status) {
        // What Envoy resets is a request that nobody waits for any more.
        if status.code() != Code::Cancelled {
            self.counted.came_to(Outcome::Undecodable);
        }
    }

    /// A message was longer than is taken at all. Where it was to bring a request's body, the client is told.
    pub(super) fn overflowed(&mut self, status: Status, out: &mut Outbox) -> Result<(), Status> {
        let Phase::Reading(held) = &self.phase else { return Err(status) };
        let refusal = request::too_large(held.incoming.dialect, &self.picker.config.request);
        self.refused(*Refused::of(&refusal, &[]), out);
        Ok(())
    }

    /// Takes what Envoy says, and adds what it is to be told. An error ends the stream: the configuration is not one that
    /// this can work with.
    pub(super) fn hear(&mut self, asked: ProcessingRequest, out: &mut Outbox) -> Result<(), Status> {
        if asked.observability_mode {
            // Envoy does not wait, and does not do as it is told.
            return Ok(());
        }
        if let Some(config) = &asked.protocol_config {
            self.modes = Modes::of(config);
        }
        let duplex = self.modes.response == BodySendMode::FullDuplexStreamed;
        match asked.request {
            Some(Asked::RequestHeaders(headers)) => {
                self.request_headers(&headers, asked.metadata_context.as_ref(), out);
            }
            Some(Asked::RequestBody(body)) => return self.request_body(body, out),
            Some(Asked::RequestTrailers(_)) => self.request_trailers(out),
            Some(Asked::ResponseHeaders(headers)) => {
                let body_comes = self.modes.response != BodySendMode::None;
                out.push(self.answer.headers(&headers, asked.metadata_context.as_ref(), body_comes));
            }
            Some(Asked::ResponseBody(body)) => self.answer.body(body, duplex, out),
            Some(Asked::ResponseTrailers(_)) => self.answer.trailers(out),
            None => return Err(Status::invalid_argument("a message without a part of a request")),
        }
        Ok(())
    }

    fn request_headers(&mut self, asked: &HttpHeaders, metadata: Option<&Metadata>, out: &mut Outbox) {
        let config = &self.picker.config;
        let mut known = Known { hint: metadata.and_then(Subset::of), ..Known::default() };
        let all = message::headers(asked.headers.as_ref());
        for (name, value) in &all {
            if wire::CONTROL.contains(name) || name.starts_with(wire::CONTROL_PREFIX) {
                known.headers.remove(name);
            } else if *name == WANTED && config.conformance && !value.is_empty() {
                known.wanted = Some(Subset::read(value));
            }
        }
        let head = Head::new(all.iter().map(|(name, value)| (*name, value.as_ref())), &config.request);
        let dialect = match request::plan(&head, asked.end_of_stream, &config.request) {
            Plan::Refuse(refusal) => return self.refused(*Refused::of(&refusal, &[]), out),
            Plan::Read(incoming) if self.modes.can_wait() => {
                // With any other mode Envoy waits for the body itself. What the client may not say goes at once: this may be
                // the last that Envoy hears.
                if matches!(self.modes.request, BodySendMode::Buffered | BodySendMode::BufferedPartial) {
                    let removed = std::mem::take(&mut known.headers);
                    out.push(message::request_headers(removed.of_request()));
                }
                let held = Held::new(incoming, known, self.picker.room.share());
                self.phase = Phase::Reading(Box::new(held));
                return;
            }
            Plan::Read(incoming) => incoming.dialect,
            Plan::Pass => Dialect::Chat,
        };
        self.phase = Phase::Decided;
        let bytes = head.content_length.unwrap_or(0);
        self.choose_unread(dialect, bytes, known, message::request_headers, out);
    }

    fn request_body(&mut self, piece: HttpBody, out: &mut Outbox) -> Result<(), Status> {
        let mode = self.modes.request;
        let config = &self.picker.config.request;
        match &mut self.phase {
            Phase::Fresh => return Err(Status::failed_precondition("request_header_mode must be SEND")),
            Phase::Decided if mode == BodySendMode::FullDuplexStreamed => out.send_back(Back {
                whose: Whose::Request,
                bytes: piece.body.into(),
                end: piece.end_of_stream,
                metadata: None,
                share: None,
            }),
            Phase::Decided => out.unchanged(1),
            Phase::Reading(held) => match held.body.take(piece.body, config.max_body_bytes) {
                Err(Full::Body) => {
                    let refusal = request::too_large(held.incoming.dialect, config);
                    self.refused(*Refused::of(&refusal, &[]), out);
                }
                Err(Full::Room) => {
                    let why = "too many long bodies are under way; try again, or send a shorter one".into();
                    self.refuse(503, why, &[("retry-after", "1")], out);
                }
                // A body with trailers behind it is not the end of the stream, but whole all the same.
                Ok(()) if piece.end_of_stream || mode == BodySendMode::Buffered => self.complete(false, out),
                Ok(()) if mode == BodySendMode::BufferedPartial => self.cut_off(out),
                Ok(()) => {}
            },
        }
        Ok(())
    }

    fn request_trailers(&mut self, out: &mut Outbox) {
        match self.phase {
            Phase::Reading(_) => self.complete(true, out),
            _ => out.push(message::request_trailers()),
        }
    }

    /// The body is complete: read it; and where its pool's engines say what they hold, turn it into tokens first.
    fn complete(&mut self, trailers: bool, out: &mut Outbox) {
        let Phase::Reading(held) = std::mem::replace(&mut self.phase, Phase::Decided) else { return };
        let Held { incoming, known, body: Body { bytes, pieces, share }, .. } = *held;
        let body = Bytes::from(bytes);
        let config = &self.picker.config.request;
        let read = incoming.decode(&body, config).and_then(|decoded| {
            let Reading { facts, blocks, size, .. } = incoming.read(&decoded, config)?;
            Ok((facts, blocks, size))
        });
        let (mut facts, blocks, size) = match read {
            Ok(read) => read,
            Err(refusal) => return self.refused(*Refused::of(&refusal, &[]), out),
        };
        let model = facts.base_model.clone().or(facts.model.clone());
        let client = incoming.client();
        facts.estimate(self.picker.tokens(model.as_deref(), client, size));
        let tokens = self.picker.reader(self.pool.as_deref(), &facts).map(|reader| {
            let (adapter, body) = (facts.ask(&[]).demand.adapter, body.clone());
            let tokens: Pin<Box<Tokens>> = Box::pin(async move { reader.read(body, adapter).await });
            tokens
        });
        let complete = Complete { facts, blocks, size, model, client, known, body, pieces, share, trailers };
        match tokens {
            Some(tokens) => self.waits = Some((tokens, Box::new(complete))),
            None => self.choose(complete, None, out),
        }
    }

    /// Choose, and answer all that Envoy waits for.
    fn choose(&mut self, read: Complete, tokens: Option<&Result<kv::Tokens, Unread>>, out: &mut Outbox) {
        let Complete { facts, blocks, size, model, client, known, body, pieces, share, trailers } = read;
        let Known { mut headers, hint, wanted } = known;
        let wish = Wish {
            facts: Some(&facts),
            dialect: facts.dialect,
            blocks: &blocks,
            tokens,
            bytes: 0,
            pool: self.pool.as_deref(),
            hint: hint.as_ref(),
            wanted: wanted.as_ref(),
        };
        let metadata = match self.picker.choose(&wish, &mut headers) {
            Ok(chosen) => self.decided(chosen),
            Err(refused) => return self.refused(*refused, out),
        };
        let wanted = model.filter(|model| self.picker.wants(model, client));
        self.answer.estimated = wanted.map(|model| (model, client, size));
        match self.modes.request {
            BodySendMode::Streamed => {
                out.push(with(message::request_headers(headers.of_request()), metadata));
                out.unchanged(pieces);
            }
            BodySendMode::FullDuplexStreamed => {
                // Envoy takes it away, not knowing what comes back.
                if !trailers {
                    headers.set(wire::CONTENT_LENGTH, &body.len().to_string());
                }
                out.push(with(message::request_headers(headers.of_request()), metadata));
                out.send_back(Back {
                    whose: Whose::Request,
                    bytes: body,
                    end: !trailers,
                    metadata: None,
                    share: Some(share),
                });
            }
            _ => out.push(with(message::request_body(headers.of_request()), metadata)),
        }
        if trailers {
            out.push(message::request_trailers());
        }
    }

    /// Envoy has given up buffering the body: what came of it cannot be read, and the rest will pass.
    fn cut_off(&mut self, out: &mut Outbox) {
        let Phase::Reading(held) = std::mem::replace(&mut self.phase, Phase::Decided) else { return };
        let Held { incoming, known, body, .. } = *held;
        self.choose_unread(incoming.dialect, body.bytes.len() as u64, known, message::request_body, out);
    }

    /// Chooses for a request of which nothing but its length is known; `told` makes the answer.
    fn choose_unread(
        &mut self,
        dialect: Dialect,
        bytes: u64,
        known: Known,
        told: fn(CommonResponse) -> ProcessingResponse,
        out: &mut Outbox,
    ) {
        let Known { mut headers, hint, wanted } = known;
        let wish = Wish {
            facts: None,
            dialect,
            blocks: &[],
            tokens: None,
            bytes,
            pool: self.pool.as_deref(),
            hint: hint.as_ref(),
            wanted: wanted.as_ref(),
        };
        match self.picker.choose(&wish, &mut headers) {
            Ok(chosen) => out.push(with(told(headers.of_request()), self.decided(chosen))),
            Err(refused) => self.refused(*refused, out),
        }
    }

    /// It goes on; its lease goes to where its end will be seen.
    fn decided(&mut self, chosen: Option<Chosen>) -> Option<Struct> {
        self.counted.came_to(if chosen.is_some() { Outcome::Chosen } else { Outcome::Passed });
        let Chosen { lease, metadata } = chosen?;
        self.answer.awaits(lease);
        Some(metadata)
    }
}

fn with(told: ProcessingResponse, dynamic_metadata: Option<Struct>) -> ProcessingResponse {
    ProcessingResponse { dynamic_metadata, ..told }
}
