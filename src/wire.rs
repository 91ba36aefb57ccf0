//! Every name and message that two processes, or two filters, must agree on.
//!
//! **Between filters**, facts and usage travel as Envoy filter state, one line of `key=value` each, so that the
//! access log can print them (`%FILTER_STATE(wasm.weir.facts:PLAIN)%`); they hold no text of a prompt. For
//! `pick` they go once more with the block hashes behind them: one read instead of two. Where a scorer is to read prompts itself
//! the body is there, too, until it has been asked.
//!
//! **Between `pick` and the scorer**, HTTP/1.1 with JSON: `docs/design.md` says why.

use crate::breaker::{Outcome, Shut};
use crate::invalid::{self, Invalid};
use crate::policy::Demand;
use crate::pool::{Answered, Ask, Message, Spill};
use crate::request::{Dialect, Facts, word};
use crate::response::{Report, Status, Usage};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

/// Header: the model to be served, which the body names. Routes match on it.
pub const MODEL: &str = "x-gateway-model-name";
/// Header: the model that [`MODEL`] is an adapter of.
pub const BASE_MODEL: &str = "x-gateway-base-model-name";
/// Header of clients: the name of an objective, as llm-d has it.
pub const OBJECTIVE: &str = "x-llm-d-inference-objective";
/// Header of clients, or of whoever authenticates them: the tenant, as llm-d has it.
pub const FAIRNESS_ID: &str = "x-llm-d-inference-fairness-id";
/// Header of clients that may: `1` asks for [`EXPLANATION`].
pub const EXPLAIN: &str = "x-weir-explain";
/// Header of the answer: why the request went where it did, as JSON of bounded length.
pub const EXPLANATION: &str = "x-weir-explanation";
/// Headers of clients: milliseconds to the first token, and per token, that they ask for; llm-d's names, then older ones.
pub const SLO: [[&str; 2]; 2] =
    [["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"], ["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"]];
/// Header of answers: why a request was not admitted, in llm-d's words.
pub const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";
/// Header of requests and answers: a budget that is past its soft stage, `NAME; used=83%`.
pub const BUDGET: &str = "x-weir-budget";
/// Header: what codings the client reads.
pub const ACCEPT_ENCODING: &str = "accept-encoding";
/// Header: the length of a body.
pub const CONTENT_LENGTH: &str = "content-length";
/// Headers by which a request says that it was tried before, and the number of the first try: of the OpenAI and Anthropic
/// libraries, and of an Envoy in front.
pub const RETRIES: [(&str, u32); 2] = [("x-stainless-retry-count", 0), ("x-envoy-attempt-count", 1)];
/// Header: where `override_host` sends the request, an ordered list.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Header: the trace that a request is part of (W3C).
pub const TRACEPARENT: &str = "traceparent";
/// Header: how often Envoy may retry this request.
pub const MAX_RETRIES: &str = "x-envoy-max-retries";
/// Header: how many milliseconds Envoy gives a request, all attempts together.
pub const TIMEOUT: &str = "x-envoy-upstream-rq-timeout-ms";
/// Header: how many milliseconds Envoy gives an attempt to begin its answer.
pub const PER_TRY_TIMEOUT: &str = "x-envoy-upstream-rq-per-try-timeout-ms";
/// Header: `true` has Envoy send the next attempt after that time without ending this one.
pub const HEDGE: &str = "x-envoy-hedge-on-per-try-timeout";

/// Headers that steer the gateway and that a client may not set. Removed on entry, in every case.
pub const CONTROL: [&str; 21] = [
    MODEL,
    BASE_MODEL,
    DESTINATION,
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-gateway-model-name-rewrite",
    "x-llm-d-model-name-rewrite",
    PREFILLER,
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    "x-envoy-original-path",
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    MAX_RETRIES,
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    TIMEOUT,
    PER_TRY_TIMEOUT,
    HEDGE,
    "x-envoy-upstream-alt-stat-name",
];

/// Header names that begin so are the gateway's own; a client's copies go as well.
pub const CONTROL_PREFIX: &str = "x-weir-";

/// Header: the endpoint that computes the prompt, for the one that answers.
pub const PREFILLER: &str = "x-prefiller-host-port";
/// Headers of an answer that came from a later group of endpoints than the first: the priority of the group that should have
/// served, of the one that did, and why ([`crate::pool::Spilled::name`], or what the attempt before came to).
pub const SPILLOVER: [&str; 3] = ["x-weir-spillover-from", "x-weir-spillover-to", "x-weir-spillover-reason"];
/// Header of an attempt's answer: the request is too long for this endpoint, and the list goes on into another group. Envoy's retry policy
/// goes by it (`retriable-headers`); `opening` writes it, and `pick` takes it away from what a client gets.
pub const TOO_LONG: &str = "x-weir-too-long";
/// Header: asks an endpoint to say how it is beside its answer (ORCA).
pub const ORCA_FORMAT: &str = "endpoint-load-metrics-format";

/// Filter state: what the body told (`extract` writes).
pub const FACTS: &str = "weir.facts";
/// Filter state: the same facts, a line feed, and the chained block hashes, eight bytes each, little end first: all
/// that `pick` needs in one read, since a read costs over a microsecond (`extract` writes).
pub const BLOCKS: &str = "weir.blocks";
/// Filter state: the body, unpacked, where a scorer reads prompts itself; empty again when it has been asked
/// (`extract` writes, if told to).
pub const BODY: &str = "weir.body";
/// Filter state: what was chosen and why (`pick` writes).
pub const PICK: &str = "weir.pick";
/// Filter state: why it was chosen, as JSON: [`crate::pool::Why`] (`pick` writes, if told to).
pub const WHY: &str = "weir.why";
/// Filter state: whether the request was admitted, and what it was charged (`limit` writes).
pub const LIMIT: &str = "weir.limit";
/// Filter state: what the answer used (`meter` writes).
pub const USAGE: &str = "weir.usage";

/// Filter state: what an attempt came to, by the address of its endpoint; `breaker` writes it, once per attempt that was
/// answered and not with success. An attempt that is over and left nothing here got no answer.
pub fn attempt(address: &str) -> String {
    format!("weir.attempt.{address}")
}

/// Filter state: the last endpoint of a list that ends in a later group than it begins (`pick` writes): whoever else cannot hold
/// the prompt is not the last word.
pub const SPILLS_TO: &str = "weir.spills_to";

/// Path of the scorer: choose and book.
pub const RESERVE_PATH: &str = "/v1/reserve";
/// Path of the scorer: what became of it.
pub const REPORT_PATH: &str = "/v1/report";
/// Path of the scorer: what happened at a proxy that listens, and elsewhere; [`crate::replicas::Asking`] in,
/// [`crate::replicas::Told`] out, as bytes.
pub const NEWS_PATH: &str = "/v1/news";
/// Path of the scorer: how much of shared limits a proxy may use; [`crate::limit::Claims`] in,
/// [`crate::limit::Grants`] out.
pub const ALLOWANCES_PATH: &str = "/v1/allowances";
/// Header that the scorer sets on each of its answers: Envoy answers in its place when it is late or gone.
pub const SCORER: &str = "x-weir-scorer";
/// Its value while the scorer does not know yet what the others know: better ask another.
pub const JOINING: &str = "joining";

/// Asks the scorer for an endpoint.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// The pool, by its name.
    pub pool: String,
    /// The lease's name, chosen by who asks, so that a lost answer leaves nothing that cannot be ended.
    pub lease: u64,
    /// What the request brings.
    pub demand: Demand,
    /// The request's trace context (`traceparent`), where the filter was told to say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Say why, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explain: bool,
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
    /// The first is tried whether it serves again.
    #[serde(default)]
    pub probe: bool,
    /// No endpoint may be sent to, and there are none above: how to answer the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shut: Option<Closed>,
    /// Why it was chosen, where that was asked: as [`crate::pool::Why`] is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<serde_json::Value>,
    /// The endpoint that is to compute the prompt, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<String>,
    /// The endpoint is of a later group than the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<Spill>,
}

/// No endpoint of the pool may be sent to.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Milliseconds until the first of them may be.
    pub retry_after_ms: u64,
    /// The status for the client.
    pub status: u16,
}

impl From<Shut> for Closed {
    fn from(shut: Shut) -> Self {
        let retry_after_ms = u64::try_from(shut.wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Self { retry_after_ms, status: shut.status }
    }
}

impl From<Closed> for Shut {
    fn from(closed: Closed) -> Self {
        let status = if closed.status == 429 { 429 } else { 503 };
        Self { wait: Duration::from_millis(closed.retry_after_ms), status }
    }
}

/// What became of a lease.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was booked by the proxy, since no scorer answered in time. Of its prompt no more is told than its size.
    Booked {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// The endpoint.
        endpoint: String,
        /// What the request brings.
        demand: Demand,
    },
    /// Its first token came.
    FirstToken {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// The endpoint it came from.
        served: String,
    },
    /// An attempt came to something that concerns its endpoint.
    Attempted {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// The endpoint.
        endpoint: String,
        /// What it came to.
        #[serde(with = "outcome")]
        outcome: Outcome,
    },
    /// How its answer went, for telemetry; only where the filter was told to say it, and before [`Event::End`].
    Went {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// All of that.
        went: Box<Went>,
    },
    /// It is over.
    End {
        /// The pool, by its name.
        pool: String,
        /// The lease's name.
        lease: u64,
        /// How its answer went, where the policy learns from that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<Answered>,
    },
}

/// How an answer went, for telemetry.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Went {
    /// The short name of its dialect.
    pub dialect: String,
    /// The model that served.
    pub model: String,
    /// The status that the client got; 0: none.
    pub status: u16,
    /// Milliseconds from when the endpoint was asked for to the end of the answer.
    pub ms: f64,
    /// The endpoint that served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<String>,
    /// What was used, as [`write_usage`] has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    /// The request's trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// An outcome in a message, as [`Outcome::write`] has it.
mod outcome {
    use super::Outcome;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(outcome: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&outcome.write())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Outcome, D::Error> {
        let line = String::deserialize(deserializer)?;
        Outcome::read(&line).ok_or_else(|| D::Error::custom(format!("{line:?} is no outcome")))
    }
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
        struct Digits;
        impl serde::de::Visitor<'_> for Digits {
            type Value = Blocks;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a string of hex digits")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Blocks, E> {
                let (blocks, rest) = text.as_bytes().as_chunks::<16>();
                let blocks: Option<Vec<u64>> = blocks.iter().map(unhex).collect();
                let blocks = blocks.filter(|_| rest.is_empty()).map(Blocks);
                blocks.ok_or_else(|| E::custom("blocks: not sixteen hex digits a block"))
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

/// Sixteen hex digits per hash.
pub fn hex(blocks: &[u64]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u64| DIGITS.get((nibble & 15) as usize).copied().unwrap_or(b'0');
    let mut text = Vec::with_capacity(blocks.len().saturating_mul(16));
    for hash in blocks {
        let mut digits = [0; 16];
        for (place, written) in (0..16).rev().zip(&mut digits) {
            *written = digit(hash >> (4 * place));
        }
        text.extend_from_slice(&digits);
    }
    String::from_utf8(text).unwrap_or_default()
}

/// The hash that sixteen hex digits write.
fn unhex(digits: &[u8; 16]) -> Option<u64> {
    digits.iter().try_fold(0, |hash: u64, digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        Some(hash << 4 | u64::from(nibble))
    })
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

/// A name as a number: the same in every process. Of endpoints, to hash by, and of LoRA adapters.
pub fn name_hash(name: &str) -> u64 {
    xxhash_rust::xxh64::xxh64(name.as_bytes(), 0)
}

/// A name as one word of visible ASCII, for headers and lines of fields: every byte that is not visible ASCII, and `%`,
/// becomes `%` and two hex digits in capitals. Names that differ give words that differ. Most names are left as they are.
pub fn encode(name: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
    if name.bytes().all(plain) {
        return name.into();
    }
    let mut word = String::with_capacity(name.len().saturating_mul(2));
    for byte in name.bytes() {
        match plain(byte) {
            true => word.push(char::from(byte)),
            false => {
                let _ = write!(word, "%{byte:02X}");
            }
        }
    }
    word.into()
}

/// The name that [`encode`] made a word of; `None` for what it makes of none.
pub fn decode(word: &str) -> Option<String> {
    let mut pieces = word.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let name = String::from_utf8(bytes).ok()?;
    // One name, one word.
    (encode(&name) == word).then_some(name)
}

/// Facts as filter state: fields with a value, as one line.
pub fn write_facts(facts: &Facts) -> String {
    let mut line = format!(
        "dialect={} stream={} prompt_tokens={} prompt_units={}",
        facts.dialect.name(),
        u8::from(facts.stream),
        facts.prompt_tokens,
        facts.prompt_units
    );
    for (key, number) in [
        ("max_output_tokens", facts.max_output_tokens),
        ("min_output_tokens", Some(facts.min_output_tokens).filter(|least| *least > 0)),
        ("thinking_tokens", facts.thinking_tokens),
        ("slo_ttft_ms", facts.slo_ttft_ms),
        ("slo_tpot_ms", facts.slo_tpot_ms),
        ("retries", Some(facts.retries).filter(|retries| *retries > 0)),
        ("timeout_ms", facts.timeout_ms),
    ] {
        if let Some(number) = number {
            let _ = write!(line, " {key}={number}");
        }
    }
    match facts.choices {
        Some(1) => {}
        // Nobody knows how many.
        None => line += " choices=0",
        Some(choices) => {
            let _ = write!(line, " choices={choices}");
        }
    }
    if facts.explain {
        line += " explain=1";
    }
    if let Some(priority) = facts.priority {
        let _ = write!(line, " priority={priority}");
    }
    for (key, hash) in [("tenant", facts.tenant), ("session", facts.session), ("user", facts.user)] {
        if let Some(hash) = hash {
            let _ = write!(line, " {key}={hash:016x}");
        }
    }
    let words = [("effort", &facts.effort), ("objective", &facts.objective), ("tier", &facts.tier)];
    for (key, word) in words.into_iter().chain([
        ("base_model", &facts.base_model),
        ("model", &facts.model),
        ("rewritten_from", &facts.rewritten_from),
    ]) {
        if let Some(word) = word {
            let _ = write!(line, " {key}={}", encode(word));
        }
    }
    line
}

/// Facts from filter state. `None` for a line that [`write_facts`] would not write; fields it does not know are passed
/// over, so that filters of two versions can work together.
pub fn read_facts(line: &str) -> Option<Facts> {
    let mut facts = Facts::of(Dialect::Chat);
    let mut fields = line.split(' ').map(|field| field.split_once('='));
    let ("dialect", name) = fields.next()?? else { return None };
    facts.dialect = Dialect::of_name(name)?;
    for field in fields {
        match field? {
            ("stream", "0") => facts.stream = false,
            ("stream", "1") => facts.stream = true,
            ("prompt_tokens", n) => facts.prompt_tokens = number(n)?,
            ("prompt_units", n) => facts.prompt_units = number(n)?,
            ("max_output_tokens", n) => facts.max_output_tokens = Some(number(n)?),
            ("min_output_tokens", n) => facts.min_output_tokens = number(n)?,
            ("choices", n) => facts.choices = Some(number(n)?).filter(|n| *n > 0),
            ("thinking_tokens", n) => facts.thinking_tokens = Some(number(n)?),
            ("slo_ttft_ms", n) => facts.slo_ttft_ms = Some(number(n)?),
            ("slo_tpot_ms", n) => facts.slo_tpot_ms = Some(number(n)?),
            ("retries", n) => facts.retries = number(n)?,
            ("timeout_ms", n) => facts.timeout_ms = Some(number(n)?),
            ("explain", "1") => facts.explain = true,
            ("priority", n) => facts.priority = Some(n.parse().ok().filter(|i: &i32| i.to_string() == n)?),
            ("tenant", hash) => facts.tenant = Some(read_hash(hash)?),
            ("session", hash) => facts.session = Some(read_hash(hash)?),
            ("user", hash) => facts.user = Some(read_hash(hash)?),
            ("effort", text) => facts.effort = Some(word(text)?),
            ("objective", text) => facts.objective = Some(word(text)?),
            ("tier", text) => facts.tier = Some(word(text)?),
            ("base_model", text) => facts.base_model = Some(decode(text)?),
            ("model", text) => facts.model = Some(decode(text)?),
            ("rewritten_from", text) => facts.rewritten_from = Some(decode(text)?),
            ("dialect" | "stream" | "explain", _) => return None,
            _ => {}
        }
    }
    Some(facts)
}

fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn read_hash(digits: &str) -> Option<u64> {
    let fits = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| u64::from_str_radix(digits, 16).ok())?
}

impl Event {
    /// The same among those who keep the same pools, if it concerns them; its pool is at this place.
    pub fn message(&self, place: u16) -> Option<Message> {
        Some(match self.clone() {
            Self::Booked { lease, endpoint, demand, .. } => {
                let ask = Ask { blocks: &[], demand, prompt: None };
                Message::booked(place, lease, &endpoint, &ask, false)
            }
            Self::FirstToken { lease, served, .. } => Message::FirstToken { pool: place, lease, served },
            Self::Attempted { lease, endpoint, outcome, .. } => {
                Message::Attempted { pool: place, lease, endpoint, outcome }
            }
            Self::Went { .. } => return None,
            Self::End { lease, answered, .. } => Message::End { pool: place, lease, answered },
        })
    }
}

impl Reserve {
    /// A call that says all of `ask`.
    pub fn of(pool: &str, lease: u64, ask: &Ask<'_>) -> Self {
        let (pool, blocks) = (pool.to_owned(), Blocks(ask.blocks.to_vec()));
        Self { pool, lease, demand: ask.demand, trace: None, explain: false, blocks, events: Vec::new() }
    }

    /// The message, with the body of the request behind it unless that is empty.
    pub fn write(&self, body: &[u8]) -> Vec<u8> {
        let mut message = serde_json::to_vec(self).unwrap_or_default();
        if !body.is_empty() {
            message.reserve_exact(body.len().saturating_add(1));
            message.push(b'\n');
            message.extend_from_slice(body);
        }
        message
    }

    /// Reads a message, and says where the body of its request begins: behind it and a line feed. Where the body is not
    /// wanted there is none, and it begins at the end.
    pub fn read(message: &[u8]) -> Result<(Self, usize), Invalid> {
        let (ask, end): (Self, usize) = invalid::read_front(message)?;
        match message.get(end..) {
            Some([b'\n', body @ ..]) if !body.trim_ascii().is_empty() => Ok((ask, end + 1)),
            None => Ok((ask, message.len())),
            Some(rest) if rest.trim_ascii().is_empty() => Ok((ask, message.len())),
            Some(_) => Err(Invalid::new(
                "",
                "what follows the message is not the body of its request, behind a line feed",
            )),
        }
    }

    /// What it asks of a pool.
    pub fn ask(&self) -> Ask<'_> {
        Ask { blocks: &self.blocks.0, demand: self.demand, prompt: None }
    }
}

impl Facts {
    /// What the request asks of a pool.
    pub fn ask<'a>(&self, blocks: &'a [u64]) -> Ask<'a> {
        let demand = Demand {
            prompt_tokens: self.prompt_tokens,
            prompt_units: self.prompt_units,
            output_tokens: self.max_output_tokens.unwrap_or(0),
            stream: self.stream,
            session: self.session,
            tenant: self.tenant,
            adapter: self.base_model.as_ref().and(self.model.as_deref()).map(name_hash),
            slo_ttft_ms: self.slo_ttft_ms,
            slo_tpot_ms: self.slo_tpot_ms,
            retried: self.retries > 0,
        };
        Ask { blocks, demand, prompt: None }
    }
}

/// An explanation as a header: in ASCII, and of the candidates, of which the best come first, as many as make it no longer
/// than clients take; `left_off` says how many more there are.
pub fn explanation(why: &str) -> String {
    const MOST: usize = 8 << 10;
    let Ok(mut why) = serde_json::from_str::<serde_json::Value>(why) else { return String::new() };
    let mut left_off = 0_usize;
    loop {
        let text = ascii(&why.to_string());
        let candidates = why.get_mut("candidates").and_then(serde_json::Value::as_array_mut);
        let Some(candidates) = candidates.filter(|all| text.len() > MOST && !all.is_empty()) else {
            return text;
        };
        // In proportion, and one less, so that this ends.
        let keep = (candidates.len().saturating_mul(MOST) / text.len()).min(candidates.len() - 1);
        left_off = left_off.saturating_add(candidates.len() - keep);
        candidates.truncate(keep);
        if let Some(map) = why.as_object_mut() {
            map.insert("left_off".into(), left_off.into());
        }
    }
}

/// JSON without anything that is not visible ASCII or a space.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for unit in json.chars() {
        match unit {
            ' '..='~' => text.push(unit),
            _ => unit.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(text, "\\u{unit:04x}");
            }),
        }
    }
    text
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
    }
    // Without the engine's last word, what was delivered counts.
    if report.status != Status::Complete && report.streamed {
        let _ = write!(line, " deltas={}", report.deltas);
        if report.delivered() > report.deltas {
            let _ = write!(line, " text={}", report.text);
        }
    }
    if report.unread {
        line += " unread=1";
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

/// The times of [`write_usage`], in milliseconds: to the first token, and per further token.
pub fn read_times(line: &str) -> (Option<f64>, Option<f64>) {
    let time = |name: &str| {
        let value = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value?.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms >= 0.0)
    };
    (time("ttft_ms"), time("tpot_ms"))
}

/// Usage from filter state; the times are left out.
pub fn read_usage(line: &str) -> Option<Report> {
    let mut report = Report::default();
    let mut usage = Usage::default();
    for field in line.split(' ') {
        match field.split_once('=')? {
            ("status", name) => report.status = Status::of_name(name)?,
            ("input", n) => usage.input = n.parse().ok()?,
            ("cached", n) => usage.cached = n.parse().ok()?,
            ("output", n) => usage.output = n.parse().ok()?,
            ("reasoning", n) => usage.reasoning = n.parse().ok()?,
            ("deltas", n) => (report.streamed, report.deltas) = (true, n.parse().ok()?),
            ("text", n) => report.text = n.parse().ok()?,
            ("unread", "1") => report.unread = true,
            ("finish", word) => report.finish = Some(word.to_owned()),
            ("error", word) => report.error = Some(word.to_owned()),
            _ => {}
        }
    }
    if report.status != Status::Missing {
        report.usage = Some(usage);
    }
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn usage_survives_the_way() {
        let usage = Some(Usage { input: 9, cached: 4, output: 3, reasoning: 1 });
        for (usage, status, streamed, deltas, text) in [
            (usage, Status::Complete, false, 0, 0),
            (usage, Status::Partial, true, 7, 0),
            (None, Status::Missing, true, 7, 29),
            (None, Status::Missing, true, 0, 0),
            (None, Status::Missing, false, 0, 0),
        ] {
            let (finish, error) = (Some("stop".into()), Some("e".into()));
            let unread = usage.is_none();
            let report = Report { usage, status, finish, error, streamed, deltas, text, unread };
            let line = write_usage(&report, Some(1.0), None);
            assert_eq!(read_times(&line), (Some(1.0), None));
            assert_eq!(read_usage(&line), Some(report));
        }
        assert_eq!(read_usage("nonsense"), None);
    }

    #[test]
    fn facts_survive_the_way() {
        let full = Facts {
            model: Some("org/m-7b:x=y".into()),
            base_model: Some("Größe 7%".into()),
            rewritten_from: Some("m = alias".into()),
            stream: true,
            prompt_tokens: 12,
            prompt_units: 1,
            max_output_tokens: Some(7),
            min_output_tokens: 2,
            choices: Some(3),
            effort: Some("low".into()),
            thinking_tokens: Some(3),
            slo_ttft_ms: Some(250),
            slo_tpot_ms: Some(u32::MAX),
            retries: 2,
            timeout_ms: Some(20_000),
            explain: true,
            priority: Some(-4),
            objective: Some("batch".into()),
            tier: Some("flex".into()),
            tenant: Some(0),
            session: Some(1),
            user: Some(u64::MAX),
            ..Facts::of(Dialect::Messages)
        };
        let unknown = Facts { choices: None, ..Facts::of(Dialect::Chat) };
        for facts in [Facts::of(Dialect::Tokens), unknown, full] {
            let line = write_facts(&facts);
            assert_eq!(read_blocks(&write_blocks(&line, &[3, 10])), Some((facts.clone(), vec![3, 10])));
            assert_eq!(read_facts(&line), Some(facts));
        }
        for line in [
            "",
            "stream=1 dialect=chat",
            "stream=2",
            "prompt_tokens=+1",
            "tenant=1",
            "effort=a%20b",
            "model=%6D",
        ] {
            let line =
                if line.contains("dialect") { line.to_owned() } else { format!("dialect=chat {line}") };
            assert_eq!(read_facts(&line), None, "{line}");
        }
        assert_eq!(read_facts("nonsense"), None);
        assert_eq!(read_blocks(b"dialect=chat"), None);
    }

    #[test]
    fn a_name_becomes_one_word_and_comes_back() {
        let names = ["m", "org/m-7b:x", "a b", "a%20b", "%", "Größe", " m", "m\u{7f}", "\r\nx: y"];
        let words = names.map(encode);
        for (name, word) in names.iter().zip(&words) {
            assert!(word.bytes().all(|byte| byte.is_ascii_graphic()), "{word}");
            assert_eq!(decode(word).as_deref(), Some(*name));
            assert_eq!(words.iter().filter(|other| *other == word).count(), 1, "{word}");
        }
        assert_eq!(encode("a b%"), "a%20b%25");
        for word in ["%", "%2", "a%zz", "%+1", "%41", "%2f", "%c3%bc", "%FF", "a b"] {
            assert_eq!(decode(word), None, "{word}");
        }
    }

    #[test]
    fn an_explanation_fits_into_a_header_and_keeps_the_best() {
        let why = |n: usize| {
            let one = |n: usize| serde_json::json!({"endpoint": format!("10.0.0.{n}:8000"), "total": n});
            let candidates: Vec<_> = (0..n).map(one).collect();
            serde_json::json!({"because": "größer \u{1f600}\n", "candidates": candidates}).to_string()
        };
        for n in [0, 3, 1_000] {
            let header = explanation(&why(n));
            assert!(header.len() <= 8 << 10 && header.bytes().all(|byte| (32..127).contains(&byte)));
            let read: serde_json::Value = serde_json::from_str(&header).unwrap();
            assert_eq!(read["because"], "größer \u{1f600}\n");
            let kept = read["candidates"].as_array().unwrap();
            assert_eq!(kept.len() + read["left_off"].as_u64().unwrap_or(0) as usize, n);
            assert!(kept.iter().enumerate().all(|(at, one)| one["total"] == at), "the first");
            assert!(n < 1_000 || kept.len() > 100, "{}", kept.len());
        }
        assert_eq!(explanation("nonsense"), "");
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
        let finish = Some("stop input=9\n".into());
        let report = Report { finish, streamed: true, deltas: 4, ..Report::default() };
        assert_eq!(
            write_usage(&report, Some(1.5), None),
            "status=missing deltas=4 ttft_ms=1.500 finish=stopinput=9"
        );
    }
}
