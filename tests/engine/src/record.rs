//! What was received: the last inference requests, for tests that ask what reached the engine.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Version};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::xxh64;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Not yet.
    Open,
    /// Answered to the end, be it with an error status.
    Done,
    /// The client left, or a fault broke the answer off.
    Aborted,
}

/// One inference request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Counts up from 0 over the engine's life.
    pub id: u64,
    /// The path, without the query.
    pub path: String,
    /// The query, empty if there is none.
    pub query: String,
    /// The method.
    pub method: String,
    /// `HTTP/1.1` or `HTTP/2`.
    pub version: String,
    /// The headers as received, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Length of the raw body in bytes.
    pub body_len: usize,
    /// xxHash64 (seed 0) of the raw body, 16 hex digits.
    pub body_xxh64: String,
    /// The model that serves it; empty if the request was refused.
    pub model: String,
    /// Whether it asked for a stream.
    pub stream: bool,
    /// Tokens in the prompt.
    pub prompt_tokens: u64,
    /// Those of them found in the prefix cache, known when prefill begins.
    pub cached_tokens: u64,
    /// The status answered, 0 while there is none.
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
}

impl Record {
    /// The first value of a header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn new(parts: &Parts, body: &[u8]) -> Self {
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        Self {
            id: 0,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            method: parts.method.to_string(),
            version: version_name(parts.version).to_owned(),
            headers: parts.headers.iter().map(header).collect(),
            body_len: body.len(),
            body_xxh64: hex(xxh64(body, 0)),
            model: String::new(),
            stream: false,
            prompt_tokens: 0,
            cached_tokens: 0,
            status: 0,
            outcome: Outcome::Open,
        }
    }
}

/// How an HTTP version is written.
pub(crate) fn version_name(version: Version) -> &'static str {
    if version == Version::HTTP_2 { "HTTP/2" } else { "HTTP/1.1" }
}

/// How a hash is written.
pub(crate) fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// The last `limit` records.
pub(crate) struct Log {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    records: VecDeque<Record>,
}

impl Log {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, kept: Mutex::default() }
    }

    pub(crate) fn list(&self) -> Vec<Record> {
        self.kept.lock().unwrap().records.iter().cloned().collect()
    }

    pub(crate) fn clear(&self) {
        self.kept.lock().unwrap().records.clear();
    }

    /// Records a request; what becomes of it is told to the entry.
    pub(crate) fn open(self: &Arc<Self>, parts: &Parts, body: &[u8]) -> Entry {
        if self.limit == 0 {
            return Entry { log: self.clone(), id: 0, ended: true };
        }
        let mut record = Record::new(parts, body);
        let mut kept = self.kept.lock().unwrap();
        record.id = kept.next;
        kept.next += 1;
        if kept.records.len() == self.limit {
            kept.records.pop_front();
        }
        let id = record.id;
        kept.records.push_back(record);
        Entry { log: self.clone(), id, ended: false }
    }

    /// Changes a record that is still kept. Ids are consecutive, so its place follows from the first's.
    fn update(&self, id: u64, change: impl FnOnce(&mut Record)) {
        let mut kept = self.kept.lock().unwrap();
        let first = kept.records.front().map_or(0, |record| record.id);
        let place = id.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        if let Some(record) = place.and_then(|place| kept.records.get_mut(place)) {
            change(record);
        }
    }
}

/// The open record of a request. Dropped before its end, it says that the request was aborted.
pub(crate) struct Entry {
    log: Arc<Log>,
    id: u64,
    ended: bool,
}

impl Entry {
    pub(crate) fn update(&self, change: impl FnOnce(&mut Record)) {
        if !self.ended {
            self.log.update(self.id, change);
        }
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        self.update(|record| record.outcome = outcome);
        self.ended = true;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.end(Outcome::Aborted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_records_go_and_late_news_of_them_is_ignored() {
        let log = Arc::new(Log::new(2));
        let (parts, ()) = axum::http::Request::new(()).into_parts();
        let mut entries: Vec<Entry> = (0..3).map(|_| log.open(&parts, b"")).collect();
        entries[0].end(Outcome::Aborted);
        entries[1].end(Outcome::Done);
        let seen: Vec<_> = log.list().into_iter().map(|record| (record.id, record.outcome)).collect();
        assert_eq!(seen, [(1, Outcome::Done), (2, Outcome::Open)]);
        drop(entries);
        assert_eq!(log.list()[1].outcome, Outcome::Aborted);
    }
}
