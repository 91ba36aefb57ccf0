//! Which model serves a request in the place of the one it names, and how neither side notices.
//!
//! [`Rules`] choose the target. [`replace`] puts its name into the body, in the place of the client's and of no other
//! byte: a body that is parsed and written anew loses large integers, key order and spelling, and with them the
//! client's trust and the engine's cache. [`Restorer`] puts the client's name back into the answer as it passes.
//!
//! **Precedence.** A model named exactly, then the longest prefix, then `*`: the order of the rules does not matter, and
//! no two rules may match by the same pattern. A target is not matched again.
//!
//! **Split.** Among several targets the one wins whose score is the highest (weighted rendezvous hashing):
//!
//! ```text
//! score = weight / -ln(u)        u = hash of session and target, uniform in (0, 1)
//! ```
//!
//! The expected share of each target is its weight's. A session keeps its target; when a weight grows, only the share
//! that it gains moves, and only to it. Ranges on a ring or `hash mod sum` would move others too. Without a session
//! the hash is of a random number.
//!
//! **Left out.** The client's name in other places than the model's own (in error messages) stays the engine's. Bodies
//! in which the model's bytes cannot be changed in place (compressed, multipart) are refused rather than sent with the
//! wrong name.

mod json;
mod restore;
mod rules;

pub use restore::Restorer;
pub use rules::{Chosen, Config, Rule, Rules, Target};

use std::ops::Range;

/// Puts `name` into `body` where `at` says that `old` is named. `false`, and no byte is changed, if it is not.
#[must_use]
pub fn replace(body: &mut Vec<u8>, at: Option<Range<usize>>, old: &str, name: &str) -> bool {
    let Some(at) = at else { return false };
    let named = body.get(at.clone()).and_then(|raw| serde_json::from_slice::<String>(raw).ok());
    if named.as_deref() != Some(old) {
        return false;
    }
    body.splice(at, quoted(name).into_bytes());
    true
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests;
