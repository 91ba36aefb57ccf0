//! A connection on which nothing may stand still: a read or a write that waits for longer than it may fails.
//!
//! A timer that begins anew with each byte would cost more than what is asked here: to set one to an earlier time wakes the thread
//! that sleeps by it, one system call per request. So each direction has one timer that is left alone. When it rings, it is seen
//! since when there is something to wait for, and it is set to the end of that.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A connection, watched.
pub(super) struct Still<T> {
    connection: T,
    most: Duration,
    reads: Direction,
    writes: Direction,
}

/// One direction of it.
#[derive(Default)]
struct Direction {
    /// Since when it waits, if it does.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> Still<T> {
    /// One on which neither direction may wait for longer than that.
    pub(super) fn new(connection: T, most: Duration) -> Self {
        Self { connection, most, reads: Direction::default(), writes: Direction::default() }
    }
}

impl Direction {
    /// Passes on what came of a step, unless it has waited for too long.
    fn passed<R>(
        &mut self,
        step: Poll<io::Result<R>>,
        most: Duration,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<R>> {
        if step.is_ready() {
            self.since = None;
            return step;
        }
        let end = *self.since.get_or_insert_with(Instant::now) + most;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        while timer.as_mut().poll(context).is_ready() {
            if Instant::now() >= end {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Still<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { connection, most, reads, .. } = self.get_mut();
        let step = Pin::new(connection).poll_read(context, buffer);
        reads.passed(step, *most, context)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Still<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { connection, most, writes, .. } = self.get_mut();
        let step = Pin::new(connection).poll_write(context, bytes);
        writes.passed(step, *most, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { connection, most, writes, .. } = self.get_mut();
        let step = Pin::new(connection).poll_write_vectored(context, slices);
        writes.passed(step, *most, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { connection, most, writes, .. } = self.get_mut();
        let step = Pin::new(connection).poll_flush(context);
        writes.passed(step, *most, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { connection, most, writes, .. } = self.get_mut();
        let step = Pin::new(connection).poll_shutdown(context);
        writes.passed(step, *most, context)
    }
}
