//! Requests whose prompt one endpoint computes and another answers.
//!
//! As llm-d's sidecar does it: the request goes to the endpoint that answers, which first has the prompt computed where
//! `pick` said, then fetches the KV and goes on. Where that cannot be, or the endpoint dies before its KV has been fetched,
//! the one that answers does it all. The router is not told: it sees one request with one endpoint.

use super::{Stage, World};
use crate::engine::Part;

impl World<'_> {
    /// Has the prompt of a request computed by the endpoint that was chosen for it, if there is one and it can.
    pub(super) fn prefill(&mut self, id: u32) -> bool {
        let way = &mut self.ways[id as usize];
        way.stage = Stage::Own;
        let Some(at) = way.prefill.filter(|at| self.alive[*at]) else { return false };
        self.records[id as usize].prefill = None;
        if !self.submit(at, id, Part::Prefill) {
            return false;
        }
        self.ways[id as usize].stage = Stage::Computed;
        self.records[id as usize].prefill = Some(at);
        self.step(at);
        true
    }

    /// Whether this endpoint computes the prompt of a request, or keeps its KV, for another.
    pub(super) fn computes(&self, id: u32, endpoint: usize) -> bool {
        let way = &self.ways[id as usize];
        way.stage != Stage::Own && way.prefill == Some(endpoint)
    }

    /// The prompt is computed: the endpoint that answers takes over.
    pub(super) fn hand_over(&mut self, id: u32) {
        let endpoint = self.records[id as usize].endpoint;
        self.ways[id as usize].stage = Stage::Fetched;
        if self.submit(endpoint, id, Part::Decode) {
            return self.step(endpoint);
        }
        self.give_up_prefill(id);
        self.attempt(id);
    }

    /// The KV of a request has come. It may come for nothing, when an endpoint died meanwhile.
    pub(super) fn fetched(&mut self, id: u32, attempt: u32) {
        if self.ways[id as usize].stage != Stage::Fetched || self.records[id as usize].attempts != attempt {
            return;
        }
        self.leave_prefill(id);
        let endpoint = self.records[id as usize].endpoint;
        self.engines[endpoint].fetched(id);
        self.step(endpoint);
    }

    /// The endpoint that computes the prompt has died: the one that answers does it all.
    pub(super) fn fall_back(&mut self, id: u32) {
        let endpoint = self.records[id as usize].endpoint;
        self.ways[id as usize].stage = Stage::Own;
        self.records[id as usize].prefill = None;
        self.engines[endpoint].forget(id);
        match self.submit(endpoint, id, Part::Whole) {
            true => self.step(endpoint),
            false => self.attempt(id),
        }
    }

    /// Nobody will fetch what is computed for a request.
    pub(super) fn give_up_prefill(&mut self, id: u32) {
        if self.ways[id as usize].stage != Stage::Own {
            self.leave_prefill(id);
            self.records[id as usize].prefill = None;
        }
    }

    /// The endpoint that computed the prompt has done its part.
    fn leave_prefill(&mut self, id: u32) {
        let way = &mut self.ways[id as usize];
        way.stage = Stage::Own;
        if let Some(at) = way.prefill {
            self.engines[at].forget(id);
            self.step(at);
        }
    }

    /// Requests that this endpoint is to answer when others have computed their prompts.
    pub(super) fn prefilled_for(&self, endpoint: usize) -> Vec<u32> {
        let its = |id: &u32| {
            self.ways[*id as usize].stage == Stage::Computed
                && self.records[*id as usize].endpoint == endpoint
        };
        (0..self.ways.len() as u32).filter(its).collect()
    }
}
