//! Another model than the client named: renamed in the body while the headers are held, and back in the answer.
//!
//! Only requests that were renamed cost anything behind that: their answers are read and, where the name stands, written
//! anew. Such an answer goes without `content-length`, since its headers leave before the length is known, and is asked
//! for uncompressed: what is compressed cannot be edited here. (A compressor before this filter in the chain
//! compresses it all the same.)

use weir::request::{Dialect, Refusal};
use weir::rewrite::{Restorer, Rules};
use weir::wire;
use weir_host::{Body, Host, Kind, Metric, Of};

/// The rules, and what is counted of them.
#[derive(Debug)]
pub(crate) struct Rewrite {
    rules: Rules,
    /// Requests, by the target's place.
    chosen: Vec<Metric>,
    unrestored: Metric,
}

impl Rewrite {
    pub(crate) fn new(rules: Rules, host: &dyn Host) -> Self {
        let chosen =
            |target: &str| host.define(Kind::Counter, &format!("weir_rewrites_total;model={target}"));
        Self {
            chosen: rules.targets().map(chosen).collect(),
            unrestored: host.define(Kind::Counter, "weir_extract_unrestored_total"),
            rules,
        }
    }

    /// The model that serves `model`, if a rule says so. `session` stands for the request's.
    pub(crate) fn target(&self, host: &dyn Host, model: &str, session: Option<u64>) -> Option<String> {
        if self.rules.is_empty() {
            return None;
        }
        let chosen = self.rules.choose(model, || session.unwrap_or_else(|| host.random()))?;
        if let Some(metric) = self.chosen.get(chosen.place) {
            host.add(*metric, 1);
        }
        Some(chosen.model.to_owned())
    }

    /// The headers of a renamed request's answer are here. Gives what puts the client's name into its body.
    pub(crate) fn restorer(&self, host: &dyn Host, name: &str) -> Option<Restorer> {
        let headers = host.headers(Of::Response);
        let value = |name: &str| headers.get(name).unwrap_or_default();
        let restorer = Restorer::new(value("content-type"), value("content-encoding"), name);
        if restorer.is_none() {
            host.add(self.unrestored, 1);
        } else if headers.get(wire::CONTENT_LENGTH).is_some() {
            host.remove_header(Of::Response, wire::CONTENT_LENGTH);
        }
        restorer
    }
}

/// Sends the request on with another body; `len`: what the length of the first was. It has a length then, also where the
/// client sent it in chunks: all of it is here, and some engines want one.
pub(crate) fn send(host: &dyn Host, len: usize, body: &[u8]) {
    host.set_body(Of::Request, len, body);
    host.set_header(Of::Request, wire::CONTENT_LENGTH, &body.len().to_string());
    host.set_header(Of::Request, wire::ACCEPT_ENCODING, "identity");
}

/// A piece of the answer is here.
pub(crate) fn restore(restorer: &mut Restorer, host: &dyn Host, piece: Body) {
    let bytes = if piece.len == 0 { Vec::new() } else { host.body(Of::Response, 0, piece.len) };
    if let Some(edited) = restorer.feed(&bytes, piece.end) {
        host.set_body(Of::Response, piece.len, &edited);
    }
}

/// The refusal of a request that cannot be renamed: it must not go on with the wrong name.
pub(crate) fn cannot(dialect: Dialect, model: &str) -> Refusal {
    let why = format!(
        "model: {model:?} is served by another model here, and this gateway can say so only in plain JSON; send \
         application/json without content-encoding"
    );
    Refusal::new(dialect, 415, why)
}
