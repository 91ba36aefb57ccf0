//! A choice: what became of earlier requests is noted, then an endpoint is chosen and booked, in one hold of the book's lock. Whoever is
//! to hear of it is told, and it is counted and, while somebody looks, explained.

use super::metrics::NO_ENDPOINT;
use super::{Refused, Scorer};
use crate::tokens::Unread;
use weir::kv;
use weir::policy::Demand;
use weir::pool::{Among, Ask, Message};
use weir::wire::{Reserve, Reserved};

impl Scorer {
    /// Notes what became of earlier leases, then chooses and books in one step.
    pub fn reserve(&self, ask: &Reserve) -> Result<Reserved, Refused> {
        self.reserve_for(ask, None, None)
    }

    /// The same from among some endpoints only, for a request that was turned into tokens, or was not: [`Scorer::reader`].
    pub fn reserve_for(
        &self,
        ask: &Reserve,
        read: Option<&Result<kv::Tokens, Unread>>,
        among: Among<'_>,
    ) -> Result<Reserved, Refused> {
        if let Some(read) = read {
            self.metrics.precise.read(&ask.pool, read);
        }
        let mut pools = self.pools();
        let now = self.clock.now();
        self.note(&mut pools, &ask.events, now);
        let place = pools.of_name(&ask.pool).ok_or_else(|| Refused::UnknownPool(ask.pool.clone()))?;
        let (name, pool) = pools.get(place).ok_or_else(|| Refused::UnknownPool(ask.pool.clone()))?;
        self.metrics.expired(name, pool.expire(now));
        let prompt = read.and_then(|read| read.as_ref().ok()).map(|tokens| pool.cut(tokens));
        let mut wanted = Ask { prompt: prompt.as_ref(), ..ask.ask() };
        if let Some(prompt) = &prompt {
            // The prompt's own number, whatever it was estimated at.
            wanted.demand.prompt_tokens = prompt.tokens;
        }
        let prompt_tokens = wanted.demand.prompt_tokens;
        let Some(choice) = pool.reserve_among(ask.lease, &wanted, among, now) else {
            let shut = pool.turned_away(&wanted.demand, among, now);
            let reason = shut.map_or(NO_ENDPOINT, |(_, reason)| reason.name());
            self.metrics.turned_away(name, reason, prompt_tokens);
            if self.decisions.wants(now) {
                self.decisions.keep(name, ask, Err(reason), now);
            }
            let (shut, _) = shut.ok_or_else(|| Refused::NoEndpoint(ask.pool.clone()))?;
            self.metrics.shut(name);
            return Ok(Reserved { shut: Some(shut.into()), ..Reserved::default() });
        };
        if let Some(first) = choice.order.first().filter(|_| self.is_heard()) {
            let mut booked = Message::booked(place as u16, ask.lease, first, &ask.ask(), choice.probe);
            if let Message::Booked { prefill, .. } = &mut booked {
                prefill.clone_from(&choice.prefill);
            }
            self.tell(booked);
        }
        let is_watched = self.decisions.wants(now);
        let why = (ask.explain || is_watched).then(|| pool.why(&choice, now));
        self.metrics.reserved(name, prompt_tokens, choice.candidate.cached_tokens);
        self.metrics.precise.chosen(name, choice.order.first().and_then(|chosen| pool.word_of(chosen, now)));
        let told = why.as_ref().filter(|_| ask.explain);
        let told = told.map(|why| serde_json::to_value(why).unwrap_or_default());
        if let Some(why) = why.filter(|_| is_watched) {
            self.decisions.keep(name, ask, Ok(why), now);
        }
        Ok(Reserved {
            endpoints: choice.order,
            prefill: choice.prefill,
            why: told,
            cached_tokens: choice.candidate.cached_tokens,
            queued_tokens: choice.candidate.queued_tokens,
            in_flight: choice.candidate.in_flight,
            policy: choice.policy.into(),
            probe: choice.probe,
            spill: choice.spill,
            shut: None,
        })
    }

    /// The longest prompt that any endpoint of a pool takes, in tokens, where this one is longer.
    pub(crate) fn too_long(&self, pool: &str, demand: &Demand) -> Option<u32> {
        let mut pools = self.pools();
        let place = pools.of_name(pool)?;
        pools.get(place)?.1.too_long(demand)
    }
}
