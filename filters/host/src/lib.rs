//! What a filter sees of Envoy.
//!
//! A [`Filter`] is what one plugin configuration makes; it lives as long as its VM and is shared by the streams of
//! one worker. What belongs to one request is its `Stream`, handed back with every callback. All effects go
//! through [`Host`]. On wasm32 that is Envoy; in native tests it is [`fake`], an Envoy in memory with the
//! same rules.
//!
//! This crate alone names proxy-wasm, for two reasons. The SDK's getters panic when the host has no such map at
//! the moment, and a panic ends every stream of the worker: here a failure is a value. And what pausing and
//! resuming mean to Envoy is settled once, in `envoy.rs`, instead of in each callback of each filter.

use std::time::Duration;
use weir::instant::Instant;
use weir::invalid::Invalid;

#[cfg(target_arch = "wasm32")]
mod abi;
#[cfg(target_arch = "wasm32")]
pub mod envoy;
#[cfg(not(target_arch = "wasm32"))]
pub mod fake;
mod headers;
pub mod roll;

pub use headers::Headers;

/// Whether the request may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It may.
    Continue,
    /// Not yet: more of the body, or the reply to a call, is awaited; or it has been answered here.
    Hold,
}

/// Which headers or body is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The client's.
    Request,
    /// The endpoint's.
    Response,
}

/// What a body callback brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Bytes that can be read now. While a request is held these are all bytes so far, afterwards this piece.
    pub len: usize,
    /// Nothing follows.
    pub end: bool,
}

/// A call to a cluster of Envoy's, by HTTP.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The cluster's name.
    pub cluster: &'a str,
    /// Path of the POST.
    pub path: &'a str,
    /// A JSON body.
    pub body: &'a [u8],
    /// After this Envoy answers in its place.
    pub timeout: Duration,
}

/// A GET, or a POST of JSON, to one endpoint of a cluster whose load balancer follows [`weir::wire::DESTINATION`].
#[derive(Clone, Copy, Debug)]
pub struct Fetch<'a> {
    /// The cluster's name.
    pub cluster: &'a str,
    /// The endpoint's address: it must be one of the cluster's, or another answers in its place.
    pub endpoint: &'a str,
    /// The path.
    pub path: &'a str,
    /// What is POSTed; empty: a GET.
    pub body: &'a [u8],
    /// After this Envoy answers in its place.
    pub timeout: Duration,
}

/// What came back from a [`Call`] or a [`Fetch`], from whoever was called or from Envoy in its place.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Headers, `:status` among them.
    pub headers: Headers,
    /// The body; empty when it is larger than [`Reply::MOST_BYTES`].
    pub body: Vec<u8>,
}

impl Reply {
    /// Most bytes of a body that are taken into the VM.
    pub const MOST_BYTES: usize = 4 << 20;
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// A metric that has been defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric(pub u32);

/// Everything that a filter can do. No call panics; one that fails has no effect and says so where it can matter.
pub trait Host {
    /// The time of this callback, by a clock that never goes back and is the same for all workers of one Envoy.
    fn now(&self) -> Instant;
    /// The time since 1970, by a clock that may be set. Only for what a client is told.
    fn wall(&self) -> Duration;
    /// Random bits.
    fn random(&self) -> u64;
    /// All headers. Empty when the host has none at this moment.
    fn headers(&self, of: Of) -> Headers;
    /// Makes `value` the only value of a header.
    fn set_header(&self, of: Of, name: &str, value: &str);
    /// Removes all values of a header.
    fn remove_header(&self, of: Of, name: &str);
    /// Up to `len` bytes of a body from `from` on, within its callback.
    fn body(&self, of: Of, from: usize, len: usize) -> Vec<u8>;
    /// Within its callback, puts `bytes` in the place of a body's `len` bytes, all of them: Envoy replaces no part. A
    /// `content-length` is the caller's to mend.
    fn set_body(&self, of: Of, len: usize, bytes: &[u8]);
    /// A property of the stream: filter state by its name, or Envoy's own by its path.
    fn property(&self, path: &[&str]) -> Option<Vec<u8>>;
    /// A property that is text.
    fn text(&self, path: &[&str]) -> Option<String> {
        String::from_utf8(self.property(path)?).ok()
    }
    /// Publishes filter state.
    fn set_property(&self, name: &str, value: &[u8]);
    /// Answers the client. The request goes no further, whatever the callback returns.
    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]);
    /// Answers the client with JSON, whose type comes before `headers`.
    fn respond_json(&self, status: u16, headers: &[(&str, String)], body: &str) {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_str()));
        let headers: Vec<_> = [("content-type", "application/json")].into_iter().chain(headers).collect();
        self.respond(status, &headers, body.as_bytes());
    }
    /// Within [`Filter::response_headers`]: they go on with the next piece of the body, and until its callback is over can be changed.
    /// Within [`Filter::response_body`], unless that was the last: the same again, and the next piece comes together with what is held.
    /// Only with `allow_on_headers_stop_iteration`, or nothing will ever go on.
    fn hold_answer(&self);
    /// Makes a call and gives its number. Within a stream its answer comes to [`Filter::reply`], elsewhere to
    /// [`Filter::told`]. `None` when nothing was sent and nothing will come.
    fn call(&self, call: &Call<'_>) -> Option<u32>;
    /// Asks one endpoint, outside of streams, and gives the number of the call; its answer comes to [`Filter::told`]. `None`
    /// when nothing was sent and nothing will come.
    fn fetch(&self, fetch: &Fetch<'_>) -> Option<u32>;
    /// Defines a metric; the same name gives the same metric.
    fn define(&self, kind: Kind, name: &str) -> Metric;
    /// Adds to a counter.
    fn add(&self, metric: Metric, by: u64);
    /// Moves a gauge up or down; it has one value over all workers.
    fn shift(&self, metric: Metric, by: i64);
    /// Sets a gauge, or records into a histogram.
    fn record(&self, metric: Metric, value: u64);
    /// Asks for [`Filter::tick`] at this interval; zero ends it.
    fn tick_every(&self, interval: Duration);
    /// A value shared by all VMs with the same `vm_id`, and its version.
    fn shared(&self, key: &str) -> Option<(Vec<u8>, u32)>;
    /// Sets a shared value, if `version` is still its version (`None`: in any case). Says whether it did.
    fn set_shared(&self, key: &str, value: &[u8], version: Option<u32>) -> bool;
    /// Sets a shared value, if there is none. Says whether it did.
    fn create_shared(&self, key: &str, value: &[u8]) -> bool;
    /// A queue that wakes this VM by [`Filter::message`].
    fn queue(&self, name: &str) -> Option<u32>;
    /// Sends to a queue, of whichever worker.
    fn enqueue(&self, queue: u32, message: &[u8]);
    /// The next message of a queue.
    fn dequeue(&self, queue: u32) -> Option<Vec<u8>>;
    /// Within a stream's callback, with [`Flow::Hold`]: the request is held until [`Host::wake`] names it and
    /// [`Filter::woken`] lets it go on.
    fn park(&self);
    /// Outside of stream callbacks: when this callback is over, [`Filter::woken`] is called for this stream, if it is parked
    /// and still there.
    fn wake(&self, stream: u32);
    /// A number for the stream at hand, to [`Host::wake`] or [`Host::enter`] it later.
    fn stream(&self) -> u32;
    /// Outside of stream callbacks: what follows acts on this stream, until [`Host::leave`]. `false` when it is gone.
    fn enter(&self, stream: u32) -> bool;
    /// Back from [`Host::enter`].
    fn leave(&self);
}

/// Envoy's callbacks. Each that a module exports costs time per request or per chunk even if it does nothing, so a
/// filter declares those it has and the others are taken out of the module after linking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callback {
    /// [`Filter::request_headers`]
    RequestHeaders,
    /// [`Filter::request_body`]
    RequestBody,
    /// [`Filter::request_trailers`]
    RequestTrailers,
    /// [`Filter::response_headers`]
    ResponseHeaders,
    /// [`Filter::response_body`]
    ResponseBody,
    /// [`Filter::reply`] and [`Filter::told`]
    Reply,
    /// [`Filter::log`]
    Log,
    /// [`Filter::done`]
    Done,
    /// [`Filter::tick`]
    Tick,
    /// [`Filter::message`]
    Message,
}

impl Callback {
    /// All of them, with the export that each needs.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::RequestHeaders, "proxy_on_request_headers"),
        (Self::RequestBody, "proxy_on_request_body"),
        (Self::RequestTrailers, "proxy_on_request_trailers"),
        (Self::ResponseHeaders, "proxy_on_response_headers"),
        (Self::ResponseBody, "proxy_on_response_body"),
        (Self::Reply, "proxy_on_http_call_response"),
        (Self::Log, "proxy_on_log"),
        (Self::Done, "proxy_on_done"),
        (Self::Tick, "proxy_on_tick"),
        (Self::Message, "proxy_on_queue_ready"),
    ];

    /// The custom section that carries a module's declaration, two bytes, little end first.
    pub const SECTION: &'static str = "weir.callbacks";

    /// A declaration as bits.
    pub const fn bits(callbacks: &[Self]) -> u16 {
        let mut bits = 0;
        let mut rest = callbacks;
        while let [first, others @ ..] = rest {
            bits |= 1 << *first as u16;
            rest = others;
        }
        bits
    }

    /// The exports that a declaration needs.
    pub fn exports(bits: u16) -> impl Iterator<Item = &'static str> {
        Self::ALL
            .into_iter()
            .filter(move |(callback, _)| bits & 1 << *callback as u16 != 0)
            .map(|(_, export)| export)
    }
}

/// A filter. Its callbacks default to doing nothing; those it overrides it also declares.
#[allow(unused_variables)]
pub trait Filter: Sized + 'static {
    /// Its name in messages.
    const NAME: &'static str;
    /// The callbacks it has.
    const CALLBACKS: &'static [Callback];
    /// What belongs to one request.
    type Stream: 'static;

    /// Makes a filter of its plugin configuration. Envoy keeps the last good one when this fails.
    fn configure(config: &[u8], host: &dyn Host) -> Result<Self, Invalid>;

    /// A request comes: the headers callback follows.
    fn open(&mut self, host: &dyn Host) -> Self::Stream;

    /// The request's headers are here; `end`: and nothing else is.
    fn request_headers(&mut self, stream: &mut Self::Stream, host: &dyn Host, end: bool) -> Flow {
        Flow::Continue
    }

    /// More of the request's body is here.
    fn request_body(&mut self, stream: &mut Self::Stream, host: &dyn Host, body: Body) -> Flow {
        Flow::Continue
    }

    /// The request ended with trailers. All of its body can be read when it was held.
    fn request_trailers(&mut self, stream: &mut Self::Stream, host: &dyn Host) -> Flow {
        Flow::Continue
    }

    /// The answer's headers are here.
    fn response_headers(&mut self, stream: &mut Self::Stream, host: &dyn Host, end: bool) {}

    /// A piece of the answer's body is passing.
    fn response_body(&mut self, stream: &mut Self::Stream, host: &dyn Host, piece: Body) {}

    /// The answer to this stream's call. It comes at most once a call, and never after `log`.
    fn reply(&mut self, stream: &mut Self::Stream, host: &dyn Host, reply: Reply) -> Flow {
        Flow::Continue
    }

    /// The answer to a call that was made outside of streams, by its number.
    fn told(&mut self, host: &dyn Host, call: u32, reply: Reply) {}

    /// A parked request was woken. It stays parked while this says [`Flow::Hold`] and neither answers it nor calls.
    fn woken(&mut self, stream: &mut Self::Stream, host: &dyn Host) -> Flow {
        Flow::Continue
    }

    /// The stream is over, however it ended. Comes once, and also to streams that never got here in full.
    fn log(&mut self, stream: &mut Self::Stream, host: &dyn Host) {}

    /// The stream is over and all filters have had their [`Filter::log`]: what the ones behind this one published there
    /// can be read. For the access log it is too late.
    fn done(&mut self, stream: &mut Self::Stream, host: &dyn Host) {}

    /// The interval of [`Host::tick_every`] has passed.
    fn tick(&mut self, host: &dyn Host) {}

    /// A message waits in a queue of this VM's.
    fn message(&mut self, host: &dyn Host, queue: u32) {}
}

/// Makes a crate the module of one filter, if its feature `module` is on.
#[macro_export]
macro_rules! serve {
    ($filter:ident) => {
        #[cfg(all(target_arch = "wasm32", feature = "module"))]
        #[allow(unsafe_code, missing_docs)]
        mod module {
            use $crate::{Callback, Filter};

            #[unsafe(link_section = "weir.callbacks")]
            #[used]
            static CALLBACKS: [u8; 2] = Callback::bits(<super::$filter as Filter>::CALLBACKS).to_le_bytes();

            #[unsafe(no_mangle)]
            pub extern "C" fn _initialize() {
                $crate::envoy::start::<super::$filter>();
            }
        }
    };
}
