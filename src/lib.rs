//! The pure core of Weir: it decides, the edges act.
//!
//! | module | decides |
//! |---|---|
//! | [`request`] | what a request asks for: model, bounds, the prompt in the order the engine sees it; or why it is refused |
//! | [`block`] | where the prompt is cut into chained prefix blocks |
//! | [`rewrite`] | which model serves a request in the place of the one it names, and how neither side notices |
//! | [`response`] | what an answer used, when its first token came, how it ended |
//! | [`pool`] | who is loaded with what, who holds which prefix, who gets the next request |
//! | [`kv`] | which blocks of tokens an engine says that it holds |
//! | [`replicas`] | what scorers that share pools tell each other, and when one that has joined may be asked |
//! | [`signals`] | what an engine says of itself |
//! | [`breaker`] | which endpoints may be sent to, by how their answers went |
//! | [`limit`] | whether a request may be admitted, and what it is charged |
//! | [`queue`] | who goes next when more want in than may |
//! | [`policy`] | how candidates are scored and picked |
//! | [`wire`] | every name and message that two processes must agree on |
//!
//! Nothing here knows a proxy, a socket, a clock or an entropy source: callers pass [`instant::Instant`] and a
//! seeded [`random::Random`]. So the same code runs in a wasm32 filter, in the native scorer, and in tests that
//! step hours in microseconds. Nothing here may panic: in a filter that would end every stream of a worker.

pub mod block;
pub mod breaker;
pub mod instant;
pub mod invalid;
pub mod kv;
pub mod limit;
pub mod policy;
pub mod pool;
pub mod queue;
pub mod random;
pub mod replicas;
pub mod request;
pub mod response;
pub mod rewrite;
mod seeded;
pub mod signals;
mod varint;
mod voices;
pub mod wire;
