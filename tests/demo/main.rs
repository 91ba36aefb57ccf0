//! The demo: what the gateway does, request by request, and what that is worth.
//!
//! It starts what ships (Envoy with `envoy/envoy.yaml`, the filters, the scorer) before four simulated engines, plays
//! a script of conversations through it, and plays the same script again round robin. Requests, rows and sums go to
//! stdout; everything else that is said goes to stderr.
#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a native program that measures time, on the test rig"
)]

mod client;
mod options;
mod output;
mod play;
mod script;
mod stage;
mod summary;
mod why;

use anyhow::{Result, bail};
use clap::Parser;
use options::Options;
use output::Output;
use play::play;
use rig::Gateway;
use script::Script;
use std::process::ExitCode;
use std::sync::Arc;
use summary::Summary;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    match demo(&Options::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weir-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The whole demo; says whether all went well.
async fn demo(options: &Options) -> Result<bool> {
    let (summary, kept) = tokio::select! {
        ended = perform(options) => ended?,
        ended = interrupted() => { ended?; bail!("interrupted") }
    };
    for failure in &summary.failures {
        eprintln!("FAILED: {failure}");
    }
    if let Some(gateway) = kept {
        stage::invite(&gateway);
        interrupted().await?;
    }
    Ok(summary.failures.is_empty())
}

/// Both runs, and the gateway of the first if it is to be kept.
async fn perform(options: &Options) -> Result<(Summary, Option<Gateway>)> {
    let script = Arc::new(Script::new(options.conversations.into(), options.turns.into()));
    let output = if options.json { Output::Json } else { Output::Table };

    let gateway = stage::shipped(options).await?;
    stage::introduce(&gateway);
    let (conversations, requests) = (script.conversations.len(), script.len());
    eprintln!("{conversations} conversations, {requests} requests, {} at a time per model.", play::USERS);
    eprintln!("Below, why is what the gateway expected; cached is what the engine then found.\n");
    output.head()?;
    let shipped = play("shipped", &gateway, &script, |row| output.row(row)).await?;
    let kept = options.keep.then_some(gateway);

    eprintln!("\nThe same {requests} requests again, round robin ...");
    let gateway = stage::round_robin(options).await?;
    let round_robin = play("round_robin", &gateway, &script, |row| output.row(row)).await?;
    drop(gateway);

    let summary = Summary::new(&shipped, &round_robin);
    output.summary(&summary)?;
    Ok((summary, kept))
}

/// Returns when somebody wants the demo to end: then everything that it started ends with it.
async fn interrupted() -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
