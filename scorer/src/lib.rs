//! The native side of Weir: the program `weir`.
//!
//! | module | does |
//! |---|---|
//! | [`scorer`] | serves the core's pools to many gateways, over HTTP |
//! | [`kv_events`] | hears what engines say of their KV caches, for the scorer |
//! | [`tokens`] | turns a request into the tokens that its engine will see |
//! | [`admin`] | the page that shows them to a person |
//! | [`picker`] | the same for gateways without our filters: `ext_proc` and the endpoint-picker protocol |
//! | [`discovery`] | finds endpoints in files and in DNS |
//! | [`check`] | says whether a configuration file would be accepted, and where not |
//! | [`explain`] | says what the filters would make of one request or one answer |
//! | [`lab`] | compares policies on a pool of engines in simulated time |
//! | [`load`] | sends the lab's traffic to a real gateway |
//! | [`traffic`] | what the two ask of a pool, and where the figures go |
//! | [`otel`] | metrics and spans to an OpenTelemetry collector |
//! | `http` | what a connection to the scorer may cost |
//! | [`litellm`] | makes a configuration of a LiteLLM proxy's |
//! | [`document`] | files to JSON values |
//! | [`clock`] | the only clock |
//!
//! A shell and nothing more: whatever is decided here is decided by the core and by the filters' own `Config`
//! types, so that the program cannot disagree with what runs in Envoy.

pub mod admin;
pub mod check;
pub mod clock;
pub mod discovery;
pub mod document;
pub mod explain;
mod http;
pub mod kv_events;
pub mod lab;
pub mod litellm;
pub mod load;
pub mod otel;
pub mod picker;
pub mod scorer;
mod seldom;
pub mod tokens;
pub mod traffic;
