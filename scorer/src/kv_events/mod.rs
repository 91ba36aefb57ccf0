//! Hears what engines say of their KV caches, into the pools.
//!
//! Engines (vLLM, SGLang and others) publish over ZeroMQ which blocks they store and remove: a PUB socket that drops what a
//! subscriber does not take, and a ROUTER socket at which the last batches can be fetched. Each engine has a task here, with
//! a connection of its own; what follows from what it says is decided in the core ([`weir::kv`]).
//!
//! All of them run on one thread beside the one that serves requests, so that an engine that has much to say, or that
//! floods, takes no time from a choice.

mod config;
mod decode;
mod follow;
mod zmtp;

pub use config::Events;
pub use decode::batch;

use crate::clock;
use crate::scorer::Scorer;
use follow::Engine;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use weir::random::Random;

/// How often it is looked which endpoints there are.
const LOOK: Duration = Duration::from_secs(1);

/// Follows the engines of a pool, also those that join later, for as long as it is polled.
pub async fn listen(scorer: Arc<Scorer>, pool: String, events: Events) {
    let events = Arc::new(events);
    let mut random = Random::new(clock::seed());
    let mut running: HashMap<(String, u32), Running> = HashMap::new();
    let mut every = tokio::time::interval(LOOK);
    loop {
        every.tick().await;
        let endpoints = scorer.addresses_of(&pool);
        running.retain(|(endpoint, _), _| endpoints.contains(endpoint));
        for (endpoint, rank) in
            endpoints.iter().flat_map(|own| (0..events.ranks).map(move |rank| (own, rank)))
        {
            let key = (endpoint.clone(), rank);
            let Ok(address) = endpoint.parse() else { continue };
            let (false, Some(publishes_at)) =
                (running.contains_key(&key), events.publishes_at(address, rank))
            else {
                continue;
            };
            let engine = Engine {
                scorer: Arc::clone(&scorer),
                pool: pool.clone(),
                endpoint: endpoint.clone(),
                rank,
                publishes_at,
                replays_at: events.replays_at(address, rank),
                events: Arc::clone(&events),
                gaps: Mutex::default(),
            };
            let task = tokio::spawn(engine.follow(Random::new(random.next())));
            running.insert(key, Running(task));
        }
    }
}

/// A follower, which ends with its endpoint.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}
