//! A fake LLM engine: what a router sees of vLLM, without a model.
//!
//! It serves the tests, the demo and the benchmarks, so it is true where a router looks (queues, slots,
//! KV use, prefix cache, token pace, streams, error shapes, metrics) and cheap everywhere else: text is
//! chosen from a word list and time is slept. It can also fail on demand ([`Fault`]) and tells what it
//! received ([`Record`]), which a real engine does not.
//!
//! Time: a request waits, first come first served, until a slot, its KV tokens and the prefill lane are
//! free. Its prefill holds the lane for `prefill_ms_per_ktoken` per 1000 uncached tokens and ends in the
//! first token; each further token takes `decode_ms × (1 + decode_batch_slope × (running − 1))`.
//!
//! Not modelled: preemption, chunked prefill, sharing of KV between requests, `n`, stop words, tools.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "native test equipment: a poisoned lock may panic, and the wall clock may be read"
)]

mod anthropic;
mod ask;
mod cache;
mod compute;
mod config;
mod fault;
mod flow;
mod form;
mod infer;
mod listen;
mod metrics;
mod openai;
mod prompt;
mod record;
mod refusal;
mod routes;
mod schedule;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use crate::compute::State;
pub use crate::config::Config;
pub use crate::fault::{Fault, Kind};
pub use crate::record::{Outcome, Record};

use crate::listen::Life;
use crate::routes::App;

/// A running engine. Dropping it stops it.
pub struct Engine {
    /// Where it listens; the port is the real one when the configuration asked for port 0.
    pub addr: SocketAddr,
    app: Arc<App>,
    life: watch::Sender<Life>,
    server: JoinHandle<()>,
}

impl Engine {
    /// Binds `config.host:config.port` and serves in the current tokio runtime until stopped.
    pub async fn start(config: Config) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::bind((config.host, config.port)).await?;
        let addr = listener.local_addr()?;
        let (life, watched) = watch::channel(Life::Up);
        let app = Arc::new(App::new(config, life.clone()));
        let server = tokio::spawn(listen::serve(listener, routes::router(app.clone()), watched));
        Ok(Self { addr, app, life, server })
    }

    /// `http://ADDR`, without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Closes the listener and every connection, and returns when that is done.
    pub async fn stop(mut self) {
        self.life.send_replace(Life::Stopped);
        self.ended().await;
    }

    /// Returns when the server has ended, be it by a `die` fault or because it was stopped.
    pub async fn ended(&mut self) {
        if !self.server.is_finished() {
            // An error means that the task was aborted, which is an end too.
            let _ = (&mut self.server).await;
        }
    }

    /// Sets the fault that the next inference requests meet, as `POST /fault` does; `die` without
    /// `after_tokens` takes effect at once.
    pub fn fault(&self, fault: Fault) {
        let dies = fault.dies_at_once();
        self.app.faults.set(fault);
        if dies {
            self.app.die();
        }
    }

    /// The last inference requests, oldest first, as `GET /requests` does.
    pub fn requests(&self) -> Vec<Record> {
        self.app.log.list()
    }

    /// Forgets the requests recorded so far.
    pub fn clear_requests(&self) {
        self.app.log.clear();
    }

    /// The present load, as `GET /state` does.
    pub fn state(&self) -> State {
        self.app.compute.state()
    }

    /// Answers scrapes with this text from now on, whatever the load; with `None` with the truth again.
    pub fn say(&self, metrics: Option<&str>) {
        *self.app.said.lock().unwrap() = metrics.map(str::to_owned);
    }

    /// Lists these as LoRA adapters of its first model from now on, and no other models.
    pub fn list_adapters(&self, adapters: &[&str]) {
        *self.app.adapters.lock().unwrap() = Some(adapters.iter().map(|name| (*name).to_owned()).collect());
    }

    /// Whether scrapes hang from now on; requests are served as before.
    pub fn fall_silent(&self, is_silent: bool) {
        self.app.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Empties the prefix cache.
    pub fn reset_prefix_cache(&self) {
        self.app.compute.reset_prefix_cache();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.abort();
    }
}
