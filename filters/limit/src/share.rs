//! The scorer as `limit` knows it: what it has granted to this proxy, and whether it can be asked.
//!
//! A request waits for it only when this proxy's allowance does not suffice. Everything else is renewed between requests,
//! many keys in one call. After a failure the scorer is left alone for a while, and then tried by a renewal: no request
//! waits for one that is known to hang.

use std::collections::HashMap;
use std::time::Duration;
use weir::instant::Instant;
use weir::limit::{
    Claim, Claims, FailureMode, Grants, Heard, Hold, Limits, Renewal, Share, Short, Spend, Store,
};
use weir::wire;
use weir_host::roll::BEAT;
use weir_host::{Call, Host, Kind, Metric, Reply};

/// Most keys that are renewed by one call: far below the scorer's limit of a body.
const AT_ONCE: usize = 500;
/// Most keys that a worker renews; of the others what was granted lapses, and is claimed again when it is needed.
const MOST_KEYS: usize = 100_000;

/// The scorer, seen from one worker.
#[derive(Debug)]
pub(crate) struct Sharing {
    config: Share,
    /// This Envoy, whichever the worker.
    proxy: u64,
    up: bool,
    try_again: Instant,
    /// Keys in use, and when to look at them.
    active: HashMap<Hold, Instant>,
    /// What requests of this worker wait for: cost and number.
    waiting: HashMap<Hold, (Spend, u64)>,
    renewing: Option<Asked>,
    /// Ticks before this are not its own.
    next: Instant,
    metrics: Metrics,
}

/// A call that has not been answered.
#[derive(Debug)]
pub(crate) struct Asked {
    call: u32,
    holds: Vec<Hold>,
    sent: Instant,
}

#[derive(Debug)]
struct Metrics {
    up: Metric,
    asked: Metric,
    alone: Metric,
    refused: Metric,
}

impl Sharing {
    pub(crate) fn new(config: Share, host: &dyn Host) -> Self {
        let counter = |name: &str| host.define(Kind::Counter, &format!("weir_limit_share_{name}_total"));
        let metrics = Metrics {
            up: host.define(Kind::Gauge, "weir_limit_share_up"),
            asked: counter("asked"),
            alone: counter("alone"),
            refused: counter("refused"),
        };
        host.record(metrics.up, 1);
        let proxy = super::drawn(host, "weir.limit.proxy");
        let (active, waiting) = Default::default();
        let (try_again, next) = Default::default();
        let (up, renewing) = (true, None);
        Self { config, proxy, up, try_again, active, waiting, renewing, next, metrics }
    }

    /// Asks for ticks at its own interval.
    pub(crate) fn resume_ticks(&self, host: &dyn Host) {
        host.tick_every(self.config.renew().min(BEAT));
    }

    /// What becomes of a request that needs the scorer while it cannot be asked: it may be counted for by this proxy alone,
    /// or not.
    pub(crate) fn goes_alone(&self, host: &dyn Host) -> bool {
        let open = self.config.failure_mode == FailureMode::Open;
        host.add(if open { self.metrics.alone } else { self.metrics.refused }, 1);
        open
    }

    /// When to try again after a refusal.
    pub(crate) fn retry(&self) -> Duration {
        Duration::from_millis(self.config.retry_ms.get())
    }

    /// Keys are in use.
    pub(crate) fn touch(&mut self, holds: &[Hold], now: Instant) {
        let due = now + self.config.renew();
        for hold in holds {
            if let Some(at) = self.active.get_mut(hold) {
                *at = due.min(*at);
            } else if self.active.len() < MOST_KEYS {
                self.active.insert(*hold, due);
            }
        }
    }

    /// Claims more for a request; `None` when nobody can be asked.
    pub(crate) fn ask(
        &mut self,
        host: &dyn Host,
        limits: &Limits,
        short: &Short,
        store: &dyn Store,
    ) -> Option<Asked> {
        if !self.up {
            return None;
        }
        let now = host.now();
        let mut claims = Vec::with_capacity(short.holds().len());
        for hold in short.holds() {
            let (cost, requests) = self.waiting.entry(*hold).or_default();
            (*cost, *requests) = (cost.plus(short.cost()), requests.saturating_add(1));
            claims.extend(limits.claim(store, *hold, *cost, *requests, now).map(|claim| (*hold, claim)));
        }
        self.touch(short.holds(), now);
        host.add(self.metrics.asked, 1);
        let asked = self.send(host, claims, now);
        if asked.is_none() {
            self.done(short);
        }
        asked
    }

    /// A request no longer waits.
    pub(crate) fn done(&mut self, short: &Short) {
        for hold in short.holds() {
            if let Some((cost, requests)) = self.waiting.get_mut(hold) {
                (*cost, *requests) = (cost.minus(short.cost()), requests.saturating_sub(1));
                if *requests == 0 {
                    self.waiting.remove(hold);
                }
            }
        }
    }

    /// Hears an answer; `None` when it was none of the scorer's, or it could not tell. Else for how long it grants nothing
    /// anew.
    pub(crate) fn hear(
        &mut self,
        host: &dyn Host,
        limits: &Limits,
        store: &dyn Store,
        asked: &Asked,
        reply: &Reply,
    ) -> Option<Duration> {
        let status = reply.headers.get(":status").unwrap_or("none");
        let signed = reply.headers.get(wire::SCORER).is_some();
        let grants = serde_json::from_slice::<Grants>(&reply.body).ok().filter(|_| signed && status == "200");
        let Some(grants) = grants.filter(|grants| grants.keys.len() == asked.holds.len()) else {
            let why = match signed {
                true => format!("the scorer cannot tell (status {status})"),
                false => format!("no answer within {} ms (status {status})", self.config.timeout_ms),
            };
            self.failed(host, &why);
            return None;
        };
        if !self.up {
            self.up = true;
            self.turned(host, true, "");
        }
        let settling = Duration::from_millis(grants.settling_ms);
        let vain = if settling.is_zero() { self.config.renew() } else { Duration::ZERO };
        let heard = Heard { sent: asked.sent, lease: self.config.lease(), vain };
        for (hold, grant) in asked.holds.iter().zip(&grants.keys) {
            limits.hear(store, *hold, grant, heard, host.now());
        }
        Some(settling)
    }

    /// Renews what is due, or finds out whether the scorer is back.
    pub(crate) fn renew(&mut self, host: &dyn Host, limits: &Limits, store: &dyn Store) {
        let now = host.now();
        if self.renewing.is_some() || now < self.next || !self.up && now < self.try_again {
            return;
        }
        self.next = now + self.config.renew() / 2;
        let lease = self.config.lease();
        let due: Vec<Hold> =
            self.active.iter().filter(|(_, at)| **at <= now).map(|(hold, _)| *hold).take(AT_ONCE).collect();
        let mut claims = Vec::new();
        for hold in due {
            // What another worker has renewed is looked at again before that is too long ago.
            let again = match limits.renew(store, hold, lease, now) {
                Renewal::Idle => {
                    self.active.remove(&hold);
                    continue;
                }
                Renewal::Early => lease / 8,
                Renewal::Due(claim) => {
                    claims.push((hold, claim));
                    lease / 3
                }
            };
            self.active.insert(hold, now + again);
        }
        if !claims.is_empty() || !self.up {
            self.renewing = self.send(host, claims, now);
        }
    }

    /// Whether this is the call of a renewal.
    pub(crate) fn called(&self, call: u32) -> bool {
        self.renewing.as_ref().is_some_and(|asked| asked.call == call)
    }

    /// A renewal has been answered.
    pub(crate) fn told(&mut self, host: &dyn Host, limits: &Limits, store: &dyn Store, reply: &Reply) {
        if let Some(asked) = self.renewing.take() {
            self.hear(host, limits, store, &asked, reply);
        }
    }

    fn send(&mut self, host: &dyn Host, claims: Vec<(Hold, Claim)>, sent: Instant) -> Option<Asked> {
        let (holds, keys) = claims.into_iter().unzip();
        let claims = Claims { proxy: self.proxy, lease_ms: self.config.lease_ms.get(), keys };
        let body = serde_json::to_vec(&claims).unwrap_or_default();
        let timeout = Duration::from_millis(self.config.timeout_ms.get());
        let (cluster, path) = (&self.config.cluster, wire::ALLOWANCES_PATH);
        let call = host.call(&Call { cluster, path, body: &body, timeout });
        if call.is_none() {
            self.failed(host, "no such cluster, or it is empty");
        }
        Some(Asked { call: call?, holds, sent })
    }

    fn failed(&mut self, host: &dyn Host, why: &str) {
        self.try_again = host.now() + self.retry();
        if std::mem::replace(&mut self.up, false) {
            self.turned(host, false, why);
        }
    }

    /// Says so, if no other worker has.
    fn turned(&self, host: &dyn Host, up: bool, why: &str) {
        const UP: &str = "weir.limit.scorer";
        host.record(self.metrics.up, u64::from(up));
        let now: &[u8] = if up { b"up" } else { b"down" };
        let news = match host.shared(UP) {
            Some((before, version)) => before != now && host.set_shared(UP, now, Some(version)),
            None => !up && host.create_shared(UP, now),
        };
        match (news, up, self.config.failure_mode) {
            (false, ..) => {}
            (_, true, _) => log::info!("weir-limit: the scorer answers again; limits are shared"),
            (_, _, FailureMode::Open) => {
                log::warn!("weir-limit: limits are counted by this proxy alone: {why}")
            }
            (_, _, FailureMode::Closed) => {
                log::warn!("weir-limit: what is granted lapses, then requests are refused: {why}")
            }
        }
    }
}
