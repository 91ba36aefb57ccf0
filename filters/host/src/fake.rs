//! An Envoy in memory, for tests: one filter, its worker, and what the client and the endpoint would see.
//!
//! It keeps the rules that a real one has and fails the test when a filter breaks them: only declared callbacks come;
//! headers cannot be changed once they have gone on; a body can be read or replaced only in its callback, replaced only
//! as a whole, and goes on with its right length; a held body grows while a passing one comes in pieces; an answer is given once; a reply comes only to a stream
//! that waits; nothing goes on while a call is out.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test that breaks a rule must fail"
)]

use crate::{Body, Call, Callback, Fetch, Filter, Flow, Headers, Host, Kind, Metric, Of, Reply};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use weir::instant::Instant;
use weir::invalid::Invalid;
use weir::random::Random;

/// What all workers of one Envoy share.
#[derive(Debug)]
pub struct World {
    now: Cell<Instant>,
    random: RefCell<Random>,
    metrics: RefCell<Vec<(String, u64)>>,
    shared: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    queues: RefCell<Vec<(String, VecDeque<Vec<u8>>)>>,
    ids: Cell<u32>,
}

impl World {
    /// An Envoy that has just started.
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            now: Cell::new(Instant::from_millis(1_000)),
            random: RefCell::new(Random::new(11)),
            metrics: RefCell::default(),
            shared: RefCell::default(),
            queues: RefCell::default(),
            ids: Cell::new(0),
        })
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now.get()
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> u64 {
        self.metrics.borrow().iter().find(|(own, _)| own == name).map_or(0, |(_, value)| *value)
    }

    fn next_id(&self) -> u32 {
        self.ids.set(self.ids.get() + 1);
        self.ids.get()
    }
}

/// One worker, with one filter.
#[derive(Debug)]
pub struct Worker<F: Filter> {
    filter: F,
    root: Fake,
    world: Rc<World>,
}

/// One request at one filter.
#[derive(Debug)]
pub struct Exchange<F: Filter> {
    stream: F::Stream,
    fake: Fake,
    held: bool,
    has_body: bool,
    /// All of the body has come.
    ended: bool,
}

/// A call that a filter made.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its number.
    pub number: u32,
    /// The cluster called.
    pub cluster: String,
    /// The path.
    pub path: String,
    /// The body.
    pub body: Vec<u8>,
    /// The endpoint that is asked, if it is a certain one.
    pub endpoint: Option<String>,
}

/// An answer that a filter gave.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

impl<F: Filter> Worker<F> {
    /// A worker of an Envoy of its own. Fails the test when the configuration is refused.
    pub fn new(config: &str) -> Self {
        Self::of(&World::new(), config).expect("a good configuration")
    }

    /// One more worker of an Envoy.
    pub fn of(world: &Rc<World>, config: &str) -> Result<Self, Invalid> {
        let root = Fake::new(world, &Rc::default());
        Ok(Self { filter: F::configure(config.as_bytes(), &root)?, root, world: world.clone() })
    }

    /// Its Envoy.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// A request comes, with filter state that earlier filters have published.
    pub fn request(&mut self, headers: &[(&str, &str)], state: &[(&str, &[u8])], end: bool) -> Exchange<F> {
        let fake = Fake::new(&self.world, &self.root.ticks);
        fake.request
            .replace(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
        fake.state.replace(state.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect());
        fake.request_open.set(true);
        let stream = self.filter.open(&fake);
        let mut exchange = Exchange { stream, fake, held: false, has_body: !end, ended: false };
        if declared::<F>(Callback::RequestHeaders) {
            let flow = self.filter.request_headers(&mut exchange.stream, &exchange.fake, end);
            exchange.follow(flow);
        } else {
            exchange.follow(Flow::Continue);
        }
        exchange
    }

    /// More of the request's body comes.
    pub fn body(&mut self, exchange: &mut Exchange<F>, bytes: &[u8], end: bool) {
        if exchange.fake.waits() || !declared::<F>(Callback::RequestBody) {
            return;
        }
        let mut body = exchange.fake.body.borrow_mut();
        if !exchange.held {
            body.clear();
        }
        body.extend_from_slice(bytes);
        let len = body.len();
        drop(body);
        exchange.ended = end;
        exchange.fake.body_open.set(true);
        let flow = self.filter.request_body(&mut exchange.stream, &exchange.fake, Body { len, end });
        exchange.fake.body_open.set(false);
        exchange.follow(flow);
    }

    /// The request ends with trailers.
    pub fn trailers(&mut self, exchange: &mut Exchange<F>) {
        exchange.ended = true;
        exchange.fake.body_open.set(true);
        let flow = self.filter.request_trailers(&mut exchange.stream, &exchange.fake);
        exchange.fake.body_open.set(false);
        exchange.follow(flow);
    }

    /// The call that the request waits for is answered.
    pub fn reply(&mut self, exchange: &mut Exchange<F>, headers: &[(&str, &str)], body: &[u8]) {
        assert!(exchange.fake.calling.replace(false), "no call is out");
        let headers = headers.iter().copied().collect();
        let flow =
            self.filter.reply(&mut exchange.stream, &exchange.fake, Reply { headers, body: body.to_vec() });
        exchange.follow(flow);
    }

    /// The endpoint answers with headers, from `upstream`.
    pub fn response(&mut self, exchange: &mut Exchange<F>, upstream: &str, headers: &[(&str, &str)]) {
        assert!(!exchange.held, "the endpoint answers a request that never reached it");
        exchange
            .fake
            .response
            .replace(headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect());
        exchange.fake.state.borrow_mut().insert("upstream.address".into(), upstream.into());
        if let Some(code) = headers.iter().find(|(name, _)| *name == ":status") {
            let code = code.1.parse().unwrap_or(0_i64).to_le_bytes().to_vec();
            exchange.fake.state.borrow_mut().insert("response.code".into(), code);
        }
        if declared::<F>(Callback::ResponseHeaders) {
            exchange.fake.response_open.set(true);
            self.filter.response_headers(&mut exchange.stream, &exchange.fake, false);
            exchange.fake.response_open.set(exchange.fake.holds_answer.get());
        }
    }

    /// A piece of the endpoint's answer, behind what is held of it; gives what the client gets now.
    pub fn piece(&mut self, exchange: &mut Exchange<F>, bytes: &[u8], end: bool) -> Vec<u8> {
        exchange.fake.piece.borrow_mut().extend_from_slice(bytes);
        exchange.fake.holds_answer.set(false);
        if declared::<F>(Callback::ResponseBody) {
            let piece = Body { len: exchange.fake.piece.borrow().len(), end };
            self.filter.response_body(&mut exchange.stream, &exchange.fake, piece);
        }
        if exchange.fake.holds_answer.get() {
            assert!(!end, "held, and nothing will ever come");
            return Vec::new();
        }
        exchange.fake.response_open.set(false);
        exchange.fake.piece.take()
    }

    /// Streams that the last callbacks outside of streams have woken, by [`Exchange::number`].
    pub fn woken(&self) -> Vec<u32> {
        self.root.woken.take()
    }

    /// A parked request is woken.
    pub fn wake(&mut self, exchange: &mut Exchange<F>) {
        assert!(exchange.fake.parked.replace(false), "woken, and was not parked");
        let flow = self.filter.woken(&mut exchange.stream, &exchange.fake);
        exchange.fake.parked.set(flow == Flow::Hold && !exchange.fake.waits());
        exchange.follow(flow);
    }

    /// The queue that a filter registered last, if it did; its messages come by [`Worker::hear`].
    pub fn last_queue(&self) -> Option<u32> {
        u32::try_from(self.world.queues.borrow().len().checked_sub(1)?).ok()
    }

    /// The stream is over; gives what there was to see.
    pub fn finish(&mut self, exchange: Exchange<F>) -> Fake {
        self.finish_with(exchange, &[])
    }

    /// The stream is over, and filters behind this one publish something only then, in their log callbacks.
    pub fn finish_with(&mut self, mut exchange: Exchange<F>, late: &[(&str, &[u8])]) -> Fake {
        exchange.fake.request_open.set(false);
        if declared::<F>(Callback::Log) {
            self.filter.log(&mut exchange.stream, &exchange.fake);
        }
        late.iter().for_each(|(name, value)| exchange.fake.set_property(name, value));
        if declared::<F>(Callback::Done) {
            self.filter.done(&mut exchange.stream, &exchange.fake);
        }
        exchange.fake
    }

    /// A tick, if the filter asked for one; says whether it did.
    pub fn tick(&mut self) -> bool {
        let wanted = self.root.ticks.get();
        if wanted {
            self.filter.tick(&self.root);
        }
        wanted
    }

    /// The last call that was made outside of streams is answered.
    pub fn told(&mut self, headers: &[(&str, &str)], body: &[u8]) {
        let reply = Reply { headers: headers.iter().copied().collect(), body: body.to_vec() };
        self.filter.told(&self.root, self.root.called.get(), reply);
    }

    /// This call, made outside of streams, is answered.
    pub fn tell(&mut self, call: &Sent, headers: &[(&str, &str)], body: &[u8]) {
        let reply = Reply { headers: headers.iter().copied().collect(), body: body.to_vec() };
        self.filter.told(&self.root, call.number, reply);
    }

    /// Calls that were made outside of streams.
    pub fn calls(&self) -> Vec<Sent> {
        self.root.calls.take()
    }

    /// Somebody sends to a queue.
    pub fn send(&self, queue: u32, message: &[u8]) {
        self.root.enqueue(queue, message);
    }

    /// Delivers what waits in the queues of this worker.
    pub fn hear(&mut self, queue: u32) {
        self.filter.message(&self.root, queue);
    }
}

impl<F: Filter> Exchange<F> {
    fn follow(&mut self, flow: Flow) {
        let was_held = self.held;
        self.held = flow == Flow::Hold || self.fake.waits();
        assert!(!(self.held && !self.has_body && !self.fake.waits()), "held, and nothing will ever come");
        if !self.held {
            self.fake.request_open.set(false);
        }
        if was_held && !self.held && self.ended {
            let right = self.fake.body.borrow().len().to_string();
            assert!(
                self.fake.header("content-length").iter().all(|said| *said == right),
                "a wrong content-length"
            );
        }
    }

    /// By which number it is woken.
    pub fn number(&self) -> u32 {
        self.fake.id
    }

    /// Whether it waits to be woken.
    pub fn parked(&self) -> bool {
        self.fake.parked.get()
    }

    /// Whether the request is being held.
    pub fn held(&self) -> bool {
        self.held
    }

    /// What there is to see.
    pub fn see(&self) -> &Fake {
        &self.fake
    }
}

fn declared<F: Filter>(callback: Callback) -> bool {
    F::CALLBACKS.contains(&callback)
}

/// Envoy, as one stream or one worker sees it; and, for the test, what came of it.
#[derive(Debug)]
pub struct Fake {
    world: Rc<World>,
    id: u32,
    request: RefCell<Vec<(String, String)>>,
    response: RefCell<Vec<(String, String)>>,
    request_open: Cell<bool>,
    response_open: Cell<bool>,
    holds_answer: Cell<bool>,
    body: RefCell<Vec<u8>>,
    body_open: Cell<bool>,
    piece: RefCell<Vec<u8>>,
    state: RefCell<HashMap<String, Vec<u8>>>,
    answer: RefCell<Option<Answer>>,
    calls: RefCell<Vec<Sent>>,
    calling: Cell<bool>,
    parked: Cell<bool>,
    /// Of the worker: streams that it wants woken.
    woken: RefCell<Vec<u32>>,
    /// The number of the last call.
    called: Cell<u32>,
    /// Of the worker: a stream's wish for ticks is its worker's.
    ticks: Rc<Cell<bool>>,
}

impl Fake {
    pub(crate) fn new(world: &Rc<World>, ticks: &Rc<Cell<bool>>) -> Self {
        Self {
            world: world.clone(),
            id: world.next_id(),
            request: RefCell::default(),
            response: RefCell::default(),
            request_open: Cell::new(false),
            response_open: Cell::new(false),
            holds_answer: Cell::new(false),
            body: RefCell::default(),
            body_open: Cell::new(false),
            piece: RefCell::default(),
            state: RefCell::default(),
            answer: RefCell::default(),
            calls: RefCell::default(),
            calling: Cell::new(false),
            parked: Cell::new(false),
            woken: RefCell::default(),
            called: Cell::new(0),
            ticks: ticks.clone(),
        }
    }

    fn note_call(&self, sent: Sent) -> u32 {
        let number = sent.number;
        self.called.set(number);
        self.calls.borrow_mut().push(sent);
        number
    }

    fn headers_of(&self, of: Of) -> &RefCell<Vec<(String, String)>> {
        match of {
            Of::Request => &self.request,
            Of::Response => &self.response,
        }
    }

    fn waits(&self) -> bool {
        self.calling.get() || self.parked.get() || self.answer.borrow().is_some()
    }

    /// The values of a request header, as the endpoint gets them.
    pub fn header(&self, name: &str) -> Vec<String> {
        self.values(Of::Request, name)
    }

    /// The values of a header of the answer, as the client gets them.
    pub fn answer_header(&self, name: &str) -> Vec<String> {
        self.values(Of::Response, name)
    }

    fn values(&self, of: Of, name: &str) -> Vec<String> {
        let headers = self.headers_of(of).borrow();
        headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.clone()).collect()
    }

    /// The request's body so far, as the endpoint gets it when it was held.
    pub fn sent(&self) -> Vec<u8> {
        self.body.borrow().clone()
    }

    /// Filter state as text.
    pub fn state(&self, name: &str) -> Option<String> {
        self.state.borrow().get(name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// The answer that the filter gave itself.
    pub fn answer(&self) -> Option<Answer> {
        self.answer.borrow().clone()
    }

    /// Whether the answer's headers wait for its body.
    pub fn holds_answer(&self) -> bool {
        self.holds_answer.get()
    }

    /// Calls made for this stream.
    pub fn calls(&self) -> Vec<Sent> {
        self.calls.take()
    }
}

impl Host for Fake {
    fn now(&self) -> Instant {
        self.world.now.get()
    }

    fn wall(&self) -> Duration {
        const START: Duration = Duration::from_secs(1_700_000_000);
        START + self.world.now.get().since(Instant::from_nanos(0))
    }

    fn random(&self) -> u64 {
        self.world.random.borrow_mut().next()
    }

    fn headers(&self, of: Of) -> Headers {
        let headers = match of {
            // What Envoy has no map for at the moment it does not give.
            Of::Request if !self.request_open.get() => return Headers::default(),
            Of::Request => &self.request,
            Of::Response => &self.response,
        };
        headers.borrow().iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    fn set_header(&self, of: Of, name: &str, value: &str) {
        self.remove_header(of, name);
        self.headers_of(of).borrow_mut().push((name.to_owned(), value.to_owned()));
    }

    fn remove_header(&self, of: Of, name: &str) {
        let open = match of {
            Of::Request => &self.request_open,
            Of::Response => &self.response_open,
        };
        assert!(open.get(), "{name}: these headers have gone on");
        self.headers_of(of).borrow_mut().retain(|(own, _)| own != name);
    }

    fn body(&self, of: Of, from: usize, len: usize) -> Vec<u8> {
        let body = match of {
            Of::Request => {
                assert!(self.body_open.get(), "no body callback");
                self.body.borrow()
            }
            Of::Response => self.piece.borrow(),
        };
        body.iter().skip(from).take(len).copied().collect()
    }

    fn set_body(&self, of: Of, len: usize, bytes: &[u8]) {
        let body = match of {
            Of::Request => {
                assert!(
                    self.body_open.get() && self.request_open.get(),
                    "no body callback of a held request"
                );
                &self.body
            }
            Of::Response => &self.piece,
        };
        assert_eq!(body.replace(bytes.to_vec()).len(), len, "Envoy replaces all of a body, or nothing");
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.state.borrow().get(&path.join(".")).cloned()
    }

    fn set_property(&self, name: &str, value: &[u8]) {
        self.state.borrow_mut().insert(name.to_owned(), value.to_vec());
    }

    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let answer = Answer { status, headers, body: String::from_utf8_lossy(body).into_owned() };
        assert!(self.answer.replace(Some(answer)).is_none(), "answered twice");
    }

    fn hold_answer(&self) {
        assert!(self.response_open.get(), "the answer's headers have gone on, or have not come");
        self.holds_answer.set(true);
    }

    fn call(&self, call: &Call<'_>) -> Option<u32> {
        if call.cluster == "missing" {
            return None;
        }
        assert!(!self.calling.replace(self.request_open.get()), "a call is out already");
        let (cluster, path, body) = (call.cluster.into(), call.path.into(), call.body.to_vec());
        Some(self.note_call(Sent { number: self.world.next_id(), cluster, path, body, endpoint: None }))
    }

    fn fetch(&self, fetch: &Fetch<'_>) -> Option<u32> {
        assert!(!self.request_open.get(), "a stream would wait for the answer");
        if fetch.cluster == "missing" {
            return None;
        }
        let (cluster, path, body) = (fetch.cluster.into(), fetch.path.into(), fetch.body.to_vec());
        let (number, endpoint) = (self.world.next_id(), Some(fetch.endpoint.to_owned()));
        Some(self.note_call(Sent { number, cluster, path, body, endpoint }))
    }

    fn define(&self, _: Kind, name: &str) -> Metric {
        let mut metrics = self.world.metrics.borrow_mut();
        let at = metrics.iter().position(|(own, _)| own == name).unwrap_or_else(|| {
            metrics.push((name.to_owned(), 0));
            metrics.len() - 1
        });
        Metric(u32::try_from(at).unwrap_or(u32::MAX))
    }

    fn add(&self, metric: Metric, by: u64) {
        if let Some((_, value)) = self.world.metrics.borrow_mut().get_mut(metric.0 as usize) {
            *value += by;
        }
    }

    fn shift(&self, metric: Metric, by: i64) {
        if let Some((name, value)) = self.world.metrics.borrow_mut().get_mut(metric.0 as usize) {
            *value = value.checked_add_signed(by).unwrap_or_else(|| panic!("{name} falls below zero"));
        }
    }

    fn record(&self, metric: Metric, to: u64) {
        if let Some((_, value)) = self.world.metrics.borrow_mut().get_mut(metric.0 as usize) {
            *value = to;
        }
    }

    fn tick_every(&self, interval: Duration) {
        self.ticks.set(!interval.is_zero());
    }

    fn shared(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.world.shared.borrow().get(key).cloned()
    }

    fn set_shared(&self, key: &str, value: &[u8], version: Option<u32>) -> bool {
        let next = self.world.next_id();
        let mut shared = self.world.shared.borrow_mut();
        // As Envoy has it: where there is no value, any version will do.
        let fits = version.is_none_or(|version| shared.get(key).is_none_or(|(_, own)| *own == version));
        if fits {
            shared.insert(key.to_owned(), (value.to_vec(), next));
        }
        fits
    }

    fn create_shared(&self, key: &str, value: &[u8]) -> bool {
        self.set_shared(key, value, Some(u32::MAX))
    }

    fn queue(&self, name: &str) -> Option<u32> {
        let mut queues = self.world.queues.borrow_mut();
        queues.push((name.to_owned(), VecDeque::new()));
        u32::try_from(queues.len() - 1).ok()
    }

    fn enqueue(&self, queue: u32, message: &[u8]) {
        if let Some((_, queue)) = self.world.queues.borrow_mut().get_mut(queue as usize) {
            queue.push_back(message.to_vec());
        }
    }

    fn dequeue(&self, queue: u32) -> Option<Vec<u8>> {
        self.world.queues.borrow_mut().get_mut(queue as usize)?.1.pop_front()
    }

    fn park(&self) {
        assert!(self.request_open.get(), "parked outside of a held request");
        self.parked.set(true);
    }

    fn wake(&self, stream: u32) {
        self.woken.borrow_mut().push(stream);
    }

    fn stream(&self) -> u32 {
        self.id
    }

    fn enter(&self, _: u32) -> bool {
        false
    }

    fn leave(&self) {}
}
