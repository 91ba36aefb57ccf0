//! Why the last choice was made, for a person.
//!
//! Every endpoint that might have been chosen, with what was known of it and what the policy made of it, the chosen one
//! first and then the best; and in a few words what decided: the score that made most of the difference to the next best, a
//! tie, a draw of the picker's, or that there was nobody else.

use super::{Choice, Endpoint, Pool};
use crate::instant::Instant;
use crate::policy::{Adapter, Candidate, Explained};
use serde::Serialize;

/// Why a choice was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Why {
    /// The chosen address.
    pub endpoint: String,
    /// The policy that chose.
    pub policy: String,
    /// What decided.
    pub because: String,
    /// Who might have been chosen, the chosen one first, then those with the highest totals: of one group, and of a
    /// probe nobody else.
    pub candidates: Vec<Considered>,
}

/// One endpoint that might have been chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Considered {
    /// Its address.
    pub endpoint: String,
    /// Requests in flight there.
    pub in_flight: u32,
    /// Uncached prompt tokens queued there.
    pub queued_tokens: u64,
    /// Tokens of the prompt that it holds.
    pub cached_tokens: u32,
    /// By whose word: `whole` or `part` of what its engine said, or, because that is `stale` or `silent` or there are
    /// `no_tokens`, by what was sent there. Absent where engines are not listened to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<&'static str>,
    /// Requests queued in its engine, with what was sent since it said so.
    pub waiting: Option<f64>,
    /// Requests in its engine's batch, likewise.
    pub running: Option<f64>,
    /// Part of its KV memory in use, likewise.
    pub kv_usage: Option<f64>,
    /// Milliseconds since its engine said so.
    pub age_ms: Option<u64>,
    /// Where the request's adapter stands.
    #[serde(skip_serializing_if = "is_unknown")]
    pub adapter: Adapter,
    /// What the policy made of it.
    #[serde(flatten)]
    pub explained: Explained,
}

fn is_unknown(adapter: &Adapter) -> bool {
    *adapter == Adapter::Unknown
}

impl Pool {
    /// Why `choice`, the last one, was made.
    pub fn why(&self, choice: &Choice, now: Instant) -> Why {
        let endpoint = choice.order.first().cloned().unwrap_or_default();
        let one = |(candidate, explained): (&Candidate, Explained)| {
            let endpoint = self.endpoints.get(candidate.place)?;
            Some(Considered {
                index: self.word(endpoint, now),
                ..considered(endpoint, candidate, explained, now)
            })
        };
        let mut candidates: Vec<Considered> =
            self.candidates.iter().zip(self.policy.explain()).filter_map(one).collect();
        let rank = |one: &Considered| (one.endpoint != endpoint, one.explained.left_out_by.is_some());
        candidates
            .sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.explained.total.total_cmp(&a.explained.total)));
        let because = match choice.probe {
            true => "it was out and is tried again".to_owned(),
            false => because(&candidates),
        };
        Why { endpoint, policy: choice.policy.clone().into_owned(), because, candidates }
    }
}

fn considered(endpoint: &Endpoint, candidate: &Candidate, explained: Explained, now: Instant) -> Considered {
    let age = candidate.engine.at.map(|at| now.since(at).as_millis());
    Considered {
        endpoint: endpoint.address.clone(),
        in_flight: candidate.in_flight,
        queued_tokens: candidate.queued_tokens,
        cached_tokens: candidate.cached_tokens,
        index: None,
        waiting: candidate.waiting(),
        running: candidate.running(),
        kv_usage: candidate.kv_usage(),
        age_ms: age.map(|age| u64::try_from(age).unwrap_or(u64::MAX)),
        adapter: candidate.adapter,
        explained,
    }
}

/// What put the first of them before the others, which are in the order of their totals.
fn because(candidates: &[Considered]) -> String {
    let mut left = candidates.iter().filter(|one| one.explained.left_out_by.is_none());
    let Some(first) = left.next() else { return String::new() };
    let rest: Vec<&Considered> = left.collect();
    let Some(next) = rest.first() else { return "it is the only one that was left".to_owned() };
    let (own, others) = (first.explained.total, next.explained.total);
    let equals = rest.iter().filter(|one| one.explained.total >= own).count();
    if others > own {
        return format!("it was drawn, at {own:.3}, where {equals} have as much or more");
    }
    if equals > 0 {
        return format!("it is one of {} with {own:.3}, in turn or at random", equals + 1);
    }
    let gains = first.explained.scores.iter().zip(&next.explained.scores);
    let gain = gains.map(|(own, other)| (own.score.as_str(), own.weight * (own.value - other.value)));
    let (score, gain) = gain.max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap_or(("", 0.0));
    format!("{own:.3} before {others:.3} at {}; {score} makes {gain:+.3} of it", next.endpoint)
}
