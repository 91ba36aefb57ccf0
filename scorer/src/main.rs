//! The program `weir`: reads the command line, and calls.

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir::invalid::Invalid;
use weir_scorer::explain::{self, Raw};
use weir_scorer::lab::{self, Lab};
use weir_scorer::load::{self, Load};
use weir_scorer::{check, document, litellm, scorer};

/// A reserve call takes and gives back some fifty pieces of memory, a sixth of its CPU with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Weir, an inference gateway of Envoy filters: its scorer, and its tools.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the pools that several gateways share.
    Scorer {
        /// The configuration, YAML or JSON; its endpoints may change while the scorer runs.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Address and port, in place of the configuration's.
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<SocketAddr>,
    },
    /// Say whether configuration files would be accepted: Envoy's, Istio's, a scorer's.
    Check {
        /// The files; `-` is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print each filter's configuration with its defaults filled in.
        #[arg(long)]
        effective: bool,
        /// An Envoy to ask as well; without this the one in PATH or in .tools, if any.
        #[arg(long, value_name = "BIN")]
        envoy: Option<PathBuf>,
    },
    /// Print what a LiteLLM proxy's configuration is as Weir's, and say what of it cannot be carried over.
    ImportLitellm {
        /// The configuration, YAML or JSON; `-` is standard input.
        file: PathBuf,
        /// LiteLLM's price list, for models that are given no prices of their own.
        #[arg(long, value_name = "FILE")]
        prices: Option<PathBuf>,
    },
    /// Print prices of LiteLLM's price list as `cost` of a `limit` that has budgets, and say what of them cannot be carried over.
    ImportPrices {
        /// The list, `model_prices_and_context_window.json`; `-` is standard input.
        file: PathBuf,
        /// Names of the list, beginnings of names with `*` behind them, or OWN=NAME for a model that you call OWN.
        #[arg(required = true, value_name = "MODEL")]
        models: Vec<String>,
    },
    /// Say what would be made of one request, one answer, or an engine's metrics, as one line of JSON.
    #[command(subcommand)]
    Explain(Explain),
    /// Compare policies on a pool of engines in simulated time, with public traces and generated traffic.
    #[command(subcommand)]
    Lab(Box<Lab>),
    /// Send the lab's traffic to a real gateway, open loop, and print the lab's report of it.
    Load(Box<Load>),
}

#[derive(Debug, Subcommand)]
enum Explain {
    /// What extract would make of a request.
    Request {
        /// The body; `-` is standard input. A file named *.http is a whole request: its line, headers, body.
        file: PathBuf,
        /// The path it is sent to.
        #[arg(long)]
        path: Option<String>,
        /// The method.
        #[arg(long)]
        method: Option<String>,
        /// A header; several may be given.
        #[arg(long = "header", value_name = "NAME: VALUE", value_parser = explain::header)]
        headers: Vec<(String, String)>,
        /// The configuration of extract: a file, or JSON.
        #[arg(long, value_name = "JSON|FILE")]
        config: Option<String>,
    },
    /// What meter would make of an answer.
    Response {
        /// The body; `-` is standard input.
        file: PathBuf,
        /// The path that was asked; nothing depends on it.
        #[arg(long)]
        path: Option<String>,
        /// A header of the answer; several may be given.
        #[arg(long = "header", value_name = "NAME: VALUE", value_parser = explain::header)]
        headers: Vec<(String, String)>,
        /// Feed it in pieces of so many bytes.
        #[arg(long, value_name = "BYTES")]
        cut: Option<NonZeroUsize>,
    },
    /// What the scorer would make of an engine's metrics.
    Metrics {
        /// The metrics, as the engine gives them; `-` is standard input.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let done = match Cli::parse().command {
        Command::Scorer { config, listen } => scorer::run(&config, listen).map(|()| true),
        Command::Check { files, effective, envoy } => {
            let envoy = envoy.or_else(check::envoy_at_hand);
            Ok(files.iter().filter(|file| !check_one(file, effective, envoy.as_deref())).count() == 0)
        }
        Command::ImportLitellm { file, prices } => import_litellm(&file, prices.as_deref()).map(|()| true),
        Command::ImportPrices { file, models } => import_prices(&file, &models).map(|()| true),
        Command::Explain(what) => explain_one(what).map(|()| true),
        Command::Lab(what) => lab::run(*what, &say).map(|()| true),
        Command::Load(what) => load::run(&what, &say).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weir: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line; that nobody reads it is no mistake.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn say_json(value: &impl Serialize) -> anyhow::Result<()> {
    say(&serde_json::to_string(value)?);
    Ok(())
}

fn check_one(file: &Path, effective: bool, envoy: Option<&Path>) -> bool {
    let report = check::file(file, envoy);
    let name = file.display();
    let mut err = std::io::stderr().lock();
    let colon = |at: &str| if at.is_empty() { String::new() } else { format!("{at}: ") };
    for warning in &report.warnings {
        let _ = writeln!(err, "{name}: {}warning: {}", colon(&warning.at), warning.why);
    }
    for error in &report.errors {
        let _ = writeln!(err, "{name}: {error}");
    }
    for part in report.parts.iter().filter(|_| effective) {
        say(&json!({ "filter": part.of, "at": part.at, "config": part.effective }).to_string());
    }
    let is_good = report.errors.is_empty();
    if is_good {
        say(&format!("{name}: ok ({})", report.summary()));
    }
    is_good
}

/// What comes out is JSON, and so YAML.
fn import_litellm(file: &Path, prices: Option<&Path>) -> anyhow::Result<()> {
    let prices = prices.map(document_of).transpose()?;
    let imported = litellm::import(&document_of(file)?, prices.as_ref());
    let imported = imported.with_context(|| file.display().to_string())?;
    say_import(file, &imported.config, &imported.left_out)
}

fn import_prices(file: &Path, models: &[String]) -> anyhow::Result<()> {
    let imported = litellm::import_prices(&document_of(file)?, models);
    let (cost, left_out) = imported.with_context(|| file.display().to_string())?;
    say_import(file, &cost, &left_out)
}

fn document_of(file: &Path) -> anyhow::Result<serde_json::Value> {
    let read = || Ok::<_, anyhow::Error>(document::read_one(&document::bytes_of(file)?)?);
    read().with_context(|| file.display().to_string())
}

fn say_import(file: &Path, config: &serde_json::Value, left_out: &[Invalid]) -> anyhow::Result<()> {
    for left_out in left_out {
        let _ = writeln!(std::io::stderr(), "{}: {left_out}", file.display());
    }
    say(&serde_json::to_string_pretty(config)?);
    Ok(())
}

fn explain_one(what: Explain) -> anyhow::Result<()> {
    let read = |file: &Path| document::bytes_of(file).with_context(|| file.display().to_string());
    match what {
        Explain::Request { file, path, method, headers, config } => {
            let body = read(&file)?;
            let mut raw = match file.extension().is_some_and(|extension| extension == "http") {
                true => Raw::read(&body).with_context(|| file.display().to_string())?,
                false => {
                    let Some(path) = path.clone() else { usage("--path is needed for a body alone") };
                    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
                    Raw { method: "POST".into(), path, headers, body }
                }
            };
            raw.path = path.unwrap_or(raw.path);
            raw.method = method.unwrap_or(raw.method);
            raw.headers.retain(|(name, _)| !headers.iter().any(|(given, _)| given == name));
            raw.headers.extend(headers);
            say_json(&explain::request(&raw, &extract_config(config.as_deref())?).context("--config")?)
        }
        Explain::Response { file, headers, cut, path: _ } => {
            let name = file.display().to_string();
            say_json(&explain::response(&name, &headers, &read(&file)?, cut))
        }
        Explain::Metrics { file } => say_json(&explain::metrics(&String::from_utf8_lossy(&read(&file)?))),
    }
}

fn extract_config(given: Option<&str>) -> anyhow::Result<weir_extract::Config> {
    let Some(given) = given else { return Ok(weir_extract::Config::default()) };
    let text = match given.trim_start().starts_with('{') {
        true => given.as_bytes().to_vec(),
        false => document::bytes_of(Path::new(given)).with_context(|| given.to_owned())?,
    };
    document::read_one(&text).and_then(weir::invalid::read_value).context("--config")
}

fn usage(why: &str) -> ! {
    Cli::command().error(ErrorKind::MissingRequiredArgument, why).exit()
}
