//! The listener: HTTP/1.1 and prior-knowledge HTTP/2 on one port, and an end as abrupt as a crash.
//!
//! `axum::serve` only ends gracefully, so connections are kept in a set that can be aborted. A crash is
//! told from a stop by the reset: with a linger of zero a dropped socket sends RST instead of FIN.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Most HTTP/2 streams on a connection: more than any test has in flight.
const STREAMS: u32 = 16_384;
/// Pause after a failed accept (out of file descriptors, usually).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whether the engine serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Up,
    /// Asked to stop: connections are closed.
    Stopped,
    /// Asked to fail: connections are reset.
    Dead,
}

/// Serves until life changes from `Up`, then drops listener and connections.
pub(crate) async fn serve(listener: TcpListener, router: Router, mut life: watch::Receiver<Life>) {
    let reset = Arc::new(AtomicBool::new(false));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = life.changed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Fails only on a connection that is already gone.
                    let _ = stream.set_nodelay(true);
                    let socket = Socket { stream, reset: reset.clone() };
                    connections.spawn(connection(socket, router.clone()));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    reset.store(*life.borrow() == Life::Dead, Ordering::Relaxed);
    connections.shutdown().await;
}

async fn connection(socket: Socket, router: Router) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    // Tests cancel many streams at once, which hyper would otherwise take for an attack.
    http.http2()
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(STREAMS as usize)
        .max_header_list_size(1 << 20);
    // An error means that the client broke off, which the request's own drop has dealt with.
    let _ = http.serve_connection(TokioIo::new(socket), TowerToHyperService::new(router)).await;
}

/// A TCP connection that can end with a reset.
struct Socket {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // Fails only on a connection that is already gone.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
