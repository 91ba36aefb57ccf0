//! The admin page: one look at the pools, for a person.
//!
//! It only reads. It listens on an address of its own, on loopback unless the configuration says otherwise, and not at all
//! without an `admin` section. What it shows holds no prompt, no key and nothing that a client sent but numbers; names come
//! from the configuration, and the page sets each of them as text.
//!
//! The page is one file with everything in it, and asks once a second what has changed, while it is visible. Its policy
//! (`Content-Security-Policy`) lets it load nothing else and run nothing but its own script, which carries a number drawn
//! for each answer. A page elsewhere that has a name of its own lead here (DNS rebinding) is refused by its `Host`.

mod state;

use crate::clock;
use crate::http::{self, Bounds};
use crate::scorer::Scorer;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use weir::invalid::Invalid;
use weir::pool::Spec;

/// The page, without its numbers.
const PAGE: &str = include_str!("page.html");
/// People who look at once, a browser of each having some connections. An answer is as long as the pools are many, and is
/// held until it is taken.
const CONNECTIONS: usize = 64;
/// Sent with every answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Where the page is, and by which names.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// Names by which it may be asked for, beside IP addresses and `localhost`: of a proxy in front of it.
    pub hosts: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9091)), hosts: Vec::new() }
    }
}

impl Config {
    /// Checks what types do not.
    pub fn check(&self) -> Result<(), Invalid> {
        for (at, host) in self.hosts.iter().enumerate() {
            if host.is_empty() || host.contains([':', '/']) {
                let why = format!("{host:?} is not a host name; write it without scheme and port");
                return Err(Invalid::new(format!("hosts[{at}]"), why));
            }
        }
        Ok(())
    }
}

/// What the page is made of.
#[derive(Debug)]
struct Admin {
    scorer: Arc<Scorer>,
    pools: Vec<Spec>,
    hosts: Vec<String>,
}

/// Serves the page for as long as it is polled; `pools` says what each of them serves.
pub async fn serve(listener: TcpListener, config: Config, pools: Vec<Spec>, scorer: Arc<Scorer>) {
    let admin = Arc::new(Admin { scorer, pools, hosts: config.hosts });
    let router = Router::new()
        .route("/", get(page))
        .route("/state", get(state))
        .layer(from_fn_with_state(Arc::clone(&admin), guard))
        .with_state(admin);
    let bounds = Bounds { connections: CONNECTIONS, ..Bounds::default() };
    http::serve(listener, router, bounds, std::future::pending()).await;
}

async fn page() -> Response {
    let nonce = format!("{:016x}{:016x}", clock::seed(), clock::seed());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = Html(PAGE.replace("{nonce}", &nonce));
    ([(header::CONTENT_SECURITY_POLICY, policy)], page).into_response()
}

#[derive(Debug, Deserialize)]
struct Look {
    #[serde(default)]
    after: u64,
}

async fn state(State(admin): State<Arc<Admin>>, Query(look): Query<Look>) -> Response {
    Json(state::State::of(&admin.scorer, &admin.pools, look.after)).into_response()
}

/// Refuses who came by a name that is not the page's, and signs the answers.
async fn guard(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let mut response = match is_known(request.headers(), &admin.hosts) {
        true => next.run(request).await,
        false => (StatusCode::MISDIRECTED_REQUEST, "asked for by an unknown name: see admin.hosts\n")
            .into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn is_known(headers: &HeaderMap, hosts: &[String]) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_for_by_addresses_and_by_names_that_are_its_own() {
        let hosts = ["weir.example".to_owned()];
        let is_known = |host: &str| {
            let host = [(header::HOST, HeaderValue::from_str(host).unwrap())];
            is_known(&HeaderMap::from_iter(host), &hosts)
        };
        for host in ["127.0.0.1:9091", "127.0.0.1", "[::1]:9091", "localhost:1", "LOCALHOST", "weir.example"]
        {
            assert!(is_known(host), "{host}");
        }
        for host in ["evil.example:9091", "127.0.0.1.evil.example", "localhost.evil.example", ""] {
            assert!(!is_known(host), "{host}");
        }
    }
}
