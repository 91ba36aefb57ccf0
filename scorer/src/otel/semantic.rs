//! The names, units, buckets and attributes of OpenTelemetry's semantic conventions for generative AI.
//!
//! | metric | of what |
//! |---|---|
//! | `gen_ai.server.request.duration` | from when an endpoint was asked for to the end of the answer |
//! | `gen_ai.server.time_to_first_token` | of streams, from when the request was sent on |
//! | `gen_ai.server.time_per_output_token` | of streams, per token after the first |
//! | `gen_ai.client.token.usage` | as the engine reports it, by `gen_ai.token.type`; nothing where it reports none |
//!
//! A model's name is an attribute only if a pool lists it, so that clients cannot make up series.

use super::histogram::Histogram;
use super::trace::{Context, Span, SpanId};
use serde_json::Value;
use std::collections::BTreeSet;
use weir::response::Report;
use weir::wire::{self, Went};

const SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
const TTFT: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
const TPOT: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
const TOKENS: [f64; 14] = [
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0,
    16777216.0, 67108864.0,
];
/// What is none of the values that are known beforehand.
const OTHER: &str = "_OTHER";

/// One request that is over.
pub(super) struct Call<'a> {
    pool: &'a str,
    went: &'a Went,
    report: Option<Report>,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
}

impl<'a> Call<'a> {
    pub(super) fn of(pool: &'a str, went: &'a Went) -> Self {
        let line = went.usage.as_deref().unwrap_or_default();
        let (ttft_ms, tpot_ms) = wire::read_times(line);
        Self { pool, went, report: wire::read_usage(line), ttft_ms, tpot_ms }
    }

    /// `gen_ai.operation.name`.
    fn operation(&self) -> &str {
        match self.went.dialect.as_str() {
            "chat" | "messages" | "responses" => "chat",
            "completions" | "tokens" | "generate" => "text_completion",
            "embeddings" => "embeddings",
            "images" | "speech" | "transcriptions" => "generate_content",
            other => other,
        }
    }

    /// `gen_ai.provider.name`: whose dialect is spoken.
    fn provider(&self) -> &'static str {
        match self.went.dialect.as_str() {
            "messages" | "count_tokens" => "anthropic",
            "tokens" => "vllm",
            "generate" => "sglang",
            _ => "openai",
        }
    }

    /// `error.type`: the status, or that there was an error inside an answer that had begun well.
    fn error(&self) -> Option<String> {
        match self.went.status {
            status if status >= 400 => Some(status.to_string()),
            0 => Some("no_answer".to_owned()),
            _ => self.report.as_ref()?.error.as_ref().map(|_| OTHER.to_owned()),
        }
    }

    /// Its span, which has just ended.
    pub(super) fn span(&self, context: Context, id: SpanId, now: u64) -> Span {
        let Went { model, ms, served, .. } = self.went;
        let mut span = Span::new(context.trace, id, format!("{} {model}", self.operation())).client();
        span.parent = Some(context.parent);
        span.times(now.saturating_sub((ms * 1e6) as u64), now);
        span.text("gen_ai.operation.name", self.operation());
        span.text("gen_ai.provider.name", self.provider());
        span.text("gen_ai.request.model", model);
        span.text("weir.pool", self.pool);
        span.number("http.response.status_code", u64::from(self.went.status));
        if let Some((address, port)) = served.as_deref().and_then(|served| served.rsplit_once(':')) {
            span.text("server.address", address.trim_matches(['[', ']']));
            span.number("server.port", port.parse().unwrap_or(0));
        }
        if let Some(ms) = self.ttft_ms {
            span.real("gen_ai.response.time_to_first_chunk", ms / 1e3);
        }
        if let Some(report) = &self.report {
            if let Some(finish) = &report.finish {
                span.texts("gen_ai.response.finish_reasons", &[finish]);
            }
            if let Some(usage) = &report.usage {
                span.number("gen_ai.usage.input_tokens", usage.input);
                span.number("gen_ai.usage.cache_read.input_tokens", usage.cached);
                span.number("gen_ai.usage.output_tokens", usage.output);
                span.number("gen_ai.usage.reasoning.output_tokens", usage.reasoning);
            }
        }
        if let Some(error) = self.error() {
            span.failed(
                &error,
                self.report.as_ref().and_then(|report| report.error.as_deref()).unwrap_or(""),
            );
        }
        span
    }
}

/// The metrics.
#[derive(Debug)]
pub(super) struct Meters {
    models: BTreeSet<String>,
    start: u64,
    duration: Histogram,
    ttft: Histogram,
    tpot: Histogram,
    tokens: Histogram,
}

impl Meters {
    /// Since `start`, in nanoseconds since 1970; `models` may be named.
    pub(super) fn new(models: BTreeSet<String>, start: u64) -> Self {
        Self {
            models,
            start,
            duration: Histogram::new("gen_ai.server.request.duration", "s", &SECONDS),
            ttft: Histogram::new("gen_ai.server.time_to_first_token", "s", &TTFT),
            tpot: Histogram::new("gen_ai.server.time_per_output_token", "s", &TPOT),
            tokens: Histogram::new("gen_ai.client.token.usage", "{token}", &TOKENS),
        }
    }

    pub(super) fn note(&mut self, call: &Call<'_>) {
        let known = self.models.contains(&call.went.model);
        let mut attributes = vec![
            ("gen_ai.operation.name", call.operation().to_owned()),
            ("gen_ai.provider.name", call.provider().to_owned()),
            ("gen_ai.request.model", if known { call.went.model.clone() } else { OTHER.to_owned() }),
            ("weir.pool", call.pool.to_owned()),
        ];
        if let Some(usage) = call.report.as_ref().and_then(|report| report.usage) {
            for (kind, tokens) in [("input", usage.input), ("output", usage.output)] {
                let kind = [&attributes[..], &[("gen_ai.token.type", kind.to_owned())]].concat();
                self.tokens.note(&kind, tokens as f64);
            }
        }
        // Of an answer that is no stream the first token is not seen, only its end; TPOT is there for streams alone.
        if let (Some(ttft), Some(tpot)) = (call.ttft_ms, call.tpot_ms) {
            self.ttft.note(&attributes, ttft / 1e3);
            self.tpot.note(&attributes, tpot / 1e3);
        }
        if let Some(error) = call.error() {
            attributes.push(("error.type", error));
        }
        self.duration.note(&attributes, call.went.ms / 1e3);
    }

    /// As OTLP has them in JSON, those that have anything.
    pub(super) fn json(&self, now: u64) -> Vec<Value> {
        let all = [&self.duration, &self.ttft, &self.tpot, &self.tokens];
        all.into_iter().filter_map(|metric| metric.json(self.start, now)).collect()
    }
}
