//! `/metrics`, under vLLM's names and labels; the names are what a scraper looks for.

use prometheus::{Gauge, IntCounter, IntGauge, Opts, Registry, TextEncoder};

use crate::compute::State;
use crate::config::Config;

pub(crate) struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    kv_usage: Gauge,
    kv_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub(crate) queries: IntCounter,
    /// Prompt tokens found there.
    pub(crate) hits: IntCounter,
    /// Prompt tokens of finished prefills.
    pub(crate) prompt_tokens: IntCounter,
    /// Tokens given in answers.
    pub(crate) generated: IntCounter,
}

impl Metrics {
    pub(crate) fn new(config: &Config) -> Self {
        let model = config.models.first().cloned().unwrap_or_default();
        let opts = |name: &str, help: &str| {
            Opts::new(format!("vllm:{name}"), help)
                .const_label("engine", "0")
                .const_label("model_name", &model)
        };
        let counter =
            |name, help| IntCounter::with_opts(opts(name, help)).expect("names and labels are constant");
        let gauge =
            |name, help| IntGauge::with_opts(opts(name, help)).expect("names and labels are constant");

        let cache = opts("cache_config_info", "Information of the LLMEngine CacheConfig")
            .const_label("block_size", config.block_size.to_string())
            .const_label("num_gpu_blocks", config.cache_blocks.to_string());
        let cache = IntGauge::with_opts(cache).expect("names and labels are constant");
        cache.set(1);

        let kv_usage = opts("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.");
        let metrics = Self {
            registry: Registry::new(),
            running: gauge("num_requests_running", "Number of requests in model execution batches."),
            waiting: gauge("num_requests_waiting", "Number of requests waiting to be processed."),
            kv_usage: Gauge::with_opts(kv_usage).expect("names and labels are constant"),
            kv_tokens: config.kv_tokens,
            queries: counter(
                "prefix_cache_queries_total",
                "Prefix cache queries, in number of queried tokens.",
            ),
            hits: counter("prefix_cache_hits_total", "Prefix cache hits, in number of cached tokens."),
            prompt_tokens: counter("prompt_tokens_total", "Number of prefill tokens processed."),
            generated: counter("generation_tokens_total", "Number of generation tokens processed."),
        };
        let collectors: [Box<dyn prometheus::core::Collector>; 8] = [
            Box::new(metrics.running.clone()),
            Box::new(metrics.waiting.clone()),
            Box::new(metrics.kv_usage.clone()),
            Box::new(metrics.queries.clone()),
            Box::new(metrics.hits.clone()),
            Box::new(metrics.prompt_tokens.clone()),
            Box::new(metrics.generated.clone()),
            Box::new(cache),
        ];
        for collector in collectors {
            metrics.registry.register(collector).expect("each name is registered once");
        }
        metrics
    }

    /// The text of a scrape.
    pub(crate) fn text(&self, state: &State) -> String {
        self.running.set(state.running as i64);
        self.waiting.set(state.waiting as i64);
        self.kv_usage.set(state.kv_used as f64 / self.kv_tokens.max(1) as f64);
        TextEncoder::new().encode_to_string(&self.registry.gather()).expect("all metrics are text")
    }
}
