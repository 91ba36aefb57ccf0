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
use weir::instant::Instant;
use weir::pool::Message;
use weir_host::Host;

/// A sign of life is due this often.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Without one for this long a worker has gone.
const SILENCE: Duration = Duration::from_secs(5);

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
        let mut rest = bytes.as_slice();
        let next = || {
            let (length, after) = rest.split_first_chunk()?;
            let (message, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            rest = after;
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
            self.send_bytes(host, &message.encode());
        }
    }

    /// Sends all others what is not one message.
    pub(crate) fn send_bytes(&self, host: &dyn Host, bytes: &[u8]) {
        self.others.iter().for_each(|queue| host.enqueue(*queue, bytes));
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
