//! The calls over HTTP: JSON in, JSON out, and every answer signed.
//!
//! The signature ([`wire::SCORER`]) tells a scorer's refusal from the answer that Envoy makes up when the scorer
//! is late or gone. A refusal says why in `error`; what a caller sent is never logged.

use super::{Scorer, news};
use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::Arc;
use weir::invalid::{self, Invalid};
use weir::wire::{self, Reserve, Reserved};

/// Largest message accepted, in bytes. The longest prompt's hashes are a sixteenth of it. A reserve call may have the body of
/// its request behind it, which does not count.
const MOST_BYTES: usize = 1 << 20;

/// Why a call got nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No pool has that name.
    UnknownPool(String),
    /// The pool of that name has no endpoint.
    NoEndpoint(String),
    /// The store of shared limits cannot be reached.
    NoStore,
    /// This scorer does not know yet what the others know.
    Joining,
    /// More proxies listen than may.
    Crowded,
    /// The body is not what is expected; where, and why.
    Unreadable(String),
    /// The body is larger than so many bytes.
    TooLarge(usize),
}

impl Refused {
    /// All reasons, as metrics name them.
    pub const REASONS: [&str; 7] =
        ["unknown_pool", "no_endpoint", "no_store", "joining", "crowded", "unreadable", "too_large"];

    /// The reason, as metrics name it.
    pub fn reason(&self) -> &'static str {
        let [unknown_pool, no_endpoint, no_store, joining, crowded, unreadable, too_large] = Self::REASONS;
        match self {
            Self::UnknownPool(_) => unknown_pool,
            Self::NoEndpoint(_) => no_endpoint,
            Self::NoStore => no_store,
            Self::Joining => joining,
            Self::Crowded => crowded,
            Self::Unreadable(_) => unreadable,
            Self::TooLarge(_) => too_large,
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::UnknownPool(name) => (StatusCode::NOT_FOUND, format!("no pool is named {name:?}")),
            Self::NoEndpoint(name) => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("pool {name:?} has no endpoint"))
            }
            Self::NoStore => (StatusCode::SERVICE_UNAVAILABLE, "the store of shared limits fails".into()),
            Self::Joining => {
                (StatusCode::SERVICE_UNAVAILABLE, "what the others know is not known yet".into())
            }
            Self::Crowded => (StatusCode::SERVICE_UNAVAILABLE, "too many proxies listen".into()),
            Self::Unreadable(why) => (StatusCode::BAD_REQUEST, why),
            Self::TooLarge(most) => {
                (StatusCode::PAYLOAD_TOO_LARGE, format!("the message is larger than {most} bytes"))
            }
        };
        let mut response = (status, Json(json!({ "error": why }))).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// All paths.
pub(super) fn router(scorer: Arc<Scorer>) -> Router {
    let most = MOST_BYTES.saturating_add(scorer.longest_body());
    Router::new()
        .route(wire::RESERVE_PATH, post(reserve).layer(DefaultBodyLimit::max(most)))
        .route(wire::REPORT_PATH, post(report))
        .route(wire::NEWS_PATH, post(tell_news).layer(DefaultBodyLimit::max(news::MOST_BYTES)))
        .route(wire::ALLOWANCES_PATH, post(allowances))
        .route("/v1/loads", get(loads))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(map_response_with_state(Arc::clone(&scorer), sign))
        .with_state(scorer)
}

async fn sign(State(scorer): State<Arc<Scorer>>, mut response: Response) -> Response {
    let is = if scorer.is_ready() { "1" } else { wire::JOINING };
    response.headers_mut().insert(wire::SCORER, HeaderValue::from_static(is));
    response
}

type Body = Result<Bytes, BytesRejection>;

/// The whole body, of at most so many bytes.
fn whole(body: Body, most: usize) -> Result<Bytes, Refused> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refused::TooLarge(most),
        _ => Refused::Unreadable("the body broke off".into()),
    })
}

fn unreadable(invalid: Invalid) -> Refused {
    Refused::Unreadable(invalid.to_string())
}

fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    invalid::read(&whole(body, MOST_BYTES)?).map_err(unreadable)
}

async fn reserve(State(scorer): State<Arc<Scorer>>, body: Body) -> Response {
    let start = scorer.now();
    let chosen = match scorer.is_ready() {
        true => choose(&scorer, body).await,
        false => Err(Refused::Joining),
    };
    let took = scorer.now().since(start);
    scorer.took(took);
    let reserved = chosen.map(|(ask, reserved)| {
        if let Some(telemetry) = scorer.telemetry() {
            telemetry.reserved(&ask, &reserved, took);
        }
        reserved
    });
    match reserved {
        Ok(reserved) => Json(reserved).into_response(),
        Err(refused) => refuse(&scorer, refused),
    }
}

/// Turns the request into tokens, where its pool wants that, and chooses.
async fn choose(scorer: &Scorer, message: Body) -> Result<(Reserve, Reserved), Refused> {
    let message = whole(message, MOST_BYTES)?;
    let (ask, body): (Reserve, usize) = Reserve::read(&message).map_err(unreadable)?;
    if body > MOST_BYTES {
        return Err(Refused::TooLarge(MOST_BYTES));
    }
    let read = match scorer.reader(&ask.pool) {
        Some(reader) => Some(reader.read(message.slice(body..), ask.demand.adapter).await),
        None => None,
    };
    let reserved = scorer.reserve_for(&ask, read.as_ref(), None)?;
    Ok((ask, reserved))
}

async fn report(State(scorer): State<Arc<Scorer>>, body: Body) -> Response {
    match read::<Vec<wire::Event>>(body) {
        Ok(events) => {
            scorer.report(&events);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(refused) => refuse(&scorer, refused),
    }
}

async fn tell_news(State(scorer): State<Arc<Scorer>>, body: Body) -> Response {
    let told = match scorer.is_ready() {
        true => whole(body, news::MOST_BYTES).and_then(|message| scorer.news(&message)),
        false => Err(Refused::Joining),
    };
    match told {
        Ok(told) => told.encode().into_response(),
        Err(refused) => refuse(&scorer, refused),
    }
}

async fn allowances(State(scorer): State<Arc<Scorer>>, body: Body) -> Response {
    let granted = match read(body) {
        Ok(claims) => scorer.shares.grant(&claims, || scorer.now()).await,
        Err(refused) => Err(refused),
    };
    match granted {
        Ok(grants) => Json(grants).into_response(),
        Err(refused) => refuse(&scorer, refused),
    }
}

fn refuse(scorer: &Scorer, refused: Refused) -> Response {
    scorer.refused(&refused);
    refused.into_response()
}

async fn loads(State(scorer): State<Arc<Scorer>>) -> Response {
    Json(json!({ "pools": scorer.loads() })).into_response()
}

/// Whether it knows what other scorers know: Envoy asks before it sends anything here.
async fn ready(State(scorer): State<Arc<Scorer>>) -> Response {
    match scorer.is_ready() {
        true => "ready".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "joining").into_response(),
    }
}

/// Thousands of lines take milliseconds: not on the thread that chooses.
async fn metrics(State(scorer): State<Arc<Scorer>>) -> Response {
    let text = tokio::task::spawn_blocking(move || scorer.metrics()).await;
    match text.map_err(Into::into).flatten() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
