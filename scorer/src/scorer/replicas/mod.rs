//! Other scorers: what is booked here is told to them, and what they tell is booked here.
//!
//! What is to be told waits in an outbox, into which a call puts it under the lock of the book: in the order in which it happened, and
//! without waiting for anybody. Every few milliseconds it leaves for the store (`link.rs`), where all read it. What follows from what
//! they say is the core's to know ([`weir::replicas`]).
//!
//! Without the store each goes on with what it knows. What it has to tell is kept up to a bound; then it is let go, and the list of
//! leases that all name now and then puts right what was missed.

mod config;
mod gauges;
mod link;

pub use config::Config;
pub(super) use gauges::Gauges;

use super::{Config as ScorerConfig, Scorer};
use crate::clock;
use crate::seldom::Seldom;
use link::{Keys, Position, Reader, Writer};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use weir::breaker::Moved;
use weir::instant::Instant;
use weir::invalid::Invalid;
use weir::pool::Message;
use weir::replicas::{Frame, Kind, LISTENS, ReplicaId, Replicas};

/// Most bytes that wait to be told: seconds of what a scorer can do.
const MOST_WAITING: usize = 16 << 20;

/// How often a frame is tried while the store answers otherwise.
const TRIES: u32 = 3;

/// What leads to the other scorers.
#[derive(Debug)]
pub(super) struct Link {
    config: Config,
    client: redis::Client,
    timeout: Duration,
    keys: Keys,
    position: Position,
    replicas: Mutex<Replicas>,
    outbox: Mutex<Outbox>,
    /// Something waits to be told.
    waiting: Notify,
    lost: AtomicU64,
    /// Of what made no sense.
    odd: Mutex<Seldom>,
}

/// What is to be told.
#[derive(Debug, Default)]
struct Outbox {
    messages: Vec<Message>,
    bytes: usize,
    /// All leases are to be named.
    whole: bool,
    /// It is to be said that one is here, and who is asked for everything.
    hello: Vec<Option<ReplicaId>>,
    /// Who is to be told everything.
    newcomers: Vec<ReplicaId>,
    /// The store is heard.
    reads: bool,
    /// The store takes what is told; what was said of it last.
    is_up: Option<bool>,
}

/// What leaves at once, the first first.
#[derive(Debug, Default)]
struct Parcel {
    /// For all.
    frames: VecDeque<Told>,
    /// For one each.
    newcomers: VecDeque<(ReplicaId, Vec<u8>)>,
}

/// A frame as bytes.
#[derive(Debug)]
struct Told {
    frame: Vec<u8>,
    /// So many messages are in it.
    messages: usize,
}

impl Link {
    /// A link to whoever shares the store, if the configuration has that; connects to nothing yet.
    pub(super) fn new(config: &ScorerConfig, now: Instant) -> Result<Option<Self>, Invalid> {
        let (Some(replicas), Some(store)) = (&config.replicas, &config.store) else { return Ok(None) };
        let own = clock::seed() & !LISTENS;
        let until = now + Duration::from_millis(replicas.join_ms.get());
        Ok(Some(Self {
            client: store.client()?,
            timeout: Duration::from_millis(store.timeout_ms.get()),
            keys: Keys::new(&replicas.group, own),
            config: replicas.clone(),
            replicas: Mutex::new(Replicas::join(own, until)),
            outbox: Mutex::default(),
            waiting: Notify::new(),
            lost: AtomicU64::new(0),
            odd: Mutex::default(),
            position: Position::default(),
        }))
    }

    /// Has the others told of what was done here.
    pub(super) fn tell(&self, message: Message) {
        let mut outbox = self.outbox();
        if outbox.bytes > MOST_WAITING {
            self.lost.fetch_add(outbox.messages.len() as u64, Ordering::Relaxed);
            outbox.messages.clear();
            (outbox.bytes, outbox.whole) = (0, true);
        }
        outbox.bytes += message.size();
        outbox.messages.push(message);
        drop(outbox);
        self.waiting.notify_one();
    }

    /// Whether this scorer knows what the others know.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.replicas().is_ready(now)
    }

    /// Sets what is counted.
    pub(super) fn count(&self, gauges: &Gauges, now: Instant) {
        let is_up = { self.outbox().is_up == Some(true) };
        let mut replicas = self.replicas();
        gauges.set(replicas.others(), replicas.is_ready(now), is_up, self.lost.load(Ordering::Relaxed));
    }

    fn replicas(&self) -> MutexGuard<'_, Replicas> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is to be told out of the outbox.
    fn parcel(&self, scorer: &Scorer) -> Parcel {
        scorer.with_pools(|pools, now| {
            let mut outbox = self.outbox();
            let replicas = self.replicas();
            let messages = std::mem::take(&mut outbox.messages);
            outbox.bytes = 0;
            let mut frames = replicas.news(pools, messages);
            frames.extend(
                std::mem::take(&mut outbox.hello).into_iter().map(|asks| replicas.hello(pools, asks)),
            );
            // Behind all that happened before.
            frames.extend(std::mem::take(&mut outbox.whole).then(|| replicas.whole(pools, now)));
            let told = |frame: &Frame| Told { frame: frame.encode(), messages: frame.messages.len() };
            let everything = |one: ReplicaId| {
                let frames = replicas.everything(pools, now);
                frames.into_iter().map(move |frame| (one, frame.encode()))
            };
            let newcomers = std::mem::take(&mut outbox.newcomers).into_iter().flat_map(everything);
            Parcel { frames: frames.iter().map(told).collect(), newcomers: newcomers.collect() }
        })
    }

    /// Books what another has told.
    fn hear(&self, scorer: &Scorer, bytes: &[u8]) {
        let Some(frame) = Frame::decode(bytes) else {
            let times = self.odd.lock().unwrap_or_else(PoisonError::into_inner).note(scorer.now());
            if let Some(times) = times {
                log::warn!(
                    "what another scorer says makes no sense ({times} times): is it of another version?"
                );
            }
            return;
        };
        let (from, is_hello) = (frame.from, frame.kind == Kind::Hello { asks: None });
        let (heard, own) = scorer.with_pools(|pools, now| {
            let mut replicas = self.replicas();
            let mut heard = replicas.hear(pools, frame, now);
            let mut listeners = scorer.listeners();
            heard.news.drain(..).for_each(|message| listeners.note(None, message));
            drop(listeners);
            let names: Vec<String> = pools.iter().map(|(name, _)| name.to_owned()).collect();
            for (place, endpoint, moved) in &heard.moved {
                let name = names.get(usize::from(*place)).map_or("", String::as_str);
                match moved {
                    Moved::Out => log::warn!("pool {name:?}: {endpoint} is out, as another scorer says"),
                    Moved::Back => log::info!("pool {name:?}: {endpoint} is back, as another scorer says"),
                }
            }
            (heard, replicas.own())
        });
        if is_hello && from != own {
            log::info!("another scorer, {from:016x}, says that it is here");
        }
        let mut outbox = self.outbox();
        outbox.whole |= heard.whole;
        outbox.newcomers.extend(heard.newcomer);
        outbox.hello.extend(heard.ask.map(Some));
        let told = heard.whole || heard.newcomer.is_some() || heard.ask.is_some();
        drop(outbox);
        heard.tell.into_iter().for_each(|message| self.tell(message));
        if told {
            self.waiting.notify_one();
        }
    }

    /// Lets go what cannot be told; all leases are named instead.
    fn let_go(&self, frames: VecDeque<Told>) {
        let messages: usize = frames.iter().map(|told| told.messages).sum();
        self.lost.fetch_add(messages as u64, Ordering::Relaxed);
        self.outbox().whole = true;
    }

    /// The store answers or fails: said once a change.
    fn is_up(&self, now: Result<(), String>) {
        let up = now.is_ok();
        let was = self.outbox().is_up.replace(up);
        match (now, was) {
            (Err(why), None | Some(true)) => {
                log::warn!("the store that scorers share fails, each goes on with what it knows: {why}");
            }
            (Ok(()), Some(false)) => log::info!("the store that scorers share answers again"),
            _ => {}
        }
    }
}

/// Tells and hears for as long as the program runs.
pub(super) fn follow(link: Arc<Link>, scorer: &Arc<Scorer>) {
    tokio::spawn(write(Arc::clone(&link), Arc::clone(scorer)));
    tokio::spawn(read(link, Arc::clone(scorer)));
}

async fn write(link: Arc<Link>, scorer: Arc<Scorer>) {
    let mut writer = Writer::new(&link);
    let (flush, beat) = (link.config.flush_ms.get(), Duration::from_millis(link.config.beat_ms.get()));
    let (flush, retry) = (Duration::from_millis(flush), Duration::from_millis(link.config.retry_ms.get()));
    let mut beats = tokio::time::interval(beat);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut away, mut tries) = (true, 0);
    let mut parcel = Parcel::default();
    loop {
        tokio::select! {
            () = link.waiting.notified(), if !away => tokio::time::sleep(flush).await,
            _ = beats.tick() => match writer.beat(beat).await {
                Ok(living) => {
                    let asks_again = {
                        let mut replicas = link.replicas();
                        replicas.list(living);
                        replicas.asks_again(scorer.now())
                    };
                    let mut outbox = link.outbox();
                    outbox.whole = true;
                    outbox.hello.extend(asks_again.then_some(None));
                    away = false;
                }
                Err(why) => {
                    away = true;
                    link.is_up(Err(why));
                    beats.reset_after(retry);
                }
            }
        }
        // Whoever hears of this one answers, so it has to hear first; and what waits while the store is away waits in the outbox.
        if away || !link.outbox().reads {
            continue;
        }
        let waited = parcel.frames.len();
        let mut sent = writer.send(&mut parcel).await;
        if sent.is_ok() {
            parcel = link.parcel(&scorer);
            sent = writer.send(&mut parcel).await;
            tries = 0;
        }
        let Err(why) = sent else {
            link.is_up(Ok(()));
            continue;
        };
        link.is_up(Err(why));
        away = true;
        beats.reset_after(retry);
        parcel.newcomers.clear();
        // Said again it does no harm. But what does not pass while signs of life do never will, and may not hold up the rest.
        tries = if parcel.frames.len() < waited { 1 } else { tries + 1 };
        if tries >= TRIES {
            tries = 0;
            link.let_go(std::mem::take(&mut parcel.frames));
        }
    }
}

async fn read(link: Arc<Link>, scorer: Arc<Scorer>) {
    let retry = Duration::from_millis(link.config.retry_ms.get());
    let mut reader = Reader::new(&link);
    loop {
        let read = reader.read(!link.is_ready(scorer.now())).await;
        match read {
            Ok(frames) => {
                if !reader.said_hello {
                    reader.said_hello = true;
                    let mut outbox = link.outbox();
                    outbox.reads = true;
                    outbox.hello.push(None);
                    drop(outbox);
                    link.waiting.notify_one();
                }
                frames.iter().for_each(|frame| link.hear(&scorer, frame));
            }
            Err(why) => {
                // The writer speaks of the store: it tries it at least once a beat.
                log::debug!("reading what other scorers say: {why}");
                reader.said_hello = false;
                tokio::time::sleep(retry).await;
            }
        }
    }
}
