//! `weir-engine`: one fake engine, until SIGTERM, ctrl-C or a `die` fault.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use weir_engine::{Config, Engine};

/// A fake LLM engine with an OpenAI-compatible API.
#[derive(Parser)]
#[command(name = "weir-engine", version)]
struct Cli {
    #[command(flatten)]
    config: Config,
}

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut engine = Engine::start(Cli::parse().config).await?;
    println!("weir-engine listening on {}", engine.addr);
    tokio::select! {
        () = engine.ended() => return Ok(ExitCode::FAILURE),
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    engine.stop().await;
    Ok(ExitCode::SUCCESS)
}
