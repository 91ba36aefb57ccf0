//! The instances, the queue at the router, and the clock between them.

use super::Lengths;
use crate::engine::{Engine, Job, Part, Progress, Spec};
use crate::workload::{Request, Workload};
use std::sync::Arc;

/// Nanoseconds between two decisions.
const TICK: u64 = 20_000_000;

/// A request at the router.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Its place among the requests.
    pub id: u32,
    /// Nanoseconds since the start when it came.
    pub arrived: u64,
    /// Tokens of its prompt.
    pub prompt: f64,
    /// Who asks.
    pub class: u64,
    /// Tokens that its answer will come to, it is guessed.
    pub guess: f64,
}

/// A request at an instance.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// What was known when it was sent.
    pub was: Waiting,
    /// Tokens written so far.
    pub written: f64,
}

impl Flight {
    /// Tokens still to come, it is guessed; who writes more than was guessed has a tenth of it to go, and never less than one.
    pub fn left(&self) -> f64 {
        (self.was.guess - self.written).max(self.written * 0.1).max(1.0)
    }

    /// What it will hold of the memory at its end.
    pub fn tokens(&self) -> f64 {
        self.was.prompt + self.written + self.left()
    }
}

/// An instance as the router knows it.
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// What was sent there and is not over.
    pub flights: Vec<Flight>,
}

/// What a router decides by.
#[derive(Debug)]
pub struct View<'a> {
    /// Nanoseconds since the start.
    pub now: u64,
    /// What waits, in the order in which it came; never empty.
    pub queue: &'a [Waiting],
    /// The instances.
    pub instances: &'a [Instance],
    /// What an instance is like.
    pub spec: &'a Spec,
}

/// A router that may let requests wait.
pub trait Route {
    /// What to send, by its place in the queue, and where; or nothing until the next tick. Asked again after each that is
    /// sent.
    fn act(&mut self, view: &View<'_>) -> Option<(usize, usize)>;

    /// So many requests are over since the last decision.
    fn over(&mut self, _: usize) {}
}

/// What became of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Result {
    /// Seconds from arrival to last token: the mean.
    pub mean_s: f64,
    /// The 99th percentile.
    pub p99_s: f64,
    /// Seconds at the router: the mean.
    pub waited_s: f64,
    /// Requests that were computed again for want of memory.
    pub preempted: u64,
    /// Requests that found no answer: more than fits into an instance.
    pub refused: usize,
}

struct World<'a> {
    requests: &'a [Request],
    workload: Workload,
    spec: Arc<Spec>,
    engines: Vec<Engine>,
    /// When the step of each ends.
    ends: Vec<Option<u64>>,
    instances: Vec<Instance>,
    queue: Vec<Waiting>,
    lengths: Lengths,
    took: Vec<f64>,
    waited: f64,
    refused: usize,
    over: usize,
}

/// Plays an episode.
pub fn play(spec: &Arc<Spec>, instances: usize, requests: &[Request], route: &mut dyn Route) -> Result {
    let mut world = World {
        requests,
        workload: Workload::new("", requests.to_vec(), spec.block_tokens),
        spec: spec.clone(),
        engines: (0..instances).map(|_| Engine::new(spec.clone(), 1.0)).collect(),
        ends: vec![None; instances],
        instances: vec![Instance::default(); instances],
        queue: Vec::new(),
        lengths: Lengths::default(),
        took: Vec::new(),
        waited: 0.0,
        refused: 0,
        over: 0,
    };
    world.go_on(route);
    world.took.sort_by(f64::total_cmp);
    let count = world.took.len().max(1) as f64;
    let p99 = world.took.get((count * 0.99) as usize).or(world.took.last());
    Result {
        mean_s: world.took.iter().sum::<f64>() / count,
        p99_s: p99.copied().unwrap_or(0.0),
        waited_s: world.waited / count,
        preempted: world.engines.iter().map(|engine| engine.done().preempted).sum(),
        refused: world.refused,
    }
}

impl World<'_> {
    fn go_on(&mut self, route: &mut dyn Route) {
        let (mut next, mut tick) = (0, 0);
        while next < self.requests.len() || !self.queue.is_empty() || self.ends.iter().any(Option::is_some) {
            for at in 0..self.engines.len() {
                while self.ends[at].is_some_and(|end| end <= tick) {
                    self.finish(at);
                }
            }
            while let Some(request) = self.requests.get(next).filter(|request| request.at <= tick) {
                self.queue.push(Waiting {
                    id: next as u32,
                    arrived: request.at,
                    prompt: f64::from(request.prompt_tokens()),
                    class: u64::from(request.tenant),
                    guess: 0.0,
                });
                next += 1;
            }
            self.decide(tick, route);
            // Nothing can happen at ticks in between unless something waits.
            let soonest =
                self.ends.iter().flatten().chain(self.requests.get(next).map(|request| &request.at)).min();
            let idle = soonest
                .filter(|_| self.queue.is_empty())
                .map_or(1, |at| at.saturating_sub(tick).div_ceil(TICK));
            tick += TICK * idle.max(1);
        }
    }

    fn decide(&mut self, now: u64, route: &mut dyn Route) {
        let lengths = &self.lengths;
        self.queue.iter_mut().for_each(|waiting| waiting.guess = lengths.guess(waiting.class));
        route.over(std::mem::take(&mut self.over));
        while !self.queue.is_empty() {
            let view = View { now, queue: &self.queue, instances: &self.instances, spec: &self.spec };
            let Some((place, to)) = route.act(&view) else { return };
            let was = self.queue.remove(place);
            self.waited += (now - was.arrived) as f64 / 1e9;
            let request = &self.requests[was.id as usize];
            let job = Job {
                id: was.id,
                prompt: request.prompt_tokens(),
                output: request.output,
                chain: self.workload.engine_chains[was.id as usize].clone(),
                adapter: None,
                part: Part::Whole,
            };
            if self.engines[to].submit(job) {
                self.instances[to].flights.push(Flight { was, written: 0.0 });
                if self.ends[to].is_none() {
                    self.start(to, now);
                }
            } else {
                self.refused += 1;
            }
        }
    }

    fn start(&mut self, at: usize, now: u64) {
        self.ends[at] = self.engines[at].start().map(|took| now + took);
    }

    fn finish(&mut self, at: usize) {
        let Some(now) = self.ends[at].take() else { return };
        let mut progress = Vec::new();
        self.engines[at].finish(&mut progress);
        for what in progress {
            let Progress::Last { id } = what else { continue };
            let request = &self.requests[id as usize];
            self.lengths.learn(u64::from(request.tenant), request.output);
            self.took.push((now - request.at) as f64 / 1e9);
            self.over += 1;
            self.instances[at].flights.retain(|flight| flight.was.id != id);
        }
        for (id, written) in self.engines[at].written() {
            if let Some(flight) = self.instances[at].flights.iter_mut().find(|flight| flight.was.id == id) {
                flight.written = f64::from(written);
            }
        }
        self.start(at, now);
    }
}
