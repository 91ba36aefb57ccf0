//! The lab beside reality: one gateway with engines that spend time as the lab's do, measured by `weir load`; and the same
//! pool, policy and requests in `weir lab`.

use anyhow::{Context, Result, ensure};
use rig::measure::show_endpoints;
use rig::{Edit, Gateway, MODELS, Setup, filter_config, repository};
use serde_json::{Value, json};
use std::path::Path;

/// The same engine for the lab: what an answer waits for a token is a step, what a prompt may take of a step follows.
fn profile(engine: &weir_engine::Config) -> Value {
    let (prefill_us, step_us) = (engine.prefill_ms_per_ktoken, engine.decode_ms * 1_000.0);
    json!({"test": {
        "source": "the test engine of the gateway beside",
        "overhead_us": 0, "prefill_us": prefill_us, "decode_us": 0, "pair_ns": 0, "read_us": step_us, "kv_ns": 0,
        "overlap": true, "step_tokens": (step_us / prefill_us) as u64, "answers_beside": true,
        "batch": engine.slots, "block_tokens": engine.block_size,
        "kv_tokens": engine.kv_tokens + (engine.cache_blocks * engine.block_size) as u64,
        "adapters": 4, "adapter_us": 0
    }})
}

/// A gateway with one worker before so many engines, that shows which endpoint answered.
pub(crate) async fn gateway(policy: Value, engines: usize, engine: &weir_engine::Config) -> Result<Gateway> {
    let edit: Edit = Box::new(move |envoy| {
        filter_config(envoy, "pick", |pick| pick["choose"]["policy"] = policy.clone());
        show_endpoints(envoy);
    });
    let setup = Setup {
        engines: [engines, 1],
        engine: engine.clone(),
        workers: 1,
        edit: Some(edit),
        own_log_level: "warn",
        ..Setup::default()
    };
    Gateway::start(setup).await
}

/// What `weir load` measures, with more arguments: what it prints, and its figures.
pub(crate) async fn measure(gateway: &Gateway, more: &[&str]) -> Result<(String, Value)> {
    let arguments = ["load", "--url", &gateway.url, "--model", MODELS[0]];
    weir(gateway.dir(), &[&arguments[..], more].concat()).await
}

/// What the lab says of it: no metrics are looked at, as there is no scorer.
pub(crate) async fn predict(
    directory: &Path,
    policy: &Value,
    engines: usize,
    engine: &weir_engine::Config,
    more: &[&str],
) -> Result<(String, Value)> {
    let file = directory.join("engines.json");
    std::fs::write(&file, profile(engine).to_string())?;
    let (file, engines, policy) = (file.display().to_string(), engines.to_string(), as_argument(policy));
    let arguments = [
        "lab",
        "run",
        "--policy",
        &policy,
        "--engines",
        &file,
        "--engine",
        "test",
        "--endpoints",
        &engines,
        "--metrics-ms",
        "0",
    ];
    weir(directory, &[&arguments[..], more].concat()).await
}

fn as_argument(policy: &Value) -> String {
    policy.as_str().map_or_else(|| policy.to_string(), str::to_owned)
}

async fn weir(directory: &Path, arguments: &[&str]) -> Result<(String, Value)> {
    let json = directory.join("figures.json").display().to_string();
    let output = tokio::process::Command::new(repository().join("dist/weir"))
        .args(arguments)
        .args(["--json", &json])
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "weir {}: {said}", arguments.join(" "));
    let figures: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    let first = figures.get(0).context("no figures")?.clone();
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), first))
}
