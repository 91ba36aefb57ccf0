//! Spends the time a model would: admission, prefill, one token after the other.
//!
//! Each request is a [`Generation`], driven by the future or stream that answers it. Dropping it at any
//! stage gives slot, lane and KV back at once, which is how a client that leaves is noticed. Model time
//! is kept apart from the clock: a sleep that overshoots shortens the next, so that coarse timers do not
//! slow the engine down.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::cache::BlockCache;
use crate::config::Config;
use crate::form::Usage;
use crate::metrics::Metrics;
use crate::prompt::{Prompt, word};
use crate::schedule::{Schedule, Ticket};

/// How far model time may lag behind the clock when the lane goes from one prefill to the next.
const CATCH_UP: Duration = Duration::from_millis(5);

/// The load of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Requests in prefill or decode.
    pub running: usize,
    /// Requests that wait for a slot, KV room or the prefill lane.
    pub waiting: usize,
    /// KV tokens reserved by the running requests: prompt and whole answer.
    pub kv_used: u64,
    /// Blocks in the prefix cache.
    pub cached_blocks: usize,
}

pub(crate) struct Compute {
    config: Config,
    metrics: Metrics,
    inner: Mutex<Inner>,
}

struct Inner {
    schedule: Schedule,
    cache: BlockCache,
    /// How to tell those that wait that they run.
    queued: HashMap<Ticket, oneshot::Sender<()>>,
    /// When the last prefill ended, in model time.
    lane_free: Instant,
}

impl Inner {
    fn admit(&mut self) {
        while let Some(ticket) = self.schedule.admit() {
            if let Some(sender) = self.queued.remove(&ticket) {
                // A receiver that is gone is about to release its ticket.
                let _ = sender.send(());
            }
        }
    }
}

impl Compute {
    pub(crate) fn new(config: Config) -> Self {
        let inner = Inner {
            schedule: Schedule::new(config.slots, config.kv_tokens),
            cache: BlockCache::new(config.cache_blocks),
            queued: HashMap::new(),
            lane_free: Instant::now(),
        };
        Self { metrics: Metrics::new(&config), inner: Mutex::new(inner), config }
    }

    /// Queues a request for `output` tokens. `pace` multiplies all its times.
    pub(crate) fn submit(self: &Arc<Self>, prompt: Prompt, output: u64, pace: f64) -> Generation {
        let mut inner = self.lock();
        let ticket = inner.schedule.submit(prompt.tokens + output);
        inner.admit();
        let queued = (!inner.schedule.runs(ticket)).then(|| {
            let (sender, receiver) = oneshot::channel();
            inner.queued.insert(ticket, sender);
            receiver
        });
        drop(inner);
        let usage = Usage { prompt: prompt.tokens, cached: 0, output: 0 };
        Generation { compute: self.clone(), ticket, queued, prompt, output, pace, usage, now: Instant::now() }
    }

    pub(crate) fn state(&self) -> State {
        let inner = self.lock();
        State {
            running: inner.schedule.running(),
            waiting: inner.schedule.waiting(),
            kv_used: inner.schedule.kv_used(),
            cached_blocks: inner.cache.len(),
        }
    }

    pub(crate) fn metrics(&self) -> String {
        self.metrics.text(&self.state())
    }

    pub(crate) fn reset_prefix_cache(&self) {
        self.lock().cache.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn release(&self, ticket: Ticket) {
        let mut inner = self.lock();
        inner.queued.remove(&ticket);
        inner.schedule.release(ticket);
        inner.admit();
    }

    fn decode_ms(&self) -> f64 {
        if self.config.decode_ms == 0.0 {
            return 0.0;
        }
        let others = self.lock().schedule.running().saturating_sub(1);
        self.config.decode_ms * (1.0 + self.config.decode_batch_slope * others as f64)
    }
}

/// One request in the engine, from the queue to its last token.
pub(crate) struct Generation {
    compute: Arc<Compute>,
    ticket: Ticket,
    queued: Option<oneshot::Receiver<()>>,
    prompt: Prompt,
    output: u64,
    pace: f64,
    usage: Usage,
    /// Model time.
    now: Instant,
}

impl Generation {
    /// Waits for admission, then fills the KV with the prompt. To be called once, before any token.
    pub(crate) async fn prefill(&mut self) {
        let waited = self.queued.take();
        let earliest = match waited {
            Some(admitted) => {
                // The sender is only dropped when this ticket is released, hence never before.
                let _ = admitted.await;
                Instant::now().checked_sub(CATCH_UP)
            }
            None => None,
        };
        {
            let inner = self.compute.lock();
            let block_size = self.compute.config.block_size;
            self.usage.cached = self.prompt.cached(inner.cache.matched(&self.prompt.blocks), block_size);
            self.now = earliest.map_or_else(Instant::now, |earliest| inner.lane_free.max(earliest));
        }
        let metrics = &self.compute.metrics;
        metrics.queries.inc_by(self.usage.prompt);
        metrics.hits.inc_by(self.usage.cached);

        let uncached = self.usage.prompt - self.usage.cached;
        self.spend(self.compute.config.prefill_ms_per_ktoken * uncached as f64 / 1000.0).await;

        self.compute.metrics.prompt_tokens.inc_by(self.usage.prompt);
        let mut inner = self.compute.lock();
        inner.lane_free = self.now;
        inner.cache.store(&self.prompt.blocks);
        inner.schedule.prefilled(self.ticket);
        inner.admit();
    }

    /// The next token; the first comes with the end of prefill. With the last, everything is released.
    pub(crate) async fn token(&mut self) -> Option<&'static str> {
        if self.usage.output == self.output {
            return None;
        }
        if self.usage.output > 0 {
            self.spend(self.compute.decode_ms()).await;
        }
        self.usage.output += 1;
        self.compute.metrics.generated.inc();
        if self.usage.output == self.output {
            self.compute.release(self.ticket);
        }
        Some(word(self.prompt.hash, self.usage.output))
    }

    /// What has been used so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    async fn spend(&mut self, ms: f64) {
        let time = Duration::try_from_secs_f64(ms * self.pace / 1000.0).unwrap_or_default();
        if !time.is_zero() {
            self.now += time;
            sleep_until(self.now).await;
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.usage.output < self.output {
            self.compute.release(self.ticket);
        }
    }
}
