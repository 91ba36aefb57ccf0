//! How hard a pool is pressed: what an autoscaler goes by.
//!
//! ```text
//! waiting      requests whose first token has not come, and the prompt tokens that are still to be computed for them
//! ttft         min over endpoints that may be sent to of (queued tokens there + uncached tokens of a usual prompt) / pace
//! saturation   mean over all endpoints of s, where s is 1 for one that is out, and otherwise
//!              min(1, max(queued tokens / pace / saturated_ms, in flight / max_in_flight, queued in the engine / 5))
//! utilization  mean over the endpoints that say either of max(queued in the engine / 5, KV usage / 0.8)
//! ```
//!
//! *Pace* is what streams have shown ([`super::pace`]). *Saturation* is in time, because time is what clients notice: five
//! prompts of a hundred tokens that wait are nothing, one of a hundred thousand is a queue. An engine's own queue counts
//! beside it: it grows when its batch or its KV memory is full while few prompt tokens wait, as with long answers.
//! An endpoint that is out, or not there, counts as full: what is left has to carry its part.
//!
//! Not in it: KV usage, which is high in an engine that is well used and says nothing of who waits, and which some engines
//! count with the prefixes that they only keep; and the engines' processors, which are busy as soon as one request runs.
//!
//! What pressure came to is told by streams' first tokens ([`FirstTokens`]): in time within `saturated_ms` of the booking. It is
//! goodput as a client sees it, and late, so nothing scales by it; it says whether what one scales by was right.
//!
//! *Utilization* is llm-d's `utilization-detector`, for who compares. There an endpoint whose word is 200 ms old counts as
//! full, so that a slow scrape has stopped whole pools; here one that says nothing is left out.

use super::{Endpoint, Pool};
use crate::breaker::Standing;
use crate::instant::Instant;
use serde::Serialize;
use std::time::Duration;

/// Requests queued in an engine at which it is full, as llm-d has it.
const FULL_QUEUE: f64 = 5.0;
/// KV usage at which an engine is full, as llm-d has it.
const FULL_KV: f64 = 0.8;

/// How hard a pool is pressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pressure {
    /// Requests whose first token has not come.
    pub waiting: u64,
    /// Prompt tokens that are still to be computed for them.
    pub queued_tokens: u64,
    /// From 0, where nothing waits, to 1, where every endpoint has as much to do as it should.
    pub saturation: f64,
    /// Milliseconds until the next usual prompt would see its first token; `None` when no endpoint may be sent to.
    pub ttft_ms: Option<f64>,
    /// llm-d's saturation, which may be above 1; `None` when no engine says anything.
    pub utilization: Option<f64>,
    /// Endpoints that get requests.
    pub serving: u64,
}

/// First tokens of streams, since the pool is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FirstTokens {
    /// Those that came within `saturated_ms` of the booking.
    pub in_time: u64,
    /// The others.
    pub late: u64,
}

impl FirstTokens {
    pub(super) fn count(&mut self, is_late: bool) {
        let one = if is_late { &mut self.late } else { &mut self.in_time };
        *one = one.saturating_add(1);
    }
}

/// Uncached tokens of a usual prompt: a mean that fades.
#[derive(Debug, Default)]
pub(super) struct Usual(Option<f64>);

impl Usual {
    /// What a new one weighs against those before.
    const WEIGHT: f64 = 0.05;

    pub(super) fn learn(&mut self, tokens: u32) {
        let new = f64::from(tokens);
        self.0 = Some(self.0.map_or(new, |mean| mean + Self::WEIGHT * (new - mean)));
    }

    fn tokens(&self) -> u64 {
        self.0.unwrap_or(0.0) as u64
    }
}

/// Prompts that were sent to an endpoint since it is one, in tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) prompt_tokens: u64,
    /// Of these, the ones that were believed to be in its cache.
    pub(super) cached_tokens: u64,
}

impl Sent {
    pub(super) fn count(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(u64::from(prompt_tokens));
        self.cached_tokens = self.cached_tokens.saturating_add(u64::from(cached_tokens));
    }
}

impl Pool {
    /// How hard it is pressed at the moment.
    pub fn pressure(&self, now: Instant) -> Pressure {
        let serves = |endpoint: &&Endpoint| {
            matches!(endpoint.circuit.standing(now), Standing::Closed | Standing::Ramp)
        };
        let sum: f64 =
            self.endpoints.iter().map(|e| if serves(&e) { self.saturation(e, now) } else { 1.0 }).sum();
        let said = self.endpoints.iter().filter_map(|endpoint| self.utilization(endpoint, now));
        let (utilizations, known) = said.fold((0.0, 0_u32), |(sum, n), one| (sum + one, n.saturating_add(1)));
        let usual = self.usual.tokens();
        let shortest = self.endpoints.iter().filter(serves).map(|endpoint| endpoint.queued_tokens).min();
        let ttft = shortest.map(|queued| self.pace.time_for(queued.saturating_add(usual)));
        Pressure {
            waiting: self.leases.values().filter(|lease| lease.queued_tokens > 0).count() as u64,
            queued_tokens: self.endpoints.iter().fold(0, |sum: u64, e| sum.saturating_add(e.queued_tokens)),
            saturation: if self.endpoints.is_empty() { 1.0 } else { sum / self.endpoints.len() as f64 },
            ttft_ms: ttft.map(|ttft| ttft.as_secs_f64() * 1e3),
            utilization: (known > 0).then(|| utilizations / f64::from(known)),
            serving: self.endpoints.iter().filter(serves).count() as u64,
        }
    }

    /// How streams' first tokens came.
    pub fn first_tokens(&self) -> FirstTokens {
        self.first_tokens
    }

    fn saturation(&self, endpoint: &Endpoint, now: Instant) -> f64 {
        let part = |of: Duration, all: Duration| of.as_secs_f64() / all.as_secs_f64();
        let queue = part(self.pace.time_for(endpoint.queued_tokens), self.saturated);
        let slots = endpoint.most.map_or(0.0, |most| f64::from(endpoint.in_flight) / f64::from(most.max(1)));
        let heard = endpoint.heard.fresh(now, self.stale).and_then(|heard| heard.signals.waiting);
        let engine = heard.map_or(0.0, |waiting| f64::from(waiting) / FULL_QUEUE);
        queue.max(slots).max(engine).min(1.0)
    }

    fn utilization(&self, endpoint: &Endpoint, now: Instant) -> Option<f64> {
        let signals = endpoint.heard.fresh(now, self.stale)?.signals;
        let queue = signals.waiting.map(|waiting| f64::from(waiting) / FULL_QUEUE);
        let memory = signals.kv_usage.map(|usage| usage / FULL_KV);
        queue.into_iter().chain(memory).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::{Outcome, Reason};
    use crate::policy::{Attributes, Demand, Signals};
    use crate::pool::{Ask, Config, Report};
    use std::num::NonZeroU32;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: Instant = Instant::from_millis(1_000);

    fn pool(endpoints: usize) -> Pool {
        let all: Vec<String> = (0..endpoints).map(|n| format!("10.0.0.{n}:8000")).collect();
        Pool::new(&Config::default(), &all, 9).unwrap()
    }

    fn ask(prompt_tokens: u32) -> Ask<'static> {
        Ask { demand: Demand { prompt_tokens, stream: true, ..Demand::default() }, ..Ask::default() }
    }

    fn says(pool: &mut Pool, endpoint: usize, waiting: Option<u32>, kv_usage: Option<f64>) {
        let signals = Signals { waiting, kv_usage, ..Signals::default() };
        let address = pool.endpoints[endpoint].address.clone();
        pool.hear(&address, &Report { at: NOW, signals, ..Report::default() });
    }

    fn is(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-9
    }

    #[test]
    fn an_idle_pool_is_not_pressed_and_one_without_endpoints_is_full() {
        let idle = pool(2).pressure(NOW);
        assert_eq!(idle, Pressure { ttft_ms: Some(0.0), serving: 2, ..Pressure::default() });
        let mut pool = pool(1);
        pool.set_endpoints(&[]).unwrap();
        let none = pool.pressure(NOW);
        assert_eq!((none.saturation, none.ttft_ms, none.utilization), (1.0, None, None));
    }

    #[test]
    fn what_waits_is_counted_in_time_until_its_first_token() {
        let mut pool = pool(2);
        // 5,000 tokens a second, and an endpoint is full with 2 s of them.
        pool.reserve(1, &ask(5_000), NOW).unwrap();
        let one = pool.pressure(NOW);
        assert_eq!((one.waiting, one.queued_tokens), (1, 5_000));
        assert!(is(one.saturation, 0.25), "half of one of two: {one:?}");
        assert!(is(one.ttft_ms.unwrap(), 1_000.0), "the other is idle, and the usual prompt takes a second");
        pool.reserve(2, &ask(50_000), NOW).unwrap();
        let two = pool.pressure(NOW);
        assert!(is(two.saturation, 0.75), "more than full is full: {two:?}");
        assert!(two.ttft_ms > one.ttft_ms);
        for id in [1, 2] {
            pool.first_token(id, None, NOW + Duration::from_secs(1));
        }
        let decoding = pool.pressure(NOW);
        assert_eq!((decoding.waiting, decoding.queued_tokens, decoding.saturation), (0, 0, 0.0));
    }

    #[test]
    fn first_tokens_of_streams_are_in_time_or_late_and_count_once() {
        let mut pool = pool(2);
        let whole = Ask { demand: Demand { stream: false, ..ask(10).demand }, ..Ask::default() };
        for (id, ask) in [(1, ask(10)), (2, ask(10)), (3, ask(10)), (4, whole)] {
            pool.reserve(id, &ask, NOW).unwrap();
        }
        for (id, after) in [(1, 2_000), (2, 2_001), (2, 2_002), (4, 5)] {
            pool.first_token(id, None, NOW + Duration::from_millis(after));
        }
        pool.end(3);
        assert_eq!(pool.first_tokens(), FirstTokens { in_time: 1, late: 1 });
    }

    #[test]
    fn an_endpoint_that_is_out_is_as_one_that_is_full() {
        let mut pool = pool(4);
        let address = pool.endpoints[1].address.clone();
        for id in 0..3 {
            pool.attempted(id, &address, &Outcome::failed(Reason::Connect), NOW);
        }
        let pressure = pool.pressure(NOW);
        assert_eq!(pressure.serving, 3);
        assert!(is(pressure.saturation, 0.25), "{pressure:?}");
        for endpoint in [0, 2, 3] {
            let address = pool.endpoints[endpoint].address.clone();
            for id in 0..3 {
                pool.attempted(id, &address, &Outcome::failed(Reason::Connect), NOW);
            }
        }
        let gone = pool.pressure(NOW);
        assert_eq!((gone.serving, gone.saturation, gone.ttft_ms), (0, 1.0, None));
    }

    #[test]
    fn slots_and_engines_queues_count_beside_the_prompts_and_kv_usage_does_not() {
        let mut pool = pool(2);
        says(&mut pool, 0, Some(4), Some(1.0));
        let full_memory = pool.pressure(NOW);
        assert!(is(full_memory.saturation, 0.4), "{full_memory:?}");
        assert!(is(full_memory.utilization.unwrap(), 1.25), "llm-d's: of the one that says anything");
        says(&mut pool, 1, Some(50), None);
        assert!(is(pool.pressure(NOW).saturation, 0.9));
        assert!(is(pool.pressure(NOW).utilization.unwrap(), (1.25 + 10.0) / 2.0));
        let stale = pool.pressure(NOW + Duration::from_secs(11));
        assert_eq!((stale.saturation, stale.utilization), (0.0, None), "an old word is forgotten");
        let most = Attributes { max_in_flight: NonZeroU32::new(4), ..Attributes::default() };
        let all = pool.addresses().map(|address| (address.to_owned(), most.clone())).collect();
        pool.describe(all);
        pool.reserve(1, &ask(0), NOW).unwrap();
        let later = NOW + Duration::from_secs(11);
        assert!(is(pool.pressure(later).saturation, 0.125), "one of four slots of one of two");
    }

    #[test]
    fn what_was_cached_is_told_of_each_endpoint() {
        let mut pool = pool(1);
        let demand = Demand { prompt_tokens: 100, prompt_units: 4, stream: true, ..Demand::default() };
        let ask = Ask { blocks: &[1, 2, 3, 4], demand, prompt: None };
        for id in 0..2 {
            pool.reserve(id, &ask, NOW).unwrap();
        }
        let load = &pool.loads()[0];
        assert_eq!((load.prompt_tokens, load.cached_tokens), (200, 99), "the second, but for a token");
    }
}
