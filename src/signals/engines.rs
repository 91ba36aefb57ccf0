//! The names under which engines say the same things.
//!
//! An alias list goes from the newest name to the oldest, and the first that is there counts: an engine that shows both
//! for a version or two must not be added up. Versions: vLLM renamed `gpu_cache_usage_perc` in 0.10 and dropped it in
//! 0.12. llama.cpp has no KV usage any more.

use super::text::Sample;

/// A metric, and the label that picks one of its series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    label: Option<(&'static str, &'static str)>,
}

/// Tokens that the KV memory holds.
type Tokens = fn(&[Sample<'_>]) -> Option<f64>;

/// An engine.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) name: &'static str,
    pub(super) waiting: &'static [Metric],
    pub(super) running: &'static [Metric],
    pub(super) kv_usage: &'static [Metric],
    pub(super) kv_tokens: &'static [Tokens],
    pub(super) lora: Option<&'static str>,
    /// Counters that shrink when it starts anew.
    pub(super) totals: &'static [Metric],
}

const fn plain(name: &'static str) -> Metric {
    Metric { name, label: None }
}

const fn labelled(name: &'static str, label: &'static str, value: &'static str) -> Metric {
    Metric { name, label: Some((label, value)) }
}

impl Metric {
    pub(super) fn is_in(&self, sample: &Sample<'_>) -> bool {
        sample.name == self.name
            && self.label.is_none_or(|(label, value)| sample.label(label).is_some_and(|own| own == value))
    }
}

impl Engine {
    /// Whether a metric of that name tells that it is this engine.
    pub(super) fn waits_or_runs(&self, name: &str) -> bool {
        self.waiting.iter().chain(self.running).chain(self.kv_usage).any(|metric| metric.name == name)
    }
}

pub(super) const ENGINES: &[Engine] = &[
    Engine {
        name: "vllm",
        waiting: &[plain("vllm:num_requests_waiting")],
        running: &[plain("vllm:num_requests_running")],
        kv_usage: &[plain("vllm:kv_cache_usage_perc"), plain("vllm:gpu_cache_usage_perc")],
        kv_tokens: &[|samples| info(samples, "vllm:cache_config_info", "block_size", "num_gpu_blocks")],
        lora: Some("vllm:lora_requests_info"),
        totals: &[plain("vllm:prompt_tokens_total"), plain("vllm:generation_tokens_total")],
    },
    Engine {
        name: "sglang",
        waiting: &[plain("sglang:num_queue_reqs")],
        running: &[plain("sglang:num_running_reqs")],
        kv_usage: &[plain("sglang:token_usage")],
        kv_tokens: &[
            |samples| super::combined(samples, &[plain("sglang:max_total_num_tokens")], |a, b| a + b),
            |samples| info(samples, "sglang:cache_config_info", "page_size", "num_pages"),
        ],
        lora: None,
        totals: &[plain("sglang:prompt_tokens_total"), plain("sglang:generation_tokens_total")],
    },
    Engine {
        name: "trtllm",
        waiting: &[plain("trtllm_num_requests_waiting")],
        running: &[plain("trtllm_num_requests_running")],
        kv_usage: &[plain("trtllm_kv_cache_utilization")],
        kv_tokens: &[|samples| {
            let of = |name| super::combined(samples, &[plain(name)], f64::max);
            Some(of("trtllm_kv_cache_tokens_per_block")? * of("trtllm_kv_cache_max_blocks")?)
        }],
        lora: None,
        totals: &[plain("trtllm_request_success_total")],
    },
    Engine {
        name: "triton",
        waiting: &[labelled("nv_trt_llm_request_metrics", "request_type", "waiting")],
        running: &[labelled("nv_trt_llm_request_metrics", "request_type", "scheduled")],
        kv_usage: &[labelled("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction")],
        kv_tokens: &[|samples| {
            let of = |kind| {
                let metric = labelled("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", kind);
                super::combined(samples, &[metric], f64::max)
            };
            Some(of("tokens_per")? * of("max")?)
        }],
        lora: None,
        totals: &[plain("nv_inference_request_success")],
    },
    Engine {
        name: "llamacpp",
        waiting: &[plain("llamacpp:requests_deferred")],
        running: &[plain("llamacpp:requests_processing")],
        kv_usage: &[plain("llamacpp:kv_cache_usage_ratio")],
        kv_tokens: &[],
        lora: None,
        totals: &[plain("llamacpp:prompt_tokens_total"), plain("llamacpp:tokens_predicted_total")],
    },
];

/// Two labels of a row, multiplied; rows of several ranks are added up.
fn info(samples: &[Sample<'_>], name: &str, each: &str, count: &str) -> Option<f64> {
    let rows = samples.iter().filter(|sample| sample.name == name);
    let tokens = rows.filter_map(|sample| {
        let number = |label: &str| sample.label(label)?.parse::<f64>().ok().filter(|n| n.is_finite());
        Some(number(each)? * number(count)?)
    });
    tokens.reduce(|a, b| a + b)
}
