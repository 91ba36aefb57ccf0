//! What the workers of one Envoy tell each other.

use crate::Pick;
use crate::peers::{Message, Peers};
use weir::policy::Demand;
use weir::pool::Ask;
use weir_host::Host;

impl Pick {
    /// Who is out, of all pools.
    pub(crate) fn out(&self) -> impl Iterator<Item = Message> {
        self.pools.iter().enumerate().flat_map(|(at, (_, pool))| {
            pool.snapshots().map(move |(endpoint, snapshot)| Message::Out {
                pool: at as u16,
                endpoint: endpoint.to_owned(),
                snapshot,
            })
        })
    }

    /// Tells a worker that has just joined all that this one knows.
    pub(crate) fn tell_all(&self, host: &dyn Host, queue: u32) {
        for (at, (_, pool)) in self.pools.iter().enumerate() {
            for (endpoint, blocks) in pool.prefixes() {
                let message = Message::Held { pool: at as u16, endpoint: endpoint.to_owned(), blocks };
                Peers::tell(host, queue, &message);
            }
            for (lease, endpoint, queued_tokens) in pool.booked() {
                let demand = Demand { prompt_tokens: queued_tokens, stream: true, ..Demand::default() };
                let ask = Ask { blocks: &[], demand, prompt: None };
                let message = Message::booked(at as u16, lease, endpoint, &ask, pool.probes(lease));
                Peers::tell(host, queue, &message);
            }
        }
    }

    /// What another worker did, or an engine said.
    pub(crate) fn hear(&mut self, host: &dyn Host, message: Message) {
        let now = host.now();
        let pool = message.pool().and_then(|place| self.pools.get(place)).map(|(_, pool)| pool);
        match (message, pool) {
            (Message::Hello { queue }, _) => {
                self.peers.read_list(host);
                if self.peers.answers(queue) {
                    self.tell_all(host, queue);
                }
            }
            (Message::Said { endpoint, report }, _) => {
                self.pools.iter_mut().for_each(|(_, pool)| pool.hear(&endpoint, &report));
            }
            (Message::Attempted { pool, lease, endpoint, outcome }, _) => {
                self.heard_attempt(host, usize::from(pool), lease, &endpoint, &outcome);
            }
            (_, None) => {}
            (Message::Held { endpoint, blocks, .. }, Some(pool)) => pool.hold(&endpoint, &blocks),
            (Message::Booked { lease, endpoint, prefill, demand, blocks, probe, .. }, Some(pool)) => {
                let ask = Ask { blocks: &blocks, demand, prompt: None };
                pool.book_split(lease, &endpoint, prefill.as_deref(), &ask, now);
                if probe {
                    pool.probe(lease);
                }
            }
            (Message::Out { endpoint, snapshot, .. }, Some(pool)) => pool.adopt(&endpoint, &snapshot),
            (Message::FirstToken { lease, served, .. }, Some(pool)) => {
                pool.first_token(lease, Some(&served), now);
            }
            (Message::End { lease, answered, .. }, Some(pool)) => {
                if let Some(answered) = &answered {
                    pool.answered(lease, answered, now);
                }
                pool.end(lease);
            }
        }
    }
}
