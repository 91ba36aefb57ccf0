//! The calls over HTTP: JSON in, JSON out, and every answer signed.
//!
//! The signature ([`wire::SCORER`]) tells a scorer's refusal from the answer that Envoy makes up when the scorer
//! is late or gone. A refusal says why in `error`; what a caller sent is never logged.

use super::Scorer;
use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
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
    /// The body is not what is expected; where, and why.
    Unreadable(String),
    /// The body is too large.
    TooLarge,
}

impl Refused {
    /// All reasons, as metrics name them.
    pub const REASONS: [&str; 5] = ["unknown_pool", "no_endpoint", "no_store", "unreadable", "too_large"];

    /// The reason, as metrics name it.
    pub fn reason(&self) -> &'static str {
        let [unknown_pool, no_endpoint, no_store, unreadable, too_large] = Self::REASONS;
        match self {
            Self::UnknownPool(_) => unknown_pool,
            Self::NoEndpoint(_) => no_endpoint,
            Self::NoStore => no_store,
            Self::Unreadable(_) => unreadable,
            Self::TooLarge => too_large,
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
            Self::Unreadable(why) => (StatusCode::BAD_REQUEST, why),
            Self::TooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, format!("the message is larger than {MOST_BYTES} bytes"))
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
        .route(wire::ALLOWANCES_PATH, post(allowances))
        .route("/v1/loads", get(loads))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok" }))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(map_response(sign))
        .with_state(scorer)
}

async fn sign(mut response: Response) -> Response {
    response.headers_mut().insert(wire::SCORER, HeaderValue::from_static("1"));
    response
}

type Body = Result<Bytes, BytesRejection>;

fn whole(body: Body) -> Result<Bytes, Refused> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refused::TooLarge,
        _ => Refused::Unreadable("the body broke off".into()),
    })
}

fn unreadable(invalid: Invalid) -> Refused {
    Refused::Unreadable(invalid.to_string())
}

fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    invalid::read(&whole(body)?).map_err(unreadable)
}

async fn reserve(State(scorer): State<Arc<Scorer>>, body: Body) -> Response {
    let start = scorer.now();
    let chosen = choose(&scorer, body).await;
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
    let message = whole(message)?;
    let (ask, body): (Reserve, usize) = Reserve::read(&message).map_err(unreadable)?;
    if body > MOST_BYTES {
        return Err(Refused::TooLarge);
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

async fn metrics(State(scorer): State<Arc<Scorer>>) -> Response {
    match scorer.metrics() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
