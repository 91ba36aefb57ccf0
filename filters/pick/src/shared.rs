//! What the workers of one Envoy tell each other.

use crate::Pick;
use crate::peers::Peers;
use weir::pool::Message;
use weir_host::Host;

impl Pick {
    /// Tells a worker that has just joined all that this one knows.
    fn tell_all(&self, host: &dyn Host, queue: u32) {
        let messages = self.pools.prefixes().chain(self.pools.outstanding(host.now()));
        messages.for_each(|message| Peers::tell(host, queue, &message));
        self.tell_standing(host, queue);
    }

    /// What another worker did, or an engine said.
    pub(crate) fn hear(&mut self, host: &dyn Host, message: Message) {
        if let Some(push) = &mut self.push {
            push.note(host, &message);
        }
        match message {
            Message::Hello { queue } => {
                self.peers.read_list(host);
                if self.peers.answers(queue) {
                    self.tell_all(host, queue);
                }
            }
            Message::Attempted { pool, lease, endpoint, outcome } => {
                self.heard_attempt(host, usize::from(pool), lease, &endpoint, &outcome);
            }
            other => {
                self.pools.hear(&other, host.now());
            }
        }
    }
}
