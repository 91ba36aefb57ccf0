//! `meter`: reads the answer to an inference request once, as it passes.
//!
//! It stands last in the chain, so it is the first to see the answer, and changes nothing of it, but for a stream that ends in the middle of the
//! answer (`weir::response::closing_event`). Usage, the time to
//! the first token (TTFT) and the time per further token (TPOT) go to filter state, for the access log and the
//! filters before it, and to Envoy's stats.
//!
//! ```text
//! TTFT = first token - request sent on        of streams: of other answers the first byte is the last as well
//! TPOT = (last token - first token) / (output tokens - 1)
//! ```
//!
//! The clock starts when the request has passed all filters, so reading a slow client's body does not count. An
//! engine's stats never expire in Envoy, so a label value is one of the configured `models`, or `other`.

use serde::{Deserialize, Serialize};
use weir::instant::Instant;
use weir::invalid::{self, Invalid};
use weir::request::Facts;
use weir::response::{BROKEN_OFF, Progress, Reader, Report, Status, closing_event};
use weir::wire;
use weir_host::{Body, Callback, Filter, Host, Kind, Metric, Of};

weir_host::serve!(Meter);

/// Configuration of the plugin.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Models that get stats of their own; all others count as `other`.
    pub models: Vec<String>,
}

/// The filter.
#[derive(Debug)]
pub struct Meter {
    /// Stats by model; the last one is `other`.
    models: Vec<(String, Metrics)>,
}

#[derive(Debug)]
struct Metrics {
    requests: Metric,
    errors: Metric,
    usage_missing: Metric,
    broken_off: Metric,
    input: Metric,
    cached: Metric,
    output: Metric,
    ttft: Metric,
    tpot: Metric,
}

impl Metrics {
    fn define(host: &dyn Host, model: &str) -> Self {
        let name = |name: &str| format!("weir_{name};model={model}");
        let count = |metric: &str| host.define(Kind::Counter, &name(metric));
        Self {
            requests: count("requests_total"),
            errors: count("errors_total"),
            usage_missing: count("usage_missing_total"),
            broken_off: count("broken_off_total"),
            input: count("input_tokens_total"),
            cached: count("cached_tokens_total"),
            output: count("output_tokens_total"),
            ttft: host.define(Kind::Histogram, &name("ttft_ms")),
            tpot: host.define(Kind::Histogram, &name("tpot_us")),
        }
    }
}

/// One answer.
#[derive(Debug)]
pub struct Stream {
    sent: Instant,
    reader: Option<Reader>,
    status: u16,
    /// Its length was not said in advance.
    may_grow: bool,
    first_byte: Option<Instant>,
    first_token: Option<Instant>,
    last: Instant,
}

impl Filter for Meter {
    const NAME: &'static str = "weir-meter";
    const CALLBACKS: &'static [Callback] =
        &[Callback::ResponseHeaders, Callback::ResponseBody, Callback::Log];
    type Stream = Stream;

    fn configure(config: &[u8], host: &dyn Host) -> Result<Self, Invalid> {
        Ok(Self::new(invalid::read(config)?, host))
    }

    fn open(&mut self, host: &dyn Host) -> Stream {
        let now = host.now();
        Stream {
            sent: now,
            reader: None,
            status: 0,
            may_grow: false,
            first_byte: None,
            first_token: None,
            last: now,
        }
    }

    fn response_headers(&mut self, stream: &mut Stream, host: &dyn Host, _end: bool) {
        let headers = host.headers(Of::Response);
        let value = |name: &str| headers.get(name).unwrap_or_default();
        stream.status = value(":status").parse().unwrap_or(0);
        stream.may_grow = headers.get(wire::CONTENT_LENGTH).is_none();
        let (kind, coding) = (value("content-type"), value("content-encoding"));
        let reader = Reader::new(kind, coding);
        stream.reader = Some(match reader.reads() || !facts(host).is_some_and(|facts| facts.stream) {
            true => reader,
            false => Reader::wished_for_stream(kind, coding),
        });
    }

    fn response_body(&mut self, stream: &mut Stream, host: &dyn Host, piece: Body) {
        let Some(reader) = &mut stream.reader else { return };
        if piece.len > 0 {
            stream.last = host.now();
            stream.first_byte.get_or_insert(stream.last);
            if reader.reads() && reader.feed(&host.body(Of::Response, 0, piece.len)) == Progress::FirstToken {
                stream.first_token.get_or_insert(stream.last);
            }
        }
        if piece.end {
            if stream.may_grow && reader.breaks_off() {
                close(host, piece.len);
            }
            self.finish(stream, host, true);
        }
    }

    fn log(&mut self, stream: &mut Stream, host: &dyn Host) {
        if stream.reader.is_none() {
            return;
        }
        // Trailers or no body at all may have been the proper end; a reset leaves flags behind.
        let flags = host.property(&["response", "flags"]);
        let whole = flags.is_some_and(|flags| flags.iter().all(|byte| *byte == 0));
        self.finish(stream, host, whole);
    }
}

impl Meter {
    /// A filter of a configuration.
    pub fn new(config: Config, host: &dyn Host) -> Self {
        let names = config.models.into_iter().chain(["other".to_owned()]);
        Self { models: names.map(|name| (name.clone(), Metrics::define(host, &name))).collect() }
    }

    fn finish(&self, stream: &mut Stream, host: &dyn Host, whole: bool) {
        let Some(reader) = stream.reader.take() else { return };
        let Some(facts) = facts(host) else { return };
        let is_stream = reader.is_stream();
        let report = reader.end(whole);
        // What kind of answer it is may show with its first bytes only, so which of the two counts is decided here.
        let first = if is_stream { stream.first_token } else { stream.first_byte };
        let ttft_ms = first.map(|first| first.since(stream.sent).as_secs_f64() * 1e3);
        let tpot_ms = tpot_ms(stream, &report).filter(|_| is_stream);
        host.set_property(wire::USAGE, wire::write_usage(&report, ttft_ms, tpot_ms).as_bytes());
        let model = facts.model.as_deref().unwrap_or("other");
        let known = self.models.iter().find(|(name, _)| name == model).or(self.models.last());
        if let Some((_, metrics)) = known {
            record(host, metrics, stream.status, &report, ttft_ms.filter(|_| is_stream), tpot_ms);
        }
    }
}

/// Says behind the last `len` bytes, which may be half an event, that the answer is none.
fn close(host: &dyn Host, len: usize) {
    let Some(facts) = facts(host) else { return };
    let mut bytes = host.body(Of::Response, 0, len);
    bytes.extend_from_slice(closing_event(facts.dialect).as_bytes());
    host.set_body(Of::Response, len, &bytes);
}

/// What is known of the request.
fn facts(host: &dyn Host) -> Option<Facts> {
    wire::read_facts(&host.text(&[wire::FACTS])?)
}

fn tpot_ms(stream: &Stream, report: &Report) -> Option<f64> {
    let output = report.usage.map_or(report.delivered(), |usage| usage.output);
    let further = output.checked_sub(1).filter(|further| *further > 0)?;
    Some(stream.last.since(stream.first_token?).as_secs_f64() * 1e3 / further as f64)
}

fn record(
    host: &dyn Host,
    to: &Metrics,
    status: u16,
    report: &Report,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
) {
    host.add(to.requests, 1);
    if report.error.as_deref() == Some(BROKEN_OFF) {
        host.add(to.broken_off, 1);
    }
    if report.error.is_some() || status >= 400 {
        host.add(to.errors, 1);
    } else if report.status == Status::Missing {
        host.add(to.usage_missing, 1);
    }
    if let Some(usage) = report.usage {
        for (metric, tokens) in
            [(to.input, usage.input), (to.cached, usage.cached), (to.output, usage.output)]
        {
            if tokens > 0 {
                host.add(metric, tokens);
            }
        }
    }
    if let Some(ms) = ttft_ms {
        host.record(to.ttft, ms.round() as u64);
    }
    if let Some(ms) = tpot_ms {
        host.record(to.tpot, (ms * 1e3).round() as u64);
    }
}

#[cfg(test)]
mod tests;
