//! Scrapes engines: each endpoint's metrics, again and again, into the pools. When, and what an answer comes to, is the
//! core's to say ([`weir::signals`]); here each endpoint has a task of its own.

use super::Scorer;
use crate::clock;
use reqwest::{Client, StatusCode, Url};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use weir::random::Random;
use weir::signals::{self, Config, Reading, Rhythm, Scraped};

/// Most bytes of an answer that are read.
const MOST_BYTES: usize = 4 << 20;
/// How often it is looked which endpoints there are.
const LOOK: Duration = Duration::from_secs(1);

/// Scrapes all endpoints of all pools, also those that join later, for as long as it is polled.
pub async fn scrape(scorer: Arc<Scorer>, config: Config) -> anyhow::Result<()> {
    // An engine that names another place must not have that one's numbers taken for its own.
    let stays = reqwest::redirect::Policy::none();
    let client = Client::builder().no_proxy().redirect(stays).timeout(config.timeout()).build()?;
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
            let at = |path: &String| url(&address, &config, path);
            let Some(metrics) = at(&config.path) else {
                log::error!("{address}: no metrics can be at {:?}", config.path);
                continue;
            };
            let engine = Engine {
                client: client.clone(),
                metrics,
                models: config.models_path.as_ref().and_then(at),
                address: address.clone(),
            };
            let rhythm = Rhythm::new(&config);
            let task = engine.follow(Arc::clone(&scorer), rhythm, Random::new(random.next()));
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

fn url(address: &str, config: &Config, path: &str) -> Option<Url> {
    // Not joined to a base: `//there/metrics` would be a place of its own.
    Url::parse(&format!("http://{}{path}", config.asked_at(address)?)).ok()
}

/// One endpoint, and where it is asked.
struct Engine {
    client: Client,
    metrics: Url,
    models: Option<Url>,
    address: String,
}

impl Engine {
    async fn follow(self, scorer: Arc<Scorer>, mut rhythm: Rhythm, mut random: Random) {
        let address = &self.address;
        let mut last = Scraped::Good;
        tokio::time::sleep(rhythm.first(&mut random)).await;
        loop {
            let at = scorer.now();
            let (scraped, why) = match self.read().await {
                Ok(reading) if reading.says_anything() => {
                    scorer.hear(address, &reading.report(at));
                    (Scraped::Good, String::new())
                }
                Ok(_) => (Scraped::Unknown, "nothing that is known".to_owned()),
                Err(error) => (Scraped::Failed, format!("{error:#}")),
            };
            scorer.scraped(scraped);
            if scraped != last && scraped != Scraped::Good {
                log::warn!("{address}: no metrics: {why}");
            } else if scraped != last {
                log::info!("{address}: metrics again");
            }
            last = scraped;
            let took = scorer.now().since(at);
            tokio::time::sleep(rhythm.next(scraped, &mut random).saturating_sub(took)).await;
        }
    }

    /// What the engine says. Without its list of models it still says how it is.
    async fn read(&self) -> anyhow::Result<Reading> {
        let mut reading = signals::read(&String::from_utf8_lossy(&self.ask(&self.metrics).await?));
        if let Some(models) = &self.models {
            reading.listed = self.ask(models).await.ok().and_then(|json| signals::models(&json));
        }
        Ok(reading)
    }

    /// The bytes of an answer, within bounds.
    async fn ask(&self, url: &Url) -> anyhow::Result<Vec<u8>> {
        let mut answer = self.client.get(url.clone()).send().await?;
        anyhow::ensure!(answer.status() == StatusCode::OK, "answered with {}", answer.status());
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            anyhow::ensure!(bytes.len() + chunk.len() <= MOST_BYTES, "more than {MOST_BYTES} bytes");
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}
