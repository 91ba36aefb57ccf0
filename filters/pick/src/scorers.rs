//! The scorers as the filter knows them: which is asked for a pool, and who is when that one does not answer.
//!
//! A pool has an order of scorers, by a hash of both names (rendezvous hashing), which is the same in every worker of every proxy. The
//! first of them that is up is asked, so all requests of a pool are booked in one book as long as that one lives, and choosing stays
//! one step with booking; pools spread over the scorers. When it is late or gone the next is asked, for the same request, and finds
//! most of it in its own book, since scorers keep each other's. Were requests spread over them, two that choose within the
//! milliseconds that a message takes would not see each other.
//!
//! What became of requests is told to the scorer that is asked for their pool; while that one is away, to another. Each knows every
//! lease.

use crate::config;
use crate::scorer::Scorer;
use std::time::Duration;
use weir::limit::FailureMode;
use weir::random::Random;
use weir::wire::{self, Event, Reserve, Reserved};
use weir_host::{Host, Reply};

/// All of them.
#[derive(Debug)]
pub(crate) struct Scorers {
    each: Vec<Scorer>,
    /// By the place of the pool: whom to ask, in order.
    orders: Vec<Vec<usize>>,
    config: config::Scorer,
}

/// A scorer was asked.
#[derive(Debug)]
pub(crate) struct Asked {
    by: usize,
    /// What was told along with it.
    told: Vec<Event>,
    /// Who may be asked when it does not answer.
    others: Vec<usize>,
}

/// What came of asking.
#[derive(Debug)]
pub(crate) enum Answer {
    Reserved(Box<Reserved>),
    /// It is there and has no choice: it knows no such pool, or the pool has no endpoint.
    Nothing,
    /// It did not answer; these may be asked.
    Silent(Vec<usize>),
}

impl Scorers {
    pub(crate) fn new<'a>(config: config::Scorer, pools: impl Iterator<Item = &'a str>) -> Self {
        let clusters: Vec<&String> = std::iter::once(&config.cluster).chain(&config.replicas).collect();
        let order = |pool: &str| {
            let mut order: Vec<usize> = (0..clusters.len()).collect();
            let rank = |cluster: &&String| {
                Random::new(wire::name_hash(pool) ^ wire::name_hash(cluster).rotate_left(1)).next()
            };
            order.sort_by_key(|at| clusters.get(*at).map(rank));
            order
        };
        let orders = pools.map(order).collect();
        let each = clusters.into_iter().map(|cluster| Scorer::new(cluster, &config)).collect();
        Self { each, orders, config }
    }

    /// Without an answer no request is let through.
    pub(crate) fn is_closed(&self) -> bool {
        self.config.failure_mode == FailureMode::Closed
    }

    /// Whether they are to hear how answers went.
    pub(crate) fn telemetry(&self) -> bool {
        self.config.telemetry
    }

    /// The body that `extract` left for them, once: a copy that stayed would live as long as the answer takes.
    pub(crate) fn take_body(&self, host: &dyn Host) -> Vec<u8> {
        let most = self.config.max_body_bytes;
        let left = (most > 0).then(|| host.property(&[wire::BODY])).flatten().unwrap_or_default();
        if !left.is_empty() {
            host.set_property(wire::BODY, b"");
        }
        if left.len() <= most { left } else { Vec::new() }
    }

    /// How long a scorer that failed is left alone.
    pub(crate) fn retry(&self) -> Duration {
        Duration::from_millis(self.config.retry_ms.get())
    }

    /// Whom to ask for the pool at a place.
    pub(crate) fn order(&self, pool: usize) -> Vec<usize> {
        self.orders.get(pool).cloned().unwrap_or_default()
    }

    /// Asks the first of `order` that is worth it, for the request that has this body; it may be left out. `None` when nothing was
    /// sent.
    pub(crate) fn ask(
        &mut self,
        host: &dyn Host,
        order: &[usize],
        request: &Reserve,
        body: &[u8],
    ) -> Option<Asked> {
        let mut order = order.iter();
        while let Some(&by) = order.next() {
            let Some(scorer) = self.each.get_mut(by) else { continue };
            if let Some(told) = scorer.ask(host, request, body) {
                return Some(Asked { by, told, others: order.copied().collect() });
            }
        }
        None
    }

    /// Reads the answer of the one that was asked.
    pub(crate) fn answer(&mut self, host: &dyn Host, reply: &Reply, asked: Asked) -> Answer {
        let Asked { by, told, others } = asked;
        if !self.each.get_mut(by).is_some_and(|scorer| scorer.answered(host, reply, told)) {
            return Answer::Silent(others);
        }
        let read = serde_json::from_slice(&reply.body).ok();
        read.filter(|_| reply.headers.get(":status") == Some("200")).map_or(Answer::Nothing, Answer::Reserved)
    }

    /// Calls the first that is worth it, in the order of the configuration: of who listens to the same one, each hears the other a
    /// call sooner. Gives the number of the call and who was called.
    pub(crate) fn call(
        &mut self,
        host: &dyn Host,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Option<(u32, usize)> {
        let mut each = self.each.iter_mut().zip(0..);
        each.find_map(|(scorer, by)| Some((scorer.call(host, path, body, timeout)?, by)))
    }

    /// The body of the answer to such a call, if it is one.
    pub(crate) fn body<'r>(&mut self, host: &dyn Host, by: usize, reply: &'r Reply) -> Option<&'r [u8]> {
        let scorer = self.each.get_mut(by)?;
        let answered = scorer.answered(host, reply, Vec::new());
        (answered && reply.headers.get(":status") == Some("200")).then_some(&*reply.body)
    }

    /// What that one said makes no sense.
    pub(crate) fn babbles(&mut self, host: &dyn Host, by: usize) {
        if let Some(scorer) = self.each.get_mut(by) {
            scorer.babbles(host);
        }
    }

    /// What was told to the one that was asked may not have been heard. Told twice it does no harm.
    pub(crate) fn tell_again(&mut self, asked: Asked) {
        if let Some(scorer) = self.each.get_mut(asked.by) {
            scorer.tell_again(asked.told);
        }
    }

    /// Notes what became of a request of the pool at a place.
    pub(crate) fn note(&mut self, pool: usize, event: Event) {
        if let Some(scorer) = self.told_of(pool) {
            scorer.note(event);
        }
    }

    /// Notes that a request of that pool was booked here, and says whether that will be told.
    pub(crate) fn note_booked(&mut self, pool: usize, event: Event) -> bool {
        self.told_of(pool).is_some_and(|scorer| scorer.note_booked(event))
    }

    /// Who is told of requests of the pool at a place.
    fn told_of(&mut self, pool: usize) -> Option<&mut Scorer> {
        let order = self.orders.get(pool)?;
        let up = order.iter().find(|at| self.each.get(**at).is_some_and(Scorer::is_up));
        let at = *up.or(order.first())?;
        self.each.get_mut(at)
    }

    /// Tells what has been noted; what a scorer that is away was to be told, another hears. Whether one is back is found out here and
    /// not by a request that needs it, since the one that is asked otherwise may have died meanwhile.
    pub(crate) fn report(&mut self, host: &dyn Host) {
        if let Some(up) = self.each.iter().position(Scorer::is_up) {
            let away = self.each.iter_mut().filter(|scorer| !scorer.is_up());
            let untold: Vec<Event> = away.flat_map(Scorer::take).collect();
            if let Some(scorer) = self.each.get_mut(up) {
                scorer.tell_again(untold);
            }
        }
        let alone = self.each.len() == 1;
        self.each.iter_mut().for_each(|scorer| scorer.report(host, alone));
    }

    /// A report has been answered, by a scorer or in its place.
    pub(crate) fn told(&mut self, host: &dyn Host, call: u32, reply: &Reply) {
        if let Some(scorer) = self.each.iter_mut().find(|scorer| scorer.called(call)) {
            scorer.told(host, reply);
        }
    }
}
