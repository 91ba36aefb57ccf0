//! Which blocks of tokens an endpoint's engine holds, as it says itself: the precise index.
//!
//! The approximate index ([`crate::pool::Index`]) takes every prompt for cached where it was sent. That is a good guess until
//! an engine evicts, starts anew, or is used by others too. Engines that publish KV events say what they hold, in blocks of
//! tokens:
//!
//! | file | decides |
//! |---|---|
//! | `event.rs` | what engines say, freed from how they write it |
//! | `stream.rs` | in which order it is taken, and what follows where a part is missing |
//! | `prompt.rs` | the hash of a block, of our own, over tokens, what precedes them, adapter and salt |
//! | `held.rs` | what one engine holds: bounded, and forgotten in one step |
//! | `predicted.rs` | what it will hold soon, by what was sent there |
//!
//! An endpoint may be several engines behind one address (data-parallel ranks). Which of them serves is theirs to say, so
//! the one that holds most counts.
//!
//! How far an engine's word is to be trusted is its [`Standing`]. Only where all is known does it stand alone; where
//! the beginning was missed the better of the two indexes counts; where the engine is silent the approximate one alone. An
//! engine that says nothing is not idle: one to which [`SUSPECT`] prompts in a row with new blocks were sent, and that said
//! nothing for as long as predictions hold, is taken to have gone silent.

mod config;
mod event;
mod held;
mod predicted;
mod prompt;
mod stream;

pub use config::Config;
pub use event::{Batch, Event, Stored, Tier, keys, salt, unnamed};
pub use held::{Held, Odd};
pub use prompt::{Prompt, Tokens};
pub use stream::{Step, Stream};

use crate::instant::Instant;
use predicted::Predicted;
use serde::Serialize;

/// So many prompts with new blocks, and no word of them, make an engine silent.
pub const SUSPECT: u32 = 3;

/// How far an engine's word is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// All it holds is known.
    Whole,
    /// What is known is true, and what came before is not known.
    Part,
    /// It has said nothing of what was sent there.
    Stale,
    /// It was never heard, or the connection to it is gone.
    Silent,
}

impl Standing {
    /// All of them, as metrics name them.
    pub const NAMES: [&str; 4] = ["whole", "part", "stale", "silent"];

    /// Its name.
    pub fn name(self) -> &'static str {
        let [whole, part, stale, silent] = Self::NAMES;
        match self {
            Self::Whole => whole,
            Self::Part => part,
            Self::Stale => stale,
            Self::Silent => silent,
        }
    }
}

/// What is heard of one engine.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// There is a connection, or there is none any more.
    Linked(bool),
    /// What is held is not known any more. `whole`: it holds nothing; otherwise it may hold what nobody told.
    Anew {
        /// Whether nothing is held.
        whole: bool,
    },
    /// What became of blocks.
    Batch(Batch),
}

/// What came of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Blocks that came.
    pub stored: u64,
    /// Blocks that went.
    pub removed: u64,
    /// Times that all went.
    pub cleared: u64,
    /// Events whose blocks follow one that is not known.
    pub unknown_parent: u64,
    /// Events that could not be read, or make no sense.
    pub odd: u64,
}

/// One engine behind an endpoint.
#[derive(Debug)]
struct Rank {
    held: Held,
    linked: bool,
    /// It was heard since there is a connection.
    heard: bool,
    whole: bool,
}

/// The engines of one endpoint.
#[derive(Debug)]
pub struct Engine {
    ranks: Vec<Rank>,
    predicted: Predicted,
    config: Config,
    /// Prompts with new blocks that were sent since anything was heard, and when the first was.
    untold: u32,
    since: Instant,
    counts: Counts,
}

/// What is known of an endpoint's engines, for a person or a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Known {
    /// How far it is trusted.
    pub standing: Standing,
    /// Blocks known.
    pub blocks: u64,
    /// Blocks that were sent there and not told of.
    pub predicted: u64,
    /// Tokens of a block; 0 where none came yet.
    pub block_tokens: u32,
    /// What came of its events so far.
    pub counts: Counts,
}

impl Engine {
    /// An endpoint with so many engines, of which nothing is known. `seed` as in [`Held::new`].
    pub fn new(config: &Config, ranks: u32, seed: u64) -> Self {
        let ranks = ranks.max(1) as usize;
        let most = config.max_blocks.get() as usize;
        let rank =
            |_| Rank { held: Held::new(most / ranks, seed), linked: false, heard: false, whole: false };
        Self {
            ranks: (0..ranks).map(rank).collect(),
            predicted: Predicted::new(most, seed),
            config: config.clone(),
            untold: 0,
            since: Instant::default(),
            counts: Counts::default(),
        }
    }

    /// Something is heard of the engine of that rank.
    pub fn hear(&mut self, rank: u32, news: &News) {
        let Some(of) = self.ranks.get_mut(rank as usize) else { return };
        match news {
            News::Linked(linked) => {
                of.linked = *linked;
                of.heard &= *linked;
            }
            News::Anew { whole } => {
                of.held.clear();
                (of.whole, of.heard) = (*whole, true);
            }
            News::Batch(batch) => {
                of.heard = true;
                self.untold = 0;
                self.counts.odd = self.counts.odd.saturating_add(batch.odd);
                for event in &batch.events {
                    take(of, event, &mut self.predicted, &mut self.counts);
                }
            }
        }
    }

    /// Nothing is held any more, by what is known from elsewhere.
    pub fn forget(&mut self) {
        for rank in &mut self.ranks {
            rank.held.clear();
            rank.whole = false;
        }
        self.predicted.clear();
    }

    /// What was sent there may never have come.
    pub fn expect_nothing(&mut self) {
        self.predicted.clear();
        self.untold = 0;
    }

    /// How far its word is to be trusted.
    pub fn standing(&self, now: Instant) -> Standing {
        let of = |rank: &Rank| match (rank.linked && rank.heard, rank.whole) {
            (false, _) => Standing::Silent,
            (true, true) => Standing::Whole,
            (true, false) => Standing::Part,
        };
        let worst = self.ranks.iter().map(of).max().unwrap_or(Standing::Silent);
        let is_late = self.untold >= SUSPECT && now.since(self.since) > self.config.predicted();
        if is_late { worst.max(Standing::Stale) } else { worst }
    }

    /// The sizes of its blocks, in tokens.
    pub fn block_sizes(&self) -> impl Iterator<Item = u32> {
        self.ranks.iter().map(|rank| rank.held.block_tokens()).filter(|size| *size > 0)
    }

    /// Tokens at the beginning of the prompt that need not be computed: those on slower tiers count in part. One token
    /// at least is always computed, and with it its block.
    pub fn cached(&self, prompt: &Prompt, now: Instant) -> u32 {
        self.ranks.iter().map(|rank| self.cached_by(&rank.held, prompt, now)).max().unwrap_or(0)
    }

    fn cached_by(&self, held: &Held, prompt: &Prompt, now: Instant) -> u32 {
        let size = held.block_tokens();
        let most = prompt.tokens.saturating_sub(1).checked_div(size).unwrap_or(0);
        let tier =
            |own: &u64| held.tier(*own).or_else(|| self.predicted.holds(*own, now).then_some(Tier::Device));
        let blocks = prompt.chain(size).iter().take(most as usize).map_while(tier);
        let credit = |tier| match tier {
            Tier::Device => 1.0,
            Tier::Host => self.config.host_credit,
            Tier::Disk => self.config.disk_credit,
        };
        (blocks.map(credit).sum::<f64>() * f64::from(size)) as u32
    }

    /// The prompt was sent there.
    pub fn expect(&mut self, prompt: &Prompt, now: Instant) {
        self.predicted.expire(now);
        let until = now + self.config.predicted();
        let mut news = false;
        let sizes: std::collections::BTreeSet<u32> = self.block_sizes().collect();
        for own in sizes.iter().flat_map(|size| prompt.chain(*size)) {
            if !self.ranks.iter().any(|rank| rank.held.tier(*own).is_some()) {
                news |= !self.predicted.holds(*own, now);
                self.predicted.expect(*own, until);
            }
        }
        if news {
            if self.untold == 0 {
                self.since = now;
            }
            self.untold = self.untold.saturating_add(1);
        }
    }

    /// What is known, for a person or a metric.
    pub fn known(&self, now: Instant) -> Known {
        Known {
            standing: self.standing(now),
            blocks: self.ranks.iter().map(|rank| rank.held.len() as u64).sum(),
            predicted: self.predicted.len() as u64,
            block_tokens: self.block_sizes().next().unwrap_or(0),
            counts: self.counts,
        }
    }
}

fn take(of: &mut Rank, event: &Event, predicted: &mut Predicted, counts: &mut Counts) {
    let add = |count: &mut u64, n: usize| *count = count.saturating_add(n as u64);
    match event {
        Event::Stored(stored) => match of.held.store(stored, |own| predicted.confirm(own)) {
            Ok(()) => add(&mut counts.stored, stored.blocks.len()),
            Err(Odd::UnknownParent) => add(&mut counts.unknown_parent, 1),
            Err(Odd::Misshapen) => add(&mut counts.odd, 1),
        },
        Event::Removed { blocks, tier, group } => {
            of.held.remove(blocks, *tier, *group);
            add(&mut counts.removed, blocks.len());
        }
        Event::Cleared => {
            of.held.clear();
            of.whole = true;
            predicted.clear();
            add(&mut counts.cleared, 1);
        }
    }
}

#[cfg(test)]
mod tests;
