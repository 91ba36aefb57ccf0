//! Asks engines how they are, where there is no scorer to do it: each endpoint through the cluster that requests take, with
//! the same header that leads a request to it.
//!
//! One worker asks for all: the one that holds a lease in shared data, which it renews with each sign of life; another takes it
//! when it has run out. What an engine says the others hear as they hear of bookings. When each is asked and what its
//! answer comes to is the core's to say (`weir::signals`).

use crate::duty::{Duty, Held};
use std::time::Duration;
use weir::instant::Instant;
use weir::pool::{Report, Spec};
use weir::random::Random;
use weir::signals::{self, Config, Reading, Rhythm, Scraped};
use weir_host::roll::BEAT;
use weir_host::{Fetch, Host, Kind, Metric, Reply};

/// Another worker asks once the one that did has been silent for so long.
const TERM: Duration = Duration::from_secs(3);

/// The engines, and who asks them.
#[derive(Debug)]
pub(crate) struct Scrape {
    config: Config,
    duty: Duty,
    engines: Vec<Engine>,
    metrics: [(Scraped, Metric); 3],
}

#[derive(Debug)]
struct Engine {
    /// The endpoint's address.
    address: String,
    /// Where it is asked: the same, or another port.
    asked_at: String,
    cluster: String,
    rhythm: Rhythm,
    /// `None` until this worker has begun to ask.
    due: Option<Instant>,
    out: Option<Out>,
    last: Scraped,
}

/// A question that is out. There is one at a time.
#[derive(Debug)]
struct Out {
    call: u32,
    /// When the metrics were asked for.
    at: Instant,
    /// What they said, once it is the list of models that is awaited.
    read: Option<Reading>,
}

impl Scrape {
    /// Each endpoint of these pools once. `group` names what the workers share.
    pub(crate) fn new(config: Config, pools: &[Spec], group: &str, host: &dyn Host) -> Self {
        let mut engines: Vec<Engine> = Vec::new();
        for spec in pools {
            for address in &spec.endpoints {
                let known = engines.iter().any(|engine| engine.address == *address);
                let Some(asked_at) = config.asked_at(address).filter(|_| !known) else { continue };
                engines.push(Engine {
                    address: address.clone(),
                    asked_at: asked_at.to_string(),
                    cluster: spec.cluster.as_ref().unwrap_or(&spec.name).clone(),
                    rhythm: Rhythm::new(&config),
                    due: None,
                    out: None,
                    last: Scraped::Good,
                });
            }
        }
        let count = |scraped: Scraped| {
            let name = format!("weir_pick_scrapes_{}_total", scraped.name());
            (scraped, host.define(Kind::Counter, &name))
        };
        let metrics = [Scraped::Good, Scraped::Unknown, Scraped::Failed].map(count);
        Self { config, duty: Duty::new(group, "scrape", TERM), engines, metrics }
    }

    /// How often [`Scrape::ask`] is to be called: so often that phases can differ.
    pub(crate) fn every(&self) -> Duration {
        const LEAST: Duration = Duration::from_millis(10);
        (self.config.interval() / 20).clamp(LEAST, BEAT)
    }

    /// Asks those that are due, if it is this worker that asks.
    pub(crate) fn ask(&mut self, host: &dyn Host, own: u32, random: &mut Random) {
        let held = self.duty.is_held(host, own);
        if held == Held::Anew {
            log::info!("weir-pick: this worker asks engines how they are");
        }
        if held == Held::No {
            return self.engines.iter_mut().for_each(|engine| engine.due = None);
        }
        let now = host.now();
        for engine in &mut self.engines {
            let due = *engine.due.get_or_insert_with(|| now + engine.rhythm.first(random));
            if due > now || engine.out.is_some() {
                continue;
            }
            match engine.fetch(host, &self.config.path, self.config.timeout()) {
                Some(call) => engine.out = Some(Out { call, at: now, read: None }),
                None => {
                    let why = format!("cluster {:?} is none, or empty", engine.cluster);
                    engine.came_to(host, &self.metrics, Scraped::Failed, &why);
                    engine.due = Some(now + engine.rhythm.next(Scraped::Failed, random));
                }
            }
        }
    }

    /// Whether this call is one of these questions.
    pub(crate) fn called(&self, call: u32) -> bool {
        self.engines.iter().any(|engine| engine.is_out(call))
    }

    /// A question was answered, by the endpoint or in its place: what it says, once that is all.
    pub(crate) fn told(
        &mut self,
        host: &dyn Host,
        call: u32,
        reply: &Reply,
        random: &mut Random,
    ) -> Option<(String, Report)> {
        let engine = self.engines.iter_mut().find(|engine| engine.is_out(call))?;
        let Out { at, read, .. } = engine.out.take()?;
        let status = reply.headers.get(":status").unwrap_or("none");
        let reading = match read {
            // Without its list of models it still says how it is.
            Some(mut reading) => {
                reading.listed = signals::models(&reply.body).filter(|_| status == "200");
                reading
            }
            None => {
                let text = (status == "200").then(|| String::from_utf8_lossy(&reply.body));
                let reading = text.map(|text| signals::read(&text));
                let (scraped, why) = match &reading {
                    Some(reading) if reading.says_anything() => (Scraped::Good, String::new()),
                    Some(_) => (Scraped::Unknown, "nothing that is known".to_owned()),
                    None => (Scraped::Failed, format!("status {status}")),
                };
                engine.came_to(host, &self.metrics, scraped, &why);
                engine.due = Some(at + engine.rhythm.next(scraped, random));
                let reading = reading.filter(|_| scraped == Scraped::Good)?;
                let path = self.config.models_path.as_ref();
                if let Some(call) = path.and_then(|path| engine.fetch(host, path, self.config.timeout())) {
                    engine.out = Some(Out { call, at, read: Some(reading) });
                    return None;
                }
                reading
            }
        };
        Some((engine.address.clone(), reading.report(at)))
    }
}

impl Engine {
    fn is_out(&self, call: u32) -> bool {
        self.out.as_ref().is_some_and(|out| out.call == call)
    }

    fn fetch(&self, host: &dyn Host, path: &str, timeout: Duration) -> Option<u32> {
        host.fetch(&Fetch { cluster: &self.cluster, endpoint: &self.asked_at, path, body: &[], timeout })
    }

    /// Counts it, and says so where it is another outcome than before.
    fn came_to(&mut self, host: &dyn Host, metrics: &[(Scraped, Metric)], scraped: Scraped, why: &str) {
        if let Some((_, metric)) = metrics.iter().find(|(own, _)| *own == scraped) {
            host.add(*metric, 1);
        }
        if scraped != self.last && scraped != Scraped::Good {
            log::warn!("weir-pick: {}: no metrics: {why}", self.address);
        } else if scraped != self.last {
            log::info!("weir-pick: {}: metrics again", self.address);
        }
        self.last = scraped;
    }
}

#[cfg(test)]
mod tests {
    use crate::Pick;
    use serde_json::{Value, json};
    use std::rc::Rc;
    use std::time::Duration;
    use weir::wire;
    use weir_host::fake::{Exchange, Sent, Worker, World};

    const OK: [(&str, &str); 1] = [(":status", "200")];

    fn config(signals: Value) -> String {
        let queue = json!({"kind": "EndpointPickerConfig", "plugins": [{"type": "queue-scorer"}],
            "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}]});
        json!({"pools": [{"name": "p", "models": ["m"], "endpoints": ["10.0.0.1:1", "10.0.0.2:1"]},
                {"name": "q", "models": ["n"], "endpoints": ["10.0.0.2:1", "10.0.0.3:1"], "cluster": "c"}],
            "choose": {"policy": queue}, "signals": signals})
        .to_string()
    }

    fn ask(worker: &mut Worker<Pick>) -> Exchange<Pick> {
        let facts = "dialect=chat stream=0 prompt_tokens=16 prompt_units=1 model=m";
        worker.request(&[], &[(wire::BLOCKS, &wire::write_blocks(facts, &[]))], false)
    }

    fn chosen(worker: &mut Worker<Pick>) -> String {
        let exchange = ask(worker);
        let values = exchange.see().header(wire::DESTINATION);
        worker.finish(exchange);
        values[0].split(',').next().unwrap().to_owned()
    }

    /// Workers of one Envoy, which have joined.
    fn workers(signals: Value) -> (Rc<World>, [Worker<Pick>; 2]) {
        let world = World::new();
        let mut workers = [0, 1].map(|_| Worker::of(&world, &config(signals.clone())).unwrap());
        for worker in &mut workers {
            chosen(worker);
        }
        (world, workers)
    }

    /// Lets so many milliseconds pass, tick by tick, and gives the questions of all workers.
    fn pass(world: &World, workers: &mut [Worker<Pick>], ms: u64) -> Vec<Sent> {
        let mut sent = Vec::new();
        for _ in 0..ms / 50 {
            world.pass(Duration::from_millis(50));
            for (queue, worker) in workers.iter_mut().enumerate() {
                worker.tick();
                worker.hear(queue as u32);
                sent.extend(worker.calls());
            }
        }
        sent
    }

    fn waiting(n: u32) -> Vec<u8> {
        format!("vllm:num_requests_waiting {n}\nvllm:num_requests_running 0\n").into_bytes()
    }

    #[test]
    fn one_worker_asks_each_engine_once_a_time_and_all_hear_what_it_says() {
        let (world, mut workers) = workers(json!({}));
        let mut sent = pass(&world, &mut workers[..], 1_000);
        sent.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        let asked: Vec<_> = sent
            .iter()
            .map(|sent| (sent.cluster.as_str(), sent.path.as_str(), sent.endpoint.as_deref().unwrap()))
            .collect();
        let expected = [
            ("p", "/metrics", "10.0.0.1:1"),
            ("p", "/metrics", "10.0.0.2:1"),
            ("c", "/metrics", "10.0.0.3:1"),
        ];
        assert_eq!(asked, expected, "one that is in two pools is asked once");
        workers[0].tell(&sent[0], &OK, &waiting(9));
        workers[0].tell(&sent[1], &OK, &waiting(0));
        for queue in [0, 1] {
            workers[queue].hear(queue as u32);
            let all: Vec<String> = (0..20).map(|_| chosen(&mut workers[queue])).collect();
            assert!(all.iter().all(|address| address == "10.0.0.2:1"), "worker {queue}: {all:?}");
        }
        assert_eq!(world.metric("weir_pick_scrapes_good_total"), 2);
    }

    #[test]
    fn an_engine_that_hangs_is_asked_once_and_delays_no_other() {
        let (world, mut workers) = workers(json!({"interval_ms": 100}));
        let mut asked = [0, 0, 0];
        for _ in 0..40 {
            for sent in pass(&world, &mut workers[..], 50) {
                let at = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
                    .iter()
                    .position(|address| sent.endpoint.as_deref() == Some(*address))
                    .unwrap();
                asked[at] += 1;
                if at > 0 {
                    workers[0].tell(&sent, &OK, &waiting(1));
                }
            }
        }
        assert_eq!(asked[0], 1);
        assert!(asked[1] > 9 && asked[2] > 9, "{asked:?}");
    }

    #[test]
    fn what_is_no_answer_of_an_engine_changes_nothing_and_is_asked_for_less_often() {
        let (world, mut workers) = workers(json!({"interval_ms": 100}));
        let lies: [(&str, &[u8]); 5] = [
            ("504", b"upstream request timeout"),
            ("200", b"<html>"),
            ("200", b"vllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc NaN\n"),
            ("200", b"\xff\xfe{{{"),
            ("200", b""),
        ];
        let mut told = 0;
        for sent in (0..200).flat_map(|_| pass(&world, &mut workers[..], 50)).collect::<Vec<_>>() {
            let (status, body) = lies[told % lies.len()];
            workers[0].tell(&sent, &[(":status", status)], body);
            told += 1;
        }
        let all: std::collections::HashSet<String> = (0..40).map(|_| chosen(&mut workers[0])).collect();
        assert_eq!(all.len(), 2, "nobody looks idle");
        assert_eq!(world.metric("weir_pick_scrapes_good_total"), 0);
        assert_eq!(
            world.metric("weir_pick_scrapes_unknown_total") + world.metric("weir_pick_scrapes_failed_total"),
            told as u64
        );
    }

    #[test]
    fn when_the_worker_that_asks_has_gone_another_does() {
        let (world, mut workers) = workers(json!({"interval_ms": 100}));
        assert!(!pass(&world, &mut workers[..1], 1_000).is_empty());
        let [_, left] = &mut workers;
        assert!(pass(&world, std::slice::from_mut(left), 1_000).is_empty(), "it is not known to have gone");
        assert!(!pass(&world, std::slice::from_mut(left), 4_000).is_empty());
        assert!(
            pass(&world, &mut workers[..1], 1_000).is_empty(),
            "one that comes back does not take it away"
        );
    }

    #[test]
    fn a_list_of_models_is_asked_for_after_the_metrics_and_not_needed() {
        for list in [&br#"{"data":[{"id":"x","parent":"m"}]}"#[..], b"<html>"] {
            let (world, mut workers) = workers(json!({"models_path": "/v1/models", "port": 9}));
            let metrics = pass(&world, &mut workers[..], 1_000);
            assert_eq!(metrics.len(), 3);
            for sent in &metrics {
                workers[0].tell(
                    sent,
                    &OK,
                    &waiting(u32::from(sent.endpoint.as_deref() == Some("10.0.0.1:9"))),
                );
            }
            let lists = workers[0].calls();
            assert!(lists.iter().all(|sent| sent.path == "/v1/models"));
            for sent in &lists {
                workers[0].tell(sent, &OK, list);
            }
            assert_eq!(chosen(&mut workers[0]), "10.0.0.2:1");
        }
    }
}
