//! The scorer: the pools of the core, shared by many gateways, behind four small calls.
//!
//! One gateway knows only its own load. Several that share a pool ask here, and choosing stays one step with
//! booking, because there is one book: [`weir::pool::Pools`] behind one lock, held for the microseconds of a
//! choice and never across an await. One thread is enough, and more would only wait for each other.
//!
//! Limits that gateways share are kept here too, in memory or in a store that several scorers share (`shares.rs`).
//!
//! Several scorers keep each other's books over that store (`replicas/`).
//!
//! Of the pools nothing is stored. After a restart the book is empty, every endpoint looks idle, and leases from before are
//! unknown and ignored; what was believed comes back with the traffic. A lease of which nobody reports the end
//! ends by itself.

mod book;
mod config;
mod metrics;
mod replicas;
mod routes;
mod scrape;
mod shares;
mod store;
mod watch;

pub use book::{PoolLoad, Scorer};
pub use config::Config;
pub use replicas::Config as ReplicasConfig;
pub use routes::Refused;
pub use scrape::scrape;
pub use store::Config as StoreConfig;
pub use watch::Watch;
pub use weir::signals::{Config as Signals, Scraped};

use anyhow::Context;
use axum::serve::ListenerExt;
use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How often leases are looked through, and the configuration file.
const LOOK: Duration = Duration::from_secs(1);
/// What is under way when the scorer is told to stop may take so long.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a scorer from its configuration file until it is told to stop; `listen` goes before the file's.
pub fn run(file: &Path, listen: Option<SocketAddr>) -> anyhow::Result<()> {
    let text = std::fs::read(file).with_context(|| format!("{}: cannot be read", file.display()))?;
    let config = Config::read(&text).with_context(|| file.display().to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let address = listen.unwrap_or(config.listen);
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let scorer = Arc::new(Scorer::new(&config)?);
        let stop = told_to_stop()?;
        if let Some(link) = scorer.link() {
            replicas::follow(link, &scorer);
        }
        if let Some(signals) = config.signals.clone() {
            tokio::spawn(scrape(Arc::clone(&scorer), signals));
        }
        tokio::spawn(Watch::new(file, text, config).follow(Arc::clone(&scorer), LOOK));
        // Whoever started it may not read what it says: that is no reason to end.
        let _ = writeln!(std::io::stdout(), "weir scorer listening on {}", listener.local_addr()?);
        serve(listener, scorer, stop).await?;
        log::info!("stopped");
        Ok(())
    })
}

/// Serves until `stop`; then accepts nothing more and finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    scorer: Arc<Scorer>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let expiry = tokio::spawn(expire(Arc::clone(&scorer)));
    let listener = listener.tap_io(|connection| {
        // Answers are small and awaited: none waits for a second one to share its packet.
        if let Err(error) = connection.set_nodelay(true) {
            log::debug!("set_nodelay: {error}");
        }
    });
    let (say, heard) = tokio::sync::oneshot::channel();
    let stop = async move {
        stop.await;
        let _ = say.send(());
    };
    let server = axum::serve(listener, routes::router(scorer)).with_graceful_shutdown(stop);
    let patience = async {
        match heard.await {
            Ok(()) => tokio::time::sleep(GRACE).await,
            Err(_) => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = server.into_future() => result,
        () = patience => Ok(()),
    };
    expiry.abort();
    result
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
