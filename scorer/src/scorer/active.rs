//! Tries endpoints that are out, so that no client's request has to: [`weir::breaker::ActiveProbe`] says how. To the book, and to
//! other scorers, it is a probe like any other.

use super::Scorer;
use crate::clock;
use reqwest::Client;
use std::sync::Arc;
use std::time::Duration;
use weir::breaker::{ActiveProbe, Class, Outcome, Question};
use weir::pool::LeaseId;
use weir::random::Random;
use weir::wire::Event;

/// How often it is looked who is due.
const LOOK: Duration = Duration::from_millis(200);

/// A probe that is booked.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) pool: String,
    pub(super) endpoint: String,
    pub(super) lease: LeaseId,
    pub(super) probe: ActiveProbe,
}

/// Tries whoever is due, for as long as it is polled.
pub async fn probe(scorer: Arc<Scorer>) -> anyhow::Result<()> {
    let client = Client::builder().no_proxy().build()?;
    let mut random = Random::new(clock::seed());
    let mut every = tokio::time::interval(LOOK);
    loop {
        every.tick().await;
        for due in scorer.due(&mut random) {
            tokio::spawn(try_one(Arc::clone(&scorer), client.clone(), due));
        }
    }
}

async fn try_one(scorer: Arc<Scorer>, client: Client, due: Due) {
    let Due { pool, endpoint, lease, probe } = due;
    let mut outcome = Outcome::of_status(200, None);
    for question in probe.questions() {
        outcome = ActiveProbe::outcome(ask(&client, &endpoint, question, probe.timeout()).await);
        if outcome.class() != Class::Success {
            break;
        }
    }
    let attempted = Event::Attempted { pool: pool.clone(), lease, endpoint, outcome };
    scorer.report(&[attempted, Event::End { pool, lease, answered: None }]);
}

/// The status of the whole answer; 504 where it did not come in time, 0 where there was none.
async fn ask(client: &Client, endpoint: &str, question: Question, timeout: Duration) -> u16 {
    let url = format!("http://{endpoint}{}", question.path);
    let request = match question.body.is_empty() {
        true => client.get(url),
        false => client.post(url).header("content-type", "application/json").body(question.body),
    };
    let whole = async {
        let answer = request.timeout(timeout).send().await?;
        let status = answer.status().as_u16();
        let mut answer = answer;
        while answer.chunk().await?.is_some() {}
        Ok::<_, reqwest::Error>(status)
    };
    match whole.await {
        Ok(status) => status,
        Err(error) if error.is_timeout() => 504,
        Err(_) => 0,
    }
}
