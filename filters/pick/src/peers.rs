//! The other workers of the same Envoy: what one books, all hear.
//!
//! Each worker runs in a VM of its own, and connections land on any of them; a second turn must find the prefix
//! that another worker's first turn left. So every worker keeps all of the pool's state and tells the others
//! what it books and ends, over Envoy's shared queues: one message of a few hundred bytes, heard within about
//! 0.1 ms. Decisions read nothing but local memory. Had the state been one shared value instead, every decision
//! would have to read and write it whole.
//!
//! A worker joins with its first request (Envoy also runs the plugin on its main thread, where nobody needs to hear anything) and is told what
//! happened before. Who is there says `weir_host::roll`, by the numbers of their queues: the queue of a worker whose VM has gone would only grow.

use weir::pool::Message;
use weir_host::Host;
use weir_host::roll::{Called, Roll};

/// The workers that share one configuration.
#[derive(Debug)]
pub(crate) struct Peers {
    roll: Roll,
    own: Option<u32>,
    others: Vec<u32>,
}

impl Peers {
    /// The name, among all workers with the same configuration, of an endpoint's slots.
    pub(crate) fn slots(&self, pool: &str, endpoint: &str) -> String {
        format!("{}.probes.{pool}.{endpoint}", self.group())
    }

    /// What the workers share begins with this name.
    pub(crate) fn group(&self) -> &str {
        self.roll.name()
    }

    /// The queue on which this worker listens, once it has joined.
    pub(crate) fn own(&self) -> Option<u32> {
        self.own
    }

    /// Workers with the same `group` hear each other.
    pub(crate) fn new(group: u64) -> Self {
        Self { roll: Roll::new(format!("weir.pick.{group:016x}")), own: None, others: Vec::new() }
    }

    /// Whether this worker has joined.
    pub(crate) fn joined(&self) -> bool {
        self.own.is_some()
    }

    /// Joins the others.
    pub(crate) fn join(&mut self, host: &dyn Host) {
        let Some(queue) = host.queue(&format!("{}.{:016x}", self.group(), host.random())) else { return };
        self.own = Some(queue);
        self.roll.join(queue.into());
        self.keep_up(host);
        self.send(host, &Message::Hello { queue });
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
        format!("{}.out", self.group())
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
        if self.roll.is_due(host.now()) {
            let called = self.roll.beat(host, &[]);
            self.hear(host, called);
        }
    }

    /// Looks who is there.
    pub(crate) fn read_list(&mut self, host: &dyn Host) {
        self.hear(host, self.roll.call(host));
    }

    fn hear(&mut self, host: &dyn Host, called: Option<Called>) {
        let Some(Called { others, gone, .. }) = called else { return };
        let queue = |id: u64| u32::try_from(id).ok();
        // Nobody else will read what was sent to the dead.
        for queue in gone.into_iter().filter_map(|(id, _)| queue(id)) {
            while host.dequeue(queue).is_some() {}
        }
        self.others = others.into_iter().filter_map(queue).collect();
    }
}
