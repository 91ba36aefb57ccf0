//! Which workers of one Envoy are there: a list in its shared data, and a sign of life of each.
//!
//! Each worker runs in a VM of its own, and a VM that traps is gone without a word: nobody else takes it off what it was on, nor its part off
//! what is counted over all of them. So each gives a sign of life every second, and who finds that the signs of another have stopped takes it off
//! the list and is told so, once and alone: the list changes by compare-and-set. One that had only been slow finds itself missing, and
//! is on it again.
//!
//! A sign holds as long as it says, and whatever its giver wants to leave behind.

use crate::Host;
use std::time::Duration;
use weir::instant::Instant;

/// A sign of life is due this often.
pub const BEAT: Duration = Duration::from_secs(1);
/// Without one for this long a worker has gone.
const SILENCE: Duration = Duration::from_secs(5);

/// The list, as one worker on it sees it.
#[derive(Debug)]
pub struct Roll {
    list: String,
    own: Option<u64>,
    beaten: Option<Instant>,
}

/// Who was found.
#[derive(Debug, Default)]
pub struct Called {
    /// All who are there but this worker.
    pub others: Vec<u64>,
    /// Whom this worker took off, each with what it had left behind.
    pub gone: Vec<(u64, Vec<u8>)>,
    /// This worker was not on the list, or not any more, and now is.
    pub missing: bool,
}

impl Roll {
    /// Of the workers that know it by this name.
    pub fn new(list: String) -> Self {
        Self { list, own: None, beaten: None }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.list
    }

    /// This worker's number on it, once it has joined.
    pub fn own(&self) -> Option<u64> {
        self.own
    }

    /// Puts this worker on it, by a number that no other has: with the next [`beat`](Self::beat).
    pub fn join(&mut self, own: u64) {
        self.own = Some(own);
    }

    /// Whether a sign of life is due; never before this worker has joined.
    pub fn is_due(&self, now: Instant) -> bool {
        self.own.is_some() && self.beaten.is_none_or(|beaten| now.since(beaten) >= BEAT)
    }

    /// Gives a sign of life that leaves this behind, and looks for those of the others.
    pub fn beat(&mut self, host: &dyn Host, left: &[u8]) -> Option<Called> {
        self.beaten = Some(host.now());
        self.leave(host, left);
        self.call(host)
    }

    /// Leaves something else behind than the last sign did, which holds no longer for it.
    pub fn leave(&self, host: &dyn Host, left: &[u8]) {
        let (Some(own), Some(beaten)) = (self.own, self.beaten) else { return };
        let until = (beaten + SILENCE).nanos().to_le_bytes();
        host.set_shared(&self.sign(own), &[&until, left].concat(), None);
    }

    /// Looks who is there. `None`: others write the list all the time, or this worker has not joined.
    pub fn call(&self, host: &dyn Host) -> Option<Called> {
        const TRIES: usize = 20;
        let (own, now) = (self.own?, host.now());
        for _ in 0..TRIES {
            let (bytes, version) = host.shared(&self.list).unzip();
            let bytes = bytes.unwrap_or_default();
            let (listed, _) = bytes.as_chunks();
            let listed: Vec<u64> = listed.iter().map(|id| u64::from_le_bytes(*id)).collect();
            let mut called = Called { missing: !listed.contains(&own), ..Called::default() };
            for id in listed.iter().copied().filter(|id| *id != own) {
                match self.read(host, id) {
                    Some((until, _)) if now < until => called.others.push(id),
                    sign => called.gone.push((id, sign.map(|(_, left)| left).unwrap_or_default())),
                }
            }
            if !called.missing && called.gone.is_empty() {
                return Some(called);
            }
            let alive = called.others.iter().chain([&own]).flat_map(|id| id.to_le_bytes());
            let bytes: Vec<u8> = alive.collect();
            let written = match version {
                Some(_) => host.set_shared(&self.list, &bytes, version),
                None => host.create_shared(&self.list, &bytes),
            };
            if written {
                // What is shared is never taken away, but it can be made small.
                for (id, _) in &called.gone {
                    host.set_shared(&self.sign(*id), &[], None);
                }
                return Some(called);
            }
        }
        None
    }

    /// Until when a worker's last sign holds, and what it left.
    fn read(&self, host: &dyn Host, id: u64) -> Option<(Instant, Vec<u8>)> {
        let (bytes, _) = host.shared(&self.sign(id))?;
        let (until, left) = bytes.split_first_chunk()?;
        Some((Instant::from_nanos(u64::from_le_bytes(*until)), left.to_vec()))
    }

    fn sign(&self, id: u64) -> String {
        format!("{}.{id:x}", self.list)
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::fake::{Fake, World};

    fn roll(own: u64) -> Roll {
        let mut roll = Roll::new("list".into());
        roll.join(own);
        roll
    }

    #[test]
    fn who_has_gone_is_told_once_with_what_it_left_and_who_was_slow_is_back() {
        let world = World::new();
        let host = Fake::new(&world, &Default::default());
        let [mut one, mut two, mut three] = [1, 2, 3].map(roll);
        assert!(one.is_due(host.now()) && one.beat(&host, b"a").is_some_and(|called| called.missing));
        two.beat(&host, b"b");
        three.beat(&host, b"c");
        three.leave(&host, b"more");
        assert!(!one.is_due(host.now()));
        assert_eq!(one.call(&host).map(|called| called.others), Some(vec![2, 3]));
        for _ in 0..4 {
            world.pass(BEAT);
            for roll in [&mut one, &mut two] {
                assert!(roll.is_due(host.now()));
                assert!(
                    roll.beat(&host, b"").is_some_and(|called| called.gone.is_empty() && !called.missing)
                );
            }
        }
        world.pass(BEAT);
        let called = two.beat(&host, b"").unwrap();
        assert_eq!((called.gone, called.others), (vec![(3, b"more".to_vec())], vec![1]));
        assert!(one.beat(&host, b"").is_some_and(|called| called.gone.is_empty()));
        assert!(three.beat(&host, b"").is_some_and(|called| called.missing && called.others.len() == 2));
        assert_eq!(one.call(&host).map(|called| called.others.len()), Some(2));
    }
}
