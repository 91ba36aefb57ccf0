//! How Envoy sends a request and its answer, and what that leaves to decide by.
//!
//! A gateway's `processing_mode` says how much comes here, and when it waits:
//!
//! | request body | the choice is made | by |
//! |---|---|---|
//! | `FULL_DUPLEX_STREAMED` | when the body is complete, or its trailers have come; nothing is answered before | all of it |
//! | `BUFFERED` | with the body, which comes whole | all of it |
//! | `STREAMED`, with `send_body_without_waiting_for_header_response` | when the body is complete | all of it |
//! | `STREAMED` without that, `NONE`, a `BUFFERED_PARTIAL` that is not whole | at the headers | the load alone: Envoy takes no headers later |
//!
//! A gateway that does not say is one that knows but the first: the protocol demands it.

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::ProtocolConfiguration;

/// How bodies come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modes {
    pub(super) request: BodySendMode,
    pub(super) response: BodySendMode,
    /// A streamed body comes before its headers were answered.
    ahead: bool,
}

impl Default for Modes {
    fn default() -> Self {
        let mode = BodySendMode::FullDuplexStreamed;
        Self { request: mode, response: mode, ahead: false }
    }
}

impl Modes {
    pub(super) fn of(config: &ProtocolConfiguration) -> Self {
        let ahead = config.send_body_without_waiting_for_header_response;
        Self { request: config.request_body_mode(), response: config.response_body_mode(), ahead }
    }

    /// Whether a choice can wait for the body.
    pub(super) fn can_wait(self) -> bool {
        match self.request {
            BodySendMode::FullDuplexStreamed | BodySendMode::Buffered | BodySendMode::BufferedPartial => true,
            BodySendMode::Streamed => self.ahead,
            _ => false,
        }
    }
}
