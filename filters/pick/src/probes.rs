//! Slots of probes, over all workers of one Envoy.
//!
//! Workers hear of each other's bookings within about 0.1 ms, and in that time two could each send a probe. A probe is rare, so
//! it is worth a shared value: a list of who holds the endpoint's slots, changed by compare-and-set before the request goes out
//! and again when it is over. A worker that dies leaves an entry behind that counts until its time is up.

use weir::instant::Instant;
use weir::pool::LeaseId;
use weir_host::Host;

/// A slot that is held.
#[derive(Debug)]
pub(crate) struct Slot {
    name: String,
    lease: LeaseId,
}

type Entry = (LeaseId, Instant);

const TRIES: usize = 20;

impl Slot {
    /// Takes one of `most` slots of the endpoint of this name; `None` when there is none.
    pub(crate) fn take(
        host: &dyn Host,
        name: String,
        lease: LeaseId,
        most: usize,
        until: Instant,
    ) -> Option<Self> {
        let now = host.now();
        let taken = change(host, &name, |entries| {
            entries.retain(|(_, until)| *until > now);
            let free = entries.len() < most;
            if free {
                entries.push((lease, until));
            }
            free
        });
        taken.then_some(Self { name, lease })
    }

    /// Gives it back.
    pub(crate) fn give_back(self, host: &dyn Host) {
        change(host, &self.name, |entries| {
            entries.retain(|(lease, _)| *lease != self.lease);
            true
        });
    }
}

/// Changes a list, unless `edit` says no; says whether it did.
fn change(host: &dyn Host, name: &str, edit: impl Fn(&mut Vec<Entry>) -> bool) -> bool {
    for _ in 0..TRIES {
        let (bytes, version) = host.shared(name).map_or((Vec::new(), None), |(bytes, v)| (bytes, Some(v)));
        let mut entries = read(&bytes);
        if !edit(&mut entries) {
            return false;
        }
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|(lease, until)| [lease.to_le_bytes(), until.nanos().to_le_bytes()].concat())
            .collect();
        let done = match version {
            Some(_) => host.set_shared(name, &bytes, version),
            None => host.create_shared(name, &bytes),
        };
        if done {
            return true;
        }
    }
    false
}

fn read(bytes: &[u8]) -> Vec<Entry> {
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    let entry = |pair: &[u8]| {
        let (lease, until) = pair.split_at_checked(8)?;
        Some((number(lease)?, Instant::from_nanos(number(until)?)))
    };
    bytes.chunks_exact(16).filter_map(entry).collect()
}
