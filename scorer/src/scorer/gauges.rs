//! What an autoscaler and llm-d's dashboards read, made anew from the book at each reading.
//!
//! The formulas are the core's ([`weir::pool::Pressure`]). Where one of llm-d's metrics means the same, it is here under
//! its own name as well, old and new: `docs/telemetry.md` has the table, with what differs.

use super::PoolLoad;
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

/// What is said of a pool, in its unit; `None` where nothing can be said.
type Row = (&'static str, &'static str, fn(&PoolLoad) -> Option<f64>);

/// By the label `pool`.
const OWN: [Row; 6] = [
    ("weir_scorer_queue_requests", "Requests whose first token has not come.", |pool| {
        Some(pool.pressure.waiting as f64)
    }),
    ("weir_scorer_queue_tokens", "Prompt tokens that are still to be computed for them.", |pool| {
        Some(pool.pressure.queued_tokens as f64)
    }),
    (
        "weir_scorer_saturation",
        "From 0, where nothing waits, to 1, where every endpoint has as much to do as it should.",
        |pool| Some(pool.pressure.saturation),
    ),
    (
        "weir_scorer_predicted_ttft_seconds",
        "Until the next usual prompt would see its first token; not there when no endpoint may be sent to.",
        |pool| pool.pressure.ttft_ms.map(|ms| ms / 1e3),
    ),
    (
        "weir_scorer_utilization",
        "The mean over engines of max(queue / 5, KV usage / 0.8): what llm-d calls saturation. May be above 1.",
        |pool| pool.pressure.utilization,
    ),
    ("weir_scorer_serving_endpoints", "Endpoints that get requests.", |pool| {
        Some(pool.pressure.serving as f64)
    }),
];

/// By the label `name`, each under `llm_d_epp_` and under `inference_pool_`.
const LLM_D: [(&str, &str, Row); 4] = [
    of_llm_d("average_queue_size", "average_queue_size", "Requests queued, the mean over engines.", |pool| {
        mean(pool.engines.iter().map(|said| said.waiting.map(f64::from)))
    }),
    of_llm_d(
        "average_running_requests",
        "average_running_requests",
        "Requests in the batch, the mean over engines.",
        |pool| mean(pool.engines.iter().map(|said| said.running.map(f64::from))),
    ),
    of_llm_d(
        "average_kv_cache_utilization",
        "average_kv_cache_utilization",
        "Part of the KV memory in use, the mean over engines.",
        |pool| mean(pool.engines.iter().map(|said| said.kv_usage)),
    ),
    of_llm_d("ready_endpoints", "ready_pods", "Endpoints that get requests.", |pool| {
        Some(pool.pressure.serving as f64)
    }),
];

const fn of_llm_d(
    new: &'static str,
    old: &'static str,
    help: &'static str,
    value: fn(&PoolLoad) -> Option<f64>,
) -> (&'static str, &'static str, Row) {
    (new, old, ("name", help, value))
}

/// Of those that are known: what an engine does not say is not zero.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (sum, n) = values.flatten().fold((0.0, 0_u32), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}

/// All gauges of the pools.
pub(super) fn gather(loads: &[PoolLoad]) -> prometheus::Result<Vec<MetricFamily>> {
    let registry = Registry::new();
    let gauge = |name: &str, label: &str, help: &str, value: fn(&PoolLoad) -> Option<f64>| {
        let gauge = GaugeVec::new(Opts::new(name, help), &[label])?;
        for pool in loads {
            if let Some(value) = value(pool) {
                gauge.with_label_values(&[&pool.name]).set(value);
            }
        }
        registry.register(Box::new(gauge))
    };
    for (name, help, value) in OWN {
        gauge(name, "pool", help, value)?;
    }
    for (new, old, (label, help, value)) in LLM_D {
        gauge(&format!("llm_d_epp_{new}"), label, help, value)?;
        gauge(&format!("inference_pool_{old}"), label, help, value)?;
    }
    let queue = |name: &str, label: &str| {
        let help = "Requests queued in the engine, as it last said.";
        let gauge = GaugeVec::new(Opts::new(name, help), &["name", label])?;
        for pool in loads {
            for said in &pool.engines {
                if let Some(waiting) = said.waiting {
                    gauge.with_label_values(&[&pool.name, &said.address]).set(f64::from(waiting));
                }
            }
        }
        registry.register(Box::new(gauge))
    };
    queue("llm_d_epp_per_endpoint_queue_size", "model_server_endpoint")?;
    queue("inference_pool_per_pod_queue_size", "model_server_pod")?;
    Ok(registry.gather())
}

/// The time of a choice under llm-d's names: the same histogram.
pub(super) fn renamed(families: &[MetricFamily]) -> Vec<MetricFamily> {
    const NAMES: [&str; 2] =
        ["llm_d_epp_scheduler_e2e_duration_seconds", "inference_extension_scheduler_e2e_duration_seconds"];
    let own = families.iter().find(|family| family.name() == super::metrics::RESERVE_SECONDS);
    let rename = |family: &MetricFamily| {
        NAMES.map(|name| {
            let mut family = family.clone();
            family.set_name(name.to_owned());
            family
        })
    };
    own.into_iter().flat_map(rename).collect()
}
