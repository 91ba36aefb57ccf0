//! Endpoints from a file, which is read once a second: see `scorer/watch.rs` for why it is not waited for.

use super::Found;
use crate::document;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use weir::invalid::{Invalid, read_value};
use weir::policy::Attributes;

const LOOK: Duration = Duration::from_secs(1);

/// What such a file holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// The endpoints, each `address:port`; none is none.
    pub endpoints: Vec<String>,
    /// What policies are to know of them, by their addresses; of others than these nothing may be said.
    #[serde(default)]
    pub attributes: BTreeMap<String, Attributes>,
}

impl Listed {
    /// Reads and checks YAML or JSON. That addresses are some is the pool's to check.
    pub fn read(text: &[u8]) -> Result<Self, Invalid> {
        let listed: Self = read_value(document::read_one(text)?)?;
        for (address, attributes) in &listed.attributes {
            let at = format!("attributes[{address:?}]");
            attributes.check().map_err(|(field, why)| Invalid::new(format!("{at}.{field}"), why))?;
            if !listed.endpoints.contains(address) {
                return Err(Invalid::new(at, format!("{address} is not among the endpoints")));
            }
        }
        Ok(listed)
    }
}

pub(super) async fn follow(file: PathBuf, mut pool: Found) {
    let (mut every, mut seen) = (tokio::time::interval(LOOK), None);
    loop {
        every.tick().await;
        let (read, listed) = document::follow(&file, seen, Listed::read).await;
        seen = Some(read);
        match listed {
            Some(Ok(listed)) => pool.endpoints(&listed.endpoints, Some(listed.attributes)),
            Some(Err(why)) => pool.nothing(&format!("{}: {why}", file.display())),
            None => {}
        }
    }
}
