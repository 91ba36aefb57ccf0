//! Follows the configuration file: endpoints come and go without a restart.
//!
//! The file is read once a second and compared with what was read before. Polling needs nothing of the file
//! system, and sees what file events miss: a mounted ConfigMap changes by a link far away. Of a good new file
//! the endpoints are applied, with the load and prefixes of those that stay; of a bad one nothing is. All else
//! (policy, addresses, the set of pools) takes a restart, since leases that are out were booked by it.

use super::{Config, Scorer};
use crate::document::{self, Seen};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A file and what was last made of it.
#[derive(Debug)]
pub struct Watch {
    file: PathBuf,
    /// Its bytes, or why there were none; each is spoken of once.
    seen: Seen,
    /// What is in force.
    running: Config,
}

impl Watch {
    /// Follows `file`, of which `text` was read and is in force as `running`.
    pub fn new(file: &Path, text: Vec<u8>, running: Config) -> Self {
        Self { file: file.to_owned(), seen: Ok(text), running }
    }

    /// Looks again and again, for as long as it is polled.
    pub async fn follow(mut self, scorer: Arc<Scorer>, every: Duration) {
        let mut every = tokio::time::interval(every);
        loop {
            every.tick().await;
            let seen = std::mem::replace(&mut self.seen, Ok(Vec::new()));
            let (read, next) = document::follow(&self.file, Some(seen), Config::read).await;
            self.seen = read;
            if let Some(next) = next {
                self.take(next, &scorer);
            }
        }
    }

    fn take(&mut self, next: Result<Config, String>, scorer: &Scorer) {
        let file = self.file.display();
        match next {
            Err(why) => log::error!("{file}: refused, the last good one stays: {why}"),
            Ok(next) => {
                let left = needs_restart(&self.running, &next);
                if !left.is_empty() {
                    log::warn!("{file}: restart to apply what changed in {}", left.join(", "));
                }
                scorer.set_endpoints(&next);
                for pool in &mut self.running.pools {
                    let Some(endpoints) = next.endpoints_of(&pool.name) else { continue };
                    if pool.endpoints != endpoints {
                        log::info!(
                            "pool {:?}: {} endpoints, were {}",
                            pool.name,
                            endpoints.len(),
                            pool.endpoints.len()
                        );
                        pool.endpoints = endpoints.to_vec();
                    }
                }
            }
        }
    }
}

/// The parts in which `next` differs from what is in force and that cannot be applied. The models of a pool are
/// not among them: the scorer is asked by the pool's name.
fn needs_restart(running: &Config, next: &Config) -> Vec<String> {
    let mut parts = Vec::new();
    if running.listen != next.listen {
        parts.push("listen".to_owned());
    }
    if serde_json::to_value(&running.choose).ok() != serde_json::to_value(&next.choose).ok() {
        parts.push("choose".to_owned());
    }
    if running.signals != next.signals {
        parts.push("signals".to_owned());
    }
    if running.precise != next.precise {
        parts.push("precise".to_owned());
    }
    if running.discovery != next.discovery {
        parts.push("discovery".to_owned());
    }
    if running.otel != next.otel {
        parts.push("otel".to_owned());
    }
    if running.admin != next.admin {
        parts.push("admin".to_owned());
    }
    if serde_json::to_value(&running.picker).ok() != serde_json::to_value(&next.picker).ok() {
        parts.push("picker".to_owned());
    }
    if running.store != next.store {
        parts.push("store".to_owned());
    }
    if running.replicas != next.replicas {
        parts.push("replicas".to_owned());
    }
    let new = next.pools.iter().filter(|pool| running.endpoints_of(&pool.name).is_none());
    parts.extend(new.map(|pool| format!("pools (new: {:?})", pool.name)));
    let gone = running.pools.iter().filter(|pool| next.endpoints_of(&pool.name).is_none());
    parts.extend(gone.map(|pool| format!("pools (gone: {:?})", pool.name)));
    let choose = |config: &Config, name: &str| {
        let pool = config.pools.iter().find(|pool| pool.name == name)?;
        serde_json::to_value(&pool.choose).ok()
    };
    let kept = running.pools.iter().filter(|pool| next.endpoints_of(&pool.name).is_some());
    let changed = kept.filter(|pool| choose(running, &pool.name) != choose(next, &pool.name));
    parts.extend(changed.map(|pool| format!("pools ({:?}: choose)", pool.name)));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: u16, policy: &str, pools: &[&str]) -> Config {
        let pool = |(at, name): (usize, &&str)| {
            format!("{{name: {name}, models: [], endpoints: ['10.0.0.{at}:80']}}")
        };
        let pools: Vec<String> = pools.iter().enumerate().map(pool).collect();
        let pools = pools.join(", ");
        Config::read(
            format!("{{listen: '127.0.0.1:{listen}', choose: {{policy: {policy}}}, pools: [{pools}]}}")
                .as_bytes(),
        )
        .unwrap()
    }

    #[test]
    fn what_takes_a_restart_is_named() {
        let running = config(1, "p2c", &["a", "b"]);
        assert!(needs_restart(&running, &config(1, "p2c", &["b", "a"])).is_empty(), "endpoints alone");
        assert_eq!(
            needs_restart(&running, &config(2, "round_robin", &["a", "c"])),
            ["listen", "choose", "pools (new: \"c\")", "pools (gone: \"b\")"]
        );
        let mut own = config(1, "p2c", &["a", "b"]);
        own.pools[1].choose = Some(weir::pool::Config::default());
        assert_eq!(needs_restart(&running, &own), ["pools (\"b\": choose)"]);
    }
}
