//! The gauges of what is held: requests in flight, tokens reserved, requests in line.
//!
//! Envoy's gauges are one number for all workers, and a worker whose VM dies takes nothing of its part off again. So each worker writes its
//! part down in shared data with every change, and gives a sign of life every second. One whose signs have stopped has gone: the
//! first to see it takes the part of the dead off the gauges. A worker that had only been slow finds itself off the list, and
//! puts its part back.
//!
//! Limits themselves need none of this: in their books, which all workers share, what nobody ends lapses by itself.

use std::time::Duration;
use weir::instant::Instant;
use weir_host::{Host, Kind, Metric};

/// A sign of life is due this often.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Without one for this long a worker has gone.
const SILENCE: Duration = Duration::from_secs(5);

/// In flight, reserved, waiting.
const GAUGES: [&str; 3] = ["in_flight", "reserved_tokens", "waiting"];

/// What a worker holds of one limit, in the order of `GAUGES`.
pub(crate) type Part = [i64; 3];

/// The part of this worker, and the signs of the others.
#[derive(Debug)]
pub(crate) struct Parts {
    list: String,
    own: Option<u64>,
    /// By the place of the limit.
    held: Vec<Part>,
    metrics: Vec<[Metric; 3]>,
    beaten: Option<Instant>,
}

impl Parts {
    /// Of limits of these names.
    pub(crate) fn new<'n>(host: &dyn Host, limits: impl Iterator<Item = &'n str> + Clone) -> Self {
        let define = |limit| {
            GAUGES.map(|gauge| host.define(Kind::Gauge, &format!("weir_limit_{gauge};limit={limit}")))
        };
        let metrics: Vec<_> = limits.clone().map(define).collect();
        let list = limits.fold("weir.limit.parts".to_owned(), |list, limit| format!("{list}.{limit}"));
        Self { list, own: None, held: vec![Part::default(); metrics.len()], metrics, beaten: None }
    }

    /// Joins the others, with the first request: says whether it was that.
    pub(crate) fn join(&mut self, host: &dyn Host) -> bool {
        let joins = self.own.is_none();
        if joins {
            self.own = Some(host.random());
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
        let Some(own) = self.own else { return };
        let until = (self.beaten.unwrap_or(host.now()) + SILENCE).nanos();
        let held = self.held.iter().flatten().flat_map(|held| held.to_le_bytes());
        let bytes: Vec<u8> = until.to_le_bytes().into_iter().chain(held).collect();
        host.set_shared(&self.part(own), &bytes, None);
    }

    /// Gives a sign of life when one is due, and looks for those of the others.
    pub(crate) fn keep_up(&mut self, host: &dyn Host) {
        if self.beaten.is_some_and(|beaten| host.now().since(beaten) >= BEAT) {
            self.beat(host);
        }
    }

    fn beat(&mut self, host: &dyn Host) {
        const TRIES: usize = 20;
        let Some(own) = self.own else { return };
        let (now, joins) = (host.now(), self.beaten.is_none());
        self.beaten = Some(now);
        self.write(host);
        for _ in 0..TRIES {
            let (bytes, version) =
                host.shared(&self.list).map_or((Vec::new(), None), |(bytes, v)| (bytes, Some(v)));
            let (ids, _) = bytes.as_chunks();
            let listed: Vec<u64> = ids.iter().map(|id| u64::from_le_bytes(*id)).collect();
            let lives = |id: &u64| *id == own || self.read(host, *id).is_some_and(|(until, _)| now < until);
            let (mut alive, gone): (Vec<u64>, Vec<u64>) = listed.iter().partition(|id| lives(id));
            let missing = !alive.contains(&own);
            if missing {
                alive.push(own);
            }
            if alive == listed {
                return;
            }
            let bytes: Vec<u8> = alive.iter().flat_map(|id| id.to_le_bytes()).collect();
            let written = match version {
                Some(_) => host.set_shared(&self.list, &bytes, version),
                None => host.create_shared(&self.list, &bytes),
            };
            if !written {
                continue;
            }
            for id in gone {
                let (_, held) = self.read(host, id).unwrap_or_default();
                held.iter().enumerate().for_each(|(limit, held)| self.show(host, limit, held.map(|n| -n)));
                host.set_shared(&self.part(id), &[], None);
            }
            if missing && !joins {
                self.held.iter().enumerate().for_each(|(limit, held)| self.show(host, limit, *held));
            }
            return;
        }
    }

    fn show(&self, host: &dyn Host, limit: usize, by: Part) {
        for (metric, by) in self.metrics.get(limit).into_iter().flatten().zip(by) {
            if by != 0 {
                host.shift(*metric, by);
            }
        }
    }

    /// Until when a worker's last sign holds, and its part.
    fn read(&self, host: &dyn Host, id: u64) -> Option<(Instant, Vec<Part>)> {
        let (bytes, _) = host.shared(&self.part(id))?;
        let (until, held) = bytes.split_first_chunk()?;
        let (held, _) = held.as_chunks();
        let held: Vec<i64> = held.iter().map(|held| i64::from_le_bytes(*held)).collect();
        let (held, _) = held.as_chunks();
        Some((Instant::from_nanos(u64::from_le_bytes(*until)), held.to_vec()))
    }

    fn part(&self, id: u64) -> String {
        format!("{}.{id:016x}", self.list)
    }
}
