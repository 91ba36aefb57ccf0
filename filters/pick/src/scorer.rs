//! One scorer as the filter knows it: is it worth asking, and what is still to be told.
//!
//! After a failure the scorer is left alone for a while and then asked by one request, so that a scorer that
//! hangs costs a deadline now and then and not one per request. What became of requests is kept meanwhile, up
//! to a bound: what is lost beyond it costs the scorer one lease period and no more.

use crate::config;
use std::collections::VecDeque;
use std::time::Duration;
use weir::instant::Instant;
use weir::wire::{self, Event, Reserve};
use weir_host::{Call, Host, Reply};

/// Most events kept.
const KEPT: usize = 10_000;
/// Most events that travel with one request.
const WITH_A_REQUEST: usize = 64;
/// Most events that one report tells: far below the scorer's limit of a body.
const IN_A_REPORT: usize = 1_000;

/// A scorer, seen from one worker.
#[derive(Debug)]
pub(crate) struct Scorer {
    cluster: String,
    timeout: Duration,
    retry: Duration,
    up: bool,
    ask_again: Instant,
    events: VecDeque<Event>,
    /// Events of a report that has not been answered, and its call; there is one report at a time.
    telling: Option<(u32, Vec<Event>)>,
}

impl Scorer {
    pub(crate) fn new(cluster: &str, config: &config::Scorer) -> Self {
        let [timeout, retry] = [config.timeout_ms, config.retry_ms].map(|ms| Duration::from_millis(ms.get()));
        let (cluster, events) = (cluster.to_owned(), VecDeque::new());
        Self { cluster, timeout, retry, up: true, ask_again: Instant::default(), events, telling: None }
    }

    /// Whether it answered last time.
    pub(crate) fn is_up(&self) -> bool {
        self.up
    }

    /// Whether it is up, or due to be tried again; then nobody else tries for a while.
    fn worth_trying(&mut self, now: Instant) -> bool {
        if self.up {
            return true;
        }
        let due = now >= self.ask_again;
        if due {
            self.ask_again = now + self.retry;
        }
        due
    }

    /// Asks for an endpoint for the request that has this body, which may be left out. Gives what was told along with it, or
    /// `None` when nothing was sent.
    pub(crate) fn ask(&mut self, host: &dyn Host, request: &Reserve, prompt: &[u8]) -> Option<Vec<Event>> {
        if !self.worth_trying(host.now()) {
            return None;
        }
        let events = self.events.drain(..self.events.len().min(WITH_A_REQUEST)).collect();
        let request = Reserve { events, ..request.clone() };
        let body = request.write(prompt);
        if self.send(host, wire::RESERVE_PATH, &body, self.timeout).is_none() {
            self.tell_again(request.events);
            return None;
        }
        Some(request.events)
    }

    /// Makes a call of another kind, whose reply is to be [`Scorer::answered`], if it is worth it.
    pub(crate) fn call(
        &mut self,
        host: &dyn Host,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Option<u32> {
        if self.worth_trying(host.now()) { self.send(host, path, body, timeout) } else { None }
    }

    /// It answered, and what it says makes no sense.
    pub(crate) fn babbles(&mut self, host: &dyn Host) {
        self.failed(host, Vec::new(), "what it says makes no sense");
    }

    fn send(&mut self, host: &dyn Host, path: &str, body: &[u8], timeout: Duration) -> Option<u32> {
        let call = host.call(&Call { cluster: &self.cluster, path, body, timeout });
        if call.is_none() {
            self.failed(host, Vec::new(), "no such cluster, or it is empty");
        }
        call
    }

    /// Whether the scorer itself has answered, as one that may be asked; if not, `told` is still to be told.
    pub(crate) fn answered(&mut self, host: &dyn Host, reply: &Reply, told: Vec<Event>) -> bool {
        let signed = reply.headers.get(wire::SCORER);
        match signed {
            None => {
                let status = reply.headers.get(":status").unwrap_or("none");
                self.failed(host, told, &format!("no answer in time (status {status})"));
            }
            Some(wire::JOINING) => self.failed(host, told, "it does not know yet what the others know"),
            Some(_) if !self.up => {
                log::info!("weir-pick: scorer {} answers again", self.cluster);
                self.up = true;
            }
            Some(_) => {}
        }
        self.up
    }

    fn failed(&mut self, host: &dyn Host, untold: Vec<Event>, why: &str) {
        if self.up {
            log::warn!("weir-pick: choosing without scorer {}: {why}", self.cluster);
        }
        self.up = false;
        self.ask_again = host.now() + self.retry;
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

    /// Notes that a request was booked here. Says whether it will be told: while much waits already, what is over there is better
    /// told than what begins, and the other half is for the ends of these.
    pub(crate) fn note_booked(&mut self, event: Event) -> bool {
        let fits = self.events.len() < KEPT / 2;
        if fits {
            self.events.push_back(event);
        }
        fits
    }

    /// What was to be told.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Event> {
        self.events.drain(..)
    }

    /// Tells what has been noted, if there is anything and somebody to tell.
    /// `alone`: there is no other, and nobody minds whether it is back before there is something to tell.
    pub(crate) fn report(&mut self, host: &dyn Host, alone: bool) {
        let nothing = self.events.is_empty() && (self.up || alone);
        if nothing || self.telling.is_some() || !self.worth_trying(host.now()) {
            return;
        }
        let telling: Vec<Event> = self.events.drain(..self.events.len().min(IN_A_REPORT)).collect();
        let body = serde_json::to_vec(&telling).unwrap_or_default();
        match self.send(host, wire::REPORT_PATH, &body, self.timeout) {
            Some(call) => self.telling = Some((call, telling)),
            None => self.tell_again(telling),
        }
    }

    /// Whether this call is its report.
    pub(crate) fn called(&self, call: u32) -> bool {
        self.telling.as_ref().is_some_and(|(own, _)| *own == call)
    }

    /// Its report has been answered, by the scorer or in its place.
    pub(crate) fn told(&mut self, host: &dyn Host, reply: &Reply) {
        if let Some((_, told)) = self.telling.take() {
            self.answered(host, reply, told);
        }
    }
}
