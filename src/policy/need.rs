//! What a policy rests on that an operator has to configure. Without it a policy still chooses, by less than it promises:
//! whoever checks a configuration can say so.

use super::{Candidate, Demand, Known, Policy, Round};
use crate::instant::Instant;
use crate::random::Random;

/// One such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Engines are asked how they are.
    Signals,
    /// They are asked for their lists of models.
    Models,
    /// It is known which models are LoRA adapters.
    Adapters,
    /// Endpoints have weights.
    Weights,
    /// Endpoints have prices.
    Prices,
}

/// What needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Its path in the policy's configuration; empty for the whole.
    pub at: String,
    /// Its name.
    pub name: &'static str,
    /// What it needs.
    pub need: Need,
}

/// Who is left to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Somebody, for some request.
    Some,
    /// Nobody to answer, whatever is asked.
    Nobody,
    /// Nobody to compute prompts for others.
    NobodyForPrefill,
}

impl Policy {
    /// What it needs of an operator.
    pub fn needs(&self) -> &[Needed] {
        &self.needs
    }

    /// Who of these endpoints its filters leave while all of them are idle, for prompts short and long.
    pub fn leaves(&mut self, endpoints: &[Known<'_>]) -> Left {
        const LENGTHS: [u32; 4] = [10, 1_000, 30_000, 1_000_000];
        self.meet(endpoints);
        let candidates: Vec<Candidate> =
            (0..endpoints.len()).map(|place| Candidate { place, ..Candidate::default() }).collect();
        let split = self.split.as_mut().map(|split| &mut split.profile);
        let profiles = [(Left::Nobody, Some(&mut self.profile)), (Left::NobodyForPrefill, split)];
        for (left, profile) in profiles {
            let Some(profile) = profile else { continue };
            let mut has_some = |prompt_tokens| {
                let demand = Demand { prompt_tokens, ..Demand::default() };
                let round =
                    Round { demand: &demand, blocks: &[], candidates: &candidates, now: Instant::default() };
                !profile.choose(&round, 1, &mut Random::new(1)).is_empty()
            };
            if !LENGTHS.into_iter().any(&mut has_some) {
                return left;
            }
        }
        Left::Some
    }
}
