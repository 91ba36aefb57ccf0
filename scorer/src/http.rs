//! HTTP/1 and HTTP/2 to whoever connects, with bounds on what a connection may cost.
//!
//! Who sends half a request, or does not take an answer, holds a connection and what belongs to it; many of them, all there
//! is. So nothing may stand still for longer than [`Bounds::still`], in either direction; heads and requests have a time of
//! their own, which does not begin anew with each byte; and of connections there are so many, behind which others wait.
//! `axum::serve` has none of these.
//!
//! A connection that nobody uses is one that stands still, and is closed. HTTP/2 is asked now and then whether it is there, and
//! stays open.

mod still;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use still::Still;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Without a byte in the direction that is waited for.
    pub(crate) still: Duration,
    /// For the head of a request.
    pub(crate) head: Duration,
    /// For a request, from its head to its answer.
    pub(crate) request: Duration,
    /// At the same time.
    pub(crate) connections: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // Above what a gateway that uses its connections lets pass between two calls.
            still: Duration::from_secs(60),
            head: Duration::from_secs(60),
            request: Duration::from_secs(30),
            connections: 10_000,
        }
    }
}

/// Wait after a failure to accept: there are no file descriptors left, say.
const EXHAUSTED: Duration = Duration::from_millis(200);

/// Serves until `stop`; then accepts nothing more and finishes what is under way.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    stop: impl Future<Output = ()>,
) {
    let in_time = move |request: Request, next: Next| async move {
        let answer = tokio::time::timeout(bounds.request, next.run(request)).await;
        answer.unwrap_or_else(|_| (StatusCode::REQUEST_TIMEOUT, "too late\n").into_response())
    };
    let service = TowerToHyperService::new(router.layer(from_fn(in_time)));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.head);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(bounds.still / 3).keep_alive_timeout(bounds.still / 3);
    let (all, turns) = (GracefulShutdown::new(), Arc::new(Semaphore::new(bounds.connections)));
    let mut stop = std::pin::pin!(stop);
    loop {
        let (connection, turn) = tokio::select! {
            accepted = accept(&listener, &turns) => accepted,
            () = &mut stop => break,
        };
        let connection = TokioIo::new(Still::new(connection, bounds.still));
        let served = builder.serve_connection(connection, service.clone());
        let served = all.watch(served.into_owned());
        tokio::spawn(async move {
            if let Err(error) = served.await {
                log::debug!("a connection ended: {error}");
            }
            drop(turn);
        });
    }
    drop(listener);
    all.shutdown().await;
}

/// The next connection, once there may be one more.
async fn accept(listener: &TcpListener, turns: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // It is never closed.
    let turn = Arc::clone(turns).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                // Answers are small and awaited: none waits for a second one to share its packet.
                if let Err(error) = connection.set_nodelay(true) {
                    log::debug!("set_nodelay: {error}");
                }
                return (connection, turn);
            }
            Err(error) => {
                log::warn!("accept: {error}");
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PATIENCE: Duration = Duration::from_secs(30);
    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    async fn start(bounds: Bounds) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/", get(async || "here"))
            .route("/long", get(async || "x".repeat(50 << 20)))
            .route("/body", post(async |body: String| body));
        tokio::spawn(serve(listener, router, bounds, std::future::pending()));
        address
    }

    async fn open(address: SocketAddr, says: &[u8]) -> TcpStream {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(says).await.unwrap();
        connection
    }

    /// All that it says until it closes the connection.
    async fn rest(mut connection: TcpStream) -> String {
        let mut said = Vec::new();
        let read = connection.read_to_end(&mut said);
        // A reset is an end too.
        let _ = tokio::time::timeout(PATIENCE, read).await.expect("it is closed");
        String::from_utf8_lossy(&said).into_owned()
    }

    #[tokio::test]
    async fn what_stands_still_is_closed() {
        let short = Duration::from_millis(300);
        let address = start(Bounds { still: short, head: short, request: short, connections: 100 }).await;
        for half in [
            &b""[..],
            b"GET / HT",
            b"GET / HTTP/1.1\r\nhost: x\r\n",
            b"PRI * HTTP/2.0\r\n\r\nS",
            b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
        ] {
            let said = rest(open(address, half).await).await;
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
        }
        assert!(rest(open(address, GET).await).await.ends_with("here"));
        // Nobody takes the answer: what the system holds of it can be read, and no more.
        let connection = open(address, b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n").await;
        tokio::time::sleep(10 * short).await;
        assert!(rest(connection).await.len() < 50 << 20);
    }

    #[tokio::test]
    async fn of_more_connections_than_there_may_be_one_waits_for_another() {
        let address = start(Bounds { connections: 2, ..Bounds::default() }).await;
        let (first, second) = (open(address, b"GET").await, open(address, b"GET").await);
        let mut third = open(address, GET).await;
        let mut answer = [0; 12];
        let early = tokio::time::timeout(Duration::from_millis(200), third.read_exact(&mut answer)).await;
        assert!(early.is_err(), "{answer:?}");
        drop(first);
        tokio::time::timeout(PATIENCE, third.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        drop(second);
    }
}
