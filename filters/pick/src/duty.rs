//! What one worker of an Envoy does for all of them. It holds the duty by a lease in shared data, which it renews in time; once
//! that has run out, another takes it.

use std::time::Duration;
use weir::instant::Instant;
use weir_host::Host;

/// A duty, in shared data: the holder's queue and until when it holds it.
#[derive(Debug)]
pub(crate) struct Duty {
    name: String,
    term: Duration,
    /// Until when this worker holds it.
    until: Option<Instant>,
    looked: Option<Instant>,
}

/// Whether this worker holds a duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    No,
    /// And did not until now.
    Anew,
    Yes,
}

impl Duty {
    /// The duty of this name among the workers of `group`. Who does not renew it for `term` loses it.
    pub(crate) fn new(group: &str, name: &str, term: Duration) -> Self {
        Self { name: format!("{group}.{name}"), term, until: None, looked: None }
    }

    /// Whether this worker, which listens on queue `own`, holds it. Takes it where it is free, and renews it in time.
    pub(crate) fn is_held(&mut self, host: &dyn Host, own: u32) -> Held {
        let now = host.now();
        let mut anew = false;
        if self.looked.is_none_or(|looked| now.since(looked) >= self.term / 3) {
            self.looked = Some(now);
            let held = host.shared(&self.name);
            let holder = held.as_ref().and_then(|(bytes, _)| read(bytes));
            let is_free = holder.is_none_or(|(holder, until)| holder == own || now >= until);
            let until = now + self.term;
            let bytes = [&own.to_le_bytes()[..], &until.nanos().to_le_bytes()].concat();
            let taken = is_free
                && match held {
                    Some((_, version)) => host.set_shared(&self.name, &bytes, Some(version)),
                    None => host.create_shared(&self.name, &bytes),
                };
            anew = taken && self.until.is_none_or(|until| until <= now);
            self.until = taken.then_some(until);
        }
        match self.until.is_some_and(|until| now < until) {
            true if anew => Held::Anew,
            true => Held::Yes,
            false => Held::No,
        }
    }
}

fn read(bytes: &[u8]) -> Option<(u32, Instant)> {
    let (holder, until) = bytes.split_first_chunk()?;
    let until = u64::from_le_bytes(until.try_into().ok()?);
    Some((u32::from_le_bytes(*holder), Instant::from_nanos(until)))
}
