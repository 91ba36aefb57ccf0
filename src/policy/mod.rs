//! How the next endpoint is chosen: scores, then a pick.
//!
//! A policy is a weighted sum of [`Score`]s and one [`Pick`], behind any number of [`Keep`]s that leave candidates out.
//! A score sees all candidates at once, so that it can compare them, and fills numbers from 0 (worst) to 1 (best). A
//! picker gets the sums and random numbers. What any of them learns it learns from [`News`], which the pool brings:
//! nobody keeps a count of their own that could leak. Who may be chosen at all is no policy: the pool decides that before.
//!
//! What is known of the world is in [`Round`] and [`Candidate`]. What an engine does not say is `None` there and never
//! zero: an engine that is silent must not look idle.
//!
//! `docs/policies.md` has each policy with its formula and when to use it. To add one: a file here, and a row in
//! `table::POLICIES`.

mod candidate;
mod choose;
mod each;
mod epp;
mod known;
mod need;
mod news;
mod number;
mod scale;
mod table;

// One policy each, or the scores of one family.
mod cache_aware;
mod consistent_hash;
mod dynamo;
mod ewma;
mod latency_based;
mod least_kv;
mod least_load;
mod least_requests;
mod litellm;
mod lmetric;
mod lora;
mod orca;
mod pickers;
mod prefill;
mod slow_start;
mod weights;

pub use candidate::{Adapter, Candidate, Demand, Signals};
pub use choose::{Explained, Policy, Prefill, Step};
pub use each::Each;
pub use epp::{is_config, odd_role};
pub use known::{Attributes, Known};
pub use need::{Left, Need, Needed};
pub use news::News;
pub use slow_start::SlowStart;

use crate::instant::Instant;
use crate::invalid::Invalid;
use crate::random::Random;
use std::fmt;

/// One choice to be made.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// What the request brings.
    pub demand: &'a Demand,
    /// Chained hashes of its prompt's blocks, see [`crate::block`].
    pub blocks: &'a [u64],
    /// Who may be chosen.
    pub candidates: &'a [Candidate],
    /// The time.
    pub now: Instant,
}

/// Judges candidates.
pub trait Score: fmt::Debug + Send {
    /// Fills one number per candidate, 0 for the worst to 1 for the best; `scores` is as long as the candidates are.
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]);

    /// Checks what is said of an endpoint, as far as this score reads it: what cannot be read is no silent default.
    fn check(&self, _: &Attributes) -> Result<(), Invalid> {
        Ok(())
    }

    /// These are the endpoints from now on, by their places. See [`Each`] for what is kept of those that stay.
    fn meet(&mut self, _: &[Known<'_>]) {}

    /// What became of requests, its own choices and others'.
    fn learn(&mut self, _: &News, _: Instant) {}

    /// What it learns of answers that costs something to find out.
    fn wants(&self) -> Wants {
        Wants::default()
    }
}

/// What a policy learns of answers, beyond that they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// What they used, and whether they failed.
    pub answers: bool,
    /// What endpoints say of themselves beside them (ORCA).
    pub reports: bool,
}

/// Leaves candidates out.
pub trait Keep: fmt::Debug + Send {
    /// Marks who is kept; `keep` is all true before, and as long as the candidates are. If nobody is, nobody is left to
    /// choose.
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], random: &mut Random);

    /// Whether it leaves out who has too much to do at the moment, and not who is of no use to the request.
    fn is_for_load(&self) -> bool {
        false
    }

    /// As [`Score::meet`].
    fn meet(&mut self, _: &[Known<'_>]) {}

    /// As [`Score::learn`].
    fn learn(&mut self, _: &News, _: Instant) {}
}

/// Chooses among judged candidates.
pub trait Pick: fmt::Debug + Send {
    /// The place of the chosen one in `scores`; `None` only when that is empty.
    fn pick(&mut self, round: &Round<'_>, scores: &[f64], random: &mut Random) -> Option<usize>;

    /// As [`Score::meet`].
    fn meet(&mut self, _: &[Known<'_>]) {}
}

#[cfg(test)]
mod tests;
