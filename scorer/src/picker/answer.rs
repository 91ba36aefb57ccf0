//! The answer: when its first token came, what it used, how it ended; and with it the lease.
//!
//! With the body sent here this is `meter`'s reading of it. Without it, the headers stand for the first token and the end of
//! the gRPC stream for the end of the request, and nothing is known of usage. A stream that ends before its answer says
//! nothing of the endpoint: the client may have left.

use super::Picker;
use super::lease::Lease;
use super::message::{self, Headers, Whose};
use super::outbox::{Back, Outbox};
use crate::clock;
use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpBody, HttpHeaders, ProcessingResponse};
use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use std::sync::Arc;
use std::time::Duration;
use weir::breaker::{Outcome, retry_after};
use weir::instant::Instant;
use weir::request::Size;
use weir::response::{Progress, Reader, Report, Status};
use weir::wire;

/// Header of GIE's conformance tests: the endpoint that served.
const SERVED: &str = "x-conformance-test-served-endpoint";

/// The answer to one request.
pub(super) struct Answer {
    picker: Arc<Picker>,
    lease: Option<Lease>,
    /// The model and the size of the prompt, if the answer is to be learned from.
    pub(super) estimated: Option<(String, Option<u64>, Size)>,
    status: u16,
    retry_after: Option<Duration>,
    reader: Option<Reader>,
    sent: Instant,
    first: Option<Instant>,
    last: Instant,
}

impl Answer {
    pub(super) fn new(picker: Arc<Picker>) -> Self {
        Self {
            picker,
            lease: None,
            estimated: None,
            status: 0,
            retry_after: None,
            reader: None,
            sent: Instant::default(),
            first: None,
            last: Instant::default(),
        }
    }

    /// The request goes on, and holds this until its end.
    pub(super) fn awaits(&mut self, lease: Lease) {
        self.sent = self.picker.scorer.now();
        self.lease = Some(lease);
    }

    /// The headers have come. `body_comes`: what follows is sent here too.
    pub(super) fn headers(
        &mut self,
        asked: &HttpHeaders,
        metadata: Option<&Metadata>,
        body_comes: bool,
    ) -> ProcessingResponse {
        let served = metadata.and_then(served);
        if let (Some(lease), Some(address)) = (&mut self.lease, served) {
            lease.served(address);
        }
        let all = message::headers(asked.headers.as_ref());
        let value =
            |wanted: &str| all.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_ref());
        self.status = value(":status").and_then(|status| status.parse().ok()).unwrap_or(0);
        self.retry_after = retry_after(all.iter().map(|(name, value)| (*name, value.as_ref())), clock::wall);
        match body_comes && !asked.end_of_stream {
            true => {
                let text = |name: &str| value(name).unwrap_or_default();
                self.reader = Some(Reader::new(text("content-type"), text("content-encoding")));
            }
            false => {
                self.token(self.picker.scorer.now());
                if let Some(lease) = &mut self.lease {
                    lease.came_to(Outcome::of_status(self.status, self.retry_after), None);
                }
            }
        }
        if asked.end_of_stream {
            self.lease = None;
        }
        let mut headers = Headers::default();
        if self.picker.config.conformance {
            headers.set(SERVED, served.unwrap_or("fail: missing destination endpoint served metadata"));
        }
        message::response_headers(headers.of_response())
    }

    /// A piece of the body has come.
    pub(super) fn body(&mut self, piece: HttpBody, duplex: bool, out: &mut Outbox) {
        if let Some(reader) = self.reader.as_mut().filter(|_| !piece.body.is_empty()) {
            let now = self.picker.scorer.now();
            let is_first = reader.feed(&piece.body) == Progress::FirstToken || !reader.is_stream();
            self.last = now;
            if is_first {
                self.token(now);
            }
        }
        let usage = if piece.end_of_stream { self.finish() } else { None };
        match duplex {
            true => out.send_back(Back {
                whose: Whose::Response,
                bytes: piece.body.into(),
                end: piece.end_of_stream,
                metadata: usage,
                share: None,
            }),
            false => out
                .push(ProcessingResponse { dynamic_metadata: usage, ..message::unchanged(Whose::Response) }),
        }
    }

    pub(super) fn trailers(&mut self, out: &mut Outbox) {
        let usage = self.finish();
        out.push(ProcessingResponse { dynamic_metadata: usage, ..message::response_trailers() });
    }

    fn token(&mut self, now: Instant) {
        if self.first.is_none() {
            self.first = Some(now);
            if let Some(lease) = &mut self.lease {
                lease.first_token();
            }
        }
    }

    /// It has come to its end. Gives what it used, for the access log.
    fn finish(&mut self) -> Option<Struct> {
        let lease = self.lease.take();
        let report = self.reader.take()?.end(true);
        let outcome = match &report.error {
            Some(kind) if self.status < 400 => Outcome::of_error(kind),
            _ => Outcome::of_status(self.status, self.retry_after),
        };
        let output = report.output().map(|output| u32::try_from(output).unwrap_or(u32::MAX));
        if let Some(mut lease) = lease {
            lease.came_to(outcome, output);
        }
        let counted = report.usage.filter(|_| report.status == Status::Complete);
        if let (Some((model, client, size)), Some(usage)) = (self.estimated.take(), counted) {
            self.picker.learn(&model, client, size, usage.input);
        }
        let line = wire::write_usage(&report, self.ttft_ms(), self.tpot_ms(&report));
        Some(Struct { fields: [message::metadata(message::LOG, "usage", line)].into() })
    }

    fn ttft_ms(&self) -> Option<f64> {
        Some(self.first?.since(self.sent).as_secs_f64() * 1e3)
    }

    fn tpot_ms(&self, report: &Report) -> Option<f64> {
        let output = report.usage.map_or(report.delivered(), |usage| usage.output);
        let further = output.checked_sub(1).filter(|further| *further > 0)?;
        Some(self.last.since(self.first?).as_secs_f64() * 1e3 / further as f64)
    }
}

/// The endpoint that served, as the gateway says.
fn served(metadata: &Metadata) -> Option<&str> {
    let value = metadata.filter_metadata.get(message::LB)?.fields.get(message::SERVED)?;
    match value.kind.as_ref()? {
        Kind::StringValue(address) => Some(address),
        _ => None,
    }
}
