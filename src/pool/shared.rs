//! What is known elsewhere, taken over; and what is known here, for those who join.

use super::{Ask, Message, Pool, Pools};
use crate::breaker::Moved;
use crate::instant::Instant;

impl Pools {
    /// Takes over what another one tells. What its endpoint's circuit made of an attempt is given back.
    pub fn hear(&mut self, message: &Message, now: Instant) -> Option<Moved> {
        if let Message::Said { endpoint, report } = message {
            self.iter_mut().for_each(|(_, pool)| pool.hear(endpoint, report));
        }
        let (_, pool) = self.get(message.pool()?)?;
        match message {
            Message::Hello { .. } | Message::Said { .. } => {}
            Message::Held { endpoint, blocks, .. } => pool.hold(endpoint, blocks),
            Message::Booked { lease, endpoint, prefill, demand, blocks, probe, .. } => {
                let ask = Ask { blocks, demand: *demand, prompt: None };
                pool.book_split(*lease, endpoint, prefill.as_deref(), &ask, now);
                if *probe {
                    pool.probe(*lease);
                }
            }
            Message::Outstanding { endpoint, lease, .. } => pool.book_outstanding(endpoint, lease, now),
            Message::Out { endpoint, snapshot, .. } => pool.adopt(endpoint, snapshot, now),
            Message::FirstToken { lease, served, .. } => pool.first_token(*lease, Some(served), now),
            Message::Attempted { lease, endpoint, outcome, .. } => {
                return pool.attempted(*lease, endpoint, outcome, now);
            }
            Message::End { lease, answered, .. } => {
                if let Some(answered) = answered {
                    pool.answered(*lease, answered, now);
                }
                pool.end(*lease);
            }
        }
        None
    }

    /// Prefixes believed to be held: those used last come last.
    pub fn prefixes(&self) -> impl Iterator<Item = Message> {
        self.places().flat_map(|(at, pool)| {
            pool.prefixes().map(move |(endpoint, blocks)| Message::Held {
                pool: at,
                endpoint: endpoint.to_owned(),
                blocks,
            })
        })
    }

    /// Leases that are out.
    pub fn outstanding(&self, now: Instant) -> impl Iterator<Item = Message> {
        self.places().flat_map(move |(at, pool)| {
            pool.outstanding(now).map(move |(endpoint, lease)| Message::Outstanding {
                pool: at,
                endpoint: endpoint.to_owned(),
                lease,
            })
        })
    }

    /// Endpoints that are out.
    pub fn out(&self) -> impl Iterator<Item = Message> {
        self.places().flat_map(|(at, pool)| {
            pool.snapshots().map(move |(endpoint, snapshot)| Message::Out {
                pool: at,
                endpoint: endpoint.to_owned(),
                snapshot,
            })
        })
    }

    fn places(&self) -> impl Iterator<Item = (u16, &Pool)> {
        self.iter().zip(0..).map(|((_, pool), at)| (at, pool))
    }
}
