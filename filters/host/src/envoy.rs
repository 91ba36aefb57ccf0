//! Envoy as the host: its callbacks become the [`Filter`]'s, and what holding a request means is settled here.
//!
//! - A request that waits for a call is held by every callback that comes meanwhile, whatever it brings: a body
//!   callback that says "continue" would release the headers undecided.
//! - The reply to a call resumes the request. A reply that comes when none is awaited is dropped.
//! - Once a request has been answered here nothing resumes it: Envoy would send it on as well.
//! - A parked request is held in the same way, until the root context wakes it. Only the root's callbacks come then, so what belongs
//!   to the stream is kept where the root reaches it, and taken back with the stream's own next callback.

use crate::{Body, Call, Fetch, Filter, Flow, Headers, Host, Kind, Metric, Of, Reply, abi};
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, BufferType, ContextType, LogLevel, MapType, MetricType};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use weir::instant::Instant;
use weir::wire;

/// The entry of a module: from here on Envoy's callbacks reach `F`.
pub fn start<F: Filter>() {
    proxy_wasm::set_log_level(LogLevel::Info);
    std::panic::set_hook(Box::new(|info| log::error!("{}: {info}", F::NAME)));
    proxy_wasm::set_root_context(|id| Box::new(Root::<F> { id, filter: None, parked: Rc::default() }));
}

/// Requests that are parked, by their contexts.
type Parked<F> = Rc<RefCell<HashMap<u32, Open<F>>>>;

struct Root<F: Filter> {
    id: u32,
    filter: Option<Rc<RefCell<F>>>,
    parked: Parked<F>,
}

impl<F: Filter> Root<F> {
    fn with(&self, act: impl FnOnce(&mut F, &dyn Host)) {
        let host = Envoy::new(self.id, self.id);
        if let Some(Ok(mut filter)) = self.filter.as_ref().map(|filter| filter.try_borrow_mut()) {
            act(&mut filter, &host);
        }
        for stream in host.woken.take() {
            // One whose call is out is no longer parked.
            let parks = |parked: &HashMap<u32, Open<F>>| {
                parked.get(&stream).is_some_and(|open| open.host.parked.get())
            };
            if self.parked.try_borrow().is_ok_and(|parked| parks(&parked)) {
                self.act_on(stream, |filter, open| {
                    open.host.parked.set(false);
                    let flow = filter.woken(&mut open.stream, &open.host);
                    open.host.parked.set(flow == Flow::Hold && !open.host.waits());
                    flow
                });
            }
        }
    }

    /// Lets the filter act on a stream that is kept here, and the request go on if it may.
    fn act_on(&self, stream: u32, act: impl FnOnce(&mut F, &mut Open<F>) -> Flow) {
        if !abi::enter(stream) {
            return;
        }
        let taken = self.parked.try_borrow_mut().ok().and_then(|mut parked| parked.remove(&stream));
        if let Some(mut open) = taken
            && let Some(Ok(mut filter)) = self.filter.as_ref().map(|filter| filter.try_borrow_mut())
        {
            open.host.now.set(None);
            let flow = act(&mut filter, &mut open);
            let goes_on = flow == Flow::Continue && !open.host.waits();
            if let Ok(mut parked) = self.parked.try_borrow_mut() {
                parked.insert(stream, open);
            }
            if goes_on {
                abi::continue_request();
            }
        }
        abi::enter(self.id);
    }
}

impl<F: Filter> Context for Root<F> {
    fn on_http_call_response(&mut self, call: u32, _: usize, body_size: usize, _: usize) {
        // A call that a request made when it was woken: the SDK takes it for the root's.
        let stream = self.parked.try_borrow().ok().and_then(|parked| {
            parked.iter().find(|(_, open)| open.host.call.get() == Some(call)).map(|(stream, _)| *stream)
        });
        match stream {
            Some(stream) => self.act_on(stream, |filter, open| {
                open.host.call.set(None);
                filter.reply(&mut open.stream, &open.host, reply(body_size))
            }),
            None => self.with(|filter, host| filter.told(host, call, reply(body_size))),
        }
    }
}

impl<F: Filter> RootContext for Root<F> {
    fn on_configure(&mut self, size: usize) -> bool {
        let config = abi::buffer(BufferType::PluginConfiguration, 0, size).unwrap_or_default();
        match F::configure(&config, &Envoy::new(self.id, self.id)) {
            Ok(filter) => {
                self.filter = Some(Rc::new(RefCell::new(filter)));
                true
            }
            Err(invalid) => {
                log::error!("{}: configuration refused: {invalid}", F::NAME);
                false
            }
        }
    }

    fn on_tick(&mut self) {
        self.with(|filter, host| filter.tick(host));
    }

    fn on_queue_ready(&mut self, queue: u32) {
        self.with(|filter, host| filter.message(host, queue));
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        let host = Envoy::new(id, self.id);
        let stream = self.filter.as_ref().and_then(|filter| Some(filter.try_borrow_mut().ok()?.open(&host)));
        let open = stream.map(|stream| Open { stream, host });
        Some(Box::new(Http { id, filter: self.filter.clone(), open, parked: self.parked.clone() }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// What belongs to one request.
struct Open<F: Filter> {
    stream: F::Stream,
    host: Envoy,
}

struct Http<F: Filter> {
    id: u32,
    filter: Option<Rc<RefCell<F>>>,
    /// `None` while it is parked.
    open: Option<Open<F>>,
    parked: Parked<F>,
}

impl<F: Filter> Http<F> {
    fn with<T>(&mut self, act: impl FnOnce(&mut F, &mut F::Stream, &dyn Host) -> T) -> Option<T> {
        let mut filter = self.filter.as_ref()?.try_borrow_mut().ok()?;
        if self.open.is_none() {
            self.open = self.parked.try_borrow_mut().ok()?.remove(&self.id);
        }
        let Open { stream, host } = self.open.as_mut()?;
        host.now.set(None);
        Some(act(&mut filter, stream, host))
    }

    /// Whether the request is held by a call, an answer, or a wish to be woken.
    fn waits(&self) -> bool {
        match &self.open {
            Some(open) => open.host.waits(),
            None => self
                .parked
                .try_borrow()
                .is_ok_and(|parked| parked.get(&self.id).is_some_and(|open| open.host.waits())),
        }
    }

    /// A callback of the request's way: held while a call is out or after an answer.
    fn request(&mut self, act: impl FnOnce(&mut F, &mut F::Stream, &dyn Host) -> Flow) -> Action {
        if self.waits() {
            return Action::Pause;
        }
        let flow = self.with(act).unwrap_or(Flow::Continue);
        let holds = flow == Flow::Hold || self.waits();
        self.park();
        if holds { Action::Pause } else { Action::Continue }
    }

    /// A callback of the answer's way: held as long as the filter says so.
    fn answer(&mut self, act: impl FnOnce(&mut F, &mut F::Stream, &dyn Host)) -> Action {
        self.with(act);
        let holds = self.open.as_ref().is_some_and(|open| open.host.holds_answer.take());
        if holds { Action::Pause } else { Action::Continue }
    }

    /// Puts what belongs to the stream where the root reaches it, if the filter wants it to.
    fn park(&mut self) {
        if let Some(open) = self.open.take_if(|open| open.host.parked.get())
            && let Ok(mut parked) = self.parked.try_borrow_mut()
        {
            parked.insert(self.id, open);
        }
    }
}

impl<F: Filter> Context for Http<F> {
    fn on_done(&mut self) -> bool {
        self.with(|filter, stream, host| filter.done(stream, host));
        true
    }

    fn on_http_call_response(&mut self, call: u32, _: usize, body_size: usize, _: usize) {
        let Some(open) = self.open.as_ref().filter(|open| open.host.call.get() == Some(call)) else { return };
        open.host.call.set(None);
        let reply = reply(body_size);
        let flow =
            self.with(|filter, stream, host| filter.reply(stream, host, reply)).unwrap_or(Flow::Continue);
        if flow == Flow::Continue && !self.waits() {
            abi::continue_request();
        }
        self.park();
    }
}

impl<F: Filter> HttpContext for Http<F> {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        self.request(|filter, stream, host| filter.request_headers(stream, host, end))
    }

    fn on_http_request_body(&mut self, len: usize, end: bool) -> Action {
        self.request(|filter, stream, host| filter.request_body(stream, host, Body { len, end }))
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.request(|filter, stream, host| filter.request_trailers(stream, host))
    }

    fn on_http_response_headers(&mut self, _: usize, end: bool) -> Action {
        self.answer(|filter, stream, host| filter.response_headers(stream, host, end))
    }

    fn on_http_response_body(&mut self, len: usize, end: bool) -> Action {
        self.answer(|filter, stream, host| filter.response_body(stream, host, Body { len, end }))
    }

    fn on_log(&mut self) {
        self.with(|filter, stream, host| filter.log(stream, host));
    }
}

/// Envoy, as one context sees it.
struct Envoy {
    id: u32,
    root: u32,
    /// The call whose reply is awaited.
    call: Cell<Option<u32>>,
    answered: Cell<bool>,
    /// The answer's headers wait for its body.
    holds_answer: Cell<bool>,
    /// It waits to be woken.
    parked: Cell<bool>,
    /// Of the root: streams to be woken when this callback is over.
    woken: RefCell<Vec<u32>>,
    /// The time of this callback: within one it is asked for more than once, and each look costs a call.
    now: Cell<Option<Instant>>,
}

impl Envoy {
    fn new(id: u32, root: u32) -> Self {
        Self {
            id,
            root,
            call: Cell::new(None),
            answered: Cell::new(false),
            holds_answer: Cell::new(false),
            parked: Cell::new(false),
            woken: RefCell::default(),
            now: Cell::new(None),
        }
    }

    fn waits(&self) -> bool {
        self.call.get().is_some() || self.answered.get() || self.parked.get()
    }
}

/// What came back from the call whose callback this is.
fn reply(body_size: usize) -> Reply {
    Reply {
        headers: abi::headers(MapType::HttpCallResponseHeaders),
        body: match body_size {
            0..=Reply::MOST_BYTES => abi::buffer(BufferType::HttpCallResponseBody, 0, body_size),
            _ => None,
        }
        .unwrap_or_default(),
    }
}

fn map(of: Of) -> MapType {
    match of {
        Of::Request => MapType::HttpRequestHeaders,
        Of::Response => MapType::HttpResponseHeaders,
    }
}

fn buffer(of: Of) -> BufferType {
    match of {
        Of::Request => BufferType::HttpRequestBody,
        Of::Response => BufferType::HttpResponseBody,
    }
}

impl Host for Envoy {
    fn now(&self) -> Instant {
        let now = self.now.get().unwrap_or_else(|| Instant::from_nanos(abi::monotonic()));
        self.now.set(Some(now));
        now
    }

    fn wall(&self) -> Duration {
        Duration::from_nanos(abi::wall())
    }

    fn random(&self) -> u64 {
        abi::random()
    }

    fn headers(&self, of: Of) -> Headers {
        abi::headers(map(of))
    }

    fn set_header(&self, of: Of, name: &str, value: &str) {
        abi::replace_header(map(of), name, value);
    }

    fn remove_header(&self, of: Of, name: &str) {
        abi::remove_header(map(of), name);
    }

    fn body(&self, of: Of, from: usize, len: usize) -> Vec<u8> {
        abi::buffer(buffer(of), from, len).unwrap_or_default()
    }

    fn set_body(&self, of: Of, len: usize, bytes: &[u8]) {
        abi::set_buffer(buffer(of), len, bytes);
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            [name] => abi::property(name.as_bytes()),
            path => abi::property(path.join("\0").as_bytes()),
        }
    }

    fn set_property(&self, name: &str, value: &[u8]) {
        abi::set_property(name.as_bytes(), value);
    }

    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) {
        self.answered.set(true);
        abi::respond(status, headers, body);
    }

    fn hold_answer(&self) {
        self.holds_answer.set(true);
    }

    fn call(&self, call: &Call<'_>) -> Option<u32> {
        let headers = vec![
            (":method", "POST"),
            (":path", call.path),
            (":authority", call.cluster),
            ("content-type", "application/json"),
        ];
        let sent =
            hostcalls::dispatch_http_call(call.cluster, headers, Some(call.body), vec![], call.timeout);
        let call = sent.ok();
        if call.is_some() {
            self.call.set(call);
        }
        call
    }

    fn fetch(&self, fetch: &Fetch<'_>) -> Option<u32> {
        let Fetch { cluster, endpoint, path, body, timeout } = *fetch;
        let post = !body.is_empty();
        let mut headers = vec![
            (":method", if post { "POST" } else { "GET" }),
            (":path", path),
            (":authority", endpoint),
            (wire::DESTINATION, endpoint),
        ];
        headers.extend(post.then_some(("content-type", "application/json")));
        hostcalls::dispatch_http_call(cluster, headers, Some(body).filter(|_| post), vec![], timeout).ok()
    }

    fn define(&self, kind: Kind, name: &str) -> Metric {
        let kind = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        Metric(abi::define_metric(kind, name))
    }

    fn add(&self, metric: Metric, by: u64) {
        abi::add_metric(metric.0, by);
    }

    fn shift(&self, metric: Metric, by: i64) {
        abi::shift_metric(metric.0, by);
    }

    fn record(&self, metric: Metric, value: u64) {
        abi::record_metric(metric.0, value);
    }

    fn tick_every(&self, interval: Duration) {
        abi::tick_every(u32::try_from(interval.as_millis()).unwrap_or(u32::MAX));
    }

    fn shared(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        abi::shared(key)
    }

    fn set_shared(&self, key: &str, value: &[u8], version: Option<u32>) -> bool {
        // The ABI's zero is "whatever its version": no stored value has it.
        abi::set_shared(key, value, version.unwrap_or(0))
    }

    fn create_shared(&self, key: &str, value: &[u8]) -> bool {
        // Envoy looks at the version only where there is a value, and versions are counted up from one, over all
        // values of the process: no stored value has this one.
        abi::set_shared(key, value, u32::MAX)
    }

    fn queue(&self, name: &str) -> Option<u32> {
        abi::register_queue(name)
    }

    fn enqueue(&self, queue: u32, message: &[u8]) {
        abi::enqueue(queue, message);
    }

    fn dequeue(&self, queue: u32) -> Option<Vec<u8>> {
        abi::dequeue(queue)
    }

    fn park(&self) {
        self.parked.set(true);
    }

    fn wake(&self, stream: u32) {
        self.woken.borrow_mut().push(stream);
    }

    fn stream(&self) -> u32 {
        self.id
    }

    fn enter(&self, stream: u32) -> bool {
        abi::enter(stream)
    }

    fn leave(&self) {
        abi::enter(self.root);
    }
}
