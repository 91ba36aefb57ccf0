//! `weir explain`: what the filters would make of one request or one answer, and the scorer of an engine's metrics, as
//! one line of JSON.
//!
//! For the question "why did it go there" or "why is its usage missing" about a body at hand: the same functions
//! of the core are called that `extract` and `meter` call.

mod metrics;
mod raw;
mod request;
mod response;

pub use metrics::{Metrics, metrics};
pub use raw::{Raw, RawError};
pub use request::{Request, request};
pub use response::{Response, response};

/// A header as it is given on the command line, `name: value`.
pub fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

/// The value of a header; the last one where it comes twice.
fn value<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
}
