//! A policy that is ready to choose.

use super::epp::{NoPrefill, Split};
use super::{Attributes, Candidate, Keep, Known, Needed, News, Pick, Round, Score, Wants};
use crate::instant::Instant;
use crate::invalid::Invalid;
use crate::random::Random;
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;

/// A policy, ready to choose.
#[derive(Debug)]
pub struct Policy {
    pub(super) name: Cow<'static, str>,
    /// Its configuration with all defaults filled in.
    pub(super) effective: Value,
    pub(super) profile: Profile,
    /// How the computing of prompts is split off, if it is.
    pub(super) split: Option<Split>,
    pub(super) notes: Vec<Invalid>,
    pub(super) needs: Vec<Needed>,
}

/// Where a prompt is to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefill {
    /// Where the request goes.
    There,
    /// At the candidate of this place among those of the round.
    At(usize),
    /// Elsewhere, and there is nobody: the request is to be refused.
    Nowhere,
}

/// Who is left out, what is judged, who is taken.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) keepers: Vec<(Cow<'static, str>, Box<dyn Keep>)>,
    pub(super) scorers: Vec<Weighted>,
    pub(super) picker: Box<dyn Pick>,
    pub(super) scratch: Scratch,
}

/// A score and what it counts.
#[derive(Debug)]
pub(super) struct Weighted {
    pub(super) name: Cow<'static, str>,
    pub(super) weight: f64,
    pub(super) score: Box<dyn Score>,
}

/// Room that one choice after the other uses, so that none allocates. What the last one left there explains it.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Candidates that are left, and their places among all.
    kept: Vec<Candidate>,
    at: Vec<usize>,
    flags: Vec<bool>,
    /// By whom each candidate was left out, from 1; 0 for nobody.
    out: Vec<usize>,
    /// What each score gave to each that is left, score after score.
    scores: Vec<f64>,
    sum: Vec<f64>,
    order: Vec<usize>,
}

/// What a choice made of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// What left it out, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_by: Option<String>,
    /// What each score gave it.
    pub scores: Vec<Step>,
    /// The weighted sum.
    pub total: f64,
}

/// What one score gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The score's name.
    pub score: String,
    /// What it counts.
    pub weight: f64,
    /// From 0 to 1.
    pub value: f64,
}

impl Policy {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration with all defaults filled in, as [`Policy::read`] takes it.
    pub fn effective(&self) -> &Value {
        &self.effective
    }

    /// What of its configuration is accepted and does nothing here, and why.
    pub fn notes(&self) -> &[Invalid] {
        &self.notes
    }

    /// Checks what is said of an endpoint, as far as it is for this policy.
    pub fn check(&self, attributes: &Attributes) -> Result<(), Invalid> {
        self.scorers().try_for_each(|weighted| weighted.score.check(attributes))
    }

    /// These are the endpoints from now on, by their places.
    pub fn meet(&mut self, endpoints: &[Known<'_>]) {
        for Profile { keepers, scorers, picker, .. } in self.profiles() {
            keepers.iter_mut().for_each(|(_, keeper)| keeper.meet(endpoints));
            scorers.iter_mut().for_each(|weighted| weighted.score.meet(endpoints));
            picker.meet(endpoints);
        }
    }

    /// What became of a request.
    pub fn learn(&mut self, news: &News, now: Instant) {
        for Profile { keepers, scorers, .. } in self.profiles() {
            keepers.iter_mut().for_each(|(_, keeper)| keeper.learn(news, now));
            scorers.iter_mut().for_each(|weighted| weighted.score.learn(news, now));
        }
    }

    /// What it learns of answers.
    pub fn wants(&self) -> Wants {
        self.scorers().fold(Wants::default(), |all, weighted| {
            let own = weighted.score.wants();
            Wants { answers: all.answers || own.answers, reports: all.reports || own.reports }
        })
    }

    fn scorers(&self) -> impl Iterator<Item = &Weighted> {
        let split = self.split.as_ref().map(|split| &split.profile);
        std::iter::once(&self.profile).chain(split).flat_map(|profile| &profile.scorers)
    }

    fn profiles(&mut self) -> impl Iterator<Item = &mut Profile> {
        std::iter::once(&mut self.profile).chain(self.split.as_mut().map(|split| &mut split.profile))
    }

    /// Whether prompts may be computed by another endpoint than the chosen one.
    pub fn splits(&self) -> bool {
        self.split.is_some()
    }

    /// Where the prompt is to be computed when `decode` was chosen to answer.
    pub fn prefill(&mut self, round: &Round<'_>, decode: &Candidate, random: &mut Random) -> Prefill {
        let Some(split) = self.split.as_mut().filter(|split| split.decider.splits(round.demand, decode))
        else {
            return Prefill::There;
        };
        match split.profile.choose(round, 1, random).first() {
            Some(at) => Prefill::At(*at),
            None if split.no_prefill == NoPrefill::Refuse => Prefill::Nowhere,
            None => Prefill::There,
        }
    }

    /// Orders candidates: the chosen one first, then up to `most - 1` others, best score first, as fallbacks. Empty when
    /// there is no candidate, or all were left out.
    pub fn choose(&mut self, round: &Round<'_>, most: usize, random: &mut Random) -> &[usize] {
        self.profile.choose(round, most, random)
    }

    /// Whether the last choice, which found nobody, would have found somebody who had less to do.
    pub fn was_for_load(&self) -> bool {
        let Profile { keepers, scratch, .. } = &self.profile;
        let by = |step: &usize| keepers.get(step.checked_sub(1)?);
        scratch.out.iter().filter_map(by).any(|(_, keeper)| keeper.is_for_load())
    }

    /// What the last choice made of its candidates, in their order.
    pub fn explain(&self) -> Vec<Explained> {
        self.profile.explain()
    }
}

impl Profile {
    pub(super) fn choose(&mut self, round: &Round<'_>, most: usize, random: &mut Random) -> &[usize] {
        let Self { keepers, scorers, picker, scratch } = self;
        scratch.begin(round, keepers.is_empty());
        for (step, (_, keeper)) in keepers.iter_mut().enumerate() {
            scratch.flags.clear();
            scratch.flags.resize(scratch.kept.len(), true);
            keeper.keep(&Round { candidates: &scratch.kept, ..*round }, &mut scratch.flags, random);
            scratch.leave_out(step + 1);
        }
        let candidates = if keepers.is_empty() { round.candidates } else { &scratch.kept };
        let round = Round { candidates, ..*round };
        scratch.sum.resize(candidates.len(), 0.0);
        scratch.scores.resize(candidates.len() * scorers.len(), 0.0);
        let each = scratch.scores.chunks_exact_mut(candidates.len().max(1));
        for (weighted, scores) in scorers.iter_mut().zip(each) {
            weighted.score.score(&round, scores);
            for (sum, score) in scratch.sum.iter_mut().zip(scores) {
                *score = score.clamp(0.0, 1.0);
                *sum += weighted.weight * *score;
            }
        }
        let order = &mut scratch.order;
        order.extend(picker.pick(&round, &scratch.sum, random));
        while !order.is_empty() && order.len() < most.min(candidates.len()) {
            let Some(next) = best(&scratch.sum, random, |at| !order.contains(at)) else { break };
            order.push(next);
        }
        for at in order.iter_mut().filter(|_| !keepers.is_empty()) {
            *at = scratch.at.get(*at).copied().unwrap_or(0);
        }
        order
    }

    fn explain(&self) -> Vec<Explained> {
        let Scratch { at, out, scores, sum, .. } = &self.scratch;
        let all = if self.keepers.is_empty() { sum.len() } else { out.len() };
        let one = |place: usize| {
            let step = out.get(place).copied().unwrap_or(0);
            let out = step.checked_sub(1).and_then(|step| self.keepers.get(step));
            let left = if self.keepers.is_empty() {
                Some(place)
            } else {
                at.iter().position(|at| *at == place).filter(|_| out.is_none())
            };
            let step = |(nth, weighted): (usize, &Weighted)| {
                let value = *scores.get(nth * sum.len() + left?)?;
                Some(Step { score: weighted.name.to_string(), weight: weighted.weight, value })
            };
            Explained {
                left_out_by: out.map(|(name, _)| name.to_string()),
                scores: self.scorers.iter().enumerate().filter_map(step).collect(),
                total: left.and_then(|left| sum.get(left)).copied().unwrap_or(0.0),
            }
        };
        (0..all).map(one).collect()
    }
}

impl Scratch {
    fn begin(&mut self, round: &Round<'_>, keeps_all: bool) {
        self.order.clear();
        self.sum.clear();
        self.scores.clear();
        if keeps_all {
            return;
        }
        self.kept.clear();
        self.kept.extend_from_slice(round.candidates);
        self.at.clear();
        self.at.extend(0..round.candidates.len());
        self.out.clear();
        self.out.resize(round.candidates.len(), 0);
    }

    /// Lets those go whose flag is down.
    fn leave_out(&mut self, step: usize) {
        let Self { kept, at, flags, out, .. } = self;
        for (at, _) in at.iter().zip(flags.iter()).filter(|(_, flag)| !**flag) {
            if let Some(out) = out.get_mut(*at) {
                *out = step;
            }
        }
        let mut flag = flags.iter().copied();
        kept.retain(|_| flag.next().unwrap_or(true));
        let mut flag = flags.iter().copied();
        at.retain(|_| flag.next().unwrap_or(true));
    }
}

/// The place of the highest score among those that `among` lets in; a random one of equals.
pub(super) fn best(scores: &[f64], random: &mut Random, among: impl Fn(&usize) -> bool) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    let mut equals = 0_usize;
    for (at, &score) in scores.iter().enumerate().filter(|(at, _)| among(at)) {
        match best {
            Some((_, top)) if score < top => {}
            Some((_, top)) if score == top => {
                equals += 1;
                if random.below(equals) == 0 {
                    best = Some((at, score));
                }
            }
            _ => {
                equals = 1;
                best = Some((at, score));
            }
        }
    }
    best.map(|(at, _)| at)
}
