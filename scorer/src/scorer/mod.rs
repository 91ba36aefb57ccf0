//! The scorer: the pools of the core, shared by many gateways, behind a few small calls.
//!
//! One gateway knows only its own load. Several that share a pool ask here, and choosing stays one step with
//! booking, because there is one book: [`weir::pool::Pools`] behind one lock, held for the microseconds of a
//! choice and never across an await. One thread is enough, and more would only wait for each other.
//!
//! Gateways that rather choose by themselves are told all that happens, and tell what they do (`news.rs`).
//!
//! Limits that gateways share are kept here too, in memory or in a store that several scorers share (`shares.rs`).
//!
//! Several scorers keep each other's books over that store (`replicas/`).
//!
//! Of the pools nothing is stored. After a restart the book is empty, every endpoint looks idle, and leases from before are
//! unknown and ignored; what was believed comes back with the traffic. A lease of which nobody reports the end
//! ends by itself.

mod active;
mod book;
mod choose;
mod config;
mod decisions;
mod endpoints;
mod gauges;
mod loads;
mod metrics;
mod news;
mod precise;
mod replicas;
mod routes;
mod scrape;
mod shares;
mod store;
mod watch;

pub use active::probe;
pub use book::Scorer;
pub use config::Config;
pub use decisions::Decision;
pub use loads::PoolLoad;
pub use precise::Precise;
pub use replicas::Config as ReplicasConfig;
pub use routes::Refused;
pub use scrape::scrape;
pub use store::Config as StoreConfig;
pub use watch::Watch;
pub use weir::signals::{Config as Signals, Scraped};

use crate::discovery;
use crate::http::{self, Bounds};
use crate::picker::{self, Picker};
use crate::{admin, otel};
use anyhow::Context;
use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::{Receiver, channel};
use tokio::task::JoinHandle;

/// How often leases are looked through, and the configuration file.
const LOOK: Duration = Duration::from_secs(1);
/// What is under way when the scorer is told to stop may take so long.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a scorer from its configuration file until it is told to stop; `listen` goes before the file's.
pub fn run(file: &Path, listen: Option<SocketAddr>) -> anyhow::Result<()> {
    let text = std::fs::read(file).with_context(|| format!("{}: cannot be read", file.display()))?;
    let config = Config::read(&text).with_context(|| file.display().to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let threads = config.picker.as_ref().map(picker_threads).transpose()?;
    let ended = runtime.block_on(async {
        let address = listen.unwrap_or(config.listen);
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let scorer = Arc::new(Scorer::new(&config)?);
        let (stop, stopped) = channel(false);
        let told = told_to_stop()?;
        tokio::spawn(async move {
            told.await;
            let _ = stop.send(true);
        });
        let picking = match (&config.picker, &threads) {
            (Some(own), Some(threads)) => {
                let picker = Arc::new(Picker::new(Arc::clone(&scorer), &config.pools, own));
                Some(pick(threads.handle(), own.listen, picker, until(stopped.clone())).await?)
            }
            _ => None,
        };
        if let Some(page) = config.admin.clone() {
            let listener = TcpListener::bind(page.listen)
                .await
                .with_context(|| format!("admin.listen: cannot listen on {}", page.listen))?;
            log::info!("the admin page is at http://{}", page.listen);
            tokio::spawn(admin::serve(listener, page, config.pools.clone(), Arc::clone(&scorer)));
        }
        if let Some(telemetry) = scorer.telemetry() {
            tokio::spawn(otel::follow(telemetry));
        }
        if let Some(link) = scorer.link() {
            replicas::follow(link, &scorer);
        }
        if let Some(signals) = config.signals.clone() {
            tokio::spawn(scrape(Arc::clone(&scorer), signals));
        }
        if scorer.probes_actively() {
            tokio::spawn(probe(Arc::clone(&scorer)));
        }
        precise::listen(&scorer, &config)?;
        discovery::follow(&scorer, &config.discovery)?;
        tokio::spawn(Watch::new(file, text, config).follow(Arc::clone(&scorer), LOOK));
        // Whoever started it may not read what it says: that is no reason to end.
        let _ = writeln!(std::io::stdout(), "weir scorer listening on {}", listener.local_addr()?);
        serve(listener, scorer, until(stopped)).await?;
        if let Some(picking) = picking {
            picking.await??;
        }
        log::info!("stopped");
        Ok(())
    });
    // A file that is being read may never end.
    runtime.shutdown_background();
    ended
}

fn picker_threads(config: &picker::Config) -> std::io::Result<Runtime> {
    let threads = config.threads.get();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("picker")
        .enable_all()
        .build()
}

/// Starts the picker on threads of its own.
async fn pick(
    threads: &Handle,
    address: SocketAddr,
    picker: Arc<Picker>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
    let listener = threads.spawn(TcpListener::bind(address)).await?;
    let listener = listener.with_context(|| format!("picker.listen: cannot listen on {address}"))?;
    let _ = writeln!(std::io::stdout(), "weir picker listening on {}", listener.local_addr()?);
    Ok(threads.spawn(picker::serve(listener, picker, stop)))
}

/// Waits until all are told to stop.
async fn until(mut stopped: Receiver<bool>) {
    // Nobody is left to say it: that is the end too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Serves until `stop`; then accepts nothing more and finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    scorer: Arc<Scorer>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let expiry = tokio::spawn(expire(Arc::clone(&scorer)));
    let (say, heard) = tokio::sync::oneshot::channel();
    let stop = async move {
        stop.await;
        let _ = say.send(());
    };
    let server = http::serve(listener, routes::router(scorer), Bounds::default(), stop);
    let patience = async {
        match heard.await {
            Ok(()) => tokio::time::sleep(GRACE).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = server => {}
        () = patience => {}
    }
    expiry.abort();
    Ok(())
}

/// Ends the leases whose time is up, also while nobody asks for anything.
async fn expire(scorer: Arc<Scorer>) {
    let mut every = tokio::time::interval(LOOK);
    loop {
        every.tick().await;
        scorer.expire();
    }
}

/// Hears SIGTERM and ctrl-C from this call on, also while nobody waits yet.
fn told_to_stop() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    })
}
