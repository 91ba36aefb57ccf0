//! The gauges of what is held: requests in flight, tokens reserved, requests in line.
//!
//! Envoy's gauges are one number for all workers, and a worker whose VM dies takes nothing of its part off again. So each worker leaves its
//! part behind with every sign of life (`weir_host::roll`), and who finds it gone takes that off the gauges. A worker that had only been slow
//! puts its part back.
//!
//! Limits themselves need none of this: in their books, which all workers share, what nobody ends lapses by itself.

use weir_host::roll::Roll;
use weir_host::{Host, Kind, Metric};

/// In flight, reserved, waiting.
const GAUGES: [&str; 3] = ["in_flight", "reserved_tokens", "waiting"];

/// What a worker holds of one limit, in the order of `GAUGES`.
pub(crate) type Part = [i64; 3];

/// The part of this worker, and the signs of the others.
#[derive(Debug)]
pub(crate) struct Parts {
    roll: Roll,
    /// By the place of the limit.
    held: Vec<Part>,
    metrics: Vec<[Metric; 3]>,
}

impl Parts {
    /// Of limits of these names.
    pub(crate) fn new<'n>(host: &dyn Host, limits: impl Iterator<Item = &'n str> + Clone) -> Self {
        let define = |limit| {
            GAUGES.map(|gauge| host.define(Kind::Gauge, &format!("weir_limit_{gauge};limit={limit}")))
        };
        let metrics: Vec<_> = limits.clone().map(define).collect();
        let list = limits.fold("weir.limit.parts".to_owned(), |list, limit| format!("{list}.{limit}"));
        Self { roll: Roll::new(list), held: vec![Part::default(); metrics.len()], metrics }
    }

    /// Joins the others, with the first request: says whether it was that.
    pub(crate) fn join(&mut self, host: &dyn Host) -> bool {
        let joins = self.roll.own().is_none();
        if joins {
            self.roll.join(host.random());
            self.beat(host);
        }
        joins
    }

    /// This worker holds so much more of a limit.
    pub(crate) fn shift(&mut self, host: &dyn Host, limit: usize, by: Part) {
        let Some(held) = self.held.get_mut(limit) else { return };
        held.iter_mut().zip(by).for_each(|(held, by)| *held = held.saturating_add(by));
        self.show(host, limit, by);
    }

    /// Writes down what this worker holds, when all has been shifted.
    pub(crate) fn write(&self, host: &dyn Host) {
        self.roll.leave(host, &self.left());
    }

    /// Gives a sign of life when one is due, and looks for those of the others.
    pub(crate) fn keep_up(&mut self, host: &dyn Host) {
        if self.roll.is_due(host.now()) {
            self.beat(host);
        }
    }

    fn beat(&mut self, host: &dyn Host) {
        let Some(called) = self.roll.beat(host, &self.left()) else { return };
        for (_, left) in called.gone {
            let (held, _) = left.as_chunks();
            let held: Vec<i64> = held.iter().map(|held| i64::from_le_bytes(*held)).collect();
            let (held, _) = held.as_chunks::<3>();
            held.iter().enumerate().for_each(|(limit, held)| self.show(host, limit, held.map(|n| -n)));
        }
        if called.missing {
            self.held.iter().enumerate().for_each(|(limit, held)| self.show(host, limit, *held));
        }
    }

    fn left(&self) -> Vec<u8> {
        self.held.iter().flatten().flat_map(|held| held.to_le_bytes()).collect()
    }

    fn show(&self, host: &dyn Host, limit: usize, by: Part) {
        for (metric, by) in self.metrics.get(limit).into_iter().flatten().zip(by) {
            if by != 0 {
                host.shift(*metric, by);
            }
        }
    }
}
