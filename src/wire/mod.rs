//! Every name and message that two processes, or two filters, must agree on.
//!
//! **Between filters**, facts and usage travel as Envoy filter state, one line of `key=value` each, so that the
//! access log can print them (`%FILTER_STATE(wasm.weir.facts:PLAIN)%`); they hold no text of a prompt. For
//! `pick` they go once more with the block hashes behind them: one read instead of two. Where a scorer is to read prompts itself
//! the body is there, too, until it has been asked.
//!
//! **Between `pick` and the scorer**, HTTP/1.1 with JSON: `docs/design.md` says why.
mod call;
mod explanation;
mod facts;
mod hashes;
mod usage;
mod words;

pub use call::{Closed, Event, Reserve, Reserved, Went};
pub use explanation::explanation;
pub use facts::{read_facts, write_facts};
pub use hashes::{Blocks, block_bytes, blocks, hex, read_blocks, write_blocks};
pub use usage::{read_times, read_usage, write_usage};
pub use words::{decode, encode, name_hash, one_word};

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
/// answered and not with success, and `opening` where it sets [`TOO_LONG`]. An attempt that is over and left nothing here got no answer.
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
