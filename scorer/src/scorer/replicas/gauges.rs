//! What is counted of the link to other scorers.

use prometheus::{IntGauge, Registry};

/// Gauges that are set when somebody reads them.
#[derive(Debug)]
pub(in crate::scorer) struct Gauges {
    others: IntGauge,
    ready: IntGauge,
    up: IntGauge,
    lost: IntGauge,
}

impl Gauges {
    pub(in crate::scorer) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            prometheus::Result::Ok(gauge)
        };
        let this = Self {
            others: gauge("weir_scorer_replicas", "Other scorers that keep the same books and live.")?,
            ready: gauge(
                "weir_scorer_ready",
                "1 once this one knows what the others know, or there are none.",
            )?,
            up: gauge(
                "weir_scorer_replicas_up",
                "1 while the store passes on what scorers tell each other.",
            )?,
            lost: gauge(
                "weir_scorer_replicas_lost",
                "Messages that were let go because the store was away for too long, since the start.",
            )?,
        };
        this.ready.set(1);
        Ok(this)
    }

    pub(super) fn set(&self, others: usize, ready: bool, up: bool, lost: u64) {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.others.set(number(others as u64));
        self.ready.set(i64::from(ready));
        self.up.set(i64::from(up));
        self.lost.set(number(lost));
    }
}
