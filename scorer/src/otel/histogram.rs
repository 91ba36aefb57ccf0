//! A histogram with bounds of its own, in sets of attributes whose number is bounded.

use serde_json::{Value, json};

/// Most sets of attributes; the others are counted as the last one that found room.
const MOST_SERIES: usize = 1_000;

/// One metric.
#[derive(Debug)]
pub(super) struct Histogram {
    name: &'static str,
    unit: &'static str,
    bounds: &'static [f64],
    series: Vec<Series>,
}

#[derive(Debug)]
struct Series {
    attributes: Vec<(&'static str, String)>,
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(super) fn new(name: &'static str, unit: &'static str, bounds: &'static [f64]) -> Self {
        Self { name, unit, bounds, series: Vec::new() }
    }

    /// A value `x` is counted in the first bucket whose bound is at least `x`.
    pub(super) fn note(&mut self, attributes: &[(&'static str, String)], value: f64) {
        let known = self.series.iter().position(|series| series.attributes == attributes);
        if known.is_none() && self.series.len() < MOST_SERIES {
            let (attributes, counts) = (attributes.to_vec(), vec![0; self.bounds.len() + 1]);
            self.series.push(Series { attributes, counts, sum: 0.0 });
        }
        let last = self.series.len().saturating_sub(1);
        let Some(series) = self.series.get_mut(known.unwrap_or(last)) else { return };
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = series.counts.get_mut(bucket) {
            *count += 1;
        }
        series.sum += value;
    }

    /// As OTLP has it in JSON; `None` while there is nothing.
    pub(super) fn json(&self, start: u64, now: u64) -> Option<Value> {
        const CUMULATIVE: u32 = 2;
        let point = |series: &Series| {
            let attributes: Vec<Value> =
                series.attributes.iter().map(|(key, value)| super::trace::text(key, value)).collect();
            let counts: Vec<String> = series.counts.iter().map(u64::to_string).collect();
            json!({
                "attributes": attributes,
                "startTimeUnixNano": start.to_string(),
                "timeUnixNano": now.to_string(),
                "count": series.counts.iter().sum::<u64>().to_string(),
                "sum": series.sum,
                "bucketCounts": counts,
                "explicitBounds": self.bounds,
            })
        };
        let points: Vec<Value> = self.series.iter().map(point).collect();
        (!points.is_empty()).then(|| {
            json!({"name": self.name, "unit": self.unit,
                "histogram": {"aggregationTemporality": CUMULATIVE, "dataPoints": points}})
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_the_bucket_of_the_first_bound_that_is_not_below_and_series_are_bounded() {
        let mut histogram = Histogram::new("h", "s", &[1.0, 2.0]);
        let of = |n: usize| [("a", n.to_string())];
        for value in [0.5, 1.0, 1.5, 2.5] {
            histogram.note(&of(0), value);
        }
        let json = histogram.json(1, 2).unwrap();
        let point = &json["histogram"]["dataPoints"][0];
        assert_eq!(point["bucketCounts"], json!(["2", "1", "1"]));
        assert_eq!((&point["count"], &point["sum"]), (&json!("4"), &json!(5.5)));
        for n in 1..2_000 {
            histogram.note(&of(n), 1.0);
        }
        assert_eq!(histogram.series.len(), MOST_SERIES);
        assert_eq!(Histogram::new("h", "s", &[]).json(1, 2), None);
    }
}
