//! The command line, and one process a role.
//!
//! Client, backends and the ext_proc server are this program again, under hidden commands: separate processes, so
//! that each can be pinned to a core and its CPU time read alone, and one binary, so that nothing else must be
//! installed to repeat a run.

mod backend;
mod bodies;
mod ext_proc;
pub(crate) mod http1;
mod load;
pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod report;
mod rounds;
mod systems;

use crate::reserve;
use anyhow::{Result, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Benchmarks of Weir beside its peers.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// CPU cost and latency of several proxies, in interleaved rounds, as a Markdown table.
    SideBySide(Box<rounds::Options>),
    /// How long a scorer takes to choose and book, by rate, as a Markdown table.
    Reserve(reserve::Options),
    /// The driver of that: one measurement, printed as a line of JSON.
    #[command(hide = true)]
    ReserveDrive(reserve::Drive),
    /// A backend that costs next to nothing.
    #[command(hide = true)]
    Backend {
        #[arg(long)]
        port: u16,
    },
    /// The client: one measurement, printed as a line of JSON.
    #[command(hide = true)]
    Load(load::Options),
    /// An external processor that looks at nothing.
    #[command(hide = true)]
    ExtProc {
        #[arg(long)]
        port: u16,
    },
}

pub(crate) fn main() -> Result<()> {
    let command = Command::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::SideBySide(options) => until_signalled(rounds::run(&options)).await,
            Command::Reserve(options) => until_signalled(reserve::run(&options)).await,
            Command::ReserveDrive(options) => reserve::driver(&options).await,
            Command::Backend { port } => backend::serve(port).await,
            Command::Load(options) => load::run(&options).await,
            Command::ExtProc { port } => ext_proc::serve(port).await,
        }
    })
}

/// Ends the run when asked to: dropping its future drops the guards of every process that it started.
async fn until_signalled(run: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    tokio::select! {
        outcome = run => outcome,
        _ = terminated.recv() => bail!("terminated"),
        _ = interrupted.recv() => bail!("interrupted"),
    }
}
