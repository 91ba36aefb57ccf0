//! The other workers of the same Envoy: what one books, all hear.
//!
//! Each worker runs in a VM of its own, and connections land on any of them; a second turn must find the prefix
//! that another worker's first turn left. So every worker keeps all of the pool's state and tells the others
//! what it books and ends, over Envoy's shared queues: one message of a few hundred bytes, heard within about
//! 0.1 ms. Decisions read nothing but local memory. Had the state been one shared value instead, every decision
//! would have to read and write it whole.
//!
//! The list of queues is a shared value. A worker joins with its first request (Envoy also runs the plugin on its
//! main thread, where nobody needs to hear anything), gives a sign of life every second, and one whose signs
//! stopped is taken off the list: its VM has gone, and its queue would only grow.

use std::time::Duration;
use weir::instant::Instant;
use weir::pool::{Ask, LeaseId};
use weir::wire;
use weir_host::Host;

/// A sign of life is due this often.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Without one for this long a worker has gone.
const SILENCE: Duration = Duration::from_secs(5);

/// What a worker tells the others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// The list of workers has changed.
    Hello,
    /// A request was booked on an endpoint.
    Booked {
        pool: u16,
        lease: LeaseId,
        endpoint: String,
        prompt_tokens: u32,
        output_tokens: u32,
        blocks: Vec<u64>,
    },
    /// Its first token came.
    FirstToken { pool: u16, lease: LeaseId, served: String },
    /// It is over.
    End { pool: u16, lease: LeaseId },
}

impl Message {
    pub(crate) fn booked(pool: u16, lease: LeaseId, endpoint: &str, ask: &Ask<'_>) -> Self {
        let (prompt_tokens, output_tokens) = (ask.demand.prompt_tokens, ask.demand.output_tokens);
        Self::Booked {
            pool,
            lease,
            endpoint: endpoint.to_owned(),
            prompt_tokens,
            output_tokens,
            blocks: ask.blocks.to_vec(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let head = |kind: u8, pool: &u16, lease: &LeaseId| {
            let mut bytes = vec![kind];
            bytes.extend(pool.to_le_bytes());
            bytes.extend(lease.to_le_bytes());
            bytes
        };
        match self {
            Self::Hello => vec![0],
            Self::Booked { pool, lease, endpoint, prompt_tokens, output_tokens, blocks } => {
                let mut bytes = head(1, pool, lease);
                bytes.extend(prompt_tokens.to_le_bytes());
                bytes.extend(output_tokens.to_le_bytes());
                bytes.push(u8::try_from(endpoint.len()).unwrap_or(0));
                bytes.extend(endpoint.as_bytes());
                bytes.extend(wire::block_bytes(blocks));
                bytes
            }
            Self::FirstToken { pool, lease, served } => {
                let mut bytes = head(2, pool, lease);
                bytes.extend(served.as_bytes());
                bytes
            }
            Self::End { pool, lease } => head(3, pool, lease),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, bytes) = bytes.split_first()?;
        if *kind == 0 {
            return Some(Self::Hello);
        }
        let (pool, bytes) = bytes.split_first_chunk()?;
        let (lease, bytes) = bytes.split_first_chunk()?;
        let (pool, lease) = (u16::from_le_bytes(*pool), LeaseId::from_le_bytes(*lease));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        match kind {
            1 => {
                let (prompt_tokens, bytes) = bytes.split_first_chunk()?;
                let (output_tokens, bytes) = bytes.split_first_chunk()?;
                let (length, bytes) = bytes.split_first()?;
                let (endpoint, bytes) = bytes.split_at_checked(usize::from(*length))?;
                Some(Self::Booked {
                    pool,
                    lease,
                    endpoint: text(endpoint)?,
                    prompt_tokens: u32::from_le_bytes(*prompt_tokens),
                    output_tokens: u32::from_le_bytes(*output_tokens),
                    blocks: wire::blocks(bytes),
                })
            }
            2 => Some(Self::FirstToken { pool, lease, served: text(bytes)? }),
            3 => Some(Self::End { pool, lease }),
            _ => None,
        }
    }
}

/// The workers that share one configuration.
#[derive(Debug)]
pub(crate) struct Peers {
    group: String,
    own: Option<u32>,
    others: Vec<u32>,
    beaten: Option<Instant>,
}

impl Peers {
    /// Workers with the same `group` hear each other.
    pub(crate) fn new(group: u64) -> Self {
        Self { group: format!("weir.pick.{group:016x}"), own: None, others: Vec::new(), beaten: None }
    }

    /// Whether this worker has joined.
    pub(crate) fn joined(&self) -> bool {
        self.own.is_some()
    }

    /// Joins the others.
    pub(crate) fn join(&mut self, host: &dyn Host) {
        self.own = host.queue(&format!("{}.{:016x}", self.group, host.random()));
        self.beat(host);
        self.send(host, &Message::Hello);
    }

    /// Whether anybody listens.
    pub(crate) fn any(&self) -> bool {
        !self.others.is_empty()
    }

    /// Tells all others.
    pub(crate) fn send(&self, host: &dyn Host, message: &Message) {
        if self.any() {
            let bytes = message.encode();
            self.others.iter().for_each(|queue| host.enqueue(*queue, &bytes));
        }
    }

    /// Gives a sign of life when one is due, and looks for those of the others.
    pub(crate) fn keep_up(&mut self, host: &dyn Host) {
        let due = self.beaten.is_none_or(|beaten| host.now().since(beaten) >= BEAT);
        if due && self.joined() {
            self.beat(host);
        }
    }

    fn beat(&mut self, host: &dyn Host) {
        let Some(own) = self.own else { return };
        let now = host.now();
        self.beaten = Some(now);
        host.set_shared(&self.sign(own), &now.nanos().to_le_bytes(), None);
        self.read_list(host);
    }

    /// Reads the list, with this worker on it and the silent ones off it.
    pub(crate) fn read_list(&mut self, host: &dyn Host) {
        const TRIES: usize = 20;
        let Some(own) = self.own else { return };
        for _ in 0..TRIES {
            let (bytes, version) =
                host.shared(&self.group).map_or((Vec::new(), None), |(bytes, v)| (bytes, Some(v)));
            let listed: Vec<u32> = bytes
                .chunks_exact(4)
                .filter_map(|id| Some(u32::from_le_bytes(id.try_into().ok()?)))
                .collect();
            let (mut alive, gone): (Vec<u32>, Vec<u32>) =
                listed.iter().partition(|queue| **queue == own || self.is_alive(host, **queue));
            if !alive.contains(&own) {
                alive.push(own);
            }
            let bytes: Vec<u8> = alive.iter().flat_map(|queue| queue.to_le_bytes()).collect();
            if alive == listed || host.set_shared(&self.group, &bytes, version) {
                // Nobody else will read what was sent to the dead.
                gone.iter().for_each(|queue| while host.dequeue(*queue).is_some() {});
                alive.retain(|queue| *queue != own);
                self.others = alive;
                return;
            }
        }
    }

    fn is_alive(&self, host: &dyn Host, queue: u32) -> bool {
        let sign = host
            .shared(&self.sign(queue))
            .and_then(|(bytes, _)| bytes.try_into().ok())
            .map(u64::from_le_bytes);
        sign.is_some_and(|nanos| host.now().since(Instant::from_nanos(nanos)) < SILENCE)
    }

    fn sign(&self, queue: u32) -> String {
        format!("{}.{queue}", self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way() {
        let endpoint = "[::1]:8000".to_owned();
        let blocks = vec![1, u64::MAX];
        for message in [
            Message::Hello,
            Message::Booked {
                pool: 3,
                lease: 9,
                endpoint: endpoint.clone(),
                prompt_tokens: 7,
                output_tokens: 8,
                blocks,
            },
            Message::FirstToken { pool: 3, lease: u64::MAX, served: endpoint },
            Message::End { pool: 0, lease: 1 },
        ] {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            (1..bytes.len().min(12)).for_each(|n| drop(Message::decode(&bytes[..n])));
        }
        assert_eq!(Message::decode(b""), None);
        assert_eq!(Message::decode(b"\x09abcdefghijkl"), None);
    }
}
