//! The host as one filter of the chain sees it.
//!
//! Everything goes through to Envoy but two things. What filters tell each other is kept here; what the access log
//! prints goes to Envoy as well, block hashes and bodies do not. And there is one timer for all filters that want ticks.

use std::cell::{Cell, RefCell};
use std::time::Duration;
use weir::instant::Instant;
use weir::wire;
use weir_host::{Call, Fetch, Headers, Host, Kind, Metric, Of};

/// What the filters of one request have told each other.
pub(crate) type State = RefCell<Vec<(String, Vec<u8>)>>;

/// The ticks that the filters want.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    extract: Cell<Duration>,
    limit: Cell<Duration>,
    pick: Cell<Duration>,
}

impl Ticks {
    /// The host for `extract`.
    pub(crate) fn for_extract<'a>(&'a self, host: &'a dyn Host, state: &'a State) -> Part<'a> {
        Part { host, state, wants: Some((self, &self.extract)) }
    }

    /// The host for `limit`.
    pub(crate) fn for_limit<'a>(&'a self, host: &'a dyn Host, state: &'a State) -> Part<'a> {
        Part { host, state, wants: Some((self, &self.limit)) }
    }

    /// The host for `pick`.
    pub(crate) fn for_pick<'a>(&'a self, host: &'a dyn Host, state: &'a State) -> Part<'a> {
        Part { host, state, wants: Some((self, &self.pick)) }
    }

    pub(crate) fn extract_wants(&self) -> bool {
        !self.extract.get().is_zero()
    }

    pub(crate) fn limit_wants(&self) -> bool {
        !self.limit.get().is_zero()
    }

    pub(crate) fn pick_wants(&self) -> bool {
        !self.pick.get().is_zero()
    }
}

/// The host for one filter.
pub(crate) struct Part<'a> {
    host: &'a dyn Host,
    state: &'a State,
    /// The ticks that all filters want, and of these the ones that this filter does.
    wants: Option<(&'a Ticks, &'a Cell<Duration>)>,
}

impl<'a> Part<'a> {
    /// For a filter that wants no ticks.
    pub(crate) fn plain(host: &'a dyn Host, state: &'a State) -> Self {
        Self { host, state, wants: None }
    }
}

impl Host for Part<'_> {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            [name] => {
                let state = self.state.borrow();
                state.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
            }
            path => self.host.property(path),
        }
    }

    fn set_property(&self, name: &str, value: &[u8]) {
        if ![wire::BLOCKS, wire::BODY].contains(&name) {
            self.host.set_property(name, value);
        }
        let mut state = self.state.borrow_mut();
        state.retain(|(own, _)| own != name);
        state.push((name.to_owned(), value.to_vec()));
    }

    fn tick_every(&self, interval: Duration) {
        let Some((ticks, own)) = self.wants else { return };
        own.set(interval);
        // The quickest of them: a tick too many hurts nobody.
        let all = [ticks.extract.get(), ticks.limit.get(), ticks.pick.get()];
        self.host.tick_every(all.into_iter().filter(|wanted| !wanted.is_zero()).min().unwrap_or_default());
    }

    fn now(&self) -> Instant {
        self.host.now()
    }
    fn wall(&self) -> Duration {
        self.host.wall()
    }
    fn random(&self) -> u64 {
        self.host.random()
    }
    fn headers(&self, of: Of) -> Headers {
        self.host.headers(of)
    }
    fn set_header(&self, of: Of, name: &str, value: &str) {
        self.host.set_header(of, name, value);
    }
    fn remove_header(&self, of: Of, name: &str) {
        self.host.remove_header(of, name);
    }
    fn body(&self, of: Of, from: usize, len: usize) -> Vec<u8> {
        self.host.body(of, from, len)
    }
    fn set_body(&self, of: Of, len: usize, bytes: &[u8]) {
        self.host.set_body(of, len, bytes);
    }
    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) {
        self.host.respond(status, headers, body);
    }
    fn hold_answer(&self) {
        self.host.hold_answer();
    }
    fn call(&self, call: &Call<'_>) -> Option<u32> {
        self.host.call(call)
    }
    fn fetch(&self, fetch: &Fetch<'_>) -> Option<u32> {
        self.host.fetch(fetch)
    }
    fn define(&self, kind: Kind, name: &str) -> Metric {
        self.host.define(kind, name)
    }
    fn add(&self, metric: Metric, by: u64) {
        self.host.add(metric, by);
    }
    fn shift(&self, metric: Metric, by: i64) {
        self.host.shift(metric, by);
    }
    fn record(&self, metric: Metric, value: u64) {
        self.host.record(metric, value);
    }
    fn shared(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.host.shared(key)
    }
    fn set_shared(&self, key: &str, value: &[u8], version: Option<u32>) -> bool {
        self.host.set_shared(key, value, version)
    }
    fn create_shared(&self, key: &str, value: &[u8]) -> bool {
        self.host.create_shared(key, value)
    }
    fn queue(&self, name: &str) -> Option<u32> {
        self.host.queue(name)
    }
    fn enqueue(&self, queue: u32, message: &[u8]) {
        self.host.enqueue(queue, message);
    }
    fn dequeue(&self, queue: u32) -> Option<Vec<u8>> {
        self.host.dequeue(queue)
    }
    fn park(&self) {
        self.host.park();
    }
    fn wake(&self, stream: u32) {
        self.host.wake(stream);
    }
    fn stream(&self) -> u32 {
        self.host.stream()
    }
    fn enter(&self, stream: u32) -> bool {
        self.host.enter(stream)
    }
    fn leave(&self) {
        self.host.leave();
    }
}
