//! The choice of one request: asked for, made here, refused, or booked and written down.

use crate::attempts::Attempts;
use crate::probes::Slot;
use crate::scorers::Scorers;
use crate::{Asking, HEARD, Lease, Pick, Source, Stream};
use std::time::Duration;
use weir::breaker::Shut;
use weir::pool::{Choice, Message, Spill};
use weir::request::{Facts, Refusal};
use weir::wire::{self, Event, Reserve};
use weir_host::{Flow, Host, Of};

/// So much sooner than told Envoy may end a request: it is told whole milliseconds, and counts from the beginning of its loop's turn.
const EARLY: Duration = Duration::from_millis(50);

impl Pick {
    /// Asks the first of these scorers that is worth asking.
    pub(crate) fn ask(&mut self, host: &dyn Host, asking: &mut Asking, order: &[usize]) -> bool {
        let Some(scorers) = &mut self.scorers else { return false };
        let Some((name, _)) = self.pools.get(asking.lease.pool) else { return false };
        let ask = asking.facts.ask(&asking.blocks);
        let explain = self.explain || asking.facts.explain;
        let trace = asking.telemetry.as_ref().and_then(|telemetry| telemetry.trace.clone());
        let request = Reserve { explain, trace, ..Reserve::of(name, asking.lease.id, &ask) };
        asking.asked = scorers.ask(host, order, &request, &asking.body);
        asking.lease.asked |= asking.asked.is_some();
        asking.asked.is_some()
    }

    pub(crate) fn choose_here(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        asking: &Asking,
        source: Source,
    ) -> Flow {
        let ask = asking.facts.ask(&asking.blocks);
        let lease = asking.lease;
        let now = host.now();
        let closed = |scorers: &&Scorers| source == Source::Fallback && scorers.is_closed();
        if let Some(scorers) = self.scorers.as_ref().filter(closed) {
            host.add(self.metrics.no_scorer, 1);
            let wait = scorers.retry();
            stream.lease = Some(lease).filter(|lease| lease.asked);
            return self.refuse(host, &lease, &Shut { wait, status: 503 });
        }
        let Some((name, pool)) = self.pools.get(lease.pool) else { return Flow::Continue };
        let mut choice = pool.reserve(lease.id, &ask, now);
        // A probe, unless another worker has taken the slot just now; each time round one endpoint less is due.
        while let Some(first) =
            choice.as_ref().filter(|choice| choice.probe).and_then(|choice| choice.order.first())
        {
            let slots = self.peers.slots(name, first);
            stream.slot = Slot::take(host, slots, lease.id, pool.most_probes(), now + pool.lease_period());
            if stream.slot.is_some() {
                break;
            }
            pool.decline(lease.id, now + HEARD);
            choice = pool.reserve(lease.id, &ask, now);
        }
        if let Some(choice) = choice {
            if self.explain || asking.facts.explain {
                let why = pool.why(&choice, now);
                host.set_property(wire::WHY, &serde_json::to_vec(&why).unwrap_or_default());
            }
            return self.booked(stream, host, asking, choice, source);
        }
        match pool.shut(&ask.demand, now) {
            Some(shut) => self.refuse(host, &lease, &shut),
            None => {
                // No configuration makes a pool without endpoints. Envoy's own balancing is the way out.
                host.remove_header(Of::Request, wire::DESTINATION);
                Flow::Continue
            }
        }
    }

    /// No endpoint can hold the prompt.
    pub(crate) fn refuse_long(&self, host: &dyn Host, facts: &Facts, most: u32) -> Flow {
        host.add(self.metrics.too_long, 1);
        let tokens = facts.prompt_tokens;
        let line = format!("refused=400 prompt_tokens={tokens} max_input_tokens={most}");
        host.set_property(wire::PICK, line.as_bytes());
        let refusal = Refusal::too_long(facts.dialect, tokens, most);
        host.respond_json(refusal.status, &[], &refusal.body());
        Flow::Hold
    }

    /// Its time was over before an endpoint was asked.
    pub(crate) fn refuse_late(&self, host: &dyn Host, facts: &Facts, timeout_ms: u64) -> Flow {
        host.add(self.metrics.too_late, 1);
        host.set_property(wire::PICK, format!("refused=504 timeout_ms={timeout_ms}").as_bytes());
        let refusal = Refusal::too_late(facts.dialect, timeout_ms);
        // Libraries retry a 504, and this client waits no longer.
        host.respond_json(refusal.status, &[("x-should-retry", "false".into())], &refusal.body());
        Flow::Hold
    }

    /// No endpoint may be sent to.
    pub(crate) fn refuse(&self, host: &dyn Host, lease: &Lease, shut: &Shut) -> Flow {
        if let Some(metrics) = self.metrics.pools.get(lease.pool) {
            host.add(metrics.shut, 1);
        }
        let line = format!("refused={} retry_after_s={}", shut.status, shut.retry_after_s());
        host.set_property(wire::PICK, line.as_bytes());
        let answer = shut.answer(lease.dialect);
        host.respond_json(answer.status, &answer.headers, &answer.body);
        Flow::Hold
    }

    /// The scorers are told of what was chosen without them, so that it counts for others; and so of its end. Says whether they will
    /// be.
    fn tell_booked(&mut self, asking: &Asking, endpoint: &str) -> bool {
        let Lease { pool, id, .. } = asking.lease;
        let (Some(scorers), Some((name, _))) = (&mut self.scorers, self.pools.get(pool)) else {
            return false;
        };
        let demand = asking.facts.ask(&asking.blocks).demand;
        let (name, endpoint) = (name.to_owned(), endpoint.to_owned());
        scorers.note_booked(pool, Event::Booked { pool: name, lease: id, endpoint, demand })
    }

    /// The last of a list, where it is of a later group than the first.
    fn spills_to<'o>(&mut self, lease: &Lease, order: &'o [String]) -> Option<&'o str> {
        let (_, pool) = self.pools.get(lease.pool).filter(|(_, pool)| pool.spills())?;
        let (first, last) = (order.first()?, order.last()?);
        (pool.priority(first) != pool.priority(last)).then_some(last)
    }

    /// An endpoint has been chosen and booked: say so to Envoy, to the log and to the other workers.
    pub(crate) fn booked(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        asking: &Asking,
        mut choice: Choice,
        source: Source,
    ) -> Flow {
        let (source, metric) = match source {
            Source::Scorer => ("scorer", self.metrics.by_scorer),
            Source::Local => ("local", self.metrics.local),
            Source::Push => ("push", self.metrics.push),
            Source::Fallback => ("fallback", self.metrics.fallback),
        };
        host.add(metric, 1);
        let mut lease = asking.lease;
        if let Some((_, pool)) = self.pools.get(lease.pool) {
            if pool.splits() {
                host.remove_header(Of::Request, wire::PREFILLER);
            }
            if pool.wants().reports {
                host.set_header(Of::Request, wire::ORCA_FORMAT, "JSON");
            }
            choice.order.truncate(pool.budget().left(host.now()).saturating_add(1));
        }
        if let Some(last) = self.spills_to(&lease, &choice.order) {
            host.set_property(wire::SPILLS_TO, last.as_bytes());
        }
        let hedge =
            self.pools.get(lease.pool).and_then(|(_, pool)| pool.hedge_after(lease.id, &choice.order));
        host.set_header(Of::Request, wire::DESTINATION, &choice.order.join(","));
        // Beyond the list Envoy would send retries wherever it likes.
        host.set_header(Of::Request, wire::MAX_RETRIES, &choice.order.len().saturating_sub(1).to_string());
        let Choice { order, candidate, policy, probe, prefill, spill } = choice;
        let endpoint = order.first().map_or("", String::as_str);
        let mut line = format!(
            "endpoint={endpoint} by={source} policy={policy} prompt_tokens={} cached_tokens={} queued_tokens={} in_flight={}",
            asking.facts.prompt_tokens, candidate.cached_tokens, candidate.queued_tokens, candidate.in_flight
        );
        if let Some(prefill) = &prefill {
            host.set_header(Of::Request, wire::PREFILLER, prefill);
            line += &format!(" prefill={prefill}");
            if let Some(metrics) = self.metrics.pools.get(lease.pool) {
                host.add(metrics.split, 1);
            }
        }
        if probe {
            line += " probe=1";
        }
        if let Some(left) = self.deadline.left(host, asking.facts.timeout_ms) {
            let millis = left.time.as_millis().max(1);
            host.set_header(Of::Request, wire::TIMEOUT, &millis.to_string());
            line += &format!(" timeout_ms={millis}");
            stream.gone_at = left.is_clients.then(|| host.now() + left.time.saturating_sub(EARLY));
        }
        if let Some(after) = hedge {
            let millis = after.as_millis().max(1).to_string();
            line += &format!(" hedge_ms={millis}");
            host.set_header(Of::Request, wire::PER_TRY_TIMEOUT, &millis);
            host.set_header(Of::Request, wire::HEDGE, "true");
        }
        if let Some(Spill { to, reason, .. }) = spill {
            line += &format!(" spillover_to={to} spillover_reason={}", reason.name());
        }
        host.set_property(wire::PICK, line.as_bytes());
        if self.peers.any() || self.push.is_some() {
            let ask = asking.facts.ask(&asking.blocks);
            let mut message = Message::booked(lease.pool as u16, lease.id, endpoint, &ask, probe);
            if let Message::Booked { prefill: place, .. } = &mut message {
                *place = prefill;
            }
            self.tell(host, &message);
        }
        if source == "fallback" && self.push.is_none() {
            lease.asked |= self.tell_booked(asking, endpoint);
        }
        stream.attempts = Attempts::new(order, spill);
        if let Some(after) = hedge {
            stream.attempts.hedge(host.now(), after);
        }
        stream.lease = Some(lease);
        Flow::Continue
    }
}
