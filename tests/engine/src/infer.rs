//! An inference request, from its body to its answer: record, meet the fault, understand, run.

use std::future::pending;
use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use crate::ask::Ask;
use crate::fault::{Fault, Kind};
use crate::flow::Flow;
use crate::form::{Api, Form};
use crate::record::{Entry, Outcome};
use crate::refusal::Refusal;
use crate::routes::App;

/// Largest body taken, in bytes.
const BODY_LIMIT: usize = 256 << 20;
/// How much longer everything takes when slow.
const SLOW: f64 = 10.0;
/// Not JSON, not SSE, not UTF-8.
const GARBAGE: &[u8] = b"\x00\xff\xfe<<garbage>>\x80\x81{[";

pub(crate) async fn chat(state: State<Arc<App>>, request: Request) -> Response {
    infer(state, Api::Chat, request).await
}

pub(crate) async fn completions(state: State<Arc<App>>, request: Request) -> Response {
    infer(state, Api::Completions, request).await
}

pub(crate) async fn messages(state: State<Arc<App>>, request: Request) -> Response {
    infer(state, Api::Messages, request).await
}

async fn infer(State(app): State<Arc<App>>, api: Api, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_LIMIT).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let entry = app.log.open(&parts, &body);
    if app.config.require_length && !parts.headers.contains_key(CONTENT_LENGTH) {
        return answer(Refusal::no_length(), api, entry);
    }
    let ask = Ask::read(api, &parts.headers, &body, &app.config);
    drop(body);
    if let Ok(ask) = &ask {
        entry.update(|record| {
            record.model.clone_from(&ask.model);
            record.stream = ask.stream;
            record.prompt_tokens = ask.prompt.tokens;
        });
    }

    let fault = app.faults.meet();
    match fault.kind {
        Kind::Hang if fault.after_tokens.is_none() => {
            // Holds the record open until the client leaves.
            let _entry = entry;
            pending().await
        }
        Kind::Http503 => refuse(&fault, StatusCode::SERVICE_UNAVAILABLE, api, entry),
        Kind::Http429 => refuse(&fault, StatusCode::TOO_MANY_REQUESTS, api, entry),
        Kind::Garbage => garbage(ask.is_ok_and(|ask| ask.stream), entry),
        Kind::None | Kind::Die | Kind::Hang | Kind::CutStream | Kind::Slow => match ask {
            Ok(ask) => run(app, api, ask, fault, entry).await,
            Err(refusal) => answer(refusal, api, entry),
        },
    }
}

async fn run(app: Arc<App>, api: Api, ask: Ask, fault: Fault, entry: Entry) -> Response {
    entry.update(|record| record.status = 200);
    let pace = if fault.kind == Kind::Slow { SLOW } else { 1.0 };
    let form = Form::new(api, app.next_id(), &ask.model, ask.include_usage);
    let generation = app.compute.submit(ask.prompt, ask.output, pace);
    let flow = Flow::new(app, generation, form, entry, fault);
    if ask.stream { flow.stream() } else { flow.whole().await }
}

fn refuse(fault: &Fault, status: StatusCode, api: Api, entry: Entry) -> Response {
    answer(Refusal::later(status, fault.retry_after_s.unwrap_or(1)), api, entry)
}

fn answer(refusal: Refusal, api: Api, mut entry: Entry) -> Response {
    entry.update(|record| record.status = refusal.status.as_u16());
    entry.end(Outcome::Done);
    refusal.into_response(api)
}

fn garbage(stream: bool, mut entry: Entry) -> Response {
    entry.update(|record| record.status = 200);
    entry.end(Outcome::Done);
    let content_type = if stream { "text/event-stream; charset=utf-8" } else { "application/json" };
    ([(CONTENT_TYPE, content_type)], GARBAGE).into_response()
}
