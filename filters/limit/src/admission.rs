//! What becomes of a request: let in, let in line, asked about, or refused.

use crate::{Held, InLine, Limit, Shared, Stream, Waits, budget, line, respond, signed};
use std::time::Duration;
use weir::limit::{Admitted, Answer, Asked, Denied, Reach, Reason, Short, Verdict, Wait, Waiting};
use weir::request::{Dialect, Facts};
use weir::wire;
use weir_host::{Flow, Headers, Host, Of};

impl Limit {
    pub(crate) fn decide(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        facts: &Facts,
        verdict: Verdict,
    ) -> Flow {
        match verdict {
            // Who has asked to no avail, or counts alone, is never short.
            Verdict::Unlimited | Verdict::Short(_) => {
                self.step_out(stream, host, true);
                Flow::Continue
            }
            Verdict::Admitted(admitted) => {
                let waited_ms = self.step_out(stream, host, false);
                self.count(host, &admitted);
                if self.limits.has_queues() {
                    self.warm.note(facts);
                }
                if let Some(sharing) = &mut self.sharing {
                    sharing.touch(admitted.ticket.holds(), host.now());
                }
                if let Some(softened) = &admitted.softened {
                    host.set_header(Of::Request, wire::BUDGET, &budget(softened));
                    if let Some(objective) = &softened.demote {
                        host.set_header(Of::Request, wire::OBJECTIVE, objective);
                    }
                }
                stream.held = Some(Held { admitted, dialect: facts.dialect, waited_ms });
                Flow::Continue
            }
            Verdict::Waits(wait) => {
                self.stand_in_line(stream, host, facts, wait);
                host.park();
                Flow::Hold
            }
            Verdict::Denied(denied) => {
                let waited_ms = self.step_out(stream, host, true);
                self.refuse(host, &denied, facts.dialect, waited_ms);
                Flow::Hold
            }
        }
    }

    /// A request waits, or waits in another line than before.
    pub(crate) fn stand_in_line(&mut self, stream: &mut Stream, host: &dyn Host, facts: &Facts, wait: Wait) {
        let since = match stream.line.take() {
            Some(before) => {
                self.shift_waiting(host, before.wait, -1);
                before.since
            }
            None => {
                if let Some(metrics) = self.metrics.get(wait.hold().rule()) {
                    host.add(metrics.queued, 1);
                }
                host.now()
            }
        };
        self.shift_waiting(host, wait, 1);
        self.waiters.add(host, wait);
        stream.line = Some(InLine { facts: facts.clone(), wait, since });
    }

    /// A request waits no more; its place is given up, unless it has got its slot. How long it has waited.
    pub(crate) fn step_out(&mut self, stream: &mut Stream, host: &dyn Host, gives_up: bool) -> Option<u64> {
        let InLine { wait, since, .. } = stream.line.take()?;
        if gives_up {
            self.limits.leave(&Shared(host), &wait, host.now());
        }
        self.waiters.remove(host);
        self.shift_waiting(host, wait, -1);
        let waited = line::millis(since, host.now());
        if let Some(metrics) = self.metrics.get(wait.hold().rule()) {
            host.record(metrics.waited, waited);
        }
        Some(waited)
    }

    pub(crate) fn shift_waiting(&mut self, host: &dyn Host, wait: Wait, by: i64) {
        self.parts.shift(host, wait.hold().rule(), [0, 0, by]);
        self.parts.write(host);
    }

    /// What this proxy may use does not suffice.
    pub(crate) fn ask(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        facts: Facts,
        short: Short,
        times: u32,
    ) -> Flow {
        let call =
            self.sharing.as_mut().and_then(|sharing| sharing.ask(host, &self.limits, &short, &Shared(host)));
        match call {
            Some(call) => {
                stream.waits = Some(Waits { facts, short, call, times });
                Flow::Hold
            }
            None => self.without(stream, host, &facts, None),
        }
    }

    /// Nobody can say how much more may be used; a scorer that has just started can in `wait`.
    pub(crate) fn without(
        &mut self,
        stream: &mut Stream,
        host: &dyn Host,
        facts: &Facts,
        wait: Option<Duration>,
    ) -> Flow {
        let Some(sharing) = &self.sharing else { return Flow::Continue };
        if sharing.goes_alone(host) {
            let verdict = self.admit(stream, host, facts, Reach::Alone);
            return self.decide(stream, host, facts, verdict);
        }
        let answer = Answer::unavailable(facts.dialect, wait.unwrap_or(sharing.retry()));
        self.step_out(stream, host, true);
        host.set_property(wire::LIMIT, b"verdict=unavailable");
        respond(host, &answer);
        Flow::Hold
    }

    pub(crate) fn admit(&mut self, stream: &Stream, host: &dyn Host, facts: &Facts, reach: Reach) -> Verdict {
        self.look_at_the_wall(host);
        let at = stream.line.as_ref().map(|line| line.wait);
        let name = if self.limits.has_queues() { self.waiters.name(host) } else { None };
        let warm = self.warm.tokens(facts);
        let waiting = name.map(|id| Waiting { id, warm, at });
        let headers = match self.limits.needs_headers() {
            true => host.headers(Of::Request),
            false => Headers::default(),
        };
        let address = match self.limits.needs_address() {
            true => host.text(&["source", "address"]),
            false => None,
        };
        let header = |name: &str| headers.get(name);
        let repeated = |name: &str| headers.differs(name);
        let asked = Asked { facts, header: &header, repeated: &repeated, address: address.as_deref() };
        self.limits.admit_or_wait(&Shared(host), &asked, reach, waiting, host.now())
    }

    pub(crate) fn count(&mut self, host: &dyn Host, admitted: &Admitted) {
        if admitted.evicted > 0 {
            host.add(self.evicted, u64::from(admitted.evicted));
        }
        let reserved = signed(admitted.ticket.reserved());
        for limit in admitted.ticket.limits() {
            if let Some(metrics) = self.metrics.get(limit) {
                host.add(metrics.admitted, 1);
            }
            self.parts.shift(host, limit, [1, reserved, 0]);
        }
        self.parts.write(host);
    }

    pub(crate) fn refuse(&self, host: &dyn Host, denied: &Denied, dialect: Dialect, waited_ms: Option<u64>) {
        let metrics = self.metrics.get(denied.rule);
        let (verdict, metric) = match denied.reason {
            Reason::TooLarge => ("too_large", metrics.map(|metrics| metrics.too_large)),
            Reason::Ambiguous => ("ambiguous", metrics.map(|metrics| metrics.ambiguous)),
            Reason::Expired => ("expired", metrics.map(|metrics| metrics.expired)),
            Reason::Shed => ("shed", metrics.map(|metrics| metrics.limited)),
            _ => ("limited", metrics.map(|metrics| metrics.limited)),
        };
        if let Some(metric) = metric {
            host.add(metric, 1);
        }
        let mut line =
            format!("verdict={verdict} limit={} retry_after_s={}", denied.limit, denied.retry_after_s());
        if let Some(waited) = waited_ms {
            line += &format!(" waited_ms={waited}");
        }
        host.set_property(wire::LIMIT, line.as_bytes());
        respond(host, &denied.answer(dialect, || host.wall()));
    }
}
