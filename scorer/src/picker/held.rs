//! A request whose body is awaited.
//!
//! The body is one buffer, however it is cut: a piece of one byte, or of none, costs no more here than its bytes. How long it
//! may be, how much room it finds beside others, and how long it may take, are bounded.

use super::hint::Subset;
use super::message::Headers;
use super::room::Share;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;
use weir::request::Incoming;

/// What the headers of a request have told.
#[derive(Default)]
pub(super) struct Known {
    /// What changes in them.
    pub(super) headers: Headers,
    /// The endpoints that the gateway allows.
    pub(super) hint: Option<Subset>,
    /// The endpoints that a conformance test wants.
    pub(super) wanted: Option<Subset>,
}

/// A request whose body is not complete.
pub(super) struct Held {
    pub(super) incoming: Incoming,
    pub(super) known: Known,
    pub(super) body: Body,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What has come of a body.
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// In how many pieces.
    pub(super) pieces: u64,
    pub(super) share: Share,
}

/// Why a body gets no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// It is as long as one may be.
    Body,
    /// There is no room for more of it.
    Room,
}

impl Held {
    pub(super) fn new(incoming: Incoming, known: Known, share: Share) -> Self {
        Self { incoming, known, body: Body { bytes: Vec::new(), pieces: 0, share }, timer: None }
    }

    /// Ready once it has taken as long as it may, from the first call on.
    pub(super) fn poll_late(&mut self, limit: Duration, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(context)
    }
}

impl Body {
    /// Takes a piece; the whole may have `most` bytes.
    pub(super) fn take(&mut self, piece: Vec<u8>, most: usize) -> Result<(), Full> {
        if self.bytes.len().saturating_add(piece.len()) > most {
            return Err(Full::Body);
        }
        if !self.share.grow(piece.len()) {
            return Err(Full::Room);
        }
        self.pieces = self.pieces.saturating_add(1);
        match self.bytes.is_empty() {
            true => self.bytes = piece,
            false => self.bytes.extend_from_slice(&piece),
        }
        Ok(())
    }
}
