//! Where a pool's endpoints come from, when they are not in the configuration: a watched file, or DNS.
//!
//! Whatever is found goes into the pool as a whole and in one step: who stays keeps its load and its prefixes, who is gone takes
//! them along, who is new is let in slowly. What is known stays where nothing good is found: a broken file, a name server that
//! is away. A source that empties a gateway by mistake is commoner than one that does so rightly, and endpoints that are dead are
//! the breaker's to leave out. Each trouble is spoken of once, and so is its end.

mod dns;
mod file;

pub use file::Listed;

use crate::scorer::Scorer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use weir::invalid::Invalid;
use weir::policy::Attributes;

/// By the pools' names.
pub type Config = BTreeMap<String, Source>;

/// Where one pool's endpoints come from: either a file or DNS.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// A file of `endpoints` and `attributes`, YAML or JSON, as they stand in a pool; looked at once a second. Replace
    /// it by another one rather than write into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Names: `host:port`, all addresses of which are endpoints, or one that begins with `_`, whose SRV records have the ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<String>,
    /// Milliseconds between two lookups; without this as long as the records may be kept, 1 s to 5 min.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<NonZeroU64>,
    /// The name server, in the place of the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<SocketAddr>,
}

/// Checks the sources of pools that are named so.
pub fn check(config: &Config, pools: &[&str]) -> Result<(), Invalid> {
    for (name, source) in config {
        let wrong = |field: &str, why: String| {
            let at = if field.is_empty() { name.clone() } else { format!("{name}.{field}") };
            Err(Invalid::new(at, why))
        };
        if !pools.contains(&name.as_str()) {
            return wrong("", format!("no pool is named {name:?}; there are {}", pools.join(", ")));
        }
        match (&source.file, source.dns.as_slice()) {
            (None, []) => return wrong("", "give a file, or names for dns".to_owned()),
            (Some(_), [_, ..]) => {
                return wrong("dns", "given, and a file as well: one of the two".to_owned());
            }
            (Some(_), []) if source.interval_ms.is_some() => {
                return wrong("interval_ms", "is for dns; a file is looked at once a second".to_owned());
            }
            (Some(_), []) if source.server.is_some() => return wrong("server", "is for dns".to_owned()),
            _ => {}
        }
        for (nth, text) in source.dns.iter().enumerate() {
            if let Err(why) = dns::Asked::read(text) {
                return wrong(&format!("dns[{nth}]"), why);
            }
        }
    }
    Ok(())
}

/// Follows all sources from now on, each by a task of its own.
pub fn follow(scorer: &Arc<Scorer>, config: &Config) -> anyhow::Result<()> {
    for (name, source) in config {
        let pool = Found { scorer: Arc::clone(scorer), pool: name.clone(), trouble: None };
        match &source.file {
            Some(file) => tokio::spawn(file::follow(file.clone(), pool)),
            None => tokio::spawn(dns::Lookup::new(source)?.follow(pool)),
        };
    }
    Ok(())
}

/// What is found for one pool goes here.
struct Found {
    scorer: Arc<Scorer>,
    pool: String,
    /// What was last wrong.
    trouble: Option<String>,
}

impl Found {
    /// These are its endpoints now; `attributes`: and this is known of them.
    fn endpoints(&mut self, endpoints: &[String], attributes: Option<BTreeMap<String, Attributes>>) {
        match self.scorer.set_pool(&self.pool, endpoints, attributes) {
            Ok(before) => {
                if self.trouble.take().is_some() {
                    log::info!("pool {:?}: endpoints are found again", self.pool);
                }
                if before != endpoints.len() {
                    log::info!("pool {:?}: {} endpoints, were {before}", self.pool, endpoints.len());
                }
            }
            Err(invalid) => self.nothing(&invalid.to_string()),
        }
    }

    /// These are they as far as is known; somebody could not be asked.
    fn partly(&mut self, endpoints: &[String]) {
        let trouble = self.trouble.take();
        self.endpoints(endpoints, None);
        self.trouble = self.trouble.take().or(trouble);
    }

    /// There is nothing good; what is known stays.
    fn nothing(&mut self, why: &str) {
        self.trouble(format!("keeps its endpoints: {why}"));
    }

    /// It is spoken of once.
    fn trouble(&mut self, what: String) {
        if self.trouble.as_ref() != Some(&what) {
            log::error!("pool {:?} {what}", self.pool);
            self.trouble = Some(what);
        }
    }
}
