//! Who of a pool's endpoints may be chosen.
//!
//! First whoever is due for a probe: one request goes there at once, so that an endpoint is back soon after it serves again, and
//! the time that takes does not depend on what a policy thinks of it. Its fallbacks are endpoints that serve.
//! Otherwise all that are closed, and of those that have just come back each for a growing share of the requests.
//!
//! When nobody is left, two cases differ. Endpoints that asked to be left alone are: the client is told when to come again. If
//! all have tripped, then either the pool is dead, and one attempt more does not hurt it, or the rules are wrong about it (a
//! few poisonous requests can trip every endpoint), and refusing would lose what could be served: so by default the request goes
//! to the ones that tripped the fewest times in a row, in one attempt, without retries.

use super::circuit::{Access, Circuit};
use super::{AllOut, Breaker};
use crate::instant::Instant;
use crate::random::Random;
use std::time::Duration;

/// What a request may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The endpoints that were listed.
    Open,
    /// The endpoints that were listed have just come back, and this request is not of their share: they are for want of others.
    Ramp,
    /// First the endpoint at this place, as a probe; then those listed.
    Probe(usize),
    /// All are out: those listed are the least bad, and each request gets one attempt.
    LeastBad,
    /// Nothing.
    Shut(Shut),
}

/// No endpoint may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shut {
    /// When the first of them may be, from now.
    pub wait: Duration,
    /// What to answer: 429 where one of them did, 503 otherwise.
    pub status: u16,
}

impl Breaker {
    /// Fills `open` with the places of those among `circuits`, each with its place, that may be chosen.
    pub fn gate<'c>(
        &self,
        circuits: impl Iterator<Item = (usize, &'c mut Circuit)>,
        now: Instant,
        random: &mut Random,
        open: &mut Vec<usize>,
    ) -> Gate {
        open.clear();
        let (mut probe, mut due) = (None, 0_usize);
        let mut back = Vec::new();
        let mut out = Out::default();
        for (place, circuit) in circuits {
            match circuit.access(self, now) {
                Access::All => open.push(place),
                Access::Share(share) => match share > unit(random) {
                    true => open.push(place),
                    false => back.push(place),
                },
                Access::Probe => {
                    due += 1;
                    if random.below(due) == 0 {
                        probe = Some(place);
                    }
                    out.add(place, circuit, now);
                }
                Access::None => out.add(place, circuit, now),
            }
        }
        if let Some(place) = probe {
            return Gate::Probe(place);
        }
        if open.is_empty() && !back.is_empty() {
            open.append(&mut back);
            return Gate::Ramp;
        }
        match open.is_empty() {
            false => Gate::Open,
            true => out.gate(self.config.when_all_are_out, open),
        }
    }
}

/// The endpoints that may not be sent to.
#[derive(Debug, Default)]
struct Out {
    /// The shortest wait.
    wait: Option<Duration>,
    /// One of them asked to be left alone, with this status; 429 before others.
    held: Option<u16>,
    /// Those that tripped the fewest times in a row, and how many times.
    fewest: u32,
    least_bad: Vec<usize>,
}

impl Out {
    fn add(&mut self, place: usize, circuit: &Circuit, now: Instant) {
        let wait = circuit.free_at().since(now);
        self.wait = Some(self.wait.map_or(wait, |own| own.min(wait)));
        match circuit.held(now) {
            Some(429) => self.held = Some(429),
            Some(status) => self.held = self.held.or(Some(status)),
            None => {
                let trips = circuit.trips();
                if self.least_bad.is_empty() || trips < self.fewest {
                    self.least_bad.clear();
                    self.fewest = trips;
                }
                if trips == self.fewest {
                    self.least_bad.push(place);
                }
            }
        }
    }

    fn gate(self, when_all_are_out: AllOut, open: &mut Vec<usize>) -> Gate {
        let Some(wait) = self.wait else { return Gate::Open };
        match (self.held, when_all_are_out) {
            (None, AllOut::LeastBad) => {
                open.extend(self.least_bad);
                Gate::LeastBad
            }
            (held, _) => Gate::Shut(Shut { wait, status: if held == Some(429) { 429 } else { 503 } }),
        }
    }
}

/// A number from 0 to below 1.
fn unit(random: &mut Random) -> f64 {
    const PARTS: usize = 1 << 30;
    random.below(PARTS) as f64 / PARTS as f64
}
