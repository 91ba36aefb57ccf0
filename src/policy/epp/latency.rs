//! `latency-scorer` and `slo-headroom-tier-filter`: who keeps the objective, by what was learned from answers.
//!
//! ```text
//! ttft      = (queued tokens + own uncached tokens) * seconds per token, as the endpoint's last answers took
//! tpot      = seconds per output token, as its last streams took; where those do not count them, per event
//! room      = (objective - ttft) / objective, and the same of tpot
//! headroom  = ttftWeight * room of ttft + tpotWeight * room of tpot
//! ```
//!
//! An endpoint keeps the objective if it has room in all that was asked for: no room in one makes up for want in the other.
//! llm-d trains a model in two sidecars; here both are averages that fade (0.9 an answer), learned by endpoint. The
//! strategy `least` (llm-d's default) takes who keeps the objective most narrowly, which leaves the quick ones free for
//! those that need them; `most` the other way round. Those that miss it come after all that keep it, in llm-d's order: who
//! misses only the time per token, only the time to the first, both; of each the nearest first. A request without an objective goes by `composite`: queue, KV cache and prefix alike. The objective's headers are
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

    /// What is left of the objective; `None` without one or anything learned.
    fn headroom(&self, round: &Round<'_>, candidate: &Candidate) -> Option<Headroom> {
        let (ttft, tpot) = self.0.at(candidate.place).copied().unwrap_or_default();
        let own = u64::from(candidate.uncached_tokens(round.demand));
        let tokens = candidate.queued_tokens.saturating_add(own) as f64;
        let left = |objective_ms: Option<u32>, seconds: Option<f64>| {
            let objective = f64::from(objective_ms.filter(|ms| *ms > 0)?) / 1000.0;
            Some((objective - seconds?) / objective)
        };
        let ttft = left(round.demand.slo_ttft_ms, ttft.map(|pace| pace * tokens));
        let tpot = left(round.demand.slo_tpot_ms, tpot);
        (ttft.is_some() || tpot.is_some()).then_some(Headroom { ttft, tpot })
    }
}

/// What is left of each objective, in parts of it; below 0 it is missed.
#[derive(Clone, Copy, Debug, Default)]
struct Headroom {
    ttft: Option<f64>,
    tpot: Option<f64>,
}

impl Headroom {
    fn misses(self) -> (bool, bool) {
        let missed = |room: Option<f64>| room.is_some_and(|room| room < 0.0);
        (missed(self.ttft), missed(self.tpot))
    }

    fn keeps(self) -> bool {
        self.misses() == (false, false)
    }
}

impl Score for Latency {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let headroom = |candidate: &Candidate| self.learned.headroom(round, candidate);
        let asked = round.demand.slo_ttft_ms.or(round.demand.slo_tpot_ms).is_some();
        if !asked || round.candidates.iter().all(|candidate| headroom(candidate).is_none()) {
            return self.composite(round, scores);
        }
        // One of which nothing is known is taken to keep it just so, while it has nothing to do: it is learned of.
        let probe = |candidate: &Candidate| (candidate.in_flight == 0).then_some(Headroom::default());
        scale::known_or_mean(round, scores, |candidate| {
            headroom(candidate).or(probe(candidate)).map(|headroom| self.judge(headroom))
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
    /// Those that keep the objective from 0.5 up, below them a sixth for each way to miss it. The curves are flat far away and
    /// steep near the objective.
    fn judge(&self, headroom: Headroom) -> f64 {
        let weighed = |part: fn(f64) -> f64| {
            let of = |room: Option<f64>| part(room.unwrap_or(0.0));
            self.ttft_weight.get() * of(headroom.ttft) + self.tpot_weight.get() * of(headroom.tpot)
        };
        let missed = |band: f64| (band + 1.0 / (1.0 + weighed(|room| (-room).max(0.0)))) / 6.0 - 1e-9;
        match (headroom.misses(), self.headroom_selection_strategy) {
            ((false, false), Strategy::Least) => 0.5 + 0.5 / (1.0 + weighed(|room| room)),
            ((false, false), Strategy::Most) => 1.0 - 0.5 / (1.0 + weighed(|room| room)),
            ((false, true), _) => missed(2.0),
            ((true, false), _) => missed(1.0),
            ((true, true), _) => missed(0.0),
        }
    }

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
    #[serde(rename = "epsilonExploreNeg", alias = "epsilon")]
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
        let keeps =
            |candidate: &Candidate| self.learned.headroom(round, candidate).is_some_and(Headroom::keeps);
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
