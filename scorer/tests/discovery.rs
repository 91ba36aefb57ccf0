//! Endpoints that come and go by a file and by DNS, of a small name server on loopback.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use hickory_resolver::proto::op::{Message, MessageType, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UdpSocket;
use weir::policy::Demand;
use weir::pool::Ask;
use weir::wire::Reserve;
use weir_scorer::discovery;
use weir_scorer::scorer::{Config, Scorer, Watch};

const PATIENCE: Duration = Duration::from_secs(30);

/// What the name server says: records by name and kind, or that it fails.
#[derive(Default)]
struct Zone {
    records: HashMap<(String, RecordType), Vec<RData>>,
    fails: bool,
    ttl_s: u32,
    asked: usize,
}

async fn name_server(zone: Arc<Mutex<Zone>>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
            let Ok(mut message) = Message::from_vec(&bytes[..length]) else { continue };
            let query = message.queries()[0].clone();
            let answer = {
                let mut zone = zone.lock().unwrap();
                zone.asked += 1;
                let name = query.name().to_utf8();
                let key = (name.trim_end_matches('.').to_owned(), query.query_type());
                let found = zone.records.get(&key).cloned().unwrap_or_default();
                found.into_iter().for_each(|data| {
                    message.add_answer(Record::from_rdata(query.name().clone(), zone.ttl_s, data));
                });
                message.set_message_type(MessageType::Response).set_authoritative(true);
                message.set_response_code(if zone.fails {
                    ResponseCode::ServFail
                } else {
                    ResponseCode::NoError
                });
                message.to_vec().unwrap()
            };
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    address
}

fn a(ip: &str) -> RData {
    RData::A(A(ip.parse().unwrap()))
}

fn aaaa(ip: &str) -> RData {
    RData::AAAA(AAAA(ip.parse().unwrap()))
}

fn srv(port: u16, target: &str) -> RData {
    RData::SRV(SRV::new(0, 0, port, Name::from_ascii(target).unwrap()))
}

fn set(zone: &Mutex<Zone>, name: &str, kind: RecordType, data: Vec<RData>) {
    zone.lock().unwrap().records.insert((name.to_owned(), kind), data);
}

fn scorer(discovery: &Value) -> (Arc<Scorer>, Config) {
    let config = json!({"pools": [{"name": "a", "models": ["m"]}], "discovery": {"a": discovery}});
    let config = Config::read(config.to_string().as_bytes()).unwrap();
    let scorer = Arc::new(Scorer::new(&config).unwrap());
    discovery::follow(&scorer, &config.discovery).unwrap();
    (scorer, config)
}

fn endpoints(scorer: &Scorer) -> Vec<String> {
    scorer.loads()[0].endpoints.iter().map(|own| own.address.clone()).collect()
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "never {what}");
}

async fn become_these(scorer: &Scorer, wanted: &[&str]) {
    until(&format!("{wanted:?}"), async || endpoints(scorer) == wanted).await;
}

fn book(scorer: &Scorer, lease: u64) -> Vec<String> {
    let demand = Demand { prompt_tokens: 10, stream: true, ..Demand::default() };
    scorer.reserve(&Reserve::of("a", lease, &Ask { blocks: &[], demand, prompt: None })).unwrap().endpoints
}

#[tokio::test]
async fn addresses_and_services_become_endpoints_and_a_failure_takes_none_away() {
    let zone = Arc::new(Mutex::new(Zone { ttl_s: 600, ..Zone::default() }));
    set(&zone, "engines.test", RecordType::A, vec![a("10.0.0.2"), a("10.0.0.1")]);
    set(&zone, "engines.test", RecordType::AAAA, vec![aaaa("fd00::1")]);
    set(&zone, "_http._tcp.more.test", RecordType::SRV, vec![srv(81, "x.test."), srv(82, "y.test.")]);
    set(&zone, "x.test", RecordType::A, vec![a("10.1.0.1")]);
    set(&zone, "y.test", RecordType::A, vec![a("10.1.0.1")]);
    let server = name_server(Arc::clone(&zone)).await;
    let names = ["engines.test:8000", "_http._tcp.more.test"];
    let (scorer, _) = scorer(&json!({"dns": names, "interval_ms": 50, "server": server}));
    let first = ["10.0.0.1:8000", "10.0.0.2:8000", "10.1.0.1:81", "10.1.0.1:82", "[fd00::1]:8000"];
    become_these(&scorer, &first).await;
    (0..10).for_each(|lease| drop(book(&scorer, lease)));
    let booked = || scorer.loads()[0].leases;
    assert_eq!(booked(), 10);
    let of_gone = scorer.loads()[0].endpoints[0].in_flight as usize;
    assert!(of_gone > 0, "an even spread");

    // A new record and a lost one: who is gone takes along what was booked there, and nobody else does.
    set(&zone, "engines.test", RecordType::A, vec![a("10.0.0.2"), a("10.0.0.3")]);
    let second = ["10.0.0.2:8000", "10.0.0.3:8000", "10.1.0.1:81", "10.1.0.1:82", "[fd00::1]:8000"];
    become_these(&scorer, &second).await;
    assert_eq!(booked(), 10 - of_gone);

    // A server that fails, and a name that says nothing any more.
    let asked = || zone.lock().unwrap().asked;
    zone.lock().unwrap().fails = true;
    let before = asked();
    until("it was asked and failed", async || asked() > before + 8).await;
    assert_eq!(endpoints(&scorer), second);
    zone.lock().unwrap().fails = false;
    set(&zone, "_http._tcp.more.test", RecordType::SRV, vec![]);
    set(&zone, "engines.test", RecordType::A, vec![a("10.0.0.9")]);
    become_these(&scorer, &["10.0.0.9:8000", "10.1.0.1:81", "10.1.0.1:82", "[fd00::1]:8000"]).await;
}

#[tokio::test]
async fn without_an_interval_records_are_asked_for_again_when_their_time_is_up() {
    let zone = Arc::new(Mutex::new(Zone { ttl_s: 1, ..Zone::default() }));
    set(&zone, "engines.test", RecordType::A, vec![a("10.0.0.1")]);
    let server = name_server(Arc::clone(&zone)).await;
    let (scorer, _) = scorer(&json!({"dns": ["engines.test:8000"], "server": server}));
    become_these(&scorer, &["10.0.0.1:8000"]).await;
    set(&zone, "engines.test", RecordType::A, vec![a("10.0.0.2")]);
    become_these(&scorer, &["10.0.0.2:8000"]).await;
}

fn replace(file: &Path, text: &str) {
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, file).unwrap();
}

#[tokio::test]
async fn a_file_is_followed_and_a_broken_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engines.yaml");
    // It may come after the scorer.
    let (scorer, config) = scorer(&json!({"file": file}));
    assert!(endpoints(&scorer).is_empty());
    replace(&file, "endpoints: ['10.0.0.1:1', '[::1]:2']\nattributes: {'10.0.0.1:1': {max_in_flight: 1}}");
    become_these(&scorer, &["10.0.0.1:1", "[::1]:2"]).await;
    (0..5).for_each(|lease| drop(book(&scorer, lease)));
    let in_flight: Vec<u32> = scorer.loads()[0].endpoints.iter().map(|own| own.in_flight).collect();
    assert_eq!(in_flight, [1, 4], "what the file says of them counts");

    for broken in [
        "endpoints: [",
        "endpoints: ['engine:1']",
        "endpoints: ['10.0.0.1:1', '10.0.0.1:1']",
        "endpoint: []",
        "endpoints: []\nattributes: {'10.0.0.1:1': {}}",
    ] {
        replace(&file, broken);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(endpoints(&scorer), ["10.0.0.1:1", "[::1]:2"], "{broken}");
    }
    std::fs::remove_file(&file).unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(scorer.loads()[0].leases, 5);

    // The scorer's own configuration, which has none for this pool, is no reason either.
    let own = folder.path().join("scorer.yaml");
    std::fs::write(&own, "pools: [{name: a, models: [m, n]}]\ndiscovery: {a: {file: x}}").unwrap();
    let watch = Watch::new(&own, Vec::new(), config).follow(Arc::clone(&scorer), Duration::from_millis(10));
    let _ = tokio::time::timeout(Duration::from_millis(200), watch).await;
    assert_eq!(endpoints(&scorer).len(), 2);

    replace(&file, "endpoints: ['[::1]:2', '10.0.0.7:1']");
    become_these(&scorer, &["[::1]:2", "10.0.0.7:1"]).await;
    assert_eq!(scorer.loads()[0].leases, 4, "who stays keeps what is booked there");
    replace(&file, "endpoints: []");
    become_these(&scorer, &[]).await;
}

#[tokio::test]
async fn a_service_whose_host_is_dead_and_an_address_of_nobody_are_left_out() {
    let zone = Arc::new(Mutex::new(Zone { ttl_s: 600, ..Zone::default() }));
    set(&zone, "_http._tcp.more.test", RecordType::SRV, vec![srv(81, "x.test."), srv(82, "y.test.")]);
    set(&zone, "x.test", RecordType::A, vec![a("10.1.0.1")]);
    set(&zone, "y.test", RecordType::A, vec![a("10.1.0.2")]);
    let odd = ["10.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"];
    set(&zone, "engines.test", RecordType::A, odd.map(a).to_vec());
    set(&zone, "engines.test", RecordType::AAAA, vec![aaaa("::"), aaaa("ff02::1")]);
    let server = name_server(Arc::clone(&zone)).await;
    let names = ["engines.test:8000", "_http._tcp.more.test"];
    let (scorer, _) = scorer(&json!({"dns": names, "interval_ms": 50, "server": server}));
    become_these(&scorer, &["10.0.0.1:8000", "10.1.0.1:81", "10.1.0.2:82"]).await;
    // One of the hosts goes, and the other one moves.
    let gone = ("y.test".to_owned(), RecordType::A);
    zone.lock().unwrap().records.remove(&gone);
    set(&zone, "x.test", RecordType::A, vec![a("10.1.0.3")]);
    become_these(&scorer, &["10.0.0.1:8000", "10.1.0.3:81"]).await;
    // A port that is none is no endpoint, and where nothing is left all stays.
    set(&zone, "_http._tcp.more.test", RecordType::SRV, vec![srv(0, "x.test.")]);
    set(&zone, "engines.test", RecordType::A, vec![a("10.0.0.9")]);
    become_these(&scorer, &["10.0.0.9:8000", "10.1.0.3:81"]).await;
}

#[tokio::test]
async fn a_file_that_is_a_pipe_or_nested_without_end_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("endpoints.yaml");
    std::fs::write(&file, "endpoints: ['10.0.0.1:80']\n").unwrap();
    let (scorer, _) = scorer(&json!({"file": file}));
    become_these(&scorer, &["10.0.0.1:80"]).await;
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let replace = |text: &str| {
        let other = dir.path().join("other");
        std::fs::write(&other, text).unwrap();
        std::fs::rename(&other, &file).unwrap();
    };
    // Whoever opened the pipe would wait for ever.
    replace("endpoints: ['10.0.0.2:80']\n");
    become_these(&scorer, &["10.0.0.2:80"]).await;
    // A minute of the reader's time, and longer than the patience here.
    replace(&format!("endpoints: {}", "[".repeat(300_000)));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    replace("endpoints: ['10.0.0.3:80']\n");
    become_these(&scorer, &["10.0.0.3:80"]).await;
}
