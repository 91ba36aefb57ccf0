//! What the demo runs on: a gateway as shipped, or the same with the policy `round_robin`.

use crate::options::Options;
use anyhow::{Result, ensure};
use rig::{Edit, Gateway, MODELS, Setup, filter_config, repository};

/// Milliseconds that an engine takes for 1000 prompt tokens that it has not cached.
const PREFILL_MS: f64 = 150.0;
/// Milliseconds from token to token.
const DECODE_MS: f64 = 4.0;

/// The gateway with its own policy.
pub(crate) async fn shipped(options: &Options) -> Result<Gateway> {
    start(options, None, None).await
}

/// The gateway with nothing changed but the policy.
pub(crate) async fn round_robin(options: &Options) -> Result<Gateway> {
    let envoy: Edit = Box::new(|envoy| {
        filter_config(envoy, "pick", |pick| pick["choose"]["policy"] = "round_robin".into());
    });
    let scorer: Edit = Box::new(|scorer| scorer["choose"]["policy"] = "round_robin".into());
    start(options, Some(envoy), Some(scorer)).await
}

async fn start(options: &Options, edit: Option<Edit>, edit_scorer: Option<Edit>) -> Result<Gateway> {
    let scorer = !options.no_scorer;
    let missing = scorer && !repository().join("dist/weir").exists();
    ensure!(!missing, "no scorer at dist/weir: build it by ./build.sh demo, or do without by --no-scorer");
    let engine =
        weir_engine::Config { prefill_ms_per_ktoken: PREFILL_MS, decode_ms: DECODE_MS, ..Default::default() };
    Gateway::start(Setup { engine, scorer, edit, edit_scorer, ..Setup::default() }).await
}

/// Says what runs.
pub(crate) fn introduce(gateway: &Gateway) {
    eprintln!("Envoy at {}", gateway.url);
    for (model, engines) in MODELS.iter().zip(&gateway.engines) {
        let addresses: Vec<String> = engines.iter().map(|engine| engine.addr.to_string()).collect();
        eprintln!("  {model}: {}", addresses.join(", "));
    }
    match &gateway.scorer {
        Some(scorer) => eprintln!("scorer at {}", scorer.url),
        None => eprintln!("no scorer: Envoy chooses by itself"),
    }
    eprintln!(
        "The engines are simulated: {PREFILL_MS} ms per 1000 uncached tokens, {DECODE_MS} ms from token to token."
    );
}

/// Says what can be done with a gateway that stays up.
pub(crate) fn invite(gateway: &Gateway) {
    let body = serde_json::json!({"model": MODELS[0], "max_tokens": 16,
        "messages": [{"role": "user", "content": "Hello, who are you?"}]});
    eprintln!("\nThe gateway stays up until ctrl-C. Ask it something:\n");
    eprintln!(
        "  curl -i {}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{body}'\n",
        gateway.url
    );
    eprintln!("why it went there   tail -f {}", gateway.dir().join("access.log").display());
    eprintln!("metrics             curl -s {}/stats/prometheus | grep weir_", gateway.admin);
    eprintln!("Envoy's admin page  {}/", gateway.admin);
    if let Some(scorer) = &gateway.scorer {
        eprintln!("scorer's view       curl -s {0}/v1/loads; curl -s {0}/metrics", scorer.url);
    }
}
