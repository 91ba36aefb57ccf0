//! Routers as they are: several, each with a pool of its own that hears late, and not everything.
//!
//! Each holds a [`Pool`], the one that ships, with a policy that ships. What the lab adds is the world around it: who
//! shares what with whom, how late a report is heard, and which reports are lost.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use weir::breaker::{Outcome, Reason};
use weir::instant::Instant;
use weir::invalid::Invalid;
use weir::policy::{Attributes, Demand, Signals};
use weir::pool::{Adapters, Answered, Ask, Config, Pool, Report};

use crate::engine::{Engine, Gauges};
use crate::workload::{Draw, Request, UNIT_TOKENS, Workload};

/// What proxies tell each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// Nothing: each knows only what it sent itself.
    Nothing,
    /// Everything, as the workers of one Envoy do: what one books the others hear `report_ms` later.
    Bookings,
    /// Everything, but seen only in a picture of the whole pool, taken every `metrics_ms`; what a proxy sent itself since
    /// then it adds if it is `corrected`.
    Pictures,
    /// One book, the scorer's.
    #[default]
    Book,
}

/// The routers of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Routing {
    /// Proxies; each request enters at one of them, at random.
    pub proxies: u32,
    /// What they tell each other.
    pub share: Share,
    /// Milliseconds from the arrival of a request to its choice.
    pub decide_ms: f64,
    /// Milliseconds until a report is heard: of a first token, of an end, of another's booking.
    pub report_ms: f64,
    /// The share of reports that are lost, 0 to 1.
    pub lost: f64,
    /// Milliseconds between two looks at an engine's metrics; 0 is never.
    pub metrics_ms: f64,
    /// Whether each router looks at each engine at a time of its own, or all at the same moment.
    pub apart: bool,
    /// Whether what was sent since the last look is added to what an engine said. The product always does; without it
    /// every router believes an old picture.
    pub corrected: bool,
    /// Endpoints that a request is tried on before it fails.
    pub attempts: u32,
    /// How each pool counts and chooses.
    pub choose: Config,
}

impl Default for Routing {
    fn default() -> Self {
        let choose = Config::default();
        let attempts = choose.attempts.get();
        Self {
            proxies: 1,
            share: Share::Book,
            decide_ms: 0.5,
            report_ms: 1.0,
            lost: 0.0,
            metrics_ms: 1_000.0,
            apart: true,
            corrected: true,
            attempts,
            choose,
        }
    }
}

impl Routing {
    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), Invalid> {
        let refuse = |at, why: String| Err(Invalid::new(at, why));
        if self.proxies == 0 || self.attempts == 0 {
            return refuse(
                if self.proxies == 0 { "proxies" } else { "attempts" },
                "0: expected 1 or more".into(),
            );
        }
        if !(0.0..=1.0).contains(&self.lost) {
            return refuse("lost", format!("{}: expected 0 to 1", self.lost));
        }
        let times =
            [("decide_ms", self.decide_ms), ("report_ms", self.report_ms), ("metrics_ms", self.metrics_ms)];
        for (at, ms) in times {
            if !(0.0..=3.6e6).contains(&ms) {
                return refuse(at, format!("{ms}: expected 0 to 3,600,000"));
            }
        }
        Ok(())
    }

    /// How long a choice takes.
    pub fn decide(&self) -> u64 {
        nanos(self.decide_ms)
    }
}

/// Something that became of a request, on its way to a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Another router booked it.
    Booked {
        /// The endpoint that answers.
        place: usize,
        /// The one that computes the prompt, when that is another.
        prefill: Option<usize>,
    },
    /// An endpoint that it was tried on failed.
    Failed {
        /// The endpoint.
        place: usize,
        /// How.
        reason: Reason,
    },
    /// Its first token came from this endpoint.
    First(usize),
    /// It is over.
    End {
        /// Its endpoint failed.
        failed: bool,
    },
}

/// Where a request is to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Endpoints to try, in order; none when there is none.
    pub order: Vec<usize>,
    /// The endpoint that computes the prompt, when that is another than the one that answers.
    pub prefill: Option<usize>,
}

/// What an endpoint is for. Engines do whatever they are asked: a role is what a policy makes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Prompts and answers.
    #[default]
    Both,
    /// Prompts.
    Prefill,
    /// Answers.
    Decode,
}

impl Role {
    /// What the configuration says of such an endpoint, to the policies that ship.
    fn attributes(self) -> Option<Attributes> {
        let word = match self {
            Self::Both => return None,
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        };
        let labels = [("llm-d.ai/role".to_owned(), word.to_owned())].into();
        Some(Attributes { labels, ..Attributes::default() })
    }
}

/// News for one of the pools, so many nanoseconds later.
#[derive(Clone, Copy, Debug)]
pub struct Letter {
    /// The pool that hears it.
    pub pool: usize,
    /// The request.
    pub request: u32,
    /// What became of it.
    pub news: News,
    /// Nanoseconds on the way.
    pub late: u64,
}

/// The routers at work.
#[derive(Debug)]
pub struct Routers<'a> {
    routing: &'a Routing,
    workload: &'a Workload,
    pools: Vec<Pool>,
    addresses: Vec<String>,
    places: HashMap<String, usize>,
    draw: Draw,
    /// The last report that each pool has of each engine.
    reports: Vec<Vec<Option<Report>>>,
    /// When each pool takes its pictures, within the interval.
    phases: Vec<u64>,
}

impl<'a> Routers<'a> {
    /// Routers that know of the endpoints with these roles those that are alive.
    pub fn new(
        routing: &'a Routing,
        workload: &'a Workload,
        roles: &[Role],
        alive: impl Fn(usize) -> bool,
        seed: u64,
    ) -> Result<Self, Invalid> {
        routing.check()?;
        let count = roles.len();
        let addresses: Vec<String> =
            (0..count).map(|n| format!("10.0.{}.{}:8000", n / 250, n % 250)).collect();
        let known: Vec<String> = (0..count).filter(|n| alive(*n)).map(|n| addresses[n].clone()).collect();
        let mut draw = Draw::new(seed, 3);
        let pools = if routing.share == Share::Book { 1 } else { routing.proxies };
        let mut pools: Vec<Pool> = (0..pools)
            .map(|_| Pool::new(&routing.choose, &known, draw.0.next()))
            .collect::<Result<_, _>>()
            .map_err(|invalid| invalid.within("choose"))?;
        let described = addresses.iter().zip(roles);
        let attributes: BTreeMap<String, Attributes> =
            described.filter_map(|(address, role)| Some((address.clone(), role.attributes()?))).collect();
        pools.iter_mut().for_each(|pool| pool.describe(attributes.clone()));
        let places = addresses.iter().cloned().zip(0..).collect();
        let reports = vec![vec![None; count]; pools.len()];
        let every = nanos(routing.metrics_ms).max(1) as usize;
        let phase = |draw: &mut Draw| if routing.apart { draw.0.below(every) as u64 } else { 0 };
        let phases = pools.iter().map(|_| phase(&mut draw)).collect();
        Ok(Self { routing, workload, pools, addresses, places, draw, reports, phases })
    }

    /// The proxy that a request enters by.
    pub fn enter(&mut self) -> u32 {
        self.draw.0.below(self.routing.proxies as usize) as u32
    }

    fn pool_of(&self, proxy: u32) -> usize {
        (proxy as usize).min(self.pools.len() - 1)
    }

    fn ask(workload: &Workload, request: u32) -> Ask<'_> {
        let request_of = &workload.requests[request as usize];
        let Request { output, tenant, session, adapter, .. } = *request_of;
        let prompt_tokens = request_of.prompt_tokens();
        Ask {
            blocks: &workload.router_chains[request as usize],
            demand: Demand {
                prompt_tokens,
                prompt_units: prompt_tokens.div_ceil(UNIT_TOKENS),
                // What a client states as its bound: most state more than they get.
                output_tokens: output.next_power_of_two().max(256),
                stream: true,
                session: Some(session),
                tenant: Some(u64::from(tenant)),
                adapter: adapter.map(adapter_hash),
                ..Demand::default()
            },
            prompt: None,
        }
    }

    /// Chooses and books. Others hear of it by `letters`.
    pub fn choose(&mut self, proxy: u32, request: u32, now: u64, letters: &mut Vec<Letter>) -> Route {
        let at = self.pool_of(proxy);
        if !self.routing.corrected {
            // An old report taken as if it were of now: nothing has been sent since.
            for (address, report) in self.addresses.iter().zip(&mut self.reports[at]) {
                if let Some(report) = report {
                    report.at = Instant::from_nanos(now);
                    self.pools[at].hear(address, report);
                }
            }
        }
        let ask = Self::ask(self.workload, request);
        let choice = self.pools[at].reserve(u64::from(request), &ask, Instant::from_nanos(now));
        let Some(choice) = choice else { return Route::default() };
        let place = |address: &String| self.places.get(address).copied();
        let order: Vec<usize> = choice.order.iter().filter_map(place).collect();
        let prefill = choice.prefill.as_ref().and_then(place);
        let Some(&first) = order.first() else { return Route::default() };
        let booked = News::Booked { place: first, prefill };
        if self.believes_pictures() {
            // It does not count what it has sent itself, until the next picture shows it.
            self.pools[at].end(u64::from(request));
            self.send(at, request, booked, now, letters);
        }
        self.tell_others(at, request, booked, now, letters);
        Route { order, prefill }
    }

    /// The proxy reports what became of a request.
    pub fn report(&mut self, proxy: u32, request: u32, news: News, now: u64, letters: &mut Vec<Letter>) {
        let own = self.pool_of(proxy);
        if self.routing.share == Share::Book || self.believes_pictures() {
            self.send(own, request, news, now, letters);
        } else {
            // What a router sees itself it knows at once, and loses never.
            letters.push(Letter { pool: own, request, news, late: 0 });
        }
        self.tell_others(own, request, news, now, letters);
    }

    fn believes_pictures(&self) -> bool {
        self.routing.share == Share::Pictures && !self.routing.corrected
    }

    fn tell_others(&mut self, own: usize, request: u32, news: News, now: u64, letters: &mut Vec<Letter>) {
        if matches!(self.routing.share, Share::Bookings | Share::Pictures) {
            for pool in (0..self.pools.len()).filter(|pool| *pool != own) {
                self.send(pool, request, news, now, letters);
            }
        }
    }

    fn send(&mut self, pool: usize, request: u32, news: News, now: u64, letters: &mut Vec<Letter>) {
        let late = match self.routing.share {
            Share::Pictures => {
                let every = nanos(self.routing.metrics_ms).max(1);
                every - (now + every - self.phases[pool]) % every
            }
            _ => nanos(self.routing.report_ms),
        };
        if self.draw.unit() > self.routing.lost {
            letters.push(Letter { pool, request, news, late });
        }
    }

    /// A pool hears news.
    pub fn hear(&mut self, letter: &Letter, now: u64) {
        let (lease, now) = (u64::from(letter.request), Instant::from_nanos(now));
        let pool = &mut self.pools[letter.pool];
        match letter.news {
            News::Booked { place, prefill } => {
                let (address, ask) = (&self.addresses[place], Self::ask(self.workload, letter.request));
                let prefill = prefill.map(|place| self.addresses[place].as_str());
                pool.book_split(lease, address, prefill, &ask, now);
            }
            News::Failed { place, reason } => {
                pool.attempted(lease, &self.addresses[place], &Outcome::failed(reason), now);
            }
            News::First(place) => {
                let address = &self.addresses[place];
                pool.attempted(lease, address, &Outcome::of_status(200, None), now);
                pool.first_token(lease, Some(address), now);
            }
            News::End { failed } => {
                let output = self.workload.requests[letter.request as usize].output;
                let output_tokens = (!failed).then_some(output);
                pool.answered(lease, &Answered { output_tokens, failed, ..Answered::default() }, now);
                pool.end(lease);
            }
        }
    }

    /// When each pool looks at each engine for the first time: pool, endpoint, nanoseconds.
    pub fn looks(&mut self) -> Vec<(usize, usize, u64)> {
        let every = nanos(self.routing.metrics_ms);
        if every == 0 {
            return Vec::new();
        }
        let all = (0..self.pools.len()).flat_map(|pool| (0..self.addresses.len()).map(move |at| (pool, at)));
        let phase = |draw: &mut Draw| draw.0.below(every as usize) as u64;
        let apart = self.routing.apart;
        all.map(|(pool, at)| (pool, at, if apart { phase(&mut self.draw) } else { 0 })).collect()
    }

    /// A pool looks at the metrics of an engine, if that answers; returns when it does so next.
    pub fn look(&mut self, pool: usize, endpoint: usize, engine: Option<&Engine>, now: u64) -> u64 {
        let next = now + nanos(self.routing.metrics_ms).max(1);
        let Some(engine) = engine else { return next };
        let Gauges { waiting, running, kv_usage, kv_tokens, computed } = engine.gauges();
        let (resident, wanted, most) = engine.adapters();
        let hashes = |adapters: Vec<u32>| adapters.into_iter().map(adapter_hash).collect();
        let report = Report {
            at: Instant::from_nanos(now),
            signals: Signals {
                waiting: Some(waiting),
                running: Some(running),
                kv_usage: Some(kv_usage),
                kv_tokens: Some(kv_tokens),
                ..Signals::default()
            },
            adapters: Some(Adapters {
                running: Some(hashes(resident)),
                waiting: hashes(wanted),
                most: Some(most as usize),
                listed: None,
            }),
            totals: [(0, computed as f64)].into(),
            started: None,
        };
        self.pools[pool].hear(&self.addresses[endpoint], &report);
        self.reports[pool][endpoint] = Some(report);
        next
    }

    /// All routers learn which endpoints there are.
    pub fn meet(&mut self, alive: impl Fn(usize) -> bool) -> Result<(), Invalid> {
        let known: Vec<String> =
            (0..self.addresses.len()).filter(|n| alive(*n)).map(|n| self.addresses[n].clone()).collect();
        self.pools.iter_mut().try_for_each(|pool| pool.set_endpoints(&known))
    }

    /// Leases out in all pools, when everything else is over: those that leaked.
    pub fn leaked(&mut self, now: u64) -> usize {
        let late = Instant::from_nanos(now) + Duration::from_millis(1);
        self.pools
            .iter_mut()
            .map(|pool| {
                pool.expire(late);
                pool.leases()
            })
            .sum()
    }
}

/// The hash of an adapter's name.
fn adapter_hash(adapter: u32) -> u64 {
    weir::wire::name_hash(&format!("adapter-{adapter}"))
}

fn nanos(ms: f64) -> u64 {
    (ms * 1e6) as u64
}
