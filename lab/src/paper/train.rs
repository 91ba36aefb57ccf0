//! Training of [`Learned`]: a double DQN (van Hasselt, 2016), guided by a rule at first (Cheng, 2021), as in the paper.
//!
//! ```text
//! reward = requests that are over until the next choice
//!        + gamma * exp(-beta k) * (mixing penalty of the choice - that of the best)        in episode k
//! target = reward + gamma^ticks * old(next, argmax new(next))
//! ```
//!
//! Another sample of requests each episode; after each the network plays an episode that it never learns from, and the best
//! one is kept.

use super::learned::{Learned, SHAPE, allowed, best, mixing, seen};
use super::net::{Adam, Net};
use super::rules::roomy;
use super::{INSTANCES, Order, Route, View, engine, episode, play};
use crate::workload::Draw;
use weir::invalid::Invalid;

/// Of a tick of 20 ms: ten seconds ahead count a third.
const GAMMA: f32 = 0.998;
/// How quickly the guide withdraws.
const BETA: f64 = 0.5;
const BATCH: usize = 128;
const MEMORY: usize = 60_000;
/// Steps between two of training, and between two copies of the network that says what is next.
const EVERY: usize = 8;
const COPY: usize = 1_000;
const RATE: (f32, f32) = (4e-4, 5e-5);
/// The episode that chooses among networks.
const JUDGE: u64 = 1_000;

struct Step {
    state: Vec<f32>,
    action: usize,
    reward: f32,
    next: Vec<f32>,
    allowed: u8,
    /// What the next state counts.
    discount: f32,
}

struct Pupil {
    order: Order,
    net: Net,
    old: Net,
    adam: Adam,
    steps: Vec<Step>,
    draw: Draw,
    /// The share of actions that are tried out, and of the guide in the reward.
    curious: f64,
    guide: f64,
    /// How far a step of training goes; less and less.
    rate: f32,
    last: Option<(Vec<f32>, usize, f32, u64)>,
    over: usize,
    count: usize,
}

impl Pupil {
    /// What came of the last action is known now.
    fn remember(&mut self, next: &[f32], allowed: u8, now: u64) {
        let over = std::mem::take(&mut self.over) as f32;
        let Some((state, action, guided, then)) = self.last.take() else { return };
        let discount = GAMMA.powf((now - then) as f32 / 2e7);
        let reward = over + guided;
        let step = Step { state, action, reward, next: next.to_vec(), allowed, discount };
        match self.steps.len() < MEMORY {
            true => self.steps.push(step),
            false => self.steps[self.count % MEMORY] = step,
        }
        self.count += 1;
        if self.count.is_multiple_of(EVERY) && self.steps.len() > 10 * BATCH {
            self.study();
        }
        if self.count.is_multiple_of(COPY) {
            self.old = self.net.clone();
        }
    }

    fn study(&mut self) {
        let batch: Vec<&Step> =
            (0..BATCH).map(|_| self.draw.0.below(self.steps.len())).map(|at| &self.steps[at]).collect();
        let target = |step: &&Step| {
            let choice = best(&self.net.ask(&step.next), step.allowed).unwrap_or(INSTANCES);
            step.reward + step.discount * self.old.ask(&step.next)[choice]
        };
        let targets: Vec<f32> = batch.iter().map(target).collect();
        let samples = batch.iter().zip(targets).map(|(step, target)| (&step.state[..], step.action, target));
        self.net.fit(&mut self.adam, samples, self.rate);
    }
}

impl Route for Pupil {
    fn act(&mut self, view: &View<'_>) -> Option<(usize, usize)> {
        let next = self.order.first(view);
        let allowed = allowed(view, next);
        if allowed == 1 << INSTANCES {
            return None;
        }
        let state = seen(view, next);
        self.remember(&state, allowed, view.now);
        let action = if self.draw.unit() < self.curious {
            let open: Vec<usize> = (0..=INSTANCES).filter(|place| allowed >> place & 1 == 1).collect();
            match self.draw.0.below(2) {
                0 => open[self.draw.0.below(open.len())],
                _ => roomy(view, &view.queue[next]).unwrap_or(INSTANCES),
            }
        } else {
            best(&self.net.ask(&state), allowed).unwrap_or(INSTANCES)
        };
        let guided = if action < INSTANCES { (self.guide * mixing(view, next, action)) as f32 } else { 0.0 };
        self.last = Some((state, action, guided.max(-2.0), view.now));
        (action < INSTANCES).then_some((next, action))
    }

    fn over(&mut self, count: usize) {
        self.over += count;
    }
}

/// Trains a network for so many episodes; `watch` is told of each the mean seconds to the last token that it then has.
pub fn train(
    order: Order,
    episodes: u64,
    seed: u64,
    watch: &mut dyn FnMut(u64, f64),
) -> Result<Net, Invalid> {
    let spec = engine()?;
    let mut draw = Draw::new(seed, 6);
    let net = Net::new(&SHAPE, &mut draw);
    let adam = Adam::new(&net);
    let mut pupil = Pupil {
        order,
        old: net.clone(),
        net,
        adam,
        steps: Vec::new(),
        draw,
        curious: 1.0,
        guide: 0.0,
        rate: RATE.0,
        last: None,
        over: 0,
        count: 0,
    };
    let judge = episode(JUDGE);
    let mut found: Option<(f64, Net)> = None;
    for k in 0..episodes {
        pupil.curious = (1.0 - k as f64 / (episodes as f64 * 0.7)).max(0.02);
        pupil.rate = RATE.0 * (RATE.1 / RATE.0).powf(k as f32 / episodes as f32);
        pupil.guide = f64::from(GAMMA) * (-BETA * k as f64).exp();
        play(&spec, INSTANCES, &episode(seed.wrapping_mul(7_919).wrapping_add(JUDGE + 1 + k)), &mut pupil);
        pupil.last = None;
        let result = play(&spec, INSTANCES, &judge, &mut Learned::new(Some(pupil.net.clone()), order));
        watch(k, result.mean_s);
        if found.as_ref().is_none_or(|(mean, _)| result.mean_s < *mean) {
            found = Some((result.mean_s, pupil.net.clone()));
        }
    }
    Ok(found.map_or(pupil.net, |(_, net)| net))
}
