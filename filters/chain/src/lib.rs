//! `chain`: extract, limit, pick and meter in one module.
//!
//! The same filters with the same configuration, run one after the other where Envoy sees one filter. Most of what a
//! filter costs is not its work but its being there: Envoy makes a context for it and calls each of its callbacks, per
//! request and per piece of an answer. One instead of four saves three quarters of that, and what the filters tell each
//! other stays in memory. Separate modules are for chains with something of yours in between.
//!
//! Like `extract` it needs `allow_on_headers_stop_iteration: true`.

mod part;

use part::{Part, State, Ticks};
use serde::{Deserialize, Serialize};
use weir::invalid::{self, Invalid};
use weir_extract::Extract;
use weir_host::{Body, Callback, Filter, Flow, Host, Reply};
use weir_limit::Limit;
use weir_meter::Meter;
use weir_pick::Pick;

weir_host::serve!(Chain);

/// Configuration of the plugin: that of each filter under its name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Of `extract`.
    #[serde(default)]
    pub extract: weir_extract::Config,
    /// Of `limit`; without it nothing is limited.
    #[serde(default)]
    pub limit: Option<weir_limit::Config>,
    /// Of `pick`.
    pub pick: weir_pick::Config,
    /// Of `meter`.
    #[serde(default)]
    pub meter: weir_meter::Config,
}

impl Config {
    /// Reads the configuration and checks all of it.
    pub fn read(json: &[u8]) -> Result<Self, Invalid> {
        let config: Self = invalid::read(json)?;
        config.extract.rules().map_err(|invalid| invalid.within("extract"))?;
        config.pick.check().map_err(|invalid| invalid.within("pick"))?;
        if let Some(limit) = &config.limit {
            weir_limit::check(limit).map_err(|invalid| invalid.within("limit"))?;
        }
        Ok(config)
    }
}

/// The filter.
#[derive(Debug)]
pub struct Chain {
    extract: Extract,
    limit: Option<Limit>,
    pick: Pick,
    meter: Meter,
    ticks: Ticks,
}

/// One request.
#[derive(Debug)]
pub struct Stream {
    /// What the filters tell each other.
    state: State,
    extract: <Extract as Filter>::Stream,
    limit: <Limit as Filter>::Stream,
    pick: <Pick as Filter>::Stream,
    /// From when the request has passed the others.
    meter: Option<<Meter as Filter>::Stream>,
    /// `extract` holds it.
    reading: bool,
    /// `limit` waits for a call; whether nothing follows the headers.
    limiting: Option<bool>,
}

impl Filter for Chain {
    const NAME: &'static str = "weir-chain";
    const CALLBACKS: &'static [Callback] = &[
        Callback::RequestHeaders,
        Callback::RequestBody,
        Callback::RequestTrailers,
        Callback::ResponseHeaders,
        Callback::ResponseBody,
        Callback::Reply,
        Callback::Log,
        Callback::Tick,
        Callback::Message,
    ];
    type Stream = Stream;

    fn configure(json: &[u8], host: &dyn Host) -> Result<Self, Invalid> {
        let mut config = Config::read(json)?;
        if let Some(scorer) = &config.pick.scorer {
            config.extract.publish_body_bytes = scorer.max_body_bytes;
        }
        let limit = config.limit.map(|limit| Limit::new(&limit, host)).transpose();
        Ok(Self {
            extract: Extract::new(config.extract, host).map_err(|invalid| invalid.within("extract"))?,
            limit: limit.map_err(|invalid| invalid.within("limit"))?,
            pick: Pick::new(config.pick, host).map_err(|invalid| invalid.within("pick"))?,
            meter: Meter::new(config.meter, host),
            ticks: Ticks::default(),
        })
    }

    fn open(&mut self, host: &dyn Host) -> Stream {
        let state = State::default();
        let extract = self.extract.open(&self.ticks.for_extract(host, &state));
        let limit = self.limit.as_mut().map(|limit| limit.open(&self.ticks.for_limit(host, &state)));
        let pick = self.pick.open(&self.ticks.for_pick(host, &state));
        let (limit, meter) = (limit.unwrap_or_default(), None);
        Stream { state, extract, limit, pick, meter, reading: false, limiting: None }
    }

    fn request_headers(&mut self, stream: &mut Stream, host: &dyn Host, end: bool) -> Flow {
        let part = self.ticks.for_extract(host, &stream.state);
        match self.extract.request_headers(&mut stream.extract, &part, end) {
            Flow::Continue => self.go_on(stream, host, end),
            Flow::Hold => {
                stream.reading = true;
                Flow::Hold
            }
        }
    }

    fn request_body(&mut self, stream: &mut Stream, host: &dyn Host, body: Body) -> Flow {
        if !stream.reading {
            return Flow::Continue;
        }
        let part = self.ticks.for_extract(host, &stream.state);
        let flow = self.extract.request_body(&mut stream.extract, &part, body);
        self.read(stream, host, flow)
    }

    fn request_trailers(&mut self, stream: &mut Stream, host: &dyn Host) -> Flow {
        if !stream.reading {
            return Flow::Continue;
        }
        let part = self.ticks.for_extract(host, &stream.state);
        let flow = self.extract.request_trailers(&mut stream.extract, &part);
        self.read(stream, host, flow)
    }

    fn reply(&mut self, stream: &mut Stream, host: &dyn Host, reply: Reply) -> Flow {
        if let (Some(end), Some(limit)) = (stream.limiting.take(), &mut self.limit) {
            let part = self.ticks.for_limit(host, &stream.state);
            let flow = limit.reply(&mut stream.limit, &part, reply);
            return self.limited(stream, host, end, flow);
        }
        let part = self.ticks.for_pick(host, &stream.state);
        let flow = self.pick.reply(&mut stream.pick, &part, reply);
        self.sent(stream, host, flow)
    }

    fn woken(&mut self, stream: &mut Stream, host: &dyn Host) -> Flow {
        let (Some(end), Some(limit)) = (stream.limiting.take(), &mut self.limit) else {
            return Flow::Continue;
        };
        let part = self.ticks.for_limit(host, &stream.state);
        let flow = limit.woken(&mut stream.limit, &part);
        self.limited(stream, host, end, flow)
    }

    fn response_headers(&mut self, stream: &mut Stream, host: &dyn Host, end: bool) {
        if let Some(meter) = &mut stream.meter {
            self.meter.response_headers(meter, &Part::plain(host, &stream.state), end);
        }
        self.pick.response_headers(&mut stream.pick, &Part::plain(host, &stream.state), end);
        if let Some(limit) = &mut self.limit {
            limit.response_headers(&mut stream.limit, &Part::plain(host, &stream.state), end);
        }
        let part = self.ticks.for_extract(host, &stream.state);
        self.extract.response_headers(&mut stream.extract, &part, end);
    }

    fn response_body(&mut self, stream: &mut Stream, host: &dyn Host, piece: Body) {
        // Answers pass the chain from its end.
        if let Some(meter) = &mut stream.meter {
            self.meter.response_body(meter, &Part::plain(host, &stream.state), piece);
        }
        let part = self.ticks.for_pick(host, &stream.state);
        self.pick.response_body(&mut stream.pick, &part, piece);
        let part = self.ticks.for_extract(host, &stream.state);
        self.extract.response_body(&mut stream.extract, &part, piece);
    }

    fn log(&mut self, stream: &mut Stream, host: &dyn Host) {
        if let Some(meter) = &mut stream.meter {
            self.meter.log(meter, &Part::plain(host, &stream.state));
        }
        let part = self.ticks.for_pick(host, &stream.state);
        self.pick.log(&mut stream.pick, &part);
        if let Some(limit) = &mut self.limit {
            let part = Part::plain(host, &stream.state);
            limit.log(&mut stream.limit, &part);
            limit.done(&mut stream.limit, &part);
        }
    }

    fn told(&mut self, host: &dyn Host, call: u32, reply: Reply) {
        match &mut self.limit {
            Some(limit) if limit.called(call) => limit.told(host, call, reply),
            _ => self.pick.told(host, call, reply),
        }
    }

    fn tick(&mut self, host: &dyn Host) {
        let none = State::default();
        if self.ticks.extract_wants() {
            self.extract.tick(&self.ticks.for_extract(host, &none));
        }
        if let Some(limit) = self.limit.as_mut().filter(|_| self.ticks.limit_wants()) {
            limit.tick(&self.ticks.for_limit(host, &none));
        }
        if self.ticks.pick_wants() {
            self.pick.tick(&self.ticks.for_pick(host, &none));
        }
    }

    fn message(&mut self, host: &dyn Host, queue: u32) {
        match &mut self.limit {
            Some(limit) if limit.owns(queue) => limit.message(host, queue),
            _ => self.pick.message(host, queue),
        }
    }
}

impl Chain {
    fn read(&mut self, stream: &mut Stream, host: &dyn Host, flow: Flow) -> Flow {
        if flow == Flow::Hold {
            return Flow::Hold;
        }
        stream.reading = false;
        self.go_on(stream, host, false)
    }

    /// `extract` is done with the request.
    fn go_on(&mut self, stream: &mut Stream, host: &dyn Host, end: bool) -> Flow {
        let flow = match &mut self.limit {
            Some(limit) => {
                let part = self.ticks.for_limit(host, &stream.state);
                limit.request_headers(&mut stream.limit, &part, end)
            }
            None => Flow::Continue,
        };
        self.limited(stream, host, end, flow)
    }

    /// `limit` has admitted it, or answered it, or waits.
    fn limited(&mut self, stream: &mut Stream, host: &dyn Host, end: bool, flow: Flow) -> Flow {
        if flow == Flow::Hold {
            stream.limiting = Some(end);
            return Flow::Hold;
        }
        let part = self.ticks.for_pick(host, &stream.state);
        let flow = self.pick.request_headers(&mut stream.pick, &part, end);
        self.sent(stream, host, flow)
    }

    /// `pick` is done with it, unless it waits.
    fn sent(&mut self, stream: &mut Stream, host: &dyn Host, flow: Flow) -> Flow {
        if flow == Flow::Continue {
            stream.meter = Some(self.meter.open(host));
        }
        flow
    }
}

#[cfg(test)]
mod tests;
