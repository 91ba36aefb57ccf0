//! Every name and message that two processes, or two filters, must agree on.
//!
//! **Between filters**, facts and usage travel as Envoy filter state, one line of `key=value` each, so that the
//! access log can print them (`%FILTER_STATE(wasm.weir.facts:PLAIN)%`); they hold no text of a prompt. For
//! `pick` they go once more with the block hashes behind them: one read instead of two.
//!
//! **Between `pick` and the scorer**, HTTP/1.1 with JSON: `docs/design.md` says why.

use crate::policy::Demand;
use crate::pool::Ask;
use crate::request::{Dialect, Facts};
use crate::response::{Report, Status, Usage};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Header: the model to be served, which the body names. Routes match on it.
pub const MODEL: &str = "x-gateway-model-name";
/// Header: what codings the client reads.
pub const ACCEPT_ENCODING: &str = "accept-encoding";
/// Header: the length of a body.
pub const CONTENT_LENGTH: &str = "content-length";
/// Header: where `override_host` sends the request, an ordered list.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Headers that steer the gateway and that a client may not set. Removed on entry, in every case.
pub const CONTROL: [&str; 21] = [
    MODEL,
    "x-gateway-base-model-name",
    DESTINATION,
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-gateway-model-name-rewrite",
    "x-llm-d-model-name-rewrite",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    "x-envoy-original-path",
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    "x-envoy-max-retries",
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-alt-stat-name",
];

/// Header names that begin so are the gateway's own; a client's copies go as well.
pub const CONTROL_PREFIX: &str = "x-weir-";

/// Filter state: what the body told (`extract` writes).
pub const FACTS: &str = "weir.facts";
/// Filter state: the same facts, a line feed, and the chained block hashes, eight bytes each, little end first: all
/// that `pick` needs in one read, since a read costs over a microsecond (`extract` writes).
pub const BLOCKS: &str = "weir.blocks";
/// Filter state: what was chosen and why (`pick` writes).
pub const PICK: &str = "weir.pick";
/// Filter state: what the answer used (`meter` writes).
pub const USAGE: &str = "weir.usage";

/// Path of the scorer: choose and book.
pub const RESERVE_PATH: &str = "/v1/reserve";
/// Path of the scorer: what became of it.
pub const REPORT_PATH: &str = "/v1/report";
/// Header that the scorer sets on each of its answers: Envoy answers in its place when it is late or gone.
pub const SCORER: &str = "x-weir-scorer";

/// Asks the scorer for an endpoint.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// The pool, by its name.
    pub pool: String,
    /// The lease's name, chosen by who asks, so that a lost answer leaves nothing that cannot be ended.
    pub lease: u64,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u32,
    /// The most tokens it may write; 0 when the client set no bound.
    pub output_tokens: u32,
    /// Its answer comes as a stream.
    #[serde(default)]
    pub stream: bool,
    /// Chained block hashes, sixteen hex digits each, one after the other.
    pub blocks: Blocks,
    /// What became of earlier leases: under load they need no call of their own.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// The scorer's answer to [`Reserve`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    /// The chosen endpoint, then fallbacks in order.
    pub endpoints: Vec<String>,
    /// Tokens of the prompt believed to be cached there.
    pub cached_tokens: u32,
    /// Uncached prompt tokens that were waiting there.
    pub queued_tokens: u64,
    /// Requests that were in flight there.
    pub in_flight: u32,
    /// The policy that chose.
    pub policy: String,
}

/// What became of a lease.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Its first token came.
    FirstToken {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// The endpoint it came from.
        served: String,
    },
    /// It is over.
    End {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
    },
}

/// Block hashes in a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blocks(pub Vec<u64>);

impl Serialize for Blocks {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let block = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits)
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
            u64::from_str_radix(digits, 16).ok()
        };
        let blocks: Option<Vec<u64>> =
            text.as_bytes().chunks(16).map(|digits| block(digits).filter(|_| digits.len() == 16)).collect();
        blocks.map(Self).ok_or_else(|| serde::de::Error::custom("blocks: not sixteen hex digits a block"))
    }
}

/// Sixteen hex digits per hash.
pub fn hex(blocks: &[u64]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u64| DIGITS.get((nibble & 15) as usize).copied().unwrap_or(b'0');
    let digits = |hash: &u64| {
        let hash = *hash;
        (0..16).rev().map(move |place| char::from(digit(hash >> (4 * place))))
    };
    blocks.iter().flat_map(digits).collect()
}

/// Facts, as written by [`write_facts`], and block hashes as filter state.
pub fn write_blocks(facts: &str, blocks: &[u64]) -> Vec<u8> {
    [facts.as_bytes(), b"\n", &block_bytes(blocks)].concat()
}

/// Facts and block hashes from filter state.
pub fn read_blocks(bytes: &[u8]) -> Option<(Facts, Vec<u64>)> {
    let (facts, hashes) = bytes.split_at_checked(bytes.iter().position(|byte| *byte == b'\n')?)?;
    Some((read_facts(std::str::from_utf8(facts).ok()?)?, blocks(hashes.get(1..)?)))
}

/// Block hashes as bytes.
pub fn block_bytes(blocks: &[u64]) -> Vec<u8> {
    blocks.iter().flat_map(|hash| hash.to_le_bytes()).collect()
}

/// Block hashes from bytes.
pub fn blocks(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).collect()
}

/// Facts as filter state. A model has no spaces (`request` refuses others).
pub fn write_facts(facts: &Facts) -> String {
    let mut line = format!(
        "dialect={} stream={} prompt_tokens={}",
        facts.dialect.name(),
        u8::from(facts.stream),
        facts.prompt_tokens
    );
    if let Some(most) = facts.max_output_tokens {
        let _ = write!(line, " max_output_tokens={most}");
    }
    if let Some(model) = &facts.model {
        let _ = write!(line, " model={model}");
    }
    if let Some(model) = &facts.rewritten_from {
        let _ = write!(line, " rewritten_from={model}");
    }
    line
}

/// Facts from filter state.
pub fn read_facts(line: &str) -> Option<Facts> {
    let mut facts = Facts {
        dialect: Dialect::Chat,
        model: None,
        rewritten_from: None,
        stream: false,
        prompt_tokens: 0,
        max_output_tokens: None,
    };
    for field in line.split(' ') {
        match field.split_once('=')? {
            ("dialect", name) => facts.dialect = Dialect::of_name(name)?,
            ("stream", flag) => facts.stream = flag == "1",
            ("prompt_tokens", n) => facts.prompt_tokens = n.parse().ok()?,
            ("max_output_tokens", n) => facts.max_output_tokens = Some(n.parse().ok()?),
            ("model", name) => facts.model = Some(name.to_owned()),
            ("rewritten_from", name) => facts.rewritten_from = Some(name.to_owned()),
            _ => {}
        }
    }
    Some(facts)
}

impl Facts {
    /// What the request asks of a pool.
    pub fn ask<'a>(&self, blocks: &'a [u64]) -> Ask<'a> {
        let output_tokens = self.max_output_tokens.unwrap_or(0);
        Ask {
            blocks,
            demand: Demand { prompt_tokens: self.prompt_tokens, output_tokens, stream: self.stream },
        }
    }
}

/// Somebody else's words as one word, of bounded length: it cannot forge another field of a line.
pub fn one_word(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(64).collect()
}

/// Usage as filter state; times in milliseconds.
pub fn write_usage(report: &Report, ttft_ms: Option<f64>, tpot_ms: Option<f64>) -> String {
    let mut line = format!("status={}", report.status.name());
    if let Some(usage) = report.usage {
        let Usage { input, cached, output, reasoning } = usage;
        let _ = write!(line, " input={input} cached={cached} output={output} reasoning={reasoning}");
    } else if report.status == Status::Missing && report.deltas > 0 {
        let _ = write!(line, " deltas={}", report.deltas);
    }
    for (name, ms) in [("ttft_ms", ttft_ms), ("tpot_ms", tpot_ms)] {
        if let Some(ms) = ms {
            let _ = write!(line, " {name}={ms:.3}");
        }
    }
    for (name, word) in [("finish", &report.finish), ("error", &report.error)] {
        if let Some(word) = word {
            let _ = write!(line, " {name}={}", one_word(word));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn facts_survive_the_way() {
        for (model, max_output_tokens) in [(None, None), (Some("org/m-7b:x=y"), Some(7))] {
            let facts = Facts {
                dialect: Dialect::Messages,
                model: model.map(str::to_owned),
                rewritten_from: model.map(|_| "m=alias".to_owned()),
                stream: true,
                prompt_tokens: 12,
                max_output_tokens,
            };
            let line = write_facts(&facts);
            assert_eq!(read_blocks(&write_blocks(&line, &[3, 10])), Some((facts.clone(), vec![3, 10])));
            assert_eq!(read_facts(&line), Some(facts));
        }
        assert_eq!(read_facts("nonsense"), None);
        assert_eq!(read_blocks(b"dialect=chat"), None);
    }

    #[test]
    fn blocks_survive_the_way() {
        let all = vec![0, 1, u64::MAX, 0x0123_4567_89ab_cdef];
        assert_eq!(blocks(&block_bytes(&all)), all);
        let json = serde_json::to_string(&Blocks(all.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Blocks>(&json).unwrap(), Blocks(all));
        assert!(serde_json::from_str::<Blocks>("\"012\"").is_err());
        assert!(serde_json::from_str::<Blocks>("\"+123456789abcdef\"").is_err());
    }

    #[test]
    fn an_engines_words_cannot_forge_a_field() {
        let report = Report {
            usage: None,
            status: Status::Missing,
            finish: Some("stop input=9\n".into()),
            error: None,
            deltas: 4,
        };
        assert_eq!(
            write_usage(&report, Some(1.5), None),
            "status=missing deltas=4 ttft_ms=1.500 finish=stopinput=9"
        );
    }
}
