//! Scrapes engines: each endpoint's metrics, again and again, into the pools.
//!
//! Each endpoint has a scraper of its own, with a deadline and one request out at a time: an engine that hangs delays
//! nobody else's numbers and gets no second request on top. Scrapers start at a random phase and drift by a tenth, or all
//! engines would be asked, and all numbers would be old, at the same moment. One that fails is asked half as often, down
//! to once in `MOST_WAIT`. What an endpoint said goes stale by itself (`choose.stale_ms`), so a failed scrape changes
//! nothing.
//!
//! Once a second is enough: what is sent between two scrapes is counted as it is sent. llm-d asks every 50 ms, which has
//! cost it cores and made engines unresponsive.

use super::Scorer;
use crate::clock;
use reqwest::{Client, Url};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use weir::random::Random;
use weir::signals;

/// Most bytes of metrics that are read.
const MOST_BYTES: usize = 4 << 20;
/// An endpoint that fails is asked at least so often.
const MOST_WAIT: Duration = Duration::from_secs(10);
/// How often it is looked which endpoints there are.
const LOOK: Duration = Duration::from_secs(1);

/// Where engines tell how they are, and how often they are asked.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Milliseconds from one scrape of an endpoint to the next.
    pub interval_ms: NonZeroU64,
    /// Milliseconds that one may take.
    pub timeout_ms: NonZeroU64,
    /// The path of the metrics.
    pub path: String,
    /// Their port, where it is not the endpoint's.
    pub port: Option<NonZeroU16>,
}

impl Default for Config {
    fn default() -> Self {
        const SECOND: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
        Self { interval_ms: SECOND, timeout_ms: SECOND, path: "/metrics".to_owned(), port: None }
    }
}

/// What came of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scraped {
    /// The endpoint said how it is.
    Good,
    /// It answered in time, but not with metrics that are known.
    Unknown,
    /// It did not answer in time, or not with 200.
    Failed,
}

impl Scraped {
    /// All of them, as metrics name them.
    pub const OUTCOMES: [&str; 3] = ["good", "unknown", "failed"];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        let [good, unknown, failed] = Self::OUTCOMES;
        match self {
            Self::Good => good,
            Self::Unknown => unknown,
            Self::Failed => failed,
        }
    }
}

/// Scrapes all endpoints of all pools, also those that join later, for as long as it is polled.
pub async fn scrape(scorer: Arc<Scorer>, config: Config) -> anyhow::Result<()> {
    let client =
        Client::builder().no_proxy().timeout(Duration::from_millis(config.timeout_ms.get())).build()?;
    let mut random = Random::new(clock::seed());
    let mut running: HashMap<String, Running> = HashMap::new();
    let mut every = tokio::time::interval(LOOK);
    loop {
        every.tick().await;
        let wanted = scorer.addresses();
        running.retain(|address, _| wanted.contains(address));
        for address in wanted {
            if running.contains_key(&address) {
                continue;
            }
            let Some(url) = url(&address, &config) else {
                log::error!("{address}: no metrics can be at {:?}", config.path);
                continue;
            };
            let task = follow(
                Arc::clone(&scorer),
                client.clone(),
                url,
                address.clone(),
                config.clone(),
                random.next(),
            );
            running.insert(address, Running(tokio::spawn(task)));
        }
    }
}

/// A scraper, which ends with its endpoint.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn url(address: &str, config: &Config) -> Option<Url> {
    let mut socket: SocketAddr = address.parse().ok()?;
    if let Some(port) = config.port {
        socket.set_port(port.get());
    }
    Url::parse(&format!("http://{socket}")).ok()?.join(&config.path).ok()
}

/// Scrapes one endpoint.
async fn follow(scorer: Arc<Scorer>, client: Client, url: Url, address: String, config: Config, seed: u64) {
    let mut random = Random::new(seed);
    let interval = Duration::from_millis(config.interval_ms.get());
    let mut wait = interval;
    let mut last = Scraped::Good;
    tokio::time::sleep(interval.mul_f64(random.unit())).await;
    loop {
        let at = scorer.now();
        let (scraped, why) = match ask(&client, &url).await {
            Ok(text) => {
                let reading = signals::read(&text);
                match reading.says_anything() {
                    true => {
                        scorer.hear(&address, &reading.report(at));
                        (Scraped::Good, String::new())
                    }
                    false => (Scraped::Unknown, "nothing that is known".to_owned()),
                }
            }
            Err(error) => (Scraped::Failed, format!("{error:#}")),
        };
        scorer.scraped(scraped);
        if scraped != last && scraped != Scraped::Good {
            log::warn!("{address}: no metrics: {why}");
        } else if scraped != last {
            log::info!("{address}: metrics again");
        }
        last = scraped;
        wait = if scraped == Scraped::Good { interval } else { (wait * 2).min(MOST_WAIT.max(interval)) };
        let took = scorer.now().since(at);
        tokio::time::sleep(wait.mul_f64(0.9 + 0.2 * random.unit()).saturating_sub(took)).await;
    }
}

/// The text of the metrics, within bounds.
async fn ask(client: &Client, url: &Url) -> anyhow::Result<String> {
    let mut answer = client.get(url.clone()).send().await?.error_for_status()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        anyhow::ensure!(bytes.len() + chunk.len() <= MOST_BYTES, "more than {MOST_BYTES} bytes");
        bytes.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
