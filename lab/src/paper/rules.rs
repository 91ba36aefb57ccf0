//! Routers that need no training: the paper's baselines, and ours.

use super::{Instance, Route, View, Waiting};
use crate::engine::Spec;

/// A router by its name.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name, the paper's where it is one of its.
    pub name: &'static str,
    decide: fn(&mut usize, &View<'_>) -> Option<(usize, usize)>,
    turn: usize,
}

/// All rules; the first is what the others are compared with.
pub const RULES: &[Rule] = &[
    rule("round robin", |turn, view| {
        *turn += 1;
        Some((0, (*turn - 1) % view.instances.len()))
    }),
    rule("join shortest queue", |_, view| Some((0, least(view, |instance| instance.flights.len() as f64)?))),
    rule("maximum capacity usage", |_, view| Some((0, least(view, now_held)?))),
    rule("min-min", min_min),
    rule("room (ours)", |_, view| Some((0, roomy(view, &view.queue[0])?))),
    rule("shortest first (ours)", |_, view| {
        let place = Order::Urgency.first(view);
        Some((place, roomy(view, &view.queue[place])?))
    }),
];

const fn rule(name: &'static str, decide: fn(&mut usize, &View<'_>) -> Option<(usize, usize)>) -> Rule {
    Rule { name, decide, turn: 0 }
}

impl Route for Rule {
    fn act(&mut self, view: &View<'_>) -> Option<(usize, usize)> {
        (self.decide)(&mut self.turn, view)
    }
}

/// The instance where this is least, the first of equals.
pub(super) fn least(view: &View<'_>, of: impl Fn(&Instance) -> f64) -> Option<usize> {
    let all = view.instances.iter().map(of).enumerate();
    all.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(place, _)| place)
}

/// Tokens of its memory that are taken.
fn now_held(instance: &Instance) -> f64 {
    instance.flights.iter().map(|flight| flight.was.prompt + flight.written).sum()
}

/// Tokens of its memory that will be taken, it is guessed.
pub(super) fn to_be_held(instance: &Instance) -> f64 {
    instance.flights.iter().map(super::Flight::tokens).sum()
}

/// Seconds of an engine's time that a request takes: its prompt, and its part of the steps of a full batch, whose memory it
/// shares in proportion to what it holds.
pub(super) fn seconds(spec: &Spec, prompt: f64, output: f64) -> f64 {
    let full = spec.kv_tokens as f64;
    let step_us = spec.overhead_us + spec.read_us + spec.kv_ns * full / 1_000.0;
    (spec.prefill_us * prompt + output * step_us * (prompt + output / 2.0) / full) / 1e6
}

/// Of all that wait the one that would be over soonest, where it would be.
fn min_min(_: &mut usize, view: &View<'_>) -> Option<(usize, usize)> {
    let ahead = |instance: &Instance| -> f64 {
        instance
            .flights
            .iter()
            .map(|flight| {
                let prompt = if flight.written > 0.0 { 0.0 } else { flight.was.prompt };
                seconds(view.spec, prompt, flight.left())
            })
            .sum()
    };
    let to = least(view, ahead)?;
    let own = |waiting: &Waiting| seconds(view.spec, waiting.prompt, waiting.guess);
    let place = view.queue.iter().map(own).enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b))?.0;
    Some((place, to))
}

/// Whether a request has room at an instance: what is there and the request itself must fit into the memory when all answers
/// are as long as guessed. Who would be put back later is better kept waiting.
pub(super) fn fits(view: &View<'_>, to: usize, waiting: &Waiting) -> bool {
    let instance = &view.instances[to];
    let needed = to_be_held(instance) + waiting.prompt + waiting.guess;
    instance.flights.is_empty() || needed <= view.spec.kv_tokens as f64
}

/// The instance with most room for a request, if it has any.
pub(super) fn roomy(view: &View<'_>, waiting: &Waiting) -> Option<usize> {
    least(view, to_be_held).filter(|to| fits(view, *to, waiting))
}

/// Which of those that wait is to be sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The one that came first.
    Arrival,
    /// The one that takes least time, less a hundredth of the time that it has waited, so that nobody waits for ever.
    Urgency,
}

impl Order {
    /// Its place in the queue.
    pub fn first(self, view: &View<'_>) -> usize {
        let urgency = |waiting: &Waiting| {
            let waited = (view.now - waiting.arrived) as f64 / 1e9;
            seconds(view.spec, waiting.prompt, waiting.guess) - waited / 100.0
        };
        match self {
            Self::Arrival => 0,
            Self::Urgency => {
                let all = view.queue.iter().map(urgency).enumerate();
                all.min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(place, _)| place)
            }
        }
    }
}
