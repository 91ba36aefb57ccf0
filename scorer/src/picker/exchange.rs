//! One request, from its headers to the end of its answer.
//!
//! How much of it comes here, and when Envoy waits for an answer, its configuration says ([`Modes`]).

use super::Picker;
use super::answer::Answer;
use super::choose::{Chosen, Wish};
use super::hint::Subset;
use super::message::{self, Headers};
use super::modes::Modes;
use crate::tokens::Unread;
use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Asked;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    CommonResponse, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use envoy_types::pb::google::protobuf::Struct;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;
use weir::kv;
use weir::request::{self, Dialect, Facts, Head, Incoming, Plan, Reading, Size};
use weir::wire;

/// Header of GIE's conformance tests: the endpoints that a request wants.
const WANTED: &str = "test-epp-endpoint-selection";

/// What is to be told, in its order.
pub(super) type Answers = VecDeque<ProcessingResponse>;

/// One request.
pub(super) struct Exchange {
    picker: Arc<Picker>,
    /// The pool, where the gateway has named it.
    pool: Option<String>,
    modes: Modes,
    phase: Phase,
    answer: Answer,
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

/// A request whose body is not complete.
struct Held {
    incoming: Incoming,
    headers: Headers,
    pieces: Vec<Vec<u8>>,
    len: usize,
    hint: Option<Subset>,
    wanted: Option<Subset>,
}

/// A request that has been read.
struct Complete {
    facts: Facts,
    blocks: Vec<u64>,
    size: Size,
    model: Option<String>,
    headers: Headers,
    pieces: Vec<Vec<u8>>,
    len: usize,
    hint: Option<Subset>,
    wanted: Option<Subset>,
    trailers: bool,
}

impl Exchange {
    pub(super) fn new(picker: Arc<Picker>, pool: Option<&str>) -> Self {
        Self {
            answer: Answer::new(Arc::clone(&picker)),
            picker,
            pool: pool.map(str::to_owned),
            modes: Modes::default(),
            phase: Phase::Fresh,
            waits: None,
        }
    }

    /// Goes on with a request that waits for its tokens, once they are there. Nothing more is heard before.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, out: &mut Answers) -> Poll<()> {
        if let Some((tokens, _)) = &mut self.waits {
            let read = ready!(tokens.as_mut().poll(context));
            if let Some((_, complete)) = self.waits.take() {
                self.choose(*complete, Some(&read), out);
            }
        }
        Poll::Ready(())
    }

    /// Takes what Envoy says, and adds what it is to be told. An error ends the stream: the configuration is not one that
    /// this can work with.
    pub(super) fn hear(&mut self, asked: ProcessingRequest, out: &mut Answers) -> Result<(), Status> {
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
                out.push_back(self.answer.headers(&headers, asked.metadata_context.as_ref(), body_comes));
            }
            Some(Asked::ResponseBody(body)) => self.answer.body(body, duplex, out),
            Some(Asked::ResponseTrailers(_)) => self.answer.trailers(out),
            None => return Err(Status::invalid_argument("a message without a part of a request")),
        }
        Ok(())
    }

    fn request_headers(&mut self, asked: &HttpHeaders, metadata: Option<&Metadata>, out: &mut Answers) {
        let config = &self.picker.config;
        let mut headers = Headers::default();
        let mut wanted = None;
        for (name, value) in message::headers(asked.headers.as_ref()) {
            if wire::CONTROL.contains(&name) || name.starts_with(wire::CONTROL_PREFIX) {
                headers.remove(name);
            } else if name == WANTED && config.conformance && !value.is_empty() {
                wanted = Some(Subset::read(value));
            }
        }
        let hint = metadata.and_then(Subset::of);
        let head = Head::new(message::headers(asked.headers.as_ref()), &config.request);
        let dialect = match request::plan(&head, asked.end_of_stream, &config.request) {
            Plan::Refuse(refusal) => {
                self.phase = Phase::Decided;
                return out.push_back(message::refused(&refusal));
            }
            Plan::Read(incoming) if self.modes.can_wait() => {
                // With any other mode Envoy waits for the body itself.
                if matches!(self.modes.request, BodySendMode::Buffered | BodySendMode::BufferedPartial) {
                    out.push_back(message::request_headers(CommonResponse::default()));
                }
                let held = Held { incoming, headers, pieces: Vec::new(), len: 0, hint, wanted };
                self.phase = Phase::Reading(Box::new(held));
                return;
            }
            Plan::Read(incoming) => incoming.dialect,
            Plan::Pass => Dialect::Chat,
        };
        self.phase = Phase::Decided;
        let wish = Wish {
            facts: None,
            dialect,
            blocks: &[],
            tokens: None,
            bytes: head.content_length.unwrap_or(0),
            pool: self.pool.as_deref(),
            hint: hint.as_ref(),
            wanted: wanted.as_ref(),
        };
        match decide(&self.picker, &mut self.answer, &wish, &mut headers) {
            Ok(metadata) => out.push_back(with(message::request_headers(headers.of_request()), metadata)),
            Err(refused) => out.push_back(*refused),
        }
    }

    fn request_body(&mut self, body: HttpBody, out: &mut Answers) -> Result<(), Status> {
        let mode = self.modes.request;
        let most = self.picker.config.request.max_body_bytes;
        match &mut self.phase {
            Phase::Fresh => Err(Status::failed_precondition("request_header_mode must be SEND")),
            Phase::Decided => {
                match mode {
                    BodySendMode::FullDuplexStreamed => {
                        message::streamed_request(body.body, body.end_of_stream, |told| out.push_back(told));
                    }
                    _ => out.push_back(message::request_body(CommonResponse::default())),
                }
                Ok(())
            }
            Phase::Reading(held) => {
                held.len = held.len.saturating_add(body.body.len());
                if held.len > most {
                    let refusal = request::too_large(held.incoming.dialect, &self.picker.config.request);
                    self.phase = Phase::Decided;
                    out.push_back(message::refused(&refusal));
                    return Ok(());
                }
                held.pieces.push(body.body);
                // A body with trailers behind it is not the end of the stream, but whole all the same.
                if body.end_of_stream || mode == BodySendMode::Buffered {
                    self.complete(false, out);
                } else if mode == BodySendMode::BufferedPartial {
                    self.cut_off(out);
                }
                Ok(())
            }
        }
    }

    fn request_trailers(&mut self, out: &mut Answers) {
        match self.phase {
            Phase::Reading(_) => self.complete(true, out),
            _ => out.push_back(message::request_trailers()),
        }
    }

    /// The body is complete: read it; and where its pool's engines say what they hold, turn it into tokens first.
    fn complete(&mut self, trailers: bool, out: &mut Answers) {
        let Phase::Reading(held) = std::mem::replace(&mut self.phase, Phase::Decided) else { return };
        let Held { incoming, headers, pieces, len, hint, wanted } = *held;
        let whole: Cow<'_, [u8]> = match pieces.as_slice() {
            [only] => Cow::Borrowed(only),
            several => Cow::Owned(several.concat()),
        };
        let config = &self.picker.config.request;
        let read = incoming.decode(&whole, config).and_then(|decoded| {
            let Reading { facts, blocks, size, .. } = incoming.read(&decoded, config)?;
            Ok((facts, blocks, size))
        });
        let (mut facts, blocks, size) = match read {
            Ok(read) => read,
            Err(refusal) => return out.push_back(message::refused(&refusal)),
        };
        let model = facts.base_model.clone().or(facts.model.clone());
        facts.prompt_tokens = self.picker.tokens(model.as_deref(), size);
        let tokens = self.picker.reader(self.pool.as_deref(), &facts).map(|reader| {
            let (adapter, body) = (facts.ask(&[]).demand.adapter, whole.clone().into_owned());
            let tokens: Pin<Box<Tokens>> = Box::pin(async move { reader.read(body, adapter).await });
            tokens
        });
        drop(whole);
        let complete = Complete { facts, blocks, size, model, headers, pieces, len, hint, wanted, trailers };
        match tokens {
            Some(tokens) => self.waits = Some((tokens, Box::new(complete))),
            None => self.choose(complete, None, out),
        }
    }

    /// Choose, and answer all that Envoy waits for.
    fn choose(&mut self, read: Complete, tokens: Option<&Result<kv::Tokens, Unread>>, out: &mut Answers) {
        let Complete { facts, blocks, size, model, mut headers, pieces, len, hint, wanted, trailers } = read;
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
        let metadata = match decide(&self.picker, &mut self.answer, &wish, &mut headers) {
            Ok(metadata) => metadata,
            Err(refused) => return out.push_back(*refused),
        };
        self.answer.estimated = model.filter(|model| self.picker.wants(model)).map(|model| (model, size));
        match self.modes.request {
            BodySendMode::Streamed => {
                out.push_back(with(message::request_headers(headers.of_request()), metadata));
                out.extend(pieces.iter().map(|_| message::request_body(CommonResponse::default())));
            }
            BodySendMode::FullDuplexStreamed => {
                // Envoy takes it away, not knowing what comes back.
                if !trailers {
                    headers.set(wire::CONTENT_LENGTH, &len.to_string());
                }
                out.push_back(with(message::request_headers(headers.of_request()), metadata));
                let last = pieces.len().saturating_sub(1);
                for (nth, piece) in pieces.into_iter().enumerate() {
                    let end = nth == last && !trailers;
                    message::streamed_request(piece, end, |told| out.push_back(told));
                }
            }
            _ => out.push_back(with(message::request_body(headers.of_request()), metadata)),
        }
        if trailers {
            out.push_back(message::request_trailers());
        }
    }

    /// Envoy has given up buffering the body: what came of it cannot be read, and the rest will pass.
    fn cut_off(&mut self, out: &mut Answers) {
        let Phase::Reading(held) = std::mem::replace(&mut self.phase, Phase::Decided) else { return };
        let Held { incoming, mut headers, len, hint, wanted, .. } = *held;
        let wish = Wish {
            facts: None,
            dialect: incoming.dialect,
            blocks: &[],
            tokens: None,
            bytes: len as u64,
            pool: self.pool.as_deref(),
            hint: hint.as_ref(),
            wanted: wanted.as_ref(),
        };
        match decide(&self.picker, &mut self.answer, &wish, &mut headers) {
            Ok(metadata) => out.push_back(with(message::request_body(headers.of_request()), metadata)),
            Err(refused) => out.push_back(*refused),
        }
    }
}

/// Chooses; the lease goes to where its end will be seen.
fn decide(
    picker: &Picker,
    answer: &mut Answer,
    wish: &Wish<'_>,
    headers: &mut Headers,
) -> Result<Option<Struct>, Box<ProcessingResponse>> {
    let chosen = picker.choose(wish, headers)?;
    Ok(chosen.map(|Chosen { lease, metadata }| {
        answer.awaits(lease);
        metadata
    }))
}

fn with(told: ProcessingResponse, dynamic_metadata: Option<Struct>) -> ProcessingResponse {
    ProcessingResponse { dynamic_metadata, ..told }
}
