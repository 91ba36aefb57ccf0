//! What is asked of a pool: requests with their time, size and content.
//!
//! Content is told apart, not spelled out: a prompt is a list of [`Piece`]s, and two prompts share a beginning as far as
//! their pieces are the same. Engine and router each cut it into blocks of their own and hash them in a chain, as the real
//! ones do with tokens and bytes; so the lab's router knows a prefix as coarsely as the real one.

mod draw;
mod generate;
mod text;
mod timing;
mod trace;

pub use draw::Draw;
pub use generate::{Kind, WORKLOADS, generate};
pub use text::{Message, messages, words};
pub use timing::{ramped, retimed, until};
pub use trace::{Clumps, azure, mooncake};

use crate::engine::Hashed;
use std::collections::HashSet;
use std::sync::Arc;
use weir::block;
use weir::random::Random;

/// Tokens of the router's smallest block: `block_tokens` of [`weir::pool::Config`].
pub const UNIT_TOKENS: u32 = 16;

/// A stretch of text that occurs as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Equal for equal text.
    pub id: u64,
    /// Its length.
    pub tokens: u32,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Nanoseconds from the start, or, when it follows others, from the end of the last of them.
    pub at: u64,
    /// The requests that it waits for, all before it in the list.
    pub after: Vec<u32>,
    /// The prompt.
    pub prompt: Vec<Piece>,
    /// The answer: it may come back as a piece of a later prompt.
    pub answer: u64,
    /// Its length, one or more.
    pub output: u32,
    /// Who asks.
    pub tenant: u32,
    /// The conversation or task that it is part of.
    pub session: u64,
    /// The adapter asked for.
    pub adapter: Option<u32>,
}

impl Request {
    /// Tokens of the prompt, one or more.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt.iter().map(|piece| piece.tokens).sum::<u32>().max(1)
    }
}

/// Requests, and their blocks as engines and routers see them.
#[derive(Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// In the order of their time; those that follow others behind them.
    pub requests: Vec<Request>,
    /// Chained hashes of prompt and answer in the engine's blocks.
    pub engine_chains: Vec<Arc<[u64]>>,
    /// Chained hashes of the prompt in the router's blocks.
    pub router_chains: Vec<Box<[u64]>>,
    /// The share of prompt tokens that one endless cache would have held.
    pub ceiling: f64,
}

impl Workload {
    /// Cuts requests into blocks; `block_tokens` is the engine's.
    pub fn new(name: &str, requests: Vec<Request>, block_tokens: u32) -> Self {
        let engine = |request: &Request| -> Arc<[u64]> {
            let answer = Piece { id: request.answer, tokens: request.output };
            let whole = request.prompt.iter().copied().chain([answer]);
            chain(seed(request), whole, |_| block_tokens).into()
        };
        let router = |request: &Request| -> Box<[u64]> {
            let units = |n| (block::units(n + 1) - block::units(n)) as u32;
            chain(seed(request), request.prompt.iter().copied(), |n| units(n) * UNIT_TOKENS).into()
        };
        let engine_chains: Vec<Arc<[u64]>> = requests.iter().map(engine).collect();
        let router_chains = requests.iter().map(router).collect();
        let ceiling = ceiling(&requests, &engine_chains, block_tokens);
        Self { name: name.to_owned(), requests, engine_chains, router_chains, ceiling }
    }
}

/// Nothing is shared between adapters.
fn seed(request: &Request) -> u64 {
    request.adapter.map_or(1, |adapter| Random::new(u64::from(adapter) + 2).next())
}

/// Chained hashes of the full blocks of a text; block `n` has `length(n)` tokens.
fn chain(seed: u64, pieces: impl Iterator<Item = Piece>, length: impl Fn(usize) -> u32) -> Vec<u64> {
    let mut hashes = Vec::new();
    let (mut parent, mut mixed, mut room) = (seed, seed, length(0));
    for piece in pieces {
        let mut offset = 0;
        while offset < piece.tokens {
            let taken = room.min(piece.tokens - offset);
            let part =
                piece.id ^ (u64::from(offset) << 32 | u64::from(taken)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed = Random::new(mixed ^ part).next();
            offset += taken;
            room -= taken;
            if room == 0 {
                parent = Random::new(parent ^ mixed).next();
                hashes.push(parent);
                mixed = parent;
                room = length(hashes.len());
            }
        }
    }
    hashes
}

/// What an endless cache for all would have held, of all prompt tokens.
fn ceiling(requests: &[Request], chains: &[Arc<[u64]>], block_tokens: u32) -> f64 {
    let mut known: HashSet<u64, Hashed> = HashSet::default();
    let (mut hit, mut all) = (0_u64, 0_u64);
    for (request, chain) in requests.iter().zip(chains) {
        let prompt = request.prompt_tokens();
        let most = ((prompt - 1) / block_tokens) as usize;
        let matched = chain.iter().take(most).take_while(|hash| known.contains(*hash)).count();
        hit += matched as u64 * u64::from(block_tokens);
        all += u64::from(prompt);
        known.extend(chain.iter().copied());
    }
    hit as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pieces: &[(u64, u32)]) -> Request {
        let prompt = pieces.iter().map(|&(id, tokens)| Piece { id, tokens }).collect();
        Request { prompt, output: 32, answer: 99, ..Request::default() }
    }

    #[test]
    fn prompts_share_blocks_as_far_as_their_pieces_do() {
        let requests = vec![
            request(&[(1, 100), (2, 60)]),
            request(&[(1, 100), (3, 60)]),
            request(&[(1, 100), (2, 60), (99, 32), (4, 40)]),
        ];
        let workload = Workload::new("w", requests, 16);
        let common = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let engine = &workload.engine_chains;
        assert_eq!(engine[0].len(), 12);
        assert_eq!(common(&engine[0], &engine[1]), 6, "96 of the 100 tokens");
        assert_eq!(common(&engine[0], &engine[2]), 12, "the answer is part of the next prompt");
        let router = &workload.router_chains;
        assert_eq!(
            (router[0].len(), common(&router[0], &router[2])),
            (10, 10),
            "a router has not seen the answer"
        );
        assert_eq!(workload.ceiling, f64::from(6 * 16 + 12 * 16) / f64::from(160 + 160 + 232));
    }

    #[test]
    fn adapters_share_nothing() {
        let one = Request { adapter: Some(1), ..request(&[(1, 100)]) };
        let workload = Workload::new("w", vec![one.clone(), Request { adapter: Some(2), ..one }], 16);
        assert_eq!(workload.ceiling, 0.0);
    }

    #[test]
    fn the_router_cuts_as_the_core_does() {
        let workload = Workload::new("w", vec![request(&[(1, 16 * 1_000)])], 16);
        assert_eq!(workload.router_chains[0].len(), block::within(1_000));
    }
}
