//! Who asks: tenant, session, user, and for what objective.
//!
//! What names a tenant, a session or a user is chosen by a client or by whoever authenticated it, and may be
//! somebody's secret. Filters behind need to tell them apart, not to know them, so only a hash leaves `extract`:
//! `xxh64(value, seed + kind)`. A credential is told from others in the same way, and that does not leave `extract` at all. It is short and quick, and no cryptography: who knows the seed can test guesses.

use super::Config;
use super::deadline::Patience;
use crate::wire;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use xxhash_rust::xxh64::xxh64;

/// Header names, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Names(Vec<String>);

impl Names {
    pub(super) fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|own| own == name)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let wrong = |name: &&String| {
            name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
        };
        if let Some(name) = names.iter().find(wrong) {
            return Err(D::Error::custom(format!("{name:?} is no name of a header")));
        }
        Ok(Self(names.into_iter().map(|name| name.to_ascii_lowercase()).collect()))
    }
}

/// Whose name is hashed: equal names of different kinds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who pays.
    Tenant,
    /// One conversation, or one run of an agent.
    Session,
    /// One of a tenant's users.
    User,
    /// Whoever has a credential.
    Client,
}

impl Config {
    /// The hash by which somebody is published.
    pub fn id(&self, kind: Kind, name: &str) -> u64 {
        xxh64(name.as_bytes(), self.id_seed.wrapping_add(kind as u64))
    }
}

/// Headers that carry a credential.
const CREDENTIALS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

/// What the headers say of who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    tenant: Option<(usize, u64)>,
    session: Option<(usize, u64)>,
    credential: Option<u64>,
    objective: Option<String>,
    /// What was read under which of [`wire::SLO`]'s names, and the milliseconds.
    slo: [Option<(usize, u32)>; 2],
    retries: u32,
    patience: Patience,
}

impl Caller {
    /// Takes a header into account, by its name in lower case.
    pub(super) fn note(&mut self, name: &str, value: &str, config: &Config) {
        let first = |held: &mut Option<(usize, u64)>, names: &Names, kind| {
            let place = names.place(name).filter(|_| !value.is_empty());
            if let Some(place) = place.filter(|place| held.is_none_or(|(held, _)| *place < held)) {
                *held = Some((place, config.id(kind, value)));
            }
        };
        first(&mut self.tenant, &config.tenant_headers, Kind::Tenant);
        first(&mut self.session, &config.session_headers, Kind::Session);
        if CREDENTIALS.contains(&name) {
            self.credential = Some(config.id(Kind::Client, value) ^ self.credential.unwrap_or(0));
        }
        if name == wire::OBJECTIVE {
            self.objective = word(value);
        }
        self.patience.note(name, value);
        for (header, first) in wire::RETRIES {
            // Both may be there: a library behind a proxy.
            if name == header {
                let tries = value.parse().unwrap_or(0_u32).saturating_sub(first);
                self.retries = self.retries.saturating_add(tries);
            }
        }
        for (held, names) in self.slo.iter_mut().zip(wire::SLO) {
            // What is no number of milliseconds is no objective: neither 0 nor one too large for any clock.
            let place = names.iter().position(|own| *own == name);
            let read = place.and_then(|place| Some((place, milliseconds(value)?)));
            if let Some(read) = read.filter(|read| held.is_none_or(|held| read.0 < held.0)) {
                *held = Some(read);
            }
        }
    }

    /// Who it is, as far as can be told from others here: by the credential, or else the tenant.
    pub(super) fn client(&self) -> Option<u64> {
        self.credential.or(self.tenant())
    }

    pub(super) fn tenant(&self) -> Option<u64> {
        self.tenant.map(|(_, id)| id)
    }

    pub(super) fn session(&self) -> Option<u64> {
        self.session.map(|(_, id)| id)
    }

    /// The objective of that place in [`wire::SLO`].
    pub(super) fn slo_ms(&self, at: usize) -> Option<u32> {
        self.slo.get(at).copied().flatten().map(|(_, ms)| ms)
    }

    pub(super) fn retries(&self) -> u32 {
        self.retries
    }

    pub(super) fn timeout_ms(&self, stream: bool) -> Option<u32> {
        self.patience.timeout_ms(stream)
    }

    pub(super) fn objective(&self) -> Option<String> {
        self.objective.clone()
    }
}

fn milliseconds(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|ms| digits && *ms > 0)
}

/// A short word of letters, digits and `._-`: safe in a line of fields. Nothing else counts as one.
pub(crate) fn word(text: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    ((1..=64).contains(&text.len()) && text.bytes().all(plain)).then(|| text.to_owned())
}
