//! What became of a request's attempts, as far as Envoy tells.
//!
//! A filter runs once per request, not per attempt, and sees the last one. Of those before it, it knows the order, since it
//! has written the list itself, and what `breaker`, which runs once per attempt where it stands in the cluster, left behind.
//! One that left nothing got no answer.
//!
//! Where a copy is sent when the first token is late (`weir::breaker::Hedge`), Envoy has several attempts out at once. The first answer
//! wins and the others are reset; nobody says that they were. An answer that came before a copy would have gone out is a retry's, and
//! those before it have failed; of a later one they were slower.

use std::time::Duration;
use weir::breaker::{Cause, Class, Outcome, Reason, retry_after};
use weir::instant::Instant;
use weir::policy::Wants;
use weir::pool::{Answered, Pool, Spill};
use weir::request::Dialect;
use weir::signals;
use weir::wire;
use weir_host::Host;

/// The attempts of one request, in the order of its list.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    order: Vec<String>,
    /// So many of them have been spoken of.
    told: usize,
    /// The list begins with a later group than the first.
    spill: Option<Spill>,
    hedge: Option<Hedge>,
}

/// A request of which a copy is sent.
#[derive(Debug)]
struct Hedge {
    /// An answer after this time may be the copy's. That is half of the delay: Envoy's timer counts from the beginning of its
    /// loop's turn, so on a busy machine the copy goes out sooner than it was told to.
    from: Instant,
    /// Nobody has looked yet how many attempts there were.
    uncounted: bool,
    /// Whether an answer came, and if so after that time.
    late: Option<bool>,
}

/// Attempts that are over, and were not the last.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Those with an outcome, each once.
    pub(crate) outcomes: Vec<(String, Outcome)>,
    /// All that were made beside the one that served.
    pub(crate) retries: usize,
    /// Of these, the copies.
    pub(crate) hedges: usize,
}

impl Attempts {
    pub(crate) fn new(order: Vec<String>, spill: Option<Spill>) -> Self {
        Self { order, told: 0, spill, hedge: None }
    }

    /// A copy of the request goes out after that time.
    pub(crate) fn hedge(&mut self, now: Instant, after: Duration) {
        self.hedge = Some(Hedge { from: now + after / 2, uncounted: true, late: None });
    }

    /// An answer begins, of this status.
    pub(crate) fn answered(&mut self, host: &dyn Host) {
        if let Some(hedge) = &mut self.hedge {
            // An error is Envoy's, or it is the last that is left: nobody was sooner.
            hedge.late = Some(host.now() >= hedge.from && status(host) < 500);
        }
    }

    /// The attempts before the one at `address`, each once: they have failed, or were slower.
    pub(crate) fn before(&mut self, host: &dyn Host, address: &str) -> Passed {
        let Some(place) = self.order.iter().position(|own| own == address) else { return Passed::default() };
        let silent = match &self.hedge {
            Some(Hedge { late: Some(true), .. }) => Outcome::failed(Reason::Slow),
            // The client left, and copies may have been out.
            Some(Hedge { late: None, from, .. }) if host.now() >= *from => Outcome::gone(),
            _ => Outcome::failed(Reason::Reset),
        };
        let outcome = |address: &String| (address.clone(), left(host, address).unwrap_or(silent));
        let outcomes: Vec<_> =
            self.order.get(self.told..place).unwrap_or_default().iter().map(outcome).collect();
        self.told = self.told.max(place);
        let slower =
            outcomes.iter().filter(|(_, outcome)| outcome.cause == Cause::Failed(Reason::Slow)).count();
        let mut passed = Passed { retries: outcomes.len(), hedges: slower, outcomes };
        if let Some(hedge) = &mut self.hedge
            && std::mem::take(&mut hedge.uncounted)
        {
            // Copies of one that was sooner in the end.
            let made = number(host, &["upstream", "request_attempt_count"]).unwrap_or(0);
            let lost = usize::try_from(made).unwrap_or(0).saturating_sub(place + 1);
            if hedge.late.is_some() {
                passed.hedges += lost;
            }
            passed.retries += lost;
        }
        passed
    }

    /// Which group should have served where the endpoint at `address`, of a later one, did; that one; and why.
    pub(crate) fn spillover(
        &self,
        host: &dyn Host,
        pool: &Pool,
        address: &str,
    ) -> Option<(u32, u32, String)> {
        let to = pool.priority(address)?;
        if let Some(Spill { from, reason, .. }) = self.spill {
            return Some((from, to, reason.name().to_owned()));
        }
        let from = pool.priority(self.order.first()?)?;
        let before = self.order.iter().position(|own| own == address)?.checked_sub(1)?;
        let outcome = left(host, self.order.get(before)?).unwrap_or(Outcome::failed(Reason::Reset));
        (from != to).then(|| (from, to, outcome.word()))
    }
}

/// What an attempt at `address`, which did not serve, has left behind; one without an answer leaves nothing.
fn left(host: &dyn Host, address: &str) -> Option<Outcome> {
    let name = format!("wasm.{}", wire::attempt(address));
    Outcome::read(&host.text(&["filter_state", &name])?)
}

/// The endpoint of the last attempt; there is none where Envoy answered before any.
pub(crate) fn served(host: &dyn Host) -> Option<String> {
    host.text(&["upstream", "address"])
}

/// The status of the answer; 0 when there is none.
pub(crate) fn status(host: &dyn Host) -> u16 {
    number(host, &["response", "code"]).and_then(|code| u16::try_from(code).ok()).unwrap_or(0)
}

fn number(host: &dyn Host, path: &[&str]) -> Option<i64> {
    Some(i64::from_le_bytes(host.property(path)?.try_into().ok()?))
}

/// What the last attempt came to, once the stream is over; `begun`: some of its answer has passed.
pub(crate) fn last(host: &dyn Host, dialect: Dialect, begun: bool) -> Outcome {
    let flags = number(host, &["response", "flags"]).unwrap_or(0);
    let status = status(host);
    match of_flags(flags, begun) {
        Some(outcome) => outcome,
        None if status >= 400 => {
            let said = ["retry-after", "retry-after-ms"]
                .map(|name| (name, host.text(&["response", "headers", name]).unwrap_or_default()));
            let said = said.iter().map(|(name, value)| (*name, value.as_str()));
            Outcome::of_status(status, retry_after(said, || host.wall()))
        }
        None => inside(host, dialect).unwrap_or(Outcome::of_status(status, None)),
    }
}

/// What a policy learns from an answer.
pub(crate) fn answered(host: &dyn Host, outcome: &Outcome, wants: Wants) -> Answered {
    let output = host.text(&[wire::USAGE]).and_then(|line| wire::read_usage(&line)?.output());
    let answered = Answered {
        output_tokens: output.map(|output| u32::try_from(output).unwrap_or(u32::MAX)),
        failed: outcome.class() == Class::Failure,
        ..Answered::default()
    };
    let said = host.text(&["response", "headers", signals::ORCA_HEADER]).filter(|_| wants.reports);
    said.and_then(|said| signals::orca(&said)).map_or(answered, |said| answered.with(&said))
}

/// What Envoy's response flags say; `None`: that the endpoint's answer came to its end.
fn of_flags(flags: i64, begun: bool) -> Option<Outcome> {
    const NO_CONNECTION: i64 = 0x20;
    // The request's time is up, the stream's idle time, the longest duration.
    const TIMEOUTS: i64 = 0x4 | 0x1_0000 | 0x8_0000 | 0x40_0000;
    // Reset by the endpoint, connection ended, protocol error.
    const LOST: i64 = 0x10 | 0x40 | 0x80_0000;
    const CLIENT_LEFT: i64 = 0x4000;
    // All retries were used; the last answer stands.
    const RETRIED: i64 = 0x8000;
    let has = |mask: i64| flags & mask != 0;
    Some(match flags & !RETRIED {
        0 => return None,
        _ if has(CLIENT_LEFT) => Outcome::gone(),
        _ if has(NO_CONNECTION) => Outcome::failed(Reason::Connect),
        _ if has(TIMEOUTS) => Outcome::failed(Reason::Timeout),
        _ if has(LOST) && begun => Outcome::failed(Reason::Cut),
        _ if has(LOST) => Outcome::failed(Reason::Reset),
        // Envoy's own doing: no route, too many requests, and so on.
        _ => Outcome::gone(),
    })
}

/// An error or garbage in an answer that has a good status, as `meter` has read it. Only for APIs whose every answer has
/// something that it knows.
fn inside(host: &dyn Host, dialect: Dialect) -> Option<Outcome> {
    let known = [Dialect::Chat, Dialect::Completions, Dialect::Messages, Dialect::Responses];
    let report = wire::read_usage(&host.text(&[wire::USAGE]).filter(|_| known.contains(&dialect))?)?;
    if let Some(kind) = &report.error {
        return Some(Outcome::of_error(kind));
    }
    if report.usage.is_some() || report.finish.is_some() || report.deltas > 0 {
        return None;
    }
    let coded =
        host.property(&["response", "headers", "content-encoding"]).is_some_and(|coding| !coding.is_empty());
    (!coded).then_some(Outcome::failed(Reason::Garbage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoys_flags_tell_the_endpoints_failures_from_the_clients() {
        let cases = [
            (0, false, None),
            (0x8000, false, None),
            (0x20, false, Some(Outcome::failed(Reason::Connect))),
            (0x20 | 0x8000, false, Some(Outcome::failed(Reason::Connect))),
            (0x4, false, Some(Outcome::failed(Reason::Timeout))),
            (0x1_0000, true, Some(Outcome::failed(Reason::Timeout))),
            (0x40, false, Some(Outcome::failed(Reason::Reset))),
            (0x40, true, Some(Outcome::failed(Reason::Cut))),
            (0x80_0000, true, Some(Outcome::failed(Reason::Cut))),
            (0x4000, true, Some(Outcome::gone())),
            (0x80, false, Some(Outcome::gone())),
        ];
        for (flags, begun, outcome) in cases {
            assert_eq!(of_flags(flags, begun), outcome, "{flags:#x}");
        }
    }
}
