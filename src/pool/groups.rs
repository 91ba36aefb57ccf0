//! Priority groups: which of them a request may use, and why not an earlier one.
//!
//! Endpoints of the smallest `priority` get every request that one of them can serve. The next group is for the others: while
//! the first is out, asked to be left alone, is full, or cannot hold the prompt. So a session stays in one group for as long as that
//! can serve it, and what is paid for by the token is used when what is paid for anyway is not enough (Azure API Management's
//! backend pools, LiteLLM's `order` and Envoy's priorities mean the same).
//!
//! The list of a request goes on into the next group, whatever the first one's size: as many attempts as there are go to
//! the first, but for one for each group behind it. Otherwise three busy endpoints would use up the attempts that
//! a fourth, of another group, could have served.

use super::{Among, Endpoint, Pool};
use crate::breaker::{Gate, Shut};
use crate::instant::Instant;
use crate::policy::Demand;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// When to come again if nothing says when there will be room.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// A request goes to a later group than the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spill {
    /// The priority of the first group.
    pub from: u32,
    /// Of the group it goes to.
    pub to: u32,
    /// Why not to the first.
    pub reason: Spilled,
}

/// Why a group cannot serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spilled {
    /// Its endpoints asked to be left alone.
    Busy,
    /// They have tripped.
    Out,
    /// As many requests are in flight as there may be.
    Full,
    /// The prompt is longer than any of them takes.
    TooLong,
    /// The policy wants none of them for it.
    Unfit,
    /// They have just come back, and their share of the requests grows.
    Ramp,
}

impl Spilled {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Busy, Self::Out, Self::Full, Self::TooLong, Self::Unfit, Self::Ramp];

    /// As written in headers and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Out => "out",
            Self::Full => "full",
            Self::TooLong => "too_long",
            Self::Unfit => "unfit",
            Self::Ramp => "ramp",
        }
    }
}

/// Where a request may go.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) gate: Gate,
    /// The groups that can serve it, in their order.
    pub(super) levels: Vec<Level>,
    /// Why the first group is not among them; where nothing is, why the last resort is not.
    pub(super) reason: Option<Spilled>,
}

/// Endpoints that a request may be sent to, all of one group or, where all groups are out, of any.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) priority: u32,
    pub(super) places: Vec<usize>,
}

impl Endpoint {
    /// Why it cannot take a request, however it fares.
    fn unable(&self, demand: &Demand) -> Option<Spilled> {
        if self.longest.is_some_and(|longest| demand.prompt_tokens > longest) {
            return Some(Spilled::TooLong);
        }
        self.most.is_some_and(|most| self.in_flight >= most).then_some(Spilled::Full)
    }
}

impl Pool {
    /// Where a request may go at the moment.
    pub(super) fn way(&mut self, demand: &Demand, among: Among<'_>, now: Instant) -> Way {
        let mut way = Way { gate: Gate::Open, levels: Vec::new(), reason: None };
        // Where nobody else can serve, half an endpoint is better than none.
        let mut ramping = Vec::new();
        for at in 0..self.groups.len() {
            let Some(&priority) = self.groups.get(at) else { break };
            let is_member =
                |own: &Endpoint| own.priority == priority && among.is_none_or(|may| may(&own.address));
            // Of a group that was not asked about nothing is said.
            if among.is_some() && !self.endpoints.iter().any(is_member) {
                continue;
            }
            let (gate, places, unable) = self.group(Some(priority), demand, among, now);
            let reason = match gate {
                // A probe in a group behind one that serves can wait until that does not.
                Gate::Open | Gate::Ramp | Gate::Probe(_) if !way.levels.is_empty() => None,
                Gate::Ramp => Some(Spilled::Ramp),
                Gate::Open if places.is_empty() => Some(unable.unwrap_or(Spilled::Out)),
                Gate::Open | Gate::Probe(_) => {
                    way.gate = gate;
                    None
                }
                Gate::LeastBad => Some(Spilled::Out),
                Gate::Shut(Shut { status: 429, .. }) => Some(Spilled::Busy),
                Gate::Shut(_) => Some(Spilled::Out),
            };
            if at == 0 {
                way.reason = reason;
            }
            match reason {
                None => way.levels.push(Level { priority, places }),
                Some(Spilled::Ramp) => ramping.push(Level { priority, places }),
                // Nothing further to look at: this is how the whole pool stands.
                Some(_) if self.groups.len() == 1 => {
                    return self.last(gate, priority, places, unable, (demand, among), now);
                }
                Some(_) => {}
            }
        }
        if way.levels.is_empty()
            && ramping.first().is_some_and(|level| self.groups.first() == Some(&level.priority))
        {
            way.reason = None;
        }
        way.levels.append(&mut ramping);
        if !way.levels.is_empty() {
            return way;
        }
        let (gate, places, unable) = self.group(None, demand, among, now);
        self.last(gate, self.groups.first().copied().unwrap_or(0), places, unable, (demand, among), now)
    }

    /// Where a request may go when no group can serve it.
    fn last(
        &self,
        gate: Gate,
        priority: u32,
        places: Vec<usize>,
        unable: Option<Spilled>,
        (demand, among): (&Demand, Among<'_>),
        now: Instant,
    ) -> Way {
        let gate = match gate {
            // An attempt at what is out is made for a request, and not for each time that somebody sends it again.
            Gate::LeastBad if demand.retried => {
                let asked = self.endpoints.iter().filter(|own| among.is_none_or(|may| may(&own.address)));
                let waits = asked.map(|endpoint| endpoint.circuit.free_at().since(now));
                Gate::Shut(Shut { wait: waits.min().unwrap_or(SOON), status: 503 })
            }
            Gate::Open if places.is_empty() && unable == Some(Spilled::Full) => {
                Gate::Shut(Shut { wait: SOON, status: 429 })
            }
            gate => gate,
        };
        let reason = match gate {
            Gate::Shut(_) if places.is_empty() && unable == Some(Spilled::Full) => Some(Spilled::Full),
            Gate::Shut(Shut { status: 429, .. }) => Some(Spilled::Busy),
            Gate::Shut(_) => Some(Spilled::Out),
            _ => None,
        };
        let levels = if places.is_empty() { Vec::new() } else { vec![Level { priority, places }] };
        Way { gate, levels, reason }
    }

    /// How a group, or the whole pool, stands for a request; who of it may be chosen; and why some cannot take the request at all.
    fn group(
        &mut self,
        priority: Option<u32>,
        demand: &Demand,
        among: Among<'_>,
        now: Instant,
    ) -> (Gate, Vec<usize>, Option<Spilled>) {
        let (mut unable, mut open) = (None, Vec::new());
        let members = self
            .endpoints
            .iter_mut()
            .enumerate()
            .filter(|(_, endpoint)| priority.is_none_or(|priority| endpoint.priority == priority))
            .filter(|(_, endpoint)| among.is_none_or(|may| may(&endpoint.address)));
        let able = members.filter(|(_, endpoint)| {
            let reason = endpoint.unable(demand);
            // That it is full may change.
            unable = if reason == Some(Spilled::Full) { reason } else { unable.or(reason) };
            reason.is_none()
        });
        let circuits = able.map(|(place, endpoint)| (place, &mut endpoint.circuit));
        let gate = self.breaker.gate(circuits, now, &mut self.random, &mut open);
        (gate, open, unable)
    }

    /// The group of an endpoint.
    pub fn priority(&self, address: &str) -> Option<u32> {
        Some(self.endpoints.get(*self.places.get(address)?)?.priority)
    }

    /// Whether there is more than one group.
    pub fn spills(&self) -> bool {
        self.groups.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::{Class, Outcome, Reason, Standing};
    use crate::policy::Attributes;
    use crate::pool::{Ask, Choice, Config};
    use crate::random::Random;
    use std::collections::BTreeMap;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: Instant = Instant::from_millis(1_000);

    /// A pool of endpoints of these priorities.
    fn pool(priorities: &[u32], more: impl Fn(usize, &mut Attributes)) -> (Pool, Vec<String>) {
        let all: Vec<_> = (0..priorities.len()).map(|i| format!("10.0.0.{i}:8000")).collect();
        let mut pool = Pool::new(&Config::default(), &all, 9).unwrap();
        let attributes = priorities.iter().enumerate().map(|(at, &priority)| {
            let mut own = Attributes { priority, ..Attributes::default() };
            more(at, &mut own);
            (all[at].clone(), own)
        });
        pool.describe(attributes.collect::<BTreeMap<_, _>>());
        (pool, all)
    }

    fn ask(prompt_tokens: u32) -> Ask<'static> {
        Ask { demand: Demand { prompt_tokens, stream: true, ..Demand::default() }, ..Ask::default() }
    }

    fn spilled(choice: &Choice) -> Option<(u32, Spilled)> {
        choice.spill.map(|spill| (spill.to, spill.reason))
    }

    #[test]
    fn the_first_group_takes_everything_that_it_can_serve_and_the_list_goes_on_behind_it() {
        let (mut pool, all) = pool(&[2, 2, 2, 2, 5, 7], |_, _| {});
        for id in 0..200 {
            let choice = pool.reserve(id, &ask(500), NOW).unwrap();
            assert_eq!(choice.spill, None);
            let groups: Vec<_> = choice.order.iter().map(|address| pool.priority(address).unwrap()).collect();
            assert_eq!(groups, [2, 5, 7], "three attempts");
        }
        let in_flight = |at: usize| pool.loads()[at].in_flight;
        assert!((0..4).all(|at| in_flight(at) >= 40) && in_flight(4) + in_flight(5) == 0);
        assert_eq!(pool.priority("10.9.9.9:1"), None);
        assert!(pool.spills() && all.len() == 6);
    }

    #[test]
    fn of_a_request_that_may_go_to_some_only_the_whole_list_is_of_those() {
        let (mut pool, all) = pool(&[0, 0, 0, 3, 3], |at, own| {
            own.max_in_flight = std::num::NonZeroU32::new([9, 1, 9, 9, 9][at]);
        });
        let only = |places: &'static [usize]| {
            let all = all.clone();
            move |address: &str| places.iter().any(|place| all[*place] == address)
        };
        let (first, later, none) = (only(&[1, 4]), only(&[3, 4]), only(&[]));
        let choice = pool.reserve_among(1, &ask(9), Some(&first), NOW).unwrap();
        assert_eq!((choice.order, choice.spill), (vec![all[1].clone(), all[4].clone()], None));
        assert_eq!(
            spilled(&pool.reserve_among(2, &ask(9), Some(&first), NOW).unwrap()),
            Some((3, Spilled::Full))
        );
        // A later group alone is no spillover: the first was not asked for.
        let choice = pool.reserve_among(3, &ask(9), Some(&later), NOW).unwrap();
        assert_eq!((choice.order.len(), choice.spill), (2, None));
        assert_eq!(pool.reserve_among(4, &ask(9), Some(&none), NOW), None);
        assert_eq!(
            pool.turned_away(&Demand::default(), Some(&none), NOW).map(|(shut, _)| shut),
            None,
            "nobody is out: nobody is there"
        );
        let full = only(&[1]);
        assert_eq!(pool.reserve_among(5, &ask(9), Some(&full), NOW), None);
        assert_eq!(
            pool.turned_away(&ask(9).demand, Some(&full), NOW).map(|(shut, _)| shut.status),
            Some(429)
        );
        assert!(pool.reserve(6, &ask(9), NOW).is_some());
    }

    #[test]
    fn while_the_only_endpoint_of_a_group_ramps_up_the_next_group_serves_the_rest() {
        let (mut pool, all) = pool(&[0, 1], |_, _| {});
        for id in 0..2 {
            pool.attempted(id, &all[0], &Outcome::failed(Reason::Connect), NOW);
        }
        let back = NOW + Duration::from_secs(5);
        let probe = pool.reserve(9, &ask(9), back).unwrap();
        assert!(probe.probe && probe.order[0] == all[0]);
        pool.attempted(9, &all[0], &Outcome::of_status(200, None), back);
        pool.end(9);
        let mut first = |millis: u64, id: u64| {
            let mut first = 0;
            for id in id..id + 1_000 {
                let choice = pool.reserve(id, &ask(9), back + Duration::from_millis(millis)).unwrap();
                assert_eq!(choice.order.len(), 2, "the other is there for a retry");
                match choice.order[0] == all[0] {
                    true => first += usize::from(choice.spill.is_none()),
                    false => assert_eq!(spilled(&choice), Some((1, Spilled::Ramp))),
                }
                pool.end(id);
            }
            first
        };
        assert!((50..200).contains(&first(0, 1_000)), "a tenth");
        assert!((400..600).contains(&first(5_000, 10_000)), "half");
        assert_eq!(first(10_000, 20_000), 1_000);
    }

    #[test]
    fn where_nobody_else_can_serve_an_endpoint_that_has_come_back_serves_all() {
        for priorities in [&[0][..], &[0, 1]] {
            let (mut pool, all) = pool(priorities, |_, _| {});
            for (id, address) in all.iter().enumerate().flat_map(|one| [one, one]).enumerate() {
                pool.attempted(id as u64, address.1, &Outcome::failed(Reason::Connect), NOW);
            }
            let back = NOW + Duration::from_secs(5);
            let probe = pool.reserve(9, &ask(9), back).unwrap();
            assert!(probe.probe && probe.order[0] == all[0]);
            pool.attempted(9, &all[0], &Outcome::of_status(200, None), back);
            pool.end(9);
            if let Some(other) = all.get(1) {
                pool.attempted(8, other, &Outcome::of_status(429, Some(Duration::from_secs(60))), back);
            }
            for id in 100..200 {
                let choice = pool.reserve(id, &ask(9), back).unwrap();
                assert_eq!((choice.order.as_slice(), choice.spill), (&all[..1], None));
            }
        }
    }

    #[test]
    fn a_group_that_asked_to_be_left_alone_is_passed_over_until_then() {
        let (mut pool, all) = pool(&[0, 0, 1], |_, _| {});
        let busy = Outcome::of_status(429, Some(Duration::from_secs(20)));
        pool.attempted(1, &all[0], &busy, NOW);
        assert_eq!(pool.reserve(2, &ask(9), NOW).unwrap().order, [&all[1][..], &all[2][..]]);
        pool.attempted(2, &all[1], &busy, NOW);
        let choice = pool.reserve(3, &ask(9), NOW).unwrap();
        assert_eq!(
            (choice.order, choice.spill),
            (vec![all[2].clone()], Some(Spill { from: 0, to: 1, reason: Spilled::Busy }))
        );
        pool.attempted(3, &all[2], &busy, NOW);
        assert_eq!(pool.reserve(4, &ask(9), NOW), None);
        let shut = Shut { wait: Duration::from_secs(20), status: 429 };
        assert_eq!(pool.shut(&Demand::default(), NOW), Some(shut));
        let later = NOW + Duration::from_secs(21);
        assert_eq!(pool.reserve(5, &ask(9), later).unwrap().spill, None);
    }

    #[test]
    fn a_group_that_has_tripped_gets_probes_and_the_next_group_the_rest() {
        let (mut pool, all) = pool(&[0, 1], |_, _| {});
        for id in 0..2 {
            pool.attempted(id, &all[0], &Outcome::failed(Reason::Connect), NOW);
        }
        assert_eq!(spilled(&pool.reserve(2, &ask(9), NOW).unwrap()), Some((1, Spilled::Out)));
        let later = NOW + Duration::from_secs(6);
        let probe = pool.reserve(3, &ask(9), later).unwrap();
        assert_eq!((probe.probe, probe.spill, &probe.order), (true, None, &all));
        assert_eq!(spilled(&pool.reserve(4, &ask(9), later).unwrap()), Some((1, Spilled::Out)));
        pool.attempted(3, &all[0], &Outcome::of_status(200, None), later);
        let ramped = later + Duration::from_secs(10);
        assert_eq!(pool.reserve(5, &ask(9), ramped).unwrap().spill, None);
    }

    #[test]
    fn what_is_full_or_too_small_is_passed_over_and_when_all_are_full_the_client_is_told_to_come_again() {
        let (mut pool, all) = pool(&[0, 1], |at, own| {
            own.max_in_flight = std::num::NonZeroU32::new([2, 1][at]);
            own.max_input_tokens = Some([100, 1_000][at]);
        });
        let mut to = |id, tokens| pool.reserve(id, &ask(tokens), NOW).map(|choice| spilled(&choice));
        assert_eq!(to(1, 50), Some(None));
        assert_eq!(to(2, 500), Some(Some((1, Spilled::TooLong))));
        assert_eq!(to(3, 50), Some(None));
        assert_eq!(to(4, 50), None);
        let demand = Demand { prompt_tokens: 50, ..Demand::default() };
        assert_eq!(
            pool.shut(&demand, NOW).map(|shut| (shut.status, shut.wait)),
            Some((429, Duration::from_secs(1)))
        );
        pool.end(2);
        assert_eq!(spilled(&pool.reserve(5, &ask(50), NOW).unwrap()), Some((1, Spilled::Full)));
        pool.end(1);
        assert_eq!(pool.reserve(6, &ask(50), NOW).unwrap().order[0], all[0]);
    }

    #[test]
    fn what_was_tried_before_gets_no_last_attempt_where_all_are_out() {
        let (mut pool, all) = pool(&[0, 0], |_, _| {});
        for (id, address) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            pool.attempted(id, &all[address], &Outcome::failed(Reason::Connect), NOW);
        }
        let again = Demand { retried: true, ..Demand::default() };
        let ask = |demand| Ask { blocks: &[], demand, prompt: None };
        let later = NOW + Duration::from_secs(2);
        assert_eq!(pool.reserve(4, &ask(again), later), None);
        let shut = Shut { wait: Duration::from_secs(3), status: 503 };
        assert_eq!(pool.shut(&again, later), Some(shut));
        assert_eq!(pool.reserve(5, &ask(Demand::default()), later).unwrap().order.len(), 1);
        let due = NOW + Duration::from_secs(6);
        assert!(pool.reserve(6, &ask(again), due).unwrap().probe, "as good a probe as any");
    }

    /// Whatever fails, a request goes to a later group only if nobody of an earlier one could have taken it.
    #[test]
    fn no_request_is_spilled_that_an_earlier_group_could_have_served() {
        let mut random = Random::new(3);
        let (mut pool, all) = pool(&[0, 0, 1, 1, 4], |at, own| {
            own.max_in_flight = std::num::NonZeroU32::new(3 + at as u32);
        });
        let (mut now, mut open, mut spills) = (NOW, Vec::new(), 0);
        for id in 0..20_000_u64 {
            now = now + Duration::from_millis(random.below(300) as u64);
            // One that ramps up has a share only.
            let free = |pool: &Pool, priority: u32| {
                let loads = pool.loads();
                let mut standings = pool.standings(now);
                standings.any(|(address, standing, _)| {
                    let place = all.iter().position(|own| own == address).unwrap();
                    let serves = standing == Standing::Closed;
                    let room = (loads[place].in_flight as usize) < 3 + place;
                    pool.priority(address) == Some(priority) && serves && room
                })
            };
            let earlier = [free(&pool, 0), free(&pool, 1)];
            if let Some(choice) = pool.reserve(id, &ask(20), now) {
                let group = pool.priority(&choice.order[0]).unwrap();
                let none_before = earlier.iter().zip([0, 1]).all(|(free, own)| own >= group || !free);
                // A least bad one is taken from any group.
                let any = earlier.contains(&true) || free(&pool, 4);
                assert!(none_before || !any, "{earlier:?} {choice:?}");
                spills += usize::from(choice.spill.is_some());
                open.push((id, choice.order[0].clone()));
            }
            if open.len() > 8 || random.below(3) == 0 && !open.is_empty() {
                let (id, address) = open.swap_remove(random.below(open.len()));
                let outcome = match random.below(5) {
                    0 => Outcome::failed(Reason::Reset),
                    1 => Outcome::of_status(429, Some(Duration::from_millis(700))),
                    _ => Outcome::of_status(200, None),
                };
                assert!(outcome.class() != Class::Neutral);
                pool.attempted(id, &address, &outcome, now);
                pool.end(id);
            }
        }
        assert!(spills > 500, "{spills}");
    }
}
