//! A prompt that one engine computes and another answers: how its KV changes hands.
//!
//! As vLLM with NIXL has it. The engine that computes holds the blocks until they have been fetched. The one that answers
//! takes the request from its queue in its turn, holds memory for the whole prompt, and fetches what its own cache does not
//! have; its batch goes on meanwhile. Then the last token of the prompt is computed there, and the first of the answer comes
//! of it. A request that is put back for want of memory is computed again where it is.
//!
//! How long fetching takes is not the engine's to say: it names what it wants ([`Engine::wanted`]), and is told when that has come
//! ([`Engine::fetched`]).

use super::{Engine, Part, Sequence, Work};

/// Requests whose KV is on its way.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// Computed here, and yet to be fetched.
    kept: Vec<Sequence>,
    /// To be answered here; their memory is held, their KV comes.
    coming: Vec<Sequence>,
    /// Those whose KV has come, which join the batch next.
    come: Vec<Sequence>,
    /// Requests whose KV is to be fetched, and tokens of it.
    wanted: Vec<(u32, u32)>,
}

impl Handover {
    /// Requests that have yet to join the batch.
    pub(super) fn waiting(&self) -> usize {
        self.coming.len() + self.come.len()
    }

    pub(super) fn keep(&mut self, sequence: Sequence) {
        self.kept.push(sequence);
    }

    /// Everything that is here, when the engine dies.
    pub(super) fn lose(&mut self) -> impl Iterator<Item = Sequence> {
        let Self { kept, coming, come, .. } = std::mem::take(self);
        kept.into_iter().chain(coming).chain(come)
    }
}

impl Engine {
    /// Fetches that are to begin: the request, and how many tokens of KV.
    pub fn wanted(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.handover.wanted)
    }

    /// The KV of a request has come.
    pub fn fetched(&mut self, id: u32) {
        let coming = &mut self.handover.coming;
        let Some(at) = coming.iter().position(|sequence| sequence.job.id == id) else { return };
        let mut sequence = coming.remove(at);
        let block = self.spec.block_tokens;
        let full = ((sequence.computed / block) as usize).min(sequence.job.chain.len());
        for (slot, hash) in sequence.held.iter().zip(&sequence.job.chain[..full]) {
            self.memory.fill(*slot, *hash);
        }
        sequence.job.part = Part::Whole;
        self.handover.come.push(sequence);
    }

    /// Lets go of a request, wherever it is: its KV has been fetched, or nobody waits for it any more.
    pub fn forget(&mut self, id: u32) {
        let Self { waiting, running, memory, handover, .. } = self;
        waiting.retain(|sequence| sequence.job.id != id);
        handover.wanted.retain(|(of, _)| *of != id);
        for place in [running, &mut handover.kept, &mut handover.coming, &mut handover.come] {
            place.retain_mut(|sequence| {
                let other = sequence.job.id != id;
                if !other {
                    memory.release(&mut sequence.held);
                }
                other
            });
        }
    }

    /// Takes the first of the queue, whose prompt is computed elsewhere, if there is memory for it.
    pub(super) fn expect(&mut self) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let (prompt, block) = (first.job.prompt, self.spec.block_tokens);
        let most = (((prompt - 1) / block) as usize).min(first.job.chain.len());
        let (matched, idle) = self.memory.matched(&first.job.chain[..most]);
        let needed = prompt.div_ceil(block) as usize - matched;
        if needed + idle > self.memory.free() {
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else { return false };
        self.memory.hold(&sequence.job.chain, matched, &mut sequence.held);
        sequence.held.extend((0..needed).map_while(|_| self.memory.take()));
        sequence.computed = prompt - 1;
        let cached = matched as u32 * block;
        self.handover.wanted.push((sequence.job.id, prompt - cached));
        self.handover.coming.push(sequence);
        true
    }

    /// Lets those join the batch whose KV has come, while there is room.
    pub(super) fn join(&mut self, budget: &mut u32, work: &mut Work) {
        while *budget > 0 && self.running.len() < self.spec.batch as usize {
            let Some(first) = self.handover.come.first() else { return };
            let Some(loads) = self.load(first.job.adapter) else { return };
            let mut sequence = self.handover.come.remove(0);
            work.adapters += loads;
            work.add_prefill(sequence.computed, 1);
            sequence.chunk = 1;
            *budget -= 1;
            self.running.push(sequence);
        }
    }
}
