//! A stream that ends in the middle of the answer, and what its client is told.
//!
//! A proxy or a server between here and the engine may end a stream by the rules of HTTP when the engine has died: a body without a length ends
//! where its connection does, and some end their chunks whatever happened. To the client that looks like a short answer. So
//! the end gets what the engine owed: an event that says that something went wrong, in the client's dialect, and never `[DONE]` or
//! `message_stop`, which would say that nothing did. Clients' libraries raise it as an error.

use crate::request::Dialect;
use serde_json::json;

/// What [`super::Report::error`] says of such a stream.
pub const BROKEN_OFF: &str = "broken_off";

/// The last event of such a stream. It begins with the end of the one that may be cut in two.
pub fn closing_event(dialect: Dialect) -> String {
    const WHY: &str = "the answer broke off before its end";
    match dialect {
        Dialect::Responses => {
            let event = json!({"type": "error", "code": "server_error", "message": WHY, "param": null});
            format!("\n\nevent: error\ndata: {event}\n\n")
        }
        dialect if dialect.is_anthropic() => {
            let event = json!({"type": "error", "error": {"type": "api_error", "message": WHY}});
            format!("\n\nevent: error\ndata: {event}\n\n")
        }
        _ => {
            let error = json!({"message": WHY, "type": "server_error", "param": null, "code": BROKEN_OFF});
            format!("\n\ndata: {}\n\n", json!({"error": error}))
        }
    }
}
