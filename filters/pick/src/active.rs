//! Tries endpoints that are out, so that no client's request has to: by calls through the cluster that requests take, each led to
//! its endpoint by the same header. What is asked, and what an answer says, is the core's (`weir::breaker::ActiveProbe`).
//!
//! To everybody it is a probe like any other: a lease of no tokens, booked and ended, told to the other workers. Which worker
//! makes it the shared slot says (`probes.rs`).

use crate::Pick;
use crate::probes::Slot;
use std::collections::VecDeque;
use std::time::Duration;
use weir::breaker::{ActiveProbe, Class, Outcome, Question, Reason};
use weir::pool::{Ask, LeaseId, Message, Spec};
use weir_host::{Fetch, Host, Reply};

/// The probes that are out.
#[derive(Debug)]
pub(crate) struct Active {
    /// By the place of the pool: the cluster of its endpoints.
    clusters: Vec<String>,
    out: Vec<Out>,
}

#[derive(Debug)]
struct Out {
    call: u32,
    place: usize,
    endpoint: String,
    lease: LeaseId,
    slot: Slot,
    /// What is still to be asked.
    rest: VecDeque<Question>,
    timeout: Duration,
}

impl Active {
    pub(crate) fn new(pools: &[Spec]) -> Self {
        let cluster = |spec: &Spec| spec.cluster.as_ref().unwrap_or(&spec.name).clone();
        Self { clusters: pools.iter().map(cluster).collect(), out: Vec::new() }
    }

    /// Whether this call is one of these.
    pub(crate) fn called(&self, call: u32) -> bool {
        self.out.iter().any(|out| out.call == call)
    }
}

impl Pick {
    /// Tries the endpoints that are due, those that no other worker tries.
    pub(crate) fn probe_actively(&mut self, host: &dyn Host) {
        let now = host.now();
        let mut due = Vec::new();
        for (place, (name, pool)) in self.pools.iter_mut().enumerate() {
            let Some(probe) = pool.active_probe() else { continue };
            let (questions, timeout) = (VecDeque::from(probe.questions()), probe.timeout());
            // Both calls, and what Envoy may be late with them.
            let until = now + timeout.saturating_mul(2) + Duration::from_secs(1);
            for endpoint in pool.to_probe(now) {
                let lease = self.random.next();
                let slots = self.peers.slots(name, endpoint);
                if let Some(slot) = Slot::take(host, slots, lease, pool.most_probes(), until) {
                    let endpoint = endpoint.to_owned();
                    due.push(Out { call: 0, place, endpoint, lease, slot, rest: questions.clone(), timeout });
                }
            }
        }
        for out in due {
            let booked = Message::booked(out.place as u16, out.lease, &out.endpoint, &Ask::default(), true);
            self.pools.hear(&booked, now);
            self.tell(host, &booked);
            self.ask_next(host, out);
        }
    }

    /// Asks the next question; when there is none, the probe has succeeded.
    fn ask_next(&mut self, host: &dyn Host, mut out: Out) {
        let Some(Question { path, body }) = out.rest.pop_front() else {
            return self.probe_over(host, out, &Outcome::of_status(200, None));
        };
        let cluster = self.active.clusters.get(out.place).map_or("", String::as_str);
        let (endpoint, timeout) = (&*out.endpoint, out.timeout);
        match host.fetch(&Fetch { cluster, endpoint, path: &path, body: &body, timeout }) {
            Some(call) => self.active.out.push(Out { call, ..out }),
            // The cluster is none, or empty.
            None => self.probe_over(host, out, &Outcome::failed(Reason::Connect)),
        }
    }

    /// A question was answered, by the endpoint or in its place.
    pub(crate) fn probed(&mut self, host: &dyn Host, call: u32, reply: &Reply) {
        let Some(at) = self.active.out.iter().position(|out| out.call == call) else { return };
        let out = self.active.out.swap_remove(at);
        let status = reply.headers.get(":status").and_then(|status| status.parse().ok()).unwrap_or(0);
        let outcome = ActiveProbe::outcome(status);
        match outcome.class() {
            Class::Success => self.ask_next(host, out),
            _ => self.probe_over(host, out, &outcome),
        }
    }

    fn probe_over(&mut self, host: &dyn Host, out: Out, outcome: &Outcome) {
        let Out { place, endpoint, lease, slot, .. } = out;
        let pool = place as u16;
        if let Some((_, own)) = self.pools.get(place) {
            let moved = own.attempted(lease, &endpoint, outcome, host.now());
            own.end(lease);
            self.moved(host, place, &endpoint, outcome, moved);
        }
        self.tell(host, &Message::Attempted { pool, lease, endpoint, outcome: *outcome });
        self.tell(host, &Message::End { pool, lease, answered: None });
        slot.give_back(host);
    }
}
