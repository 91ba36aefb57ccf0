//! What became of requests, for Prometheus: each counts once, as soon as it is decided, and whoever is gone before that counts too.
//!
//! One counter by outcome, so that the outcomes add up to the requests. Its labels are these and nothing that a client sent.

use super::message;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use std::sync::Arc;
use weir::request::Refusal;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was given an endpoint, which is booked.
    Chosen,
    /// It is none of any pool's.
    Passed,
    /// All endpoints are full or busy: 429, `rejected-saturated`.
    Saturated,
    /// No endpoint may be sent to: 503, `rejected-no-endpoints`.
    NoEndpoints,
    /// No pool serves its model: 404.
    UnknownModel,
    /// No endpoint takes a prompt as long as that: 400.
    TooLong,
    /// It cannot be read for certain: 400.
    Unreadable,
    /// Its content type or encoding is not one that is read: 415.
    Unsupported,
    /// Its body is longer than one may be: 413.
    TooLarge,
    /// Its body took too long: 408.
    TooSlow,
    /// Its body found no room beside others: 503.
    NoRoom,
    /// A message of the gateway could not be decoded, or made no sense where it came; the failure mode applied.
    Undecodable,
    /// Its stream ended before it was decided: the client left, or the gateway.
    Left,
}

impl Outcome {
    /// All of them, as the metric names them.
    const ALL: [(Self, &str); 13] = [
        (Self::Chosen, "chosen"),
        (Self::Passed, "passed"),
        (Self::Saturated, "saturated"),
        (Self::NoEndpoints, "no_endpoints"),
        (Self::UnknownModel, "unknown_model"),
        (Self::TooLong, "too_long"),
        (Self::Unreadable, "unreadable"),
        (Self::Unsupported, "unsupported"),
        (Self::TooLarge, "too_large"),
        (Self::TooSlow, "too_slow"),
        (Self::NoRoom, "no_room"),
        (Self::Undecodable, "undecodable"),
        (Self::Left, "left"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(outcome, _)| *outcome == self).map_or("", |(_, name)| name)
    }

    /// Of a request that is refused for what it is.
    fn of_status(status: u16) -> Self {
        match status {
            404 => Self::UnknownModel,
            408 => Self::TooSlow,
            413 => Self::TooLarge,
            415 => Self::Unsupported,
            503 => Self::NoRoom,
            _ => Self::Unreadable,
        }
    }
}

/// A request that goes no further: as what it counts, and what its client is told.
pub(super) struct Refused {
    pub(super) outcome: Outcome,
    pub(super) told: ProcessingResponse,
}

impl Refused {
    pub(super) fn new(outcome: Outcome, told: ProcessingResponse) -> Box<Self> {
        Box::new(Self { outcome, told })
    }

    /// It is refused for what it is; `more` headers go with the answer.
    pub(super) fn of(refusal: &Refusal, more: &[(&str, &str)]) -> Box<Self> {
        Self::new(Outcome::of_status(refusal.status), message::refused(refusal, more))
    }
}

/// All that a picker counts.
#[derive(Debug)]
pub(crate) struct Counters {
    requests: IntCounterVec,
    streams: IntGauge,
}

impl Counters {
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new(
                "weir_picker_requests_total",
                "Requests that a gateway asked the picker about, by outcome.",
            ),
            &["outcome"],
        )?;
        let streams = IntGauge::new(
            "weir_picker_streams",
            "Requests of gateways that are with the picker: awaited, decided, or being answered.",
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(streams.clone()))?;
        Ok(Self { requests, streams })
    }

    /// So that what never happened reads 0.
    pub(super) fn know(&self) {
        for (_, name) in Outcome::ALL {
            self.requests.with_label_values(&[name]);
        }
    }
}

/// One request, counted once.
#[derive(Debug)]
pub(super) struct Counted {
    counters: Arc<Counters>,
    is_decided: bool,
}

impl Counted {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        counters.streams.inc();
        Self { counters, is_decided: false }
    }

    /// It came to this, unless it had come to something before.
    pub(super) fn came_to(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.is_decided, true) {
            self.counters.requests.with_label_values(&[outcome.name()]).inc();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.came_to(Outcome::Left);
        self.counters.streams.dec();
    }
}
