//! The scorer as the filter knows it: is it worth asking, and what is still to be told.
//!
//! After a failure the scorer is left alone for a while and then asked by one request, so that a scorer that
//! hangs costs a deadline now and then and not one per request. What became of requests is kept meanwhile, up
//! to a bound: what is lost beyond it costs the scorer one lease period and no more.

use crate::config;
use std::collections::VecDeque;
use std::time::Duration;
use weir::instant::Instant;
use weir::wire::{self, Event, Reserve, Reserved};
use weir_host::{Call, Host, Reply};

/// Most events kept.
const KEPT: usize = 10_000;
/// Most events that travel with one request.
const WITH_A_REQUEST: usize = 64;
/// Most events that one report tells: far below the scorer's limit of a body.
const IN_A_REPORT: usize = 1_000;

/// The scorer, seen from one worker.
#[derive(Debug)]
pub(crate) struct Scorer {
    config: config::Scorer,
    up: bool,
    ask_again: Instant,
    events: VecDeque<Event>,
    /// Events of a report that has not been answered; there is one report at a time.
    telling: Vec<Event>,
}

impl Scorer {
    pub(crate) fn new(config: config::Scorer) -> Self {
        let (events, telling) = (VecDeque::new(), Vec::new());
        Self { config, up: true, ask_again: Instant::default(), events, telling }
    }

    /// How often [`Scorer::report`] is due.
    pub(crate) fn report_every(&self) -> Duration {
        Duration::from_millis(self.config.report_ms.get())
    }

    /// Whether it is to hear how answers went.
    pub(crate) fn telemetry(&self) -> bool {
        self.config.telemetry
    }

    /// Whether it is up, or due to be tried again; then nobody else tries for a while.
    fn worth_trying(&mut self, now: Instant) -> bool {
        if self.up {
            return true;
        }
        let due = now >= self.ask_again;
        if due {
            self.ask_again = now + Duration::from_millis(self.config.retry_ms.get());
        }
        due
    }

    /// Asks for an endpoint. Gives what was told along with it, or `None` when nothing was sent.
    pub(crate) fn ask(&mut self, host: &dyn Host, mut request: Reserve) -> Option<Vec<Event>> {
        if !self.worth_trying(host.now()) {
            return None;
        }
        request.events = self.events.drain(..self.events.len().min(WITH_A_REQUEST)).collect();
        let body = serde_json::to_vec(&request).unwrap_or_default();
        let sent = self.send(host, wire::RESERVE_PATH, &body);
        if !sent {
            self.failed(host, request.events, "no such cluster, or it is empty");
            return None;
        }
        Some(request.events)
    }

    fn send(&self, host: &dyn Host, path: &str, body: &[u8]) -> bool {
        let timeout = Duration::from_millis(self.config.timeout_ms.get());
        host.call(&Call { cluster: &self.config.cluster, path, body, timeout }).is_some()
    }

    /// Reads the answer; `told` is what [`Scorer::ask`] gave. `None` when the choice has to be made here.
    pub(crate) fn answer(&mut self, host: &dyn Host, reply: &Reply, told: Vec<Event>) -> Option<Reserved> {
        if !self.answered(host, reply, told) {
            return None;
        }
        // It may be there and say no: it knows no such pool, or the pool has no endpoint. That is no failure of it.
        serde_json::from_slice(&reply.body).ok().filter(|_| reply.headers.get(":status") == Some("200"))
    }

    /// Whether the scorer itself has answered; if not, `told` is still to be told.
    fn answered(&mut self, host: &dyn Host, reply: &Reply, told: Vec<Event>) -> bool {
        let answered = reply.headers.get(wire::SCORER).is_some();
        if !answered {
            let status = reply.headers.get(":status").unwrap_or("none");
            self.failed(
                host,
                told,
                &format!("no answer within {} ms (status {status})", self.config.timeout_ms),
            );
        } else if !self.up {
            log::info!("weir-pick: the scorer answers again");
            self.up = true;
        }
        answered
    }

    fn failed(&mut self, host: &dyn Host, untold: Vec<Event>, why: &str) {
        if self.up {
            log::warn!("weir-pick: choosing without the scorer: {why}");
        }
        self.up = false;
        self.ask_again = host.now() + Duration::from_millis(self.config.retry_ms.get());
        self.tell_again(untold);
    }

    /// Keeps what may not have been heard. Told twice it does no harm.
    pub(crate) fn tell_again(&mut self, untold: Vec<Event>) {
        untold.into_iter().rev().for_each(|event| self.events.push_front(event));
        self.events.truncate(KEPT);
    }

    /// Notes what became of a request.
    pub(crate) fn note(&mut self, event: Event) {
        if self.events.len() < KEPT {
            self.events.push_back(event);
        }
    }

    /// Tells what has been noted, if there is anything and somebody to tell.
    pub(crate) fn report(&mut self, host: &dyn Host) {
        if self.events.is_empty() || !self.telling.is_empty() || !self.worth_trying(host.now()) {
            return;
        }
        self.telling = self.events.drain(..self.events.len().min(IN_A_REPORT)).collect();
        let body = serde_json::to_vec(&self.telling).unwrap_or_default();
        if !self.send(host, wire::REPORT_PATH, &body) {
            let untold = std::mem::take(&mut self.telling);
            self.failed(host, untold, "no such cluster, or it is empty");
        }
    }

    /// A report has been answered, by the scorer or in its place.
    pub(crate) fn told(&mut self, host: &dyn Host, reply: &Reply) {
        let told = std::mem::take(&mut self.telling);
        self.answered(host, reply, told);
    }
}
