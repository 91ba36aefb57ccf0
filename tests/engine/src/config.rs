//! What an engine is like: one type, filled by the command line or by a test.

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;

use crate::fault::{Fault, Kind};

/// The settings of an engine. The defaults are those of a mid-size model on one accelerator.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Address to listen on.
    #[arg(long, default_value_t = Config::default().host)]
    pub host: IpAddr,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, default_value_t = Config::default().port)]
    pub port: u16,
    /// A served model name; may be given again. The first serves requests that name no model.
    #[arg(long = "model", value_name = "NAME", default_values_t = Config::default().models)]
    pub models: Vec<String>,
    /// Prefill time in milliseconds per 1000 uncached prompt tokens.
    #[arg(long, default_value_t = Config::default().prefill_ms_per_ktoken)]
    pub prefill_ms_per_ktoken: f64,
    /// Time in milliseconds from one token to the next when the request runs alone.
    #[arg(long, default_value_t = Config::default().decode_ms)]
    pub decode_ms: f64,
    /// By what part of itself the decode time grows for each other running request.
    #[arg(long, default_value_t = Config::default().decode_batch_slope)]
    pub decode_batch_slope: f64,
    /// Most requests running at once.
    #[arg(long, default_value_t = Config::default().slots)]
    pub slots: usize,
    /// KV memory in tokens. A request holds its prompt and `max_tokens` from admission to its end.
    #[arg(long, default_value_t = Config::default().kv_tokens)]
    pub kv_tokens: u64,
    /// Tokens in a prefix block.
    #[arg(long, default_value_t = Config::default().block_size)]
    pub block_size: usize,
    /// Most blocks in the prefix cache; 0 turns it off.
    #[arg(long, default_value_t = Config::default().cache_blocks)]
    pub cache_blocks: usize,
    /// How many inference requests `GET /requests` remembers.
    #[arg(long, default_value_t = Config::default().requests)]
    pub requests: usize,
    /// Refuse requests without `content-length` (411), as some servers do.
    #[arg(long)]
    pub require_length: bool,
    /// The fault to start with.
    #[command(flatten)]
    pub fault: Fault,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            models: vec!["weir-toy".into()],
            prefill_ms_per_ktoken: 100.0,
            decode_ms: 10.0,
            decode_batch_slope: 0.01,
            slots: 256,
            kv_tokens: 131_072,
            block_size: 16,
            cache_blocks: 8192,
            requests: 1000,
            require_length: false,
            fault: Fault::new(Kind::None),
        }
    }
}

impl Config {
    /// An engine that spends no time: answers come as quickly as the machine allows.
    pub fn instant() -> Self {
        Self { prefill_ms_per_ktoken: 0.0, decode_ms: 0.0, ..Self::default() }
    }
}
