//! What Envoy is told of one request, in its order.
//!
//! It is made when Envoy takes it. A body in many small pieces wants an answer to each, and one that goes back goes in pieces:
//! made at once they would be hundreds of times the body, and nobody else would be heard meanwhile.

use super::message::{self, Whose};
use super::room::Share;
use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use envoy_types::pb::google::protobuf::Struct;
use std::collections::VecDeque;

/// A piece of a body that is sent back: Envoy advises against more than 64 KiB. How it was cut when it came does not matter.
const PIECE: usize = 62_000;

/// What is still to be told.
#[derive(Default)]
pub(super) struct Outbox(VecDeque<Part>);

enum Part {
    One(Box<ProcessingResponse>),
    /// So many pieces of a request's body that Envoy has kept and sends on as they are.
    Unchanged(u64),
    Back(Back),
}

/// A body, or what of it is still to be sent back.
pub(super) struct Back {
    pub(super) whose: Whose,
    pub(super) bytes: Bytes,
    /// It ends the message.
    pub(super) end: bool,
    /// Told with the last piece.
    pub(super) metadata: Option<Struct>,
    /// Its room, until it is gone.
    pub(super) share: Option<Share>,
}

impl Outbox {
    pub(super) fn push(&mut self, told: ProcessingResponse) {
        self.0.push_back(Part::One(Box::new(told)));
    }

    /// An answer to each of so many pieces of a request's body: nothing changes in them.
    pub(super) fn unchanged(&mut self, pieces: u64) {
        self.0.push_back(Part::Unchanged(pieces));
    }

    /// Sends a body back, at least one piece of it.
    pub(super) fn send_back(&mut self, back: Back) {
        self.0.push_back(Part::Back(back));
    }
}

/// Takes what is next.
impl Iterator for Outbox {
    type Item = ProcessingResponse;

    fn next(&mut self) -> Option<ProcessingResponse> {
        loop {
            match self.0.front_mut()? {
                Part::Unchanged(0) => drop(self.0.pop_front()),
                Part::Unchanged(left) => {
                    *left -= 1;
                    return Some(message::unchanged(Whose::Request));
                }
                Part::Back(back) if back.bytes.len() > PIECE => {
                    return Some(message::streamed(back.whose, back.bytes.split_to(PIECE).into(), false));
                }
                Part::One(_) | Part::Back(_) => {
                    return Some(match self.0.pop_front()? {
                        Part::One(told) => *told,
                        Part::Back(Back { whose, bytes, end, metadata, share }) => {
                            drop(share);
                            let told = message::streamed(whose, bytes.into(), end);
                            ProcessingResponse { dynamic_metadata: metadata, ..told }
                        }
                        Part::Unchanged(_) => continue,
                    });
                }
            }
        }
    }
}
