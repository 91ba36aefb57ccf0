//! Intelligent Router's experiment (arXiv 2408.13510): 2,000 requests of four classes, 20 a second, at four instances that
//! cannot keep up. What is compared is the mean time from arrival to last token, against round robin.
//!
//! The instances are `v100-llama2-7b` of `engines.json`, with the paper's gradients. A router here may do what no policy
//! of the core can: let requests wait, and send them when it is better. It decides every 20 ms, as the paper's does.
//!
//! What a router knows: of each request its prompt and its class (who asks), never how long the answer will be; of what it
//! has sent how much was written so far. [`Lengths`] learns from answers that are over what the next of their class will
//! come to. The paper trains a DistilBERT for that, which finds the right one of four buckets in 79 % of all cases.
//!
//! Not here: the paper's requests, which are those of five public data sets. The lengths of the classes are ours.

mod learned;
mod lengths;
mod net;
mod rules;
mod train;
mod world;

pub use learned::{Learned, SHAPE};
pub use lengths::Lengths;
pub use net::Net;
pub use rules::{Order, RULES, Rule};
pub use train::train;
pub use world::{Flight, Instance, Result, Route, View, Waiting, play};

use crate::engine::Spec;
use crate::workload::{Request, generate};
use std::sync::Arc;
use weir::invalid::Invalid;

/// Instances.
pub const INSTANCES: usize = 4;
/// Requests of an episode.
pub const REQUESTS: usize = 2_000;

/// What the paper reports of its four V100, against round robin: the mean time to the last token in percent.
pub const REPORTED: &[(&str, f64)] = &[
    ("round robin", 0.0),
    ("join shortest queue", 0.46),
    ("maximum capacity usage", 2.60),
    ("min-min", 1.50),
    ("baseline RL", 4.35),
    ("workload aware RL", 7.79),
    ("workload guided RL", 11.43),
];

/// The requests of an episode.
pub fn episode(seed: u64) -> Vec<Request> {
    generate("classes", REQUESTS, seed).unwrap_or_default()
}

/// The instances' engine.
pub fn engine() -> std::result::Result<Arc<Spec>, Invalid> {
    let spec = crate::engine::specs()?.remove("v100-llama2-7b");
    spec.map(Arc::new).ok_or_else(|| Invalid::new("v100-llama2-7b", "not among the engines"))
}

#[cfg(test)]
mod tests;
