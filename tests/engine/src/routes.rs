//! The routes, and the small answers: models, health, metrics, faults, records, echo.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use xxhash_rust::xxh64::Xxh64;

use crate::compute::Compute;
use crate::config::Config;
use crate::fault::{Fault, Faults};
use crate::form::unix_s;
use crate::listen::Life;
use crate::record::{Log, hex, version_name};
use crate::{compute, infer, record};

/// Time for the answer to `POST /fault` to leave before the engine dies.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// What the routes share.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) compute: Arc<Compute>,
    pub(crate) log: Arc<Log>,
    pub(crate) faults: Faults,
    /// What scrapes are told in the place of the truth.
    pub(crate) said: Mutex<Option<String>>,
    /// LoRA adapters of the first model, in the list in the place of all other models.
    pub(crate) adapters: Mutex<Option<Vec<String>>>,
    /// Scrapes get no answer.
    pub(crate) is_silent: AtomicBool,
    life: watch::Sender<Life>,
    ids: AtomicU64,
}

impl App {
    pub(crate) fn new(config: Config, life: watch::Sender<Life>) -> Self {
        Self {
            compute: Arc::new(Compute::new(config.clone())),
            log: Arc::new(Log::new(config.requests)),
            faults: Faults::new(config.fault.clone()),
            said: Mutex::new(None),
            adapters: Mutex::new(None),
            is_silent: AtomicBool::new(false),
            life,
            ids: AtomicU64::new(1),
            config,
        }
    }

    pub(crate) fn die(&self) {
        self.life.send_replace(Life::Dead);
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}

type Shared = State<Arc<App>>;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(infer::chat))
        .route("/v1/completions", post(infer::completions))
        .route("/v1/messages", post(infer::messages))
        .route("/v1/models", get(models))
        .route("/health", get(|| async {}))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .route("/metrics", get(metrics))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/fault", post(set_fault))
        .route("/requests", get(requests).delete(clear_requests))
        .route("/state", get(state))
        .route("/echo", any(echo))
        .route("/echo/{*rest}", any(echo))
        .fallback(|| async { (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"}))) })
        .method_not_allowed_fallback(|| async {
            (StatusCode::METHOD_NOT_ALLOWED, Json(json!({"detail": "Method Not Allowed"})))
        })
        .with_state(app)
}

async fn models(State(app): Shared) -> Json<Value> {
    let created = unix_s();
    let model = |id: &String, parent: Option<&String>| {
        json!({"id": id, "object": "model", "created": created, "owned_by": "vllm", "root": id,
            "parent": parent, "max_model_len": app.config.kv_tokens})
    };
    let adapters = app.adapters.lock().unwrap().clone();
    let bases = app.config.models.iter().take(if adapters.is_some() { 1 } else { usize::MAX });
    let mut list: Vec<Value> = bases.map(|id| model(id, None)).collect();
    list.extend(adapters.iter().flatten().map(|id| model(id, app.config.models.first())));
    Json(json!({"object": "list", "data": list}))
}

async fn metrics(State(app): Shared) -> impl IntoResponse {
    if app.is_silent.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        app.said.lock().unwrap().clone().unwrap_or_else(|| app.compute.metrics()),
    )
}

async fn reset_prefix_cache(State(app): Shared) {
    app.compute.reset_prefix_cache();
}

async fn set_fault(State(app): Shared, Json(fault): Json<Fault>) -> Json<Fault> {
    app.faults.set(fault.clone());
    if fault.dies_at_once() {
        tokio::spawn(async move {
            tokio::time::sleep(LAST_WORDS).await;
            app.die();
        });
    }
    Json(fault)
}

async fn requests(State(app): Shared) -> Json<Vec<record::Record>> {
    Json(app.log.list())
}

async fn clear_requests(State(app): Shared) {
    app.log.clear();
}

async fn state(State(app): Shared) -> Json<compute::State> {
    Json(app.compute.state())
}

/// Says what body arrived and how; reads it as it comes, so that its size does not matter.
async fn echo(request: Request<Body>) -> Response {
    let framing = if request.headers().contains_key(CONTENT_LENGTH) { "content-length" } else { "chunked" };
    let version = version_name(request.version());
    let mut body = request.into_body().into_data_stream();
    let (mut len, mut hash) = (0, Xxh64::new(0));
    while let Some(piece) = body.next().await {
        let Ok(piece) = piece else { return StatusCode::BAD_REQUEST.into_response() };
        len += piece.len();
        hash.update(&piece);
    }
    let xxh64 = hex(hash.digest());
    Json(json!({"len": len, "xxh64": xxh64, "framing": framing, "version": version})).into_response()
}
