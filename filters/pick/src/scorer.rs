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

/// The scorer, seen from one worker.
#[derive(Debug)]
pub(crate) struct Scorer {
    config: config::Scorer,
    up: bool,
    ask_again: Instant,
    events: VecDeque<Event>,
}

impl Scorer {
    pub(crate) fn new(config: config::Scorer) -> Self {
        Self { config, up: true, ask_again: Instant::default(), events: VecDeque::new() }
    }

    /// How often [`Scorer::report`] is due.
    pub(crate) fn report_every(&self) -> Duration {
        Duration::from_millis(self.config.report_ms.get())
    }

    /// Asks for an endpoint. Gives what was told along with it, or `None` when nothing was sent.
    pub(crate) fn ask(&mut self, host: &dyn Host, mut request: Reserve) -> Option<Vec<Event>> {
        let now = host.now();
        if !self.up {
            if now < self.ask_again {
                return None;
            }
            self.ask_again = now + Duration::from_millis(self.config.retry_ms.get());
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
        host.call(&Call { cluster: &self.config.cluster, path, body, timeout })
    }

    /// Reads the answer; `told` is what [`Scorer::ask`] gave. `None` when the choice has to be made here.
    pub(crate) fn answer(&mut self, host: &dyn Host, reply: &Reply, told: Vec<Event>) -> Option<Reserved> {
        let status = reply.headers.get(":status").unwrap_or("none");
        if reply.headers.get(wire::SCORER).is_none() {
            self.failed(
                host,
                told,
                &format!("no answer within {} ms (status {status})", self.config.timeout_ms),
            );
            return None;
        }
        if !self.up {
            log::info!("weir-pick: the scorer answers again");
            self.up = true;
        }
        // It is there and says no: it knows no such pool, or the pool has no endpoint. That is no failure of it.
        serde_json::from_slice(&reply.body).ok().filter(|_| status == "200")
    }

    fn failed(&mut self, host: &dyn Host, untold: Vec<Event>, why: &str) {
        if self.up {
            log::warn!("weir-pick: choosing without the scorer: {why}");
        }
        self.up = false;
        self.ask_again = host.now() + Duration::from_millis(self.config.retry_ms.get());
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
        if !self.up || self.events.is_empty() {
            return;
        }
        let events: Vec<Event> = self.events.drain(..).collect();
        let body = serde_json::to_vec(&events).unwrap_or_default();
        if !self.send(host, wire::REPORT_PATH, &body) {
            self.events.extend(events);
        }
    }
}
