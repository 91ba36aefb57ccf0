//! The lab: which policy wins, on the traffic of the world.
//!
//! A pool of engines in simulated time, routed by [`weir::pool::Pool`], the very code that ships. Everything here is pure
//! and fixed by its seed: no clock, no threads, no files, so that the same lab runs in a terminal and in a browser.
//!
//! | module | holds |
//! |---|---|
//! | [`engine`] | one engine: scheduler, KV memory with its prefix cache, and what a step costs |
//! | [`workload`] | requests: public traces, and generated traffic |
//! | [`routing`] | routers as they are: several, each with a view of its own that is late and has gaps |
//! | [`run`] | the events between them, from the first request to the last token |
//! | [`report`] | what users would have seen: times, goodput, hits, spread |
//! | [`suite`] | workloads and contenders to compare |
//! | [`paper`] | Intelligent Router's experiment, with routers that may let requests wait |

#![allow(
    clippy::indexing_slicing,
    reason = "a simulation that counts wrong must stop and not go on; nothing here runs in a filter"
)]

pub mod engine;
pub mod paper;
pub mod report;
pub mod routing;
pub mod run;
pub mod suite;
pub mod workload;
