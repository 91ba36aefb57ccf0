//! What those who keep the same pools tell each other: the workers of one Envoy over its queues, scorers over their store.
//!
//! Each keeps a pool of its own and decides on that alone; the others learn of it by messages. One that comes twice, late, or in
//! the place of another does no harm: a lease has a name, is booked once and ends once. They are bytes, since one goes with each
//! request to each of the others.

use super::{Answered, Ask, LeaseId, Outstanding, Report};
use crate::breaker::{Outcome, Snapshot};
use crate::instant::Instant;
use crate::policy::Demand;
use crate::wire;
use std::time::Duration;

/// What one tells the others. Pools go by their places, endpoints by their addresses.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "pool, lease and endpoint are what they are everywhere")]
pub enum Message {
    /// A worker has joined and listens on this queue.
    Hello { queue: u32 },
    /// A request was booked on an endpoint.
    Booked {
        pool: u16,
        lease: LeaseId,
        endpoint: String,
        /// Where its prompt is computed, when that is another.
        prefill: Option<String>,
        demand: Demand,
        blocks: Vec<u64>,
        probe: bool,
    },
    /// Its first token came.
    FirstToken { pool: u16, lease: LeaseId, served: String },
    /// It is over.
    End { pool: u16, lease: LeaseId, answered: Option<Answered> },
    /// An endpoint holds a prefix, from before the hearer joined.
    Held { pool: u16, endpoint: String, blocks: Vec<u64> },
    /// An attempt came to something that concerns its endpoint.
    Attempted { pool: u16, lease: LeaseId, endpoint: String, outcome: Outcome },
    /// An engine said how it is.
    Said { endpoint: String, report: Report },
    /// An endpoint is out. No message, but what is kept for those that join.
    Out { pool: u16, endpoint: String, snapshot: Snapshot },
    /// A lease is out, from before the hearer joined.
    Outstanding { pool: u16, endpoint: String, lease: Outstanding },
}

impl Message {
    /// A request was booked on an endpoint.
    pub fn booked(pool: u16, lease: LeaseId, endpoint: &str, ask: &Ask<'_>, probe: bool) -> Self {
        Self::Booked {
            pool,
            lease,
            endpoint: endpoint.to_owned(),
            prefill: None,
            demand: ask.demand,
            blocks: ask.blocks.to_vec(),
            probe,
        }
    }

    /// The place of the pool that it is about, if it is about one.
    pub fn pool(&self) -> Option<usize> {
        match self {
            Self::Hello { .. } | Self::Said { .. } => None,
            Self::Booked { pool, .. }
            | Self::FirstToken { pool, .. }
            | Self::End { pool, .. }
            | Self::Held { pool, .. }
            | Self::Attempted { pool, .. }
            | Self::Outstanding { pool, .. }
            | Self::Out { pool, .. } => Some(usize::from(*pool)),
        }
    }

    /// The same of the pool at another place.
    pub fn at(mut self, place: u16) -> Self {
        if let Self::Booked { pool, .. }
        | Self::FirstToken { pool, .. }
        | Self::End { pool, .. }
        | Self::Held { pool, .. }
        | Self::Attempted { pool, .. }
        | Self::Outstanding { pool, .. }
        | Self::Out { pool, .. } = &mut self
        {
            *pool = place;
        }
        self
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        const ALL_BUT_BLOCKS: usize = 100;
        let blocks = match self {
            Self::Booked { blocks, .. } | Self::Held { blocks, .. } => blocks.len(),
            _ => 0,
        };
        blocks.saturating_mul(8).saturating_add(ALL_BUT_BLOCKS)
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.push(u8::try_from(text.len()).unwrap_or(0));
            bytes.extend(text.as_bytes());
        };
        match self {
            Self::Hello { queue } => {
                bytes.push(0);
                bytes.extend(queue.to_le_bytes());
            }
            Self::Booked { pool, lease, endpoint, prefill, demand, blocks, probe } => {
                bytes.push(1);
                bytes.extend(pool.to_le_bytes());
                bytes.extend(lease.to_le_bytes());
                bytes.push(u8::from(*probe));
                write_demand(&mut bytes, demand);
                text(&mut bytes, endpoint);
                text(&mut bytes, prefill.as_deref().unwrap_or_default());
                bytes.extend(wire::block_bytes(blocks));
            }
            Self::FirstToken { pool, lease, served } => {
                bytes.push(2);
                bytes.extend(pool.to_le_bytes());
                bytes.extend(lease.to_le_bytes());
                text(&mut bytes, served);
            }
            Self::End { pool, lease, answered } => {
                bytes.push(3);
                bytes.extend(pool.to_le_bytes());
                bytes.extend(lease.to_le_bytes());
                bytes.extend(answered.iter().flat_map(|one| serde_json::to_vec(one).unwrap_or_default()));
            }
            Self::Held { pool, endpoint, blocks } => {
                bytes.push(4);
                bytes.extend(pool.to_le_bytes());
                text(&mut bytes, endpoint);
                bytes.extend(wire::block_bytes(blocks));
            }
            Self::Attempted { pool, lease, endpoint, outcome } => {
                bytes.push(5);
                bytes.extend(pool.to_le_bytes());
                bytes.extend(lease.to_le_bytes());
                text(&mut bytes, endpoint);
                text(&mut bytes, &outcome.write());
            }
            Self::Out { pool, endpoint, snapshot } => {
                bytes.push(6);
                bytes.extend(pool.to_le_bytes());
                text(&mut bytes, endpoint);
                let (held, status) = snapshot.held.unwrap_or_default();
                for time in [snapshot.out.unwrap_or_default(), held] {
                    bytes.extend(time.nanos().to_le_bytes());
                }
                bytes.extend(status.to_le_bytes());
                bytes.extend(snapshot.trips.to_le_bytes());
                let millis = u64::try_from(snapshot.cooldown.as_millis()).unwrap_or(u64::MAX);
                bytes.extend(millis.to_le_bytes());
            }
            Self::Said { endpoint, report } => {
                bytes.push(7);
                text(&mut bytes, endpoint);
                bytes.extend(serde_json::to_vec(report).unwrap_or_default());
            }
            Self::Outstanding { pool, endpoint, lease } => {
                let Outstanding { id, prompt_tokens, queued_tokens, left, probe, owner } = *lease;
                bytes.push(8);
                bytes.extend(pool.to_le_bytes());
                bytes.extend(id.to_le_bytes());
                [prompt_tokens, queued_tokens].iter().for_each(|tokens| bytes.extend(tokens.to_le_bytes()));
                let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                bytes.extend(millis.to_le_bytes());
                bytes.push(u8::from(probe));
                bytes.extend(owner.unwrap_or(0).to_le_bytes());
                text(&mut bytes, endpoint);
            }
        }
        bytes
    }

    /// Reads what [`Message::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        Some(match rest.take::<1>()? {
            [0] => Self::Hello { queue: u32::from_le_bytes(rest.take()?) },
            [1] => {
                let pool = u16::from_le_bytes(rest.take()?);
                let lease = LeaseId::from_le_bytes(rest.take()?);
                let probe = rest.take()? == [1];
                let demand = rest.demand()?;
                let endpoint = rest.text()?;
                let prefill = Some(rest.text()?).filter(|prefill| !prefill.is_empty());
                let blocks = wire::blocks(rest.0);
                Self::Booked { pool, lease, endpoint, prefill, demand, blocks, probe }
            }
            [2] => Self::FirstToken {
                pool: u16::from_le_bytes(rest.take()?),
                lease: LeaseId::from_le_bytes(rest.take()?),
                served: rest.text()?,
            },
            [3] => Self::End {
                pool: u16::from_le_bytes(rest.take()?),
                lease: LeaseId::from_le_bytes(rest.take()?),
                answered: match rest.0 {
                    b"" => None,
                    json => Some(serde_json::from_slice(json).ok()?),
                },
            },
            [4] => Self::Held {
                pool: u16::from_le_bytes(rest.take()?),
                endpoint: rest.text()?,
                blocks: wire::blocks(rest.0),
            },
            [5] => Self::Attempted {
                pool: u16::from_le_bytes(rest.take()?),
                lease: LeaseId::from_le_bytes(rest.take()?),
                endpoint: rest.text()?,
                outcome: Outcome::read(&rest.text()?)?,
            },
            [6] => {
                let pool = u16::from_le_bytes(rest.take()?);
                let endpoint = rest.text()?;
                let [out, held] =
                    [rest.take()?, rest.take()?].map(|nanos| Instant::from_nanos(u64::from_le_bytes(nanos)));
                let status = u16::from_le_bytes(rest.take()?);
                let snapshot = Snapshot {
                    out: Some(out).filter(|out| *out > Instant::default()),
                    held: Some((held, status)).filter(|(_, status)| *status > 0),
                    trips: u32::from_le_bytes(rest.take()?),
                    cooldown: Duration::from_millis(u64::from_le_bytes(rest.take()?)),
                };
                Self::Out { pool, endpoint, snapshot }
            }
            [8] => {
                let pool = u16::from_le_bytes(rest.take()?);
                let lease = Outstanding {
                    id: LeaseId::from_le_bytes(rest.take()?),
                    prompt_tokens: u32::from_le_bytes(rest.take()?),
                    queued_tokens: u32::from_le_bytes(rest.take()?),
                    left: Duration::from_millis(u64::from_le_bytes(rest.take()?)),
                    probe: rest.take()? == [1],
                    owner: Some(u64::from_le_bytes(rest.take()?)).filter(|owner| *owner != 0),
                };
                Self::Outstanding { pool, endpoint: rest.text()?, lease }
            }
            [7] => Self::Said { endpoint: rest.text()?, report: serde_json::from_slice(rest.0).ok()? },
            _ => return None,
        })
    }
}

/// A demand goes with each request to each worker, so it is written as bytes.
fn write_demand(bytes: &mut Vec<u8>, demand: &Demand) {
    let Demand { prompt_tokens, prompt_units, output_tokens, stream, .. } = *demand;
    let Demand { session, tenant, adapter, slo_ttft_ms, slo_tpot_ms, .. } = *demand;
    let slo = [slo_ttft_ms, slo_tpot_ms].map(Option::unwrap_or_default);
    let numbers = [prompt_tokens, prompt_units, output_tokens].into_iter().chain(slo);
    bytes.extend(numbers.flat_map(u32::to_le_bytes));
    bytes.push(u8::from(stream));
    for hash in [session, tenant, adapter] {
        bytes.push(u8::from(hash.is_some()));
        bytes.extend(hash.iter().flat_map(|hash| hash.to_le_bytes()));
    }
}

/// What is left to read of a message.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn hash(&mut self) -> Option<Option<u64>> {
        Some(if self.take()? == [0] { None } else { Some(u64::from_le_bytes(self.take()?)) })
    }

    fn demand(&mut self) -> Option<Demand> {
        let mut number = || self.take().map(u32::from_le_bytes);
        let [prompt_tokens, prompt_units, output_tokens] = [number()?, number()?, number()?];
        // No objective is 0.
        let [slo_ttft_ms, slo_tpot_ms] = [number()?, number()?].map(|ms| Some(ms).filter(|ms| *ms > 0));
        let stream = self.take()? == [1];
        let [session, tenant, adapter] = [self.hash()?, self.hash()?, self.hash()?];
        Some(Demand {
            prompt_tokens,
            prompt_units,
            output_tokens,
            stream,
            session,
            tenant,
            adapter,
            slo_ttft_ms,
            slo_tpot_ms,
            // It has been let in, where that counted.
            retried: false,
        })
    }

    fn text(&mut self) -> Option<String> {
        let [length] = self.take()?;
        let (text, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Signals;
    use crate::pool::Adapters;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn messages_survive_the_way() {
        let endpoint = "[::1]:8000".to_owned();
        let blocks = vec![1, u64::MAX];
        for message in [
            Message::Hello { queue: 6 },
            Message::Held { pool: 2, endpoint: endpoint.clone(), blocks: blocks.clone() },
            Message::Booked {
                pool: 3,
                lease: 9,
                endpoint: endpoint.clone(),
                prefill: Some("10.0.0.9:1".to_owned()),
                demand: Demand {
                    prompt_tokens: 7,
                    prompt_units: 1,
                    output_tokens: 8,
                    stream: true,
                    session: Some(0),
                    adapter: Some(u64::MAX),
                    slo_ttft_ms: Some(200),
                    ..Demand::default()
                },
                blocks,
                probe: true,
            },
            Message::Attempted {
                pool: 3,
                lease: 9,
                endpoint: endpoint.clone(),
                outcome: Outcome::of_status(503, Some(Duration::from_secs(2))),
            },
            Message::Out {
                pool: 3,
                endpoint: endpoint.clone(),
                snapshot: Snapshot {
                    out: Some(Instant::from_millis(5)),
                    held: Some((Instant::from_millis(6), 429)),
                    trips: 2,
                    cooldown: Duration::from_secs(5),
                },
            },
            Message::Said {
                endpoint: endpoint.clone(),
                report: Report {
                    at: Instant::from_millis(7),
                    signals: Signals { waiting: Some(3), kv_usage: Some(0.25), ..Signals::default() },
                    adapters: Some(Adapters { listed: Some(vec![u64::MAX]), ..Adapters::default() }),
                    totals: [(u64::MAX, 2.5)].into(),
                    started: Some(1e9),
                },
            },
            Message::Outstanding {
                pool: 3,
                endpoint: endpoint.clone(),
                lease: Outstanding {
                    id: 4,
                    prompt_tokens: 9,
                    queued_tokens: 0,
                    left: Duration::from_millis(250),
                    probe: true,
                    owner: Some(7),
                },
            },
            Message::FirstToken { pool: 3, lease: u64::MAX, served: endpoint },
            Message::End { pool: 0, lease: 1, answered: None },
            Message::End {
                pool: 0,
                lease: 1,
                answered: Some(Answered {
                    output_tokens: Some(3),
                    kv_usage: Some(0.5),
                    ..Answered::default()
                }),
            },
        ] {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            (1..bytes.len().min(12)).for_each(|n| drop(Message::decode(&bytes[..n])));
        }
        assert_eq!(Message::decode(b""), None);
        assert_eq!(Message::decode(b"\x09abcdefghijkl"), None);
    }
}
