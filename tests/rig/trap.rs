//! A worker's VM that dies on demand.
//!
//! Envoy cannot be told to end a VM, and no request is known that ours would not survive. So a shipped module gets one callback that traps: a
//! request with trailers is the end of the VM that sees it, and of all requests in it. Everything else in the module is as shipped.

use crate::{Raw, find_all, raw::post, repository};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use walrus::{ExportItem, FunctionBuilder, Module};

const CALLBACK: &str = "proxy_on_request_trailers";

/// Writes a copy of a module whose VM dies of a request with trailers.
pub fn write_mortal(module: &str, to: &Path) -> Result<()> {
    let from = repository().join(module);
    let mut module = Module::from_file(&from).with_context(|| from.display().to_string())?;
    let export = module.exports.iter().find(|export| export.name == CALLBACK);
    let export = export.with_context(|| format!("{}: no {CALLBACK}", from.display()))?;
    let (id, ExportItem::Function(function)) = (export.id(), export.item) else {
        anyhow::bail!("{CALLBACK} is no function")
    };
    let (params, results) = module.types.params_results(module.funcs.get(function).ty());
    let (params, results) = (params.to_vec(), results.to_vec());
    let mut trap = FunctionBuilder::new(&mut module.types, &params, &results);
    trap.func_body().unreachable();
    let args = params.iter().map(|param| module.locals.add(*param)).collect();
    module.exports.get_mut(id).item = trap.finish(args, &mut module.funcs).into();
    module.emit_wasm_file(to)
}

/// Has a gateway run this copy in the place of the module, and take trailers.
pub fn run_mortal(envoy: &mut Value, module: &str, copy: &Path) {
    let copy = copy.display().to_string();
    for code in
        find_all(envoy, &|value| value["filename"].as_str().is_some_and(|name| name.ends_with(module)))
    {
        code["filename"] = copy.clone().into();
    }
    for manager in find_all(envoy, &|value| value["stream_idle_timeout"].is_string()) {
        manager["http_protocol_options"] = json!({"enable_trailers": true});
    }
}

/// Ends the VM of whichever worker takes this connection; returns when that has happened.
pub async fn end_a_vm(url: &str) -> Result<()> {
    let mut connection = Raw::connect(url).await?;
    let head = post("/v1/chat/completions", &["transfer-encoding: chunked"]);
    connection.send(head + "2\r\n{}\r\n0\r\nx-last: words\r\n\r\n").await?;
    // An answer of Envoy's own, or none.
    let _ = connection.message().await;
    Ok(())
}
