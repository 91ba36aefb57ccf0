//! Which of two indexes says what an endpoint holds of a prompt.
//!
//! ```text
//! its engine's word is    whole      what it said               kv::Standing
//!                         part       the larger of the two
//!                         stale, silent, or there are no tokens    what was sent there: the approximate index
//! ```
//!
//! The approximate index is always kept: it costs little, and when an engine falls silent it has been learning all along.

use super::{Ask, Endpoint, Pool};
use crate::block;
use crate::instant::Instant;
use crate::kv::{self, Standing};
use crate::policy::Demand;
use serde::Serialize;
use std::collections::BTreeSet;

/// The prompt's tokens are not known, so an engine's word is of no use.
pub const NO_TOKENS: &str = "no_tokens";

/// What is known of what an endpoint holds, for a person or a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Precise {
    /// Its address.
    pub address: String,
    /// What is known.
    #[serde(flatten)]
    pub known: kv::Known,
}

impl Pool {
    /// From now on engines say what they hold: so many of them behind each endpoint. Endpoints that are there start with
    /// nothing known.
    pub fn listen(&mut self, config: &kv::Config, ranks: u32) {
        self.precise = Some((config.clone(), ranks));
        let random = &mut self.random;
        for endpoint in &mut self.endpoints {
            endpoint.engine = Some(kv::Engine::new(config, ranks, random.next()));
        }
    }

    /// Something is heard of an engine: of the one of that rank behind `address`.
    pub fn told(&mut self, address: &str, rank: u32, news: &kv::News) {
        let endpoint = self.places.get(address).and_then(|place| self.endpoints.get_mut(*place));
        if let Some(engine) = endpoint.and_then(|endpoint| endpoint.engine.as_mut()) {
            engine.hear(rank, news);
        }
    }

    /// Cuts a prompt as the engines of this pool cut theirs.
    pub fn cut(&self, tokens: &kv::Tokens) -> kv::Prompt {
        let engines = self.endpoints.iter().filter_map(|endpoint| endpoint.engine.as_ref());
        let sizes: BTreeSet<u32> = engines.flat_map(kv::Engine::block_sizes).collect();
        tokens.cut(&sizes)
    }

    /// What engines said, of those endpoints that are listened to.
    pub fn precise(&self, now: Instant) -> impl Iterator<Item = Precise> {
        self.endpoints.iter().filter_map(move |endpoint| {
            Some(Precise { address: endpoint.address.clone(), known: endpoint.engine.as_ref()?.known(now) })
        })
    }

    /// By whose word the last choice was made for `address`: a standing's name, or [`NO_TOKENS`]. `None` where engines are
    /// not listened to.
    pub fn word_of(&self, address: &str, now: Instant) -> Option<&'static str> {
        self.word(self.endpoints.get(*self.places.get(address)?)?, now)
    }

    pub(super) fn word(&self, endpoint: &Endpoint, now: Instant) -> Option<&'static str> {
        let engine = endpoint.engine.as_ref()?;
        Some(if self.in_tokens { engine.standing(now).name() } else { NO_TOKENS })
    }
}

impl Endpoint {
    /// Tokens of the prompt that are believed to be in its cache.
    pub(super) fn cached(&self, ask: &Ask<'_>, now: Instant) -> u32 {
        let (Some(engine), Some(prompt)) = (&self.engine, ask.prompt) else { return self.guessed(ask) };
        // The engine's tokens and those that the request is counted in need not be the same: a share is carried over.
        let said = || {
            let (cached, all) = (u64::from(engine.cached(prompt, now)), u64::from(prompt.tokens));
            let tokens = cached.saturating_mul(u64::from(ask.demand.prompt_tokens)).checked_div(all);
            bounded(tokens, &ask.demand)
        };
        match engine.standing(now) {
            Standing::Whole => said(),
            Standing::Part => said().max(self.guessed(ask)),
            Standing::Stale | Standing::Silent => self.guessed(ask),
        }
    }

    /// As large a share of the prompt's tokens as the units matched are of its units.
    fn guessed(&self, ask: &Ask<'_>) -> u32 {
        let Demand { prompt_tokens, prompt_units, .. } = ask.demand;
        let units = block::units(self.index.matched(ask.blocks)) as u64;
        let tokens = units.saturating_mul(u64::from(prompt_tokens)).checked_div(u64::from(prompt_units));
        bounded(tokens, &ask.demand)
    }
}

/// One token is always computed.
fn bounded(tokens: Option<u64>, demand: &Demand) -> u32 {
    let tokens = tokens.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(0);
    tokens.min(demand.prompt_tokens.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Batch, Event, News, Stored, Tokens};
    use crate::pool::Config;
    use std::time::Duration;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: Instant = Instant::from_millis(1_000_000);
    const HOLDS: &str = "10.0.0.1:8000";
    const OTHER: &str = "10.0.0.2:8000";

    fn tokens() -> Tokens {
        Tokens { ids: (0..161).collect(), ..Tokens::default() }
    }

    /// A pool of two of which the first has said that it holds the whole prompt.
    fn pool() -> Pool {
        let all = [HOLDS.to_owned(), OTHER.to_owned()];
        let mut pool = Pool::new(&Config::default(), &all, 3).unwrap();
        pool.listen(&kv::Config::default(), 1);
        for address in [HOLDS, OTHER] {
            pool.told(address, 0, &News::Linked(true));
            pool.told(address, 0, &News::Anew { whole: true });
        }
        let stored = Stored {
            blocks: (1..11).collect(),
            tokens: (0..160).collect(),
            block_tokens: 16,
            whole: true,
            ..Stored::default()
        };
        pool.told(HOLDS, 0, &News::Batch(Batch { at: 1.0, events: vec![Event::Stored(stored)], odd: 0 }));
        pool
    }

    fn demand() -> Demand {
        Demand { prompt_tokens: 161, prompt_units: 10, stream: true, ..Demand::default() }
    }

    /// Where one request is sent, what is cached there, and by whose word; it ends at once.
    fn sent(pool: &mut Pool, prompt: Option<&kv::Prompt>, now: Instant) -> (String, u32, &'static str) {
        let ask = Ask { blocks: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], demand: demand(), prompt };
        let choice = pool.reserve(1, &ask, now).unwrap();
        let why = pool.why(&choice, now);
        pool.end(1);
        let word = pool.word_of(&choice.order[0], now).unwrap();
        assert_eq!(why.candidates[0].index, Some(word));
        (choice.order[0].clone(), choice.candidate.cached_tokens, word)
    }

    #[test]
    fn a_request_goes_where_the_engine_said_that_its_prompt_is() {
        for _ in 0..20 {
            let mut pool = pool();
            let prompt = pool.cut(&tokens());
            assert_eq!(sent(&mut pool, Some(&prompt), NOW), (HOLDS.into(), 160, "whole"));
        }
    }

    #[test]
    fn without_tokens_and_without_events_the_approximate_index_decides_and_says_so() {
        let mut pool = pool();
        let prompt = pool.cut(&tokens());
        let (first, cached, word) = sent(&mut pool, None, NOW);
        assert_eq!((cached, word), (0, NO_TOKENS));
        assert_eq!(sent(&mut pool, None, NOW), (first.clone(), 160, NO_TOKENS), "by what was sent there");
        for address in [HOLDS, OTHER] {
            pool.told(address, 0, &News::Linked(false));
        }
        assert_eq!(sent(&mut pool, Some(&prompt), NOW), (first, 160, "silent"));
    }

    #[test]
    fn what_only_a_part_is_known_of_has_the_better_of_both() {
        let mut pool = pool();
        let prompt = pool.cut(&tokens());
        let (first, ..) = sent(&mut pool, Some(&prompt), NOW);
        assert_eq!(first, HOLDS);
        pool.told(HOLDS, 0, &News::Anew { whole: false });
        assert_eq!(sent(&mut pool, Some(&prompt), NOW), (HOLDS.into(), 160, "part"));
        pool.told(HOLDS, 0, &News::Anew { whole: true });
        pool.told(OTHER, 0, &News::Linked(false));
        let later = NOW + Duration::from_secs(11);
        assert_eq!(sent(&mut pool, Some(&prompt), later).1, 0, "what was sent and never told of is over");
    }

    #[test]
    fn what_an_endpoint_held_leaves_with_it() {
        let mut pool = pool();
        let prompt = pool.cut(&tokens());
        pool.set_endpoints(&[OTHER.to_owned()]).unwrap();
        pool.set_endpoints(&[HOLDS.to_owned()]).unwrap();
        assert_eq!(sent(&mut pool, Some(&prompt), NOW).1, 0);
        let blocks = |pool: &Pool| pool.precise(NOW).map(|one| one.known.blocks).sum::<u64>();
        assert_eq!(blocks(&pool), 0);
        assert_eq!(pool.cut(&tokens()).chain(16).len(), 0, "nobody has blocks of any size");
    }

    #[test]
    fn an_engine_whose_counters_went_back_holds_nothing() {
        let mut pool = pool();
        let prompt = pool.cut(&tokens());
        let report = |at, total| crate::pool::Report {
            at: Instant::from_millis(at),
            totals: [(1, total)].into(),
            ..crate::pool::Report::default()
        };
        pool.hear(HOLDS, &report(1, 9.0));
        pool.hear(HOLDS, &report(2, 1.0));
        let ask = Ask { blocks: &[], demand: demand(), prompt: Some(&prompt) };
        assert_eq!(pool.reserve(1, &ask, NOW).unwrap().candidate.cached_tokens, 0);
    }
}
