//! Which paths are inference, and in which dialect.
//!
//! A path counts by its end, since gateways and clients put prefixes before it. It is compared as an engine would
//! read it: without the query, percent-encoding undone, and without a slash at the end. Otherwise
//! `/v1/chat/completion%73` would pass unread and be served all the same.

use super::Dialect;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Ends of paths that the configuration adds, or (`None`) takes away: `{"/v2/chat": "chat", "/score": "off"}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths(BTreeMap<String, Option<Dialect>>);

/// For "do not read these".
const OFF: &str = "off";

impl Paths {
    /// The dialect of a path. Of two ends that fit the longer counts, of two equal ones the configuration's.
    pub fn dialect(&self, path: &str) -> Option<Dialect> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let path = decoded(path);
        let path = path.trim_end_matches('/');
        let own = self.0.iter().filter(|(end, _)| path.ends_with(end.as_str()));
        let own = own.max_by_key(|(end, _)| end.len());
        match (own, Dialect::of_end(path)) {
            (Some((end, own)), known) if known.is_none_or(|(_, length)| end.len() >= length) => *own,
            (_, known) => known.map(|(dialect, _)| dialect),
        }
    }
}

/// Undoes percent-encoding; bytes that are no UTF-8 then become replacement characters.
fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return path.into();
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, more @ ..] = rest {
        let code = more.get(..2).filter(|code| code.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match (first, code) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = more.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = BTreeMap::<String, String>::deserialize(deserializer)?;
        let read = |(end, name): (String, String)| {
            if !end.starts_with('/') || end.ends_with('/') || end.contains(['?', '#', '%']) {
                return Err(D::Error::custom(format!(
                    "{end:?}: the end of a path starts with a slash, ends without one, and has no ?, # or %"
                )));
            }
            let dialect = Dialect::of_name(&name);
            if dialect.is_none() && name != OFF {
                let known: Vec<_> = Dialect::all().map(Dialect::name).collect();
                return Err(D::Error::custom(format!(
                    "{end:?}: {name:?} is unknown; expected {OFF} or one of {}",
                    known.join(", ")
                )));
            }
            Ok((end, dialect))
        };
        given.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(end, dialect)| (end, dialect.map_or(OFF, Dialect::name))))
    }
}
