//! The events of a run, one after the other in simulated time.
//!
//! A request arrives at a proxy, is given an ordered list of endpoints, and tries them in turn, as Envoy does: the next one
//! if one is dead, or dies before the first token. Everything that happens at the same nanosecond happens in the order in
//! which it was caused, so a run is fixed by its setup, its workload and its seed.

use crate::engine::{Done, Engine, Gauges, Job, Part, Progress, Spec};
use crate::routing::{Letter, News, Role, Route, Routers, Routing};
use crate::workload::Workload;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use weir::breaker::Reason;
use weir::invalid::Invalid;

/// An endpoint of the pool.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its engine.
    pub spec: Arc<Spec>,
    /// How much quicker it is than specified.
    pub speed: f64,
    /// What it is for.
    pub role: Role,
    /// Whether it is there from the start.
    pub alive: bool,
}

/// Something that befalls an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Nanoseconds from the start.
    pub at: u64,
    /// The endpoint.
    pub endpoint: usize,
    /// Whether it lives from now on, with an empty cache, or is dead.
    pub alive: bool,
}

/// How long the KV of a prompt takes from one endpoint to another. Transfers do not slow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Milliseconds of any transfer.
    pub ms: f64,
    /// Microseconds of each token, of those that the endpoint that answers does not have.
    pub us_per_token: f64,
}

impl Default for Transfer {
    /// 131,072 bytes of KV a token (Llama-3.1-8B, bf16) at half of 400 Gbit/s.
    fn default() -> Self {
        Self { ms: 2.0, us_per_token: 5.2 }
    }
}

impl Transfer {
    fn nanos(self, tokens: u32) -> u64 {
        (self.ms * 1e6 + self.us_per_token * 1e3 * f64::from(tokens)) as u64
    }
}

/// Pool and routers of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// What befalls them, in any order.
    pub changes: Vec<Change>,
    /// Nanoseconds until routers know of a change.
    pub notice: u64,
    /// The routers.
    pub routing: Routing,
    /// How KV comes from those that compute prompts to those that answer.
    pub transfer: Transfer,
    /// Quickens the arrivals: 2 is twice the rate. Pauses inside a task stay as they are.
    pub rate: f64,
    /// Fixes all that is random.
    pub seed: u64,
}

impl Setup {
    /// So many endpoints of one kind, all alike and lasting.
    pub fn new(spec: &Arc<Spec>, endpoints: usize, routing: Routing) -> Self {
        let endpoint = Endpoint { spec: spec.clone(), speed: 1.0, role: Role::Both, alive: true };
        Self {
            endpoints: vec![endpoint; endpoints],
            changes: Vec::new(),
            notice: 1_000_000_000,
            routing,
            transfer: Transfer::default(),
            rate: 1.0,
            seed: 1,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// It has its whole answer.
    Answered,
    /// No endpoint could take it.
    #[default]
    Refused,
    /// Its endpoint died after the first token, or all that it was tried on.
    Broken,
}

/// What became of a request. Times are nanoseconds from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it arrived.
    pub arrived: u64,
    /// When its first token came.
    pub first: Option<u64>,
    /// When it was over.
    pub end: u64,
    /// How.
    pub how: End,
    /// The endpoint that it was last tried on.
    pub endpoint: usize,
    /// The endpoint that computed its prompt, when that was another.
    pub prefill: Option<usize>,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Prompt tokens that were not computed.
    pub cached: u32,
    /// Tokens of its answer.
    pub output: u32,
    /// Endpoints tried.
    pub attempts: u32,
}

/// What became of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One per request of the workload.
    pub records: Vec<Record>,
    /// What each engine did.
    pub engines: Vec<Done>,
    /// Leases that nobody ended, at the end.
    pub leaked: usize,
    /// Each second: of every endpoint, requests in it.
    pub load: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive(u32),
    Choose(u32),
    Step { endpoint: usize, life: u32 },
    Fetched { id: u32, attempt: u32 },
    Hear(Letter),
    Change(Change),
    Meet,
    Look { pool: usize, endpoint: usize },
    Sample,
}

/// A request on its way.
#[derive(Clone, Debug, Default)]
struct Way {
    proxy: u32,
    /// Endpoints yet to try, the next one last.
    left: Vec<usize>,
    /// The endpoint that is to compute its prompt for the one that answers.
    prefill: Option<usize>,
    stage: Stage,
    /// What it waits for.
    open: u32,
}

/// How far a request is whose prompt another endpoint computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No other endpoint has to do with it.
    #[default]
    Own,
    /// The prompt is being computed there.
    Computed,
    /// Its KV waits to be fetched, or comes.
    Fetched,
}

struct World<'a> {
    workload: &'a Workload,
    setup: &'a Setup,
    routers: Routers<'a>,
    engines: Vec<Engine>,
    alive: Vec<bool>,
    lives: Vec<u32>,
    ways: Vec<Way>,
    /// Requests that follow each.
    followers: Vec<Vec<u32>>,
    records: Vec<Record>,
    load: Vec<Vec<u32>>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: Vec<Event>,
    free: Vec<usize>,
    caused: u64,
    now: u64,
    over: usize,
    letters: Vec<Letter>,
    progress: Vec<Progress>,
}

/// Runs a workload through a pool. `watch` is told now and then how many requests are over.
pub fn run(setup: &Setup, workload: &Workload, watch: &mut dyn FnMut(usize)) -> Result<Outcome, Invalid> {
    let count = setup.endpoints.len();
    let roles: Vec<Role> = setup.endpoints.iter().map(|endpoint| endpoint.role).collect();
    let routers = Routers::new(&setup.routing, workload, &roles, |n| setup.endpoints[n].alive, setup.seed)?;
    let mut world = World {
        workload,
        setup,
        routers,
        engines: setup.endpoints.iter().map(|e| Engine::new(e.spec.clone(), e.speed)).collect(),
        alive: setup.endpoints.iter().map(|endpoint| endpoint.alive).collect(),
        lives: vec![0; count],
        ways: vec![Way::default(); workload.requests.len()],
        followers: vec![Vec::new(); workload.requests.len()],
        records: vec![Record::default(); workload.requests.len()],
        load: Vec::new(),
        queue: BinaryHeap::new(),
        events: Vec::new(),
        free: Vec::new(),
        caused: 0,
        now: 0,
        over: 0,
        letters: Vec::new(),
        progress: Vec::new(),
    };
    world.begin();
    world.go_on(watch)?;
    let World { records, engines, load, mut routers, now, .. } = world;
    Ok(Outcome {
        records,
        engines: engines.iter().map(Engine::done).collect(),
        leaked: routers.leaked(now),
        load,
    })
}

impl World<'_> {
    const SAMPLE: u64 = 1_000_000_000;

    fn begin(&mut self) {
        let rate = self.setup.rate;
        for (id, request) in (0_u32..).zip(&self.workload.requests) {
            self.ways[id as usize].open = request.after.len() as u32;
            for &of in &request.after {
                self.followers[of as usize].push(id);
            }
            if request.after.is_empty() {
                self.at((request.at as f64 / rate) as u64, Event::Arrive(id));
            }
        }
        for change in &self.setup.changes {
            self.at(change.at, Event::Change(*change));
        }
        for (pool, endpoint, time) in self.routers.looks() {
            self.at(time, Event::Look { pool, endpoint });
        }
        self.at(0, Event::Sample);
    }

    fn at(&mut self, time: u64, event: Event) {
        let slot = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(slot) {
            Some(free) => *free = event,
            None => self.events.push(event),
        }
        // Time first, then the order of causes; the slot rides along in the lower half.
        self.queue.push(Reverse((time, self.caused << 24 | slot as u64)));
        self.caused += 1;
    }

    fn go_on(&mut self, watch: &mut dyn FnMut(usize)) -> Result<(), Invalid> {
        const TELL: usize = 1_000;
        let mut told = 0;
        while let Some(Reverse((time, tag))) = self.queue.pop() {
            let slot = (tag & 0xff_ffff) as usize;
            self.free.push(slot);
            self.now = time;
            match self.events[slot] {
                Event::Arrive(id) => {
                    let request = &self.workload.requests[id as usize];
                    let record = &mut self.records[id as usize];
                    record.arrived = time;
                    record.prompt = request.prompt_tokens();
                    record.output = request.output;
                    self.ways[id as usize].proxy = self.routers.enter();
                    self.at(time + self.setup.routing.decide(), Event::Choose(id));
                }
                Event::Choose(id) => self.choose(id),
                Event::Step { endpoint, life } => {
                    if self.lives[endpoint] == life {
                        self.finish(endpoint);
                    }
                }
                Event::Fetched { id, attempt } => self.fetched(id, attempt),
                Event::Hear(letter) => self.routers.hear(&letter, time),
                Event::Change(change) => self.change(&change),
                Event::Meet => self.routers.meet(|n| self.alive[n])?,
                Event::Look { pool, endpoint } => self.look(pool, endpoint),
                Event::Sample => self.sample(),
            }
            self.post();
            if self.over / TELL > told {
                told = self.over / TELL;
                watch(self.over);
            }
        }
        watch(self.over);
        Ok(())
    }

    /// Puts letters on their way; those that take no time are heard now.
    fn post(&mut self) {
        let letters = std::mem::take(&mut self.letters);
        for letter in &letters {
            match letter.late {
                0 => self.routers.hear(letter, self.now),
                late => self.at(self.now + late, Event::Hear(*letter)),
            }
        }
        self.letters = letters;
        self.letters.clear();
    }

    fn choose(&mut self, id: u32) {
        let way = &mut self.ways[id as usize];
        let Route { mut order, prefill } = self.routers.choose(way.proxy, id, self.now, &mut self.letters);
        order.truncate(self.setup.routing.attempts as usize);
        order.reverse();
        (way.left, way.prefill) = (order, prefill);
        self.attempt(id);
    }

    /// Sends a request to the next endpoint of its list that takes it.
    fn attempt(&mut self, id: u32) {
        while let Some(endpoint) = self.ways[id as usize].left.pop() {
            let record = &mut self.records[id as usize];
            record.attempts += 1;
            record.endpoint = endpoint;
            if !self.alive[endpoint] {
                self.failed(id, endpoint, Reason::Connect);
                continue;
            }
            if self.prefill(id) {
                return;
            }
            if self.submit(endpoint, id, Part::Whole) {
                return self.step(endpoint);
            }
        }
        let died = self.records[id as usize].attempts > 0 && !self.alive[self.records[id as usize].endpoint];
        self.end(id, if died { End::Broken } else { End::Refused });
    }

    fn submit(&mut self, endpoint: usize, id: u32, part: Part) -> bool {
        let request = &self.workload.requests[id as usize];
        self.engines[endpoint].submit(Job {
            id,
            prompt: request.prompt_tokens(),
            output: if part == Part::Prefill { 1 } else { request.output },
            chain: self.workload.engine_chains[id as usize].clone(),
            adapter: request.adapter,
            part,
        })
    }

    /// The proxy reports an endpoint that failed.
    fn failed(&mut self, id: u32, place: usize, reason: Reason) {
        let proxy = self.ways[id as usize].proxy;
        self.routers.report(proxy, id, News::Failed { place, reason }, self.now, &mut self.letters);
    }

    fn step(&mut self, endpoint: usize) {
        if let Some(took) = self.engines[endpoint].start() {
            self.at(self.now + took, Event::Step { endpoint, life: self.lives[endpoint] });
        }
        for (id, tokens) in self.engines[endpoint].wanted() {
            let attempt = self.records[id as usize].attempts;
            self.at(self.now + self.setup.transfer.nanos(tokens), Event::Fetched { id, attempt });
        }
    }

    fn finish(&mut self, endpoint: usize) {
        let mut progress = std::mem::take(&mut self.progress);
        self.engines[endpoint].finish(&mut progress);
        for what in progress.drain(..) {
            match what {
                Progress::First { id, cached } if self.computes(id, endpoint) => {
                    self.records[id as usize].cached = cached;
                }
                Progress::Last { id } if self.computes(id, endpoint) => self.hand_over(id),
                Progress::First { id, cached } => {
                    let record = &mut self.records[id as usize];
                    record.first = Some(self.now);
                    // What was fetched was computed elsewhere, and is no hit.
                    if record.prefill.is_none() {
                        record.cached = cached;
                    }
                    let proxy = self.ways[id as usize].proxy;
                    self.routers.report(proxy, id, News::First(endpoint), self.now, &mut self.letters);
                }
                Progress::Last { id } => self.end(id, End::Answered),
            }
        }
        self.progress = progress;
        self.step(endpoint);
    }

    fn end(&mut self, id: u32, how: End) {
        let record = &mut self.records[id as usize];
        record.end = self.now;
        record.how = how;
        self.over += 1;
        let proxy = self.ways[id as usize].proxy;
        self.routers.report(proxy, id, News::End { failed: how == End::Broken }, self.now, &mut self.letters);
        for follower in std::mem::take(&mut self.followers[id as usize]) {
            let way = &mut self.ways[follower as usize];
            way.open -= 1;
            if way.open == 0 {
                self.at(self.now + self.workload.requests[follower as usize].at, Event::Arrive(follower));
            }
        }
    }

    fn change(&mut self, change: &Change) {
        let endpoint = change.endpoint;
        let was_alive = std::mem::replace(&mut self.alive[endpoint], change.alive);
        if was_alive && !change.alive {
            self.lives[endpoint] += 1;
            let orphans = self.prefilled_for(endpoint);
            for id in orphans.into_iter().chain(self.engines[endpoint].die()) {
                if self.computes(id, endpoint) {
                    self.fall_back(id);
                    continue;
                }
                self.give_up_prefill(id);
                self.failed(id, endpoint, Reason::Reset);
                match self.records[id as usize].first {
                    Some(_) => self.end(id, End::Broken),
                    None => self.attempt(id),
                }
            }
        }
        self.at(self.now + self.setup.notice, Event::Meet);
    }

    /// A dead engine does not answer.
    fn look(&mut self, pool: usize, endpoint: usize) {
        let next = self.routers.look(
            pool,
            endpoint,
            self.alive[endpoint].then_some(&self.engines[endpoint]),
            self.now,
        );
        if self.over < self.records.len() {
            self.at(next, Event::Look { pool, endpoint });
        }
    }

    fn sample(&mut self) {
        let in_it = |engine: &Engine| {
            let Gauges { waiting, running, .. } = engine.gauges();
            waiting + running
        };
        self.load.push(self.engines.iter().map(in_it).collect());
        if self.over < self.records.len() {
            self.at(self.now + Self::SAMPLE, Event::Sample);
        }
    }
}

mod split;

#[cfg(test)]
mod tests;
