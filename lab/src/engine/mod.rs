//! One engine in simulated time: a queue, a running batch, a KV memory, and steps that take time.
//!
//! The scheduler is vLLM's (v1). Each step has a budget of tokens. Those that run come first, in the order in which they
//! came: an answer takes one token, a prompt what is left of it and of the budget. Then requests are taken from the queue,
//! first come first served, as long as budget, batch and memory last; nobody overtakes. When a running request needs a
//! block and none is free, the one that came last is put back to the front of the queue and computed again later, except
//! for what it finds in the prefix cache. At the end of a step every request whose prompt is complete gets a token.
//!
//! The engine knows no clock: [`Engine::start`] says how long the next step takes, [`Engine::finish`] ends it.

mod cost;
mod fit;
mod handover;
mod memory;

pub use cost::{Spec, Work, read_specs, specs};
pub use fit::{Fit, Point, fit};

use handover::Handover;
use memory::{Memory, Slot};
use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// What an engine is asked to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its request.
    pub id: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer, at least one.
    pub output: u32,
    /// Hashes of the blocks of prompt and answer, of `block_tokens` each.
    pub chain: Arc<[u64]>,
    /// The adapter it needs, if any.
    pub adapter: Option<u32>,
    /// What is to be done of it here.
    pub part: Part,
}

/// What an engine is to do of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// Compute the prompt, and keep its KV until another engine has fetched it.
    Prefill,
    /// Fetch the KV of the prompt, and answer.
    Decode,
}

/// What the end of a step brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first token of a request; so many tokens of its prompt had been in the cache.
    First {
        /// The request.
        id: u32,
        /// Prompt tokens that were not computed.
        cached: u32,
    },
    /// Its last token.
    Last {
        /// The request.
        id: u32,
    },
}

/// What an engine tells in its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Requests in its queue.
    pub waiting: u32,
    /// Requests in its batch.
    pub running: u32,
    /// Share of its KV memory that requests hold, 0 to 1.
    pub kv_usage: f64,
    /// Tokens of its KV memory.
    pub kv_tokens: u64,
    /// Prompt tokens computed since it started.
    pub computed: u64,
}

/// What an engine has done in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Prompt tokens computed, those computed again included.
    pub prefill_tokens: u64,
    /// Requests put back for want of memory.
    pub preempted: u64,
    /// Nanoseconds in steps.
    pub busy_ns: u64,
    /// Steps.
    pub steps: u64,
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    spec: Arc<Spec>,
    speed: f64,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    memory: Memory,
    /// Requests that another engine computes or answers.
    handover: Handover,
    /// Adapters loaded, the one used last at the end.
    adapters: Vec<u32>,
    stepping: bool,
    done: Done,
    /// What it had done when it started last: its counters begin there.
    born: Done,
}

#[derive(Debug)]
struct Sequence {
    job: Job,
    /// Tokens whose KV is in memory.
    computed: u32,
    /// Tokens of the answer written.
    produced: u32,
    held: Vec<Slot>,
    cached: Option<u32>,
    /// Tokens that the step under way computes.
    chunk: u32,
}

impl Sequence {
    /// Tokens to compute before the next one can be written.
    fn missing(&self) -> u32 {
        self.job.prompt + self.produced - self.computed
    }

    fn decodes(&self) -> bool {
        self.produced > 0 && self.missing() == 1
    }
}

impl Engine {
    /// An idle engine with nothing cached; `speed` 2 takes half the time.
    pub fn new(spec: Arc<Spec>, speed: f64) -> Self {
        let memory = Memory::new(spec.blocks());
        Self {
            spec,
            speed,
            waiting: VecDeque::new(),
            running: Vec::new(),
            memory,
            handover: Handover::default(),
            adapters: Vec::new(),
            stepping: false,
            done: Done::default(),
            born: Done::default(),
        }
    }

    /// Puts a request at the end of the queue. `false` if it can never run.
    pub fn submit(&mut self, job: Job) -> bool {
        let tokens = u64::from(job.prompt) + u64::from(job.output);
        let fits = tokens.div_ceil(u64::from(self.spec.block_tokens)) <= self.memory.len() as u64
            && (job.adapter.is_none() || self.spec.adapters > 0);
        if fits {
            self.waiting.push_back(Sequence {
                job,
                computed: 0,
                produced: 0,
                held: Vec::new(),
                cached: None,
                chunk: 0,
            });
        }
        fits
    }

    /// Starts a step, if none is under way and there is something to do, and says how many nanoseconds it takes.
    pub fn start(&mut self) -> Option<u64> {
        if self.stepping {
            return None;
        }
        let mut work = Work::default();
        let mut budget = self.spec.step_tokens;
        let preempted = self.go_on(&mut budget, &mut work);
        if !preempted || self.running.is_empty() {
            self.join(&mut budget, &mut work);
            self.admit(&mut budget, &mut work);
        }
        // Idle, or all that there is waits for KV.
        if self.running.is_empty() {
            return None;
        }
        self.done.prefill_tokens += work.prefill;
        self.stepping = true;
        let took = self.spec.step_ns(&work, self.speed);
        self.done.busy_ns += took;
        self.done.steps += 1;
        Some(took)
    }

    /// Gives those that run their share of the step. Says whether one had to be put back.
    fn go_on(&mut self, budget: &mut u32, work: &mut Work) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &self.running[at];
            let free = self.spec.answers_beside && sequence.decodes();
            let chunk = if free { 1 } else { sequence.missing().min(*budget) };
            while !self.reserve(at, chunk) {
                preempted = true;
                self.preempt();
                if at >= self.running.len() {
                    return true;
                }
            }
            let sequence = &mut self.running[at];
            sequence.chunk = chunk;
            *budget -= if free { 0 } else { chunk };
            match sequence.decodes() {
                _ if chunk == 0 => {}
                true => work.add_decode(sequence.computed + 1),
                false => work.add_prefill(sequence.computed, chunk),
            }
            at += 1;
        }
        preempted
    }

    /// Blocks for `chunk` more tokens of a running request; `false` when there are not enough.
    fn reserve(&mut self, at: usize, chunk: u32) -> bool {
        let sequence = &mut self.running[at];
        let needed = (sequence.computed + chunk).div_ceil(self.spec.block_tokens) as usize;
        let more = needed.saturating_sub(sequence.held.len());
        if more > self.memory.free() {
            return false;
        }
        sequence.held.extend((0..more).map_while(|_| self.memory.take()));
        true
    }

    /// Puts the request that came last back to the front of the queue.
    fn preempt(&mut self) {
        let Some(mut last) = self.running.pop() else { return };
        self.memory.release(&mut last.held);
        last.computed = 0;
        last.chunk = 0;
        self.waiting.push_front(last);
        self.done.preempted += 1;
    }

    /// Takes requests from the queue while there is room.
    fn admit(&mut self, budget: &mut u32, work: &mut Work) {
        while *budget > 0 && self.running.len() < self.spec.batch as usize {
            let Some(first) = self.waiting.front() else { return };
            if first.job.part == Part::Decode {
                match self.expect() {
                    true => continue,
                    false => return,
                }
            }
            // One token is always computed: the next one comes from it.
            let most = ((first.missing() - 1) / self.spec.block_tokens) as usize;
            let (matched, idle) = self.memory.matched(&first.job.chain[..most.min(first.job.chain.len())]);
            let cached = matched as u32 * self.spec.block_tokens;
            let chunk = (first.missing() - cached).min(*budget);
            let needed = (cached + chunk).div_ceil(self.spec.block_tokens) as usize - matched;
            if needed + idle > self.memory.free() {
                return;
            }
            match self.load(first.job.adapter) {
                Some(loads) => work.adapters += loads,
                None => return,
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            self.memory.hold(&sequence.job.chain, matched, &mut sequence.held);
            sequence.held.extend((0..needed).map_while(|_| self.memory.take()));
            sequence.cached.get_or_insert(cached.min(sequence.job.prompt));
            sequence.computed = cached;
            sequence.chunk = chunk;
            work.add_prefill(cached, chunk);
            *budget -= chunk;
            self.running.push(sequence);
        }
    }

    /// Makes room for an adapter, and says how many had to be loaded; `None` while all that are loaded are in use.
    fn load(&mut self, adapter: Option<u32>) -> Option<u32> {
        let Some(adapter) = adapter else { return Some(0) };
        let loaded = self.adapters.iter().position(|known| *known == adapter);
        if loaded.is_none() && self.adapters.len() >= self.spec.adapters as usize {
            let used = |known: &u32| self.running.iter().any(|running| running.job.adapter == Some(*known));
            let idle = self.adapters.iter().position(|known| !used(known))?;
            self.adapters.remove(idle);
        }
        if let Some(at) = loaded {
            self.adapters.remove(at);
        }
        self.adapters.push(adapter);
        Some(u32::from(loaded.is_none()))
    }

    /// Ends the step under way.
    pub fn finish(&mut self, progress: &mut Vec<Progress>) {
        self.stepping = false;
        let block = self.spec.block_tokens;
        for sequence in &mut self.running {
            let full = (sequence.computed / block) as usize;
            sequence.computed += sequence.chunk;
            let now_full = ((sequence.computed / block) as usize).min(sequence.job.chain.len());
            for at in full..now_full {
                self.memory.fill(sequence.held[at], sequence.job.chain[at]);
            }
            if sequence.chunk > 0 && sequence.missing() == 0 {
                sequence.produced += 1;
                if sequence.produced == 1 {
                    let cached = sequence.cached.unwrap_or(0);
                    progress.push(Progress::First { id: sequence.job.id, cached });
                }
            }
            sequence.chunk = 0;
        }
        let over = |sequence: &mut Sequence| sequence.produced >= sequence.job.output;
        for mut sequence in self.running.extract_if(.., over) {
            progress.push(Progress::Last { id: sequence.job.id });
            match sequence.job.part {
                Part::Prefill => self.handover.keep(sequence),
                Part::Whole | Part::Decode => self.memory.release(&mut sequence.held),
            }
        }
    }

    /// The engine dies: all that it had is lost, and these requests with it.
    pub fn die(&mut self) -> Vec<u32> {
        let here = self.running.drain(..).chain(self.waiting.drain(..)).chain(self.handover.lose());
        let lost = here.map(|sequence| sequence.job.id).collect();
        self.memory = Memory::new(self.spec.blocks());
        self.adapters.clear();
        self.stepping = false;
        self.born = self.done;
        lost
    }

    /// What it tells in its metrics.
    pub fn gauges(&self) -> Gauges {
        let held = self.memory.len() - self.memory.free();
        Gauges {
            waiting: (self.waiting.len() + self.handover.waiting()) as u32,
            running: self.running.len() as u32,
            kv_usage: held as f64 / self.memory.len().max(1) as f64,
            kv_tokens: self.spec.kv_tokens,
            computed: self.done.prefill_tokens - self.born.prefill_tokens,
        }
    }

    /// Adapters that are loaded, those that requests wait for, and how many fit.
    pub fn adapters(&self) -> (Vec<u32>, Vec<u32>, u32) {
        let waiting = self.waiting.iter().filter_map(|sequence| sequence.job.adapter).collect();
        (self.adapters.clone(), waiting, self.spec.adapters)
    }

    /// Requests that run, and how many tokens of their answers are written.
    pub fn written(&self) -> impl Iterator<Item = (u32, u32)> {
        self.running.iter().map(|sequence| (sequence.job.id, sequence.produced))
    }

    /// What it has done in all.
    pub fn done(&self) -> Done {
        self.done
    }
}

/// A hasher for keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Same(u64);

/// Builds [`Same`].
pub(crate) type Hashed = BuildHasherDefault<Same>;

impl Hasher for Same {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
