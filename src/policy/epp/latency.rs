//! `latency-scorer` and `slo-headroom-tier-filter`: who keeps the objective, by what was learned from answers.
//!
//! ```text
//! ttft      = (queued tokens + own uncached tokens) * seconds per token, as the endpoint's last answers took
//! tpot      = seconds per output token, as its last answers took
//! headroom  = ttftWeight * (objective - ttft) / objective + tpotWeight * (objective - tpot) / objective
//! ```
//!
//! llm-d trains a model in two sidecars; here both are averages that fade (0.9 an answer), learned by endpoint. The
//! strategy `least` (llm-d's default) takes who keeps the objective most narrowly, which leaves the quick ones free for
//! those that need them; `most` the other way round; those that miss it come after all that keep it, the nearest first.
//! A request without an objective goes by `composite`: queue, KV cache and prefix alike. The objective's headers are
//! `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms` (older: `x-slo-ttft-ms`, `x-slo-tpot-ms`), which `extract` reads.

use super::kv_cache::Free;
use super::prefix::Prefix;
use super::relative::Waiting;
use crate::instant::Instant;
use crate::policy::number::{Amount, Ratio};
use crate::policy::{Candidate, Each, Keep, Known, News, Round, Score, Wants, scale};
use crate::random::Random;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Latency {
    ttft_weight: Amount,
    tpot_weight: Amount,
    headroom_selection_strategy: Strategy,
    #[serde(skip)]
    learned: Learned,
    #[serde(skip)]
    one: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Strategy {
    #[default]
    Least,
    Most,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            ttft_weight: Amount::of(0.8),
            tpot_weight: Amount::of(0.2),
            headroom_selection_strategy: Strategy::Least,
            learned: Learned::default(),
            one: Vec::new(),
        }
    }
}

/// Seconds per prompt token and per output token, of each endpoint.
#[derive(Debug, Default)]
struct Learned(Each<(Option<f64>, Option<f64>)>);

impl Learned {
    fn learn(&mut self, news: &News) {
        const FADE: f64 = 0.9;
        let mix = |old: &mut Option<f64>, new: f64| {
            *old = Some(old.map_or(new, |old| old * FADE + new * (1.0 - FADE)))
        };
        match *news {
            News::FirstToken { place, after, queued_tokens, .. } if queued_tokens > 0 => {
                if let Some((ttft, _)) = self.0.at_mut(place) {
                    mix(ttft, after.as_secs_f64() / queued_tokens as f64);
                }
            }
            News::Ended { place, decoding: Some(decoding), output_tokens: Some(tokens), .. }
                if tokens > 1 =>
            {
                if let Some((_, tpot)) = self.0.at_mut(place) {
                    mix(tpot, decoding.as_secs_f64() / f64::from(tokens - 1));
                }
            }
            _ => {}
        }
    }

    /// What is left of the objective, in parts of it; `None` without an objective or anything learned.
    fn headroom(&self, round: &Round<'_>, candidate: &Candidate, weights: (f64, f64)) -> Option<f64> {
        let (ttft, tpot) = self.0.at(candidate.place).copied().unwrap_or_default();
        let own = u64::from(candidate.uncached_tokens(round.demand));
        let tokens = candidate.queued_tokens.saturating_add(own) as f64;
        let left = |objective_ms: Option<u32>, seconds: Option<f64>| {
            let objective = f64::from(objective_ms.filter(|ms| *ms > 0)?) / 1000.0;
            Some((objective - seconds?) / objective)
        };
        let ttft = left(round.demand.slo_ttft_ms, ttft.map(|pace| pace * tokens));
        let tpot = left(round.demand.slo_tpot_ms, tpot);
        match (ttft, tpot) {
            (None, None) => None,
            (ttft, tpot) => Some(weights.0 * ttft.unwrap_or(0.0) + weights.1 * tpot.unwrap_or(0.0)),
        }
    }
}

impl Score for Latency {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let weights = (self.ttft_weight.get(), self.tpot_weight.get());
        let headroom = |candidate: &Candidate| self.learned.headroom(round, candidate, weights);
        let asked = round.demand.slo_ttft_ms.or(round.demand.slo_tpot_ms).is_some();
        if !asked || round.candidates.iter().all(|candidate| headroom(candidate).is_none()) {
            return self.composite(round, scores);
        }
        let strategy = self.headroom_selection_strategy;
        // Those that keep it from 0.5 up, the others below. Both curves are flat far away and steep near the objective.
        // One of which nothing is known is taken to keep it just so, while it has nothing to do: it is learned of.
        let probe = |candidate: &Candidate| (candidate.in_flight == 0).then_some(0.0);
        scale::known_or_mean(round, scores, |candidate| {
            headroom(candidate).or(probe(candidate)).map(|room| match (room >= 0.0, strategy) {
                (true, Strategy::Least) => 0.5 + 0.5 / (1.0 + room),
                (true, Strategy::Most) => 1.0 - 0.5 / (1.0 + room),
                (false, _) => 0.5 / (1.0 - room) - 1e-9,
            })
        });
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.learned.0.meet(endpoints);
    }

    fn learn(&mut self, news: &News, _: Instant) {
        self.learned.learn(news);
    }

    fn wants(&self) -> Wants {
        Wants { answers: true, reports: false }
    }
}

impl Latency {
    fn composite(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let parts: [&mut dyn Score; 3] = [&mut Waiting::default(), &mut Free {}, &mut Prefix::default()];
        let share = 1.0 / parts.len() as f64;
        scores.fill(0.0);
        self.one.clear();
        self.one.resize(scores.len(), 0.0);
        for part in parts {
            part.score(round, &mut self.one);
            scores.iter_mut().zip(&self.one).for_each(|(sum, one)| *sum += share * one);
        }
    }
}

/// Keeps those that keep the objective, if there are any.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Tier {
    /// How often all are kept all the same, so that the others are learned of.
    epsilon: Ratio,
    #[serde(skip)]
    learned: Learned,
}

impl Default for Tier {
    fn default() -> Self {
        Self { epsilon: Ratio::of(0.01), learned: Learned::default() }
    }
}

impl Keep for Tier {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], random: &mut Random) {
        let keeps = |candidate: &Candidate| {
            self.learned.headroom(round, candidate, (0.8, 0.2)).is_some_and(|room| room >= 0.0)
        };
        let any = round.candidates.iter().any(keeps);
        if any && random.unit() >= self.epsilon.get() {
            keep.iter_mut().zip(round.candidates).for_each(|(keep, candidate)| *keep = keeps(candidate));
        }
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.learned.0.meet(endpoints);
    }

    fn learn(&mut self, news: &News, _: Instant) {
        self.learned.learn(news);
    }
}
