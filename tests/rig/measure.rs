//! What the programs have in common that measure a gateway on test engines.

use crate::find_all;
use serde_json::{Value, json};

/// The header of an answer that names its endpoint: `weir load` looks for it.
const ENDPOINT: &str = "x-gateway-destination-endpoint-served";

/// The engines: a prompt token takes 100 us in a lane of its own, a token of an answer comes each 10 ms. Nothing is evicted.
pub fn engine() -> weir_engine::Config {
    weir_engine::Config {
        prefill_ms_per_ktoken: 100.0,
        decode_ms: 10.0,
        decode_batch_slope: 0.0,
        kv_tokens: 400_000,
        cache_blocks: 100_000,
        ..Default::default()
    }
}

/// Has a gateway show which endpoint answered.
pub fn show_endpoints(envoy: &mut Value) {
    for routes in find_all(envoy, &|value| value["virtual_hosts"].is_array()) {
        routes["response_headers_to_add"] =
            json!([{"header": {"key": ENDPOINT, "value": "%UPSTREAM_REMOTE_ADDRESS%"}}]);
    }
}
