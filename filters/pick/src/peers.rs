//! The other workers of the same Envoy: what one books, all hear.
//!
//! Each worker runs in a VM of its own, and connections land on any of them; a second turn must find the prefix
//! that another worker's first turn left. So every worker keeps all of the pool's state and tells the others
//! what it books and ends, over Envoy's shared queues: one message of a few hundred bytes, heard within about
//! 0.1 ms. Decisions read nothing but local memory. Had the state been one shared value instead, every decision
//! would have to read and write it whole.
//!
//! The list of queues is a shared value. A worker joins with its first request (Envoy also runs the plugin on its
//! main thread, where nobody needs to hear anything), is told what happened before, gives a sign of life every second, and one whose signs
//! stopped is taken off the list: its VM has gone, and its queue would only grow.

use std::time::Duration;
use weir::breaker::{Outcome, Snapshot};
use weir::instant::Instant;
use weir::policy::Demand;
use weir::pool::{Answered, Ask, LeaseId, Report};
use weir::wire;
use weir_host::Host;

/// A sign of life is due this often.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Without one for this long a worker has gone.
const SILENCE: Duration = Duration::from_secs(5);

/// What a worker tells the others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
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
    /// An endpoint is out. No message, but what is kept for workers that join.
    Out { pool: u16, endpoint: String, snapshot: Snapshot },
}

impl Message {
    pub(crate) fn booked(pool: u16, lease: LeaseId, endpoint: &str, ask: &Ask<'_>, probe: bool) -> Self {
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
    pub(crate) fn pool(&self) -> Option<usize> {
        match self {
            Self::Hello { .. } | Self::Said { .. } => None,
            Self::Booked { pool, .. }
            | Self::FirstToken { pool, .. }
            | Self::End { pool, .. }
            | Self::Held { pool, .. }
            | Self::Attempted { pool, .. }
            | Self::Out { pool, .. } => Some(usize::from(*pool)),
        }
    }

    fn encode(&self) -> Vec<u8> {
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
        }
        bytes
    }

    /// Reads what [`Message::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
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

/// The workers that share one configuration.
#[derive(Debug)]
pub(crate) struct Peers {
    group: String,
    own: Option<u32>,
    others: Vec<u32>,
    beaten: Option<Instant>,
}

impl Peers {
    /// The name, among all workers with the same configuration, of an endpoint's slots.
    pub(crate) fn slots(&self, pool: &str, endpoint: &str) -> String {
        format!("{}.probes.{pool}.{endpoint}", self.group)
    }

    /// What the workers share begins with this name.
    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    /// The queue on which this worker listens, once it has joined.
    pub(crate) fn own(&self) -> Option<u32> {
        self.own
    }

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
        if let Some(queue) = self.own {
            self.send(host, &Message::Hello { queue });
        }
    }

    /// Whether it falls to this worker to tell a newcomer what happened before: one of them does.
    pub(crate) fn answers(&self, newcomer: u32) -> bool {
        let first = self.others.iter().copied().chain(self.own).filter(|queue| *queue != newcomer).min();
        first.is_some() && first == self.own
    }

    /// Tells one worker.
    pub(crate) fn tell(host: &dyn Host, queue: u32, message: &Message) {
        host.enqueue(queue, &message.encode());
    }

    /// Keeps who is out where a worker that joins finds it before its first choice, and one whose VM had to be loaded anew.
    pub(crate) fn keep_out(&self, host: &dyn Host, out: impl Iterator<Item = Message>) {
        let message = |message: Message| {
            let bytes = message.encode();
            let length = u16::try_from(bytes.len()).unwrap_or(0).to_le_bytes();
            length.into_iter().chain(bytes)
        };
        host.set_shared(&self.out(), &out.flat_map(message).collect::<Vec<u8>>(), None);
    }

    /// Who is out, as it was kept last.
    pub(crate) fn kept_out(&self, host: &dyn Host) -> Vec<Message> {
        let (bytes, _) = host.shared(&self.out()).unwrap_or_default();
        let mut rest = Rest(&bytes);
        let next = || {
            let length = usize::from(u16::from_le_bytes(rest.take()?));
            let (message, after) = rest.0.split_at_checked(length)?;
            rest.0 = after;
            Message::decode(message)
        };
        std::iter::from_fn(next).collect()
    }

    fn out(&self) -> String {
        format!("{}.out", self.group)
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
    use weir::policy::Signals;
    use weir::pool::Adapters;

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
                    totals: vec![None, Some(2.5)],
                    started: Some(1e9),
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
