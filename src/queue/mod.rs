//! Who goes next when more want in than may.
//!
//! A [`Line`] is what stands before a number of slots: requests that wait, each with its client, its priority and its
//! deadline. Three questions are answered, in this order:
//!
//! 1. **Which band?** Requests of a higher priority go first. So that no band starves, after [`Line::IN_A_ROW`] calls
//!    that passed over lower bands one goes to the lower band in which somebody has waited longest: while they wait, lower
//!    bands get at least every ninth slot. Who has a negative priority never waits: the caller sheds it at once.
//! 2. **Which client?** Whoever has got least, by [`Fairness`]: the virtual token counter ([`Vtc`]), or its relative that
//!    prefers prompts that are cached while nobody falls behind by more than a quantum ([`Dlpm`]).
//! 3. **Which of its requests?** The one that came first. With [`Dlpm`] the one of which most is cached.
//!
//! A line is bounded. In a full one a newcomer takes the place of the last of a lower band, else of the last of that client
//! of its band that has most waiting, if that is more than the newcomer's client has ([`Line::displace`]): so a fan-out can
//! fill a line, and not keep others out of it. First come first served would let it do both.
//!
//! A line counts no slots, knows no clock and wakes nobody: who frees a slot calls the next ([`Line::call`]), and who is
//! called comes for it ([`Line::come`]) or loses it.

mod dlpm;
mod line;
mod vtc;

pub use dlpm::Dlpm;
pub use line::{Line, Waiter};
pub use vtc::Vtc;

use crate::varint::{read_number, write_number};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// How clients take turns within a band.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Whoever has got least.
    #[default]
    Vtc,
    /// The longest cached prefix, among those whose deficit allows it.
    Dlpm {
        /// What each client may get ahead, in tokens as `cost` weighs them. A small one is fairer, a large one finds more in caches.
        quantum_tokens: NonZeroU32,
    },
}

/// What clients have got, and who of them goes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// Virtual token counters.
    Vtc(Vtc),
    /// Deficits.
    Dlpm(Dlpm),
}

impl Fairness {
    /// Nobody has got anything.
    pub fn new(order: Order) -> Self {
        match order {
            Order::Vtc => Self::Vtc(Vtc::default()),
            Order::Dlpm { quantum_tokens } => Self::Dlpm(Dlpm::new(u64::from(quantum_tokens.get()) * 1_000)),
        }
    }

    /// A client that had nothing waiting now has. `others` have, too.
    pub fn arrive(&mut self, client: u64, others: impl Iterator<Item = u64>) {
        match self {
            Self::Vtc(vtc) => vtc.arrive(client, others),
            Self::Dlpm(dlpm) => dlpm.arrive(client),
        }
    }

    /// A client has nothing waiting any more.
    pub fn leave(&mut self, client: u64) {
        match self {
            Self::Vtc(vtc) => vtc.leave(client),
            Self::Dlpm(dlpm) => dlpm.leave(client),
        }
    }

    /// A client got something, or gives some of it back: in thousandths of a token.
    pub fn charge(&mut self, client: u64, cost: i64) {
        match self {
            Self::Vtc(vtc) => vtc.charge(client, cost),
            Self::Dlpm(dlpm) => dlpm.charge(client, cost),
        }
    }

    /// Which of those that wait goes next, by its place: they are given as their clients and how much of each prompt is cached, in
    /// the order in which they came. `None`: nobody waits.
    pub fn next(&mut self, waiting: &[(u64, u32)]) -> Option<usize> {
        match self {
            Self::Vtc(vtc) => vtc.next(waiting.iter().map(|(client, _)| *client)),
            Self::Dlpm(dlpm) => dlpm.next(waiting),
        }
    }

    /// Appends it as bytes.
    pub fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Vtc(vtc) => vtc.write(to),
            Self::Dlpm(dlpm) => dlpm.write(to),
        }
    }

    /// Takes it off the front of bytes that were written under the same order.
    pub fn read(order: Order, from: &mut &[u8]) -> Option<Self> {
        Some(match Self::new(order) {
            Self::Vtc(_) => Self::Vtc(Vtc::read(from)?),
            Self::Dlpm(dlpm) => Self::Dlpm(dlpm.read(from)?),
        })
    }
}

/// Most clients that are remembered while they have nothing waiting.
const MOST_CLIENTS: usize = 256;

/// Numbers by client, as bytes: how many, then each client and its number, a sign in the lowest bit.
fn write_clients(clients: &BTreeMap<u64, i64>, to: &mut Vec<u8>) {
    write_number(to, clients.len() as u64);
    for (client, number) in clients {
        to.extend_from_slice(&client.to_le_bytes());
        write_number(to, number.unsigned_abs().min(i64::MAX.unsigned_abs()) << 1 | u64::from(*number < 0));
    }
}

fn read_clients(from: &mut &[u8]) -> Option<BTreeMap<u64, i64>> {
    let mut clients = BTreeMap::new();
    for _ in 0..read_number(from)? {
        let (client, rest) = from.split_first_chunk()?;
        *from = rest;
        let number = read_number(from)?;
        let amount = i64::try_from(number >> 1).ok()?;
        clients.insert(u64::from_le_bytes(*client), if number & 1 == 1 { -amount } else { amount });
    }
    Some(clients)
}

#[cfg(test)]
mod tests;
