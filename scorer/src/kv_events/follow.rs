//! Follows one engine: connects, hears, fetches what was missed, again and again.
//!
//! What is to be done with each batch is the core's to say ([`Stream`]). Whatever goes wrong here ends this connection
//! and no other, and until there is another the endpoint's prompts are judged by what was sent there.

use super::Events;
use super::decode;
use super::zmtp::{Kind, Socket};
use crate::scorer::Scorer;
use crate::seldom::Seldom;
use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use weir::kv::{Batch, News, Step, Stream};
use weir::random::Random;

/// What is taken in one go, in tokens that are hashed; requests are served in between.
const AT_ONCE: usize = 16_384;
/// How much longer the pause between two tries becomes at the most.
const MOST_PAUSE: u32 = 30;
/// How an answer ends that has all batches.
const END: [u8; 8] = [0xff; 8];

/// One engine.
pub(super) struct Engine {
    pub(super) scorer: Arc<Scorer>,
    pub(super) pool: String,
    /// The endpoint's address, by which the pool knows it.
    pub(super) endpoint: String,
    pub(super) rank: u32,
    pub(super) publishes_at: SocketAddr,
    pub(super) replays_at: Option<SocketAddr>,
    pub(super) events: Arc<Events>,
    /// What could not be fetched.
    pub(super) gaps: Mutex<Seldom>,
}

impl Engine {
    /// Follows it for as long as it is polled.
    pub(super) async fn follow(self, mut random: Random) {
        let mut stream = Stream::default();
        let (mut tries, mut said) = (0_u32, None);
        loop {
            let mut linked = false;
            let Err(error) = self.hear(&mut stream, &mut linked).await;
            self.tell(&News::Linked(false));
            if self.replays_at.is_none() {
                // What happens meanwhile nobody will tell.
                stream.forget();
            }
            tries = if linked { 0 } else { tries.saturating_add(1) };
            let why = error.to_string();
            if said.as_ref() != Some(&why) {
                let Self { pool, endpoint, publishes_at, .. } = &self;
                log::warn!("pool {pool:?}: no KV events of {endpoint} from {publishes_at}: {why}");
                said = Some(why);
            }
            let longer = 2_u32.saturating_pow(tries.saturating_sub(1)).min(MOST_PAUSE);
            tokio::time::sleep(self.events.retry().mul_f64(f64::from(longer) * (0.5 + random.unit()))).await;
        }
    }

    /// Hears it until the connection ends.
    async fn hear(&self, stream: &mut Stream, linked: &mut bool) -> Result<std::convert::Infallible> {
        let mut events = self.in_time(Socket::connect(self.publishes_at, Kind::Sub)).await?;
        events.subscribe(&self.events.topic).await?;
        *linked = true;
        self.tell(&News::Linked(true));
        log::info!("pool {:?}: KV events of {} from {}", self.pool, self.endpoint, self.publishes_at);
        // What was published before, while what is published now waits its turn.
        self.fetch(stream, stream.resume()).await;
        loop {
            let message = events.receive().await?;
            let Some((number, batch)) = read(&message) else {
                self.tell(&News::Batch(Batch { odd: 1, ..Batch::default() }));
                continue;
            };
            let step = match stream.live(number, batch.at) {
                Step::Fetch { from } => {
                    self.fetch(stream, from).await;
                    stream.after(number, batch.at)
                }
                step => step,
            };
            self.take(step, batch).await;
        }
    }

    /// Fetches what is kept from that number on. If that fails, what was held is let go with the next batch that comes.
    async fn fetch(&self, stream: &mut Stream, from: u64) {
        let Some(address) = self.replays_at else { return };
        // Twice at the most: what is fetched may show that the engine has started anew, and then all of it is wanted.
        let mut from = Some(from);
        while let Some(first) = from {
            match self.fetch_from(address, stream, first).await {
                Ok(again) => from = again,
                Err(error) => {
                    let Self { pool, endpoint, .. } = self;
                    let times =
                        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).note(self.scorer.now());
                    if let Some(times) = times {
                        log::warn!(
                            "pool {pool:?}: KV events of {endpoint} from {first} on cannot be fetched ({times} times): {error}"
                        );
                    }
                    return;
                }
            }
        }
    }

    async fn fetch_from(&self, address: SocketAddr, stream: &mut Stream, from: u64) -> Result<Option<u64>> {
        let mut replay = self.in_time(Socket::connect(address, Kind::Dealer)).await?;
        replay.send(&[b"", &from.to_be_bytes()]).await?;
        let mut is_first = true;
        loop {
            let message = self.in_time(replay.receive()).await?;
            let (number, payload) = last_two(&message)
                .ok_or_else(|| Error::new(ErrorKind::InvalidData, "an answer has no number"))?;
            if number == END {
                break;
            }
            let Some(batch) = decode::batch(payload) else {
                self.tell(&News::Batch(Batch { odd: 1, ..Batch::default() }));
                continue;
            };
            match stream.fetched(is_first, u64::from_be_bytes(number), batch.at) {
                Step::Fetch { from } => return Ok(Some(from)),
                step => self.take(step, batch).await,
            }
            is_first = false;
        }
        Ok(match (is_first, from) {
            (false, _) => None,
            // It has never said anything: it holds nothing.
            (true, 0) => {
                self.tell(&News::Anew { whole: true });
                None
            }
            // It does not have what it said last.
            (true, _) => {
                stream.forget();
                Some(0)
            }
        })
    }

    async fn take(&self, step: Step, batch: Batch) {
        match step {
            Step::Skip | Step::Fetch { .. } => return,
            Step::Anew { whole } => self.tell(&News::Anew { whole }),
            Step::Take => {}
        }
        for part in batch.parts(AT_ONCE) {
            self.tell(&News::Batch(part));
            tokio::task::yield_now().await;
        }
    }

    fn tell(&self, news: &News) {
        self.scorer.told(&self.pool, &self.endpoint, self.rank, news);
    }

    async fn in_time<T>(&self, what: impl Future<Output = Result<T>>) -> Result<T> {
        let late = |_| Error::new(ErrorKind::TimedOut, "nothing came in time");
        tokio::time::timeout(self.events.timeout(), what).await.map_err(late)?
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tell(&News::Linked(false));
    }
}

/// The number and the batch of a message: its last two frames, behind the topic.
fn read(message: &[Vec<u8>]) -> Option<(u64, Batch)> {
    let (number, payload) = last_two(message)?;
    Some((u64::from_be_bytes(number), decode::batch(payload)?))
}

fn last_two(message: &[Vec<u8>]) -> Option<([u8; 8], &[u8])> {
    let [.., number, payload] = message else { return None };
    Some((number.as_slice().try_into().ok()?, payload))
}
