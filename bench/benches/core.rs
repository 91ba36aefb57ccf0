//! What one decision of the core costs: reading a request, reading an answer, admitting, choosing an endpoint; and what
//! it takes to know engines.
//!
//! Natively; in Envoy's V8 the same code takes about 1.6 times as long.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a benchmark"
)]

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;
use weir::breaker::{self, Breaker, Circuit, Config as BreakerConfig, Reason};
use weir::instant::Instant;
use weir::kv;
use weir::limit::{
    Asked, Claims, Heard, Ledger, Limits, Outcome, Reach, Spend, Store, Verdict, Wait, Waiting,
};
use weir::policy::{Demand, Policy};
use weir::pool::{Answered, Ask, Config, Index, Pool};
use weir::queue::{Line, Order, Waiter};
use weir::random::Random;
use weir::request::{self, Dialect, Facts};
use weir::response::{Reader, Usage};
use weir::signals;
use weir::wire;

const NOW: Instant = Instant::from_millis(1_000);

fn chat(bytes: usize) -> String {
    let text = "the quick brown fox jumps over the lazy dog ".repeat(bytes / 4 / 44 + 1);
    let turn = |role: &str| format!(r#"{{"role":"{role}","content":"{}"}}"#, &text[..bytes / 4]);
    let turns = ["system", "user", "assistant", "user"].map(turn).join(",");
    format!(r#"{{"model":"bench","messages":[{turns}],"max_tokens":16}}"#)
}

fn requests(c: &mut Criterion) {
    let config = request::Config::default();
    let mut group = c.benchmark_group("request");
    for kib in [1, 16, 128] {
        let body = chat(kib * 1024);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(BenchmarkId::new("read", format!("{kib} KiB")), |b| {
            b.iter(|| request::read(Dialect::Chat, black_box(body.as_bytes()), &config).unwrap());
        });
        let reading = request::read(Dialect::Chat, body.as_bytes(), &config).unwrap();
        group.bench_function(BenchmarkId::new("publish and take", format!("{kib} KiB")), |b| {
            b.iter(|| {
                let facts = wire::write_facts(&reading.facts);
                wire::read_blocks(&wire::write_blocks(&facts, &reading.blocks))
            });
        });
    }
    group.finish();
}

fn answers(c: &mut Criterion) {
    let mut group = c.benchmark_group("answer");
    let json = r#"{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there."},"finish_reason":"stop"}],"usage":{"prompt_tokens":15,"total_tokens":23,"completion_tokens":8}}"#;
    group.bench_function("JSON", |b| {
        b.iter(|| {
            let mut reader = Reader::new("application/json", "");
            reader.feed(black_box(json.as_bytes()));
            reader.end(true)
        });
    });
    let event = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    group.bench_function("one event of a stream", |b| {
        let mut reader = Reader::new("text/event-stream", "");
        reader.feed(event.as_bytes());
        b.iter(|| reader.feed(black_box(event.as_bytes())));
    });
    group.finish();
}

/// Endpoints that each hold some prefixes, and prompts of 4,096 tokens that share a part with one of them. `epp` is llm-d's
/// default.
fn pool(endpoints: usize, policy: &str) -> (Pool, Vec<Vec<u64>>) {
    let addresses: Vec<String> =
        (0..endpoints).map(|n| format!("10.0.{}.{}:8000", n / 250, n % 250)).collect();
    let policy = if policy == "epp" { json!({"plugins": []}) } else { policy.into() };
    let config = Config { policy, ..Config::default() };
    let mut pool = Pool::new(&config, &addresses, 7).unwrap();
    let mut random = Random::new(3);
    let mut chain = |n: usize| (0..n).map(|_| random.next()).collect::<Vec<u64>>();
    let prompts: Vec<Vec<u64>> = (0..64).map(|_| chain(80)).collect();
    for (n, prompt) in prompts.iter().enumerate() {
        pool.hold(&addresses[n % endpoints], &prompt[..16 + n]);
    }
    (pool, prompts)
}

fn choices(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool");
    let demand = Demand {
        prompt_tokens: 4096,
        prompt_units: 256,
        output_tokens: 256,
        stream: true,
        ..Demand::default()
    };
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    for policy in Policy::names().chain(["epp"]) {
        for endpoints in [8, 64, 1_000] {
            let (mut pool, prompts) = pool(endpoints, policy);
            // Who learns of answers is told of them, and so has ten of each endpoint to go by before long.
            let (learns, answered) =
                (pool.wants().answers, Answered { output_tokens: Some(100), ..Answered::default() });
            let mut id = 0;
            group.bench_function(
                BenchmarkId::new(format!("reserve, first token, end: {policy}"), endpoints),
                |b| {
                    b.iter_batched(
                        || {
                            id += 1;
                            id
                        },
                        |id| {
                            let blocks = &prompts[id as usize % prompts.len()];
                            let choice = pool.reserve(id, &Ask { blocks, demand, prompt: None }, NOW);
                            pool.first_token(id, None, NOW);
                            if learns {
                                pool.answered(id, &answered, NOW + Duration::from_millis(50));
                            }
                            pool.end(id);
                            choice
                        },
                        BatchSize::SmallInput,
                    );
                },
            );
        }
    }
    group.finish();
}

/// What one endpoint is believed to hold: a prompt of 4,096 tokens looked up where half of it is held, among others that
/// share its first 512; and the memory of a million blocks, which is printed.
fn index(c: &mut Criterion) {
    let mut random = Random::new(5);
    let mut chain = |n: usize| (0..n).map(|_| random.next()).collect::<Vec<u64>>();
    let shared = chain(32);
    // Four million, so that what the process has had before does not count; first of all, for the same reason.
    let before = resident();
    let mut full = Index::new(1 << 40, 7);
    (0..4_000_000 / 48).for_each(|_| full.insert(&[&shared[..], &chain(48)].concat()));
    if let (Some(before), Some(after)) = (before, resident()) {
        let megabytes = after.saturating_sub(before) >> 22;
        println!("a million blocks, in prompts of 48 of their own: {megabytes} MB ({} units)", full.len());
    }
    drop(full);
    let prompts: Vec<Vec<u64>> = (0..1_000).map(|_| [shared.clone(), chain(48)].concat()).collect();
    let mut index = Index::new(1 << 20, 7);
    prompts.iter().for_each(|prompt| index.insert(&prompt[..64]));
    let mut turn = 0;
    c.bench_function("pool/match alone", |b| {
        b.iter(|| {
            turn += 1;
            index.matched(black_box(&prompts[turn % prompts.len()]))
        });
    });
}

/// An endpoint leaves, whose engine has said that it holds as much as is remembered of one.
fn leaving(c: &mut Criterion) {
    const PROMPT: u32 = 64;
    let config = kv::Config::default();
    let address = |n: usize| format!("10.0.0.{n}:8000");
    let fill = |pool: &mut Pool, n: usize, blocks: u32| {
        for first in (0..blocks).step_by(PROMPT as usize) {
            let stored = kv::Stored {
                blocks: (first..first + PROMPT).map(u64::from).collect(),
                tokens: (first..first + PROMPT).flat_map(|block| [block; 16]).collect(),
                block_tokens: 16,
                whole: true,
                ..kv::Stored::default()
            };
            let batch = kv::Batch { events: vec![kv::Event::Stored(stored)], ..kv::Batch::default() };
            pool.told(&address(n), 0, &kv::News::Batch(batch));
        }
    };
    let mut group = c.benchmark_group("precise/an endpoint leaves");
    group.sample_size(10);
    for (endpoints, blocks) in [(2, 1 << 12), (2, 1 << 18), (16, 1 << 18)] {
        let all: Vec<String> = (0..endpoints).map(address).collect();
        let mut pool = Pool::new(&Config::default(), &all, 7).unwrap();
        pool.listen(&config, 1);
        (0..endpoints).for_each(|n| fill(&mut pool, n, blocks));
        assert!(pool.precise(NOW).all(|one| one.known.blocks == u64::from(blocks)));
        group.bench_function(format!("{blocks} blocks each, {endpoints} endpoints"), |b| {
            b.iter_custom(|times| {
                let mut took = Duration::ZERO;
                for _ in 0..times {
                    let before = std::time::Instant::now();
                    pool.set_endpoints(&all[1..]).unwrap();
                    took += before.elapsed();
                    pool.set_endpoints(&all).unwrap();
                    fill(&mut pool, 0, blocks);
                }
                took
            });
        });
    }
    group.finish();
}

/// Bytes of memory that the process has, where the system tells.
fn resident() -> Option<usize> {
    const PAGE: usize = 4_096;
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split(' ').nth(1)?.parse::<usize>().ok()? * PAGE)
}

/// An engine's metrics, with the histograms and counters that nobody wants, as vLLM has them: about 40 KB.
fn scrapes(c: &mut Criterion) {
    let labels = r#"engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct""#;
    let bucket = |n: usize| {
        format!("vllm:request_time_{}_seconds_bucket{{{labels},le=\"{n}.0\"}} {}.0\n", n / 20, n * 7)
    };
    let mut text: String = (0..400).map(bucket).collect();
    for (name, value) in [
        ("num_requests_running", "12.0"),
        ("num_requests_waiting", "3.0"),
        ("kv_cache_usage_perc", "0.41"),
        ("prompt_tokens_total", "1.2345e+07"),
        ("generation_tokens_total", "234567.0"),
    ] {
        text += &format!("vllm:{name}{{{labels}}} {value}\n");
    }
    let mut group = c.benchmark_group("signals");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("one scrape read", |b| b.iter(|| signals::read(black_box(&text))));
    let (mut pool, _) = pool(100, "least_prefill");
    let addresses: Vec<String> = pool.addresses().map(str::to_owned).collect();
    group.throughput(Throughput::Elements(100));
    group.bench_function("100 endpoints read and heard", |b| {
        b.iter(|| {
            for address in &addresses {
                pool.hear(address, &signals::read(black_box(&text)).report(NOW));
            }
        });
    });
    group.finish();
}

/// Stored values in memory.
#[derive(Default)]
struct Memory {
    values: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    /// Who was called last.
    woken: Cell<u64>,
}

impl Store for Memory {
    fn get(&self, name: &str) -> Option<(Vec<u8>, u32)> {
        self.values.borrow().get(name).cloned()
    }

    fn put(&self, name: &str, value: &[u8], version: Option<u32>) -> bool {
        self.values.borrow_mut().insert(name.to_owned(), (value.to_vec(), version.unwrap_or(0) + 1));
        true
    }

    fn wake(&self, waiter: u64) {
        self.woken.set(waiter);
    }
}

/// Keys that have been used for an hour, each once in a while; the store's bytes are printed per key.
fn limits(c: &mut Criterion) {
    let mut group = c.benchmark_group("limit");
    let config = |windows: &str| {
        let json = format!(r#"{{"limits":[{{"name":"l","key":["api_key"],"windows":[{windows}]}}]}}"#);
        weir::invalid::read::<weir::limit::Config>(json.as_bytes()).unwrap()
    };
    let minute = r#"{"tokens":1000000000,"per_s":60}"#;
    let three = r#"{"tokens":1000000000,"per_s":60},{"requests":1000000,"per_s":60},{"tokens":1000000000000,"per_s":86400}"#;
    let body = chat(1024);
    let facts = request::read(Dialect::Chat, body.as_bytes(), &request::Config::default()).unwrap().facts;
    for (name, windows) in [("one window", minute), ("three windows", three)] {
        for keys in [1_usize, 100, 100_000] {
            let (mut limits, store) = (Limits::new(&config(windows), 7).unwrap(), Memory::default());
            let names: Vec<String> = (0..keys).map(|key| format!("Bearer key-{key}")).collect();
            let mut life = |turn: usize| {
                let key = names[turn.wrapping_mul(7919) % keys].as_str();
                let header = |name: &str| (name == "authorization").then_some(key);
                // About a thousand requests a second.
                let now = Instant::from_nanos(1_000_000_000_000 + turn as u64 * 1_000_000);
                let asked = Asked { facts: &facts, header: &header, repeated: &|_| false, address: None };
                let Verdict::Admitted(admitted) = limits.admit(&store, &asked, Reach::Ask, now) else {
                    return;
                };
                let used = Outcome::Used(Usage { input: 250, output: 9, ..Usage::default() });
                limits.settle(&store, admitted.ticket, &used, now);
            };
            let warm = 300_000;
            (0..warm).for_each(&mut life);
            let mut turn = warm;
            group.bench_function(BenchmarkId::new(format!("admit and settle, {name}"), keys), |b| {
                b.iter(|| {
                    turn += 1;
                    life(turn);
                });
            });
            let bytes: usize = store.values.borrow().values().map(|(bytes, _)| bytes.len()).sum();
            println!("{name}, {keys} keys: {} bytes per key", bytes / keys);
        }
    }
    // Of several proxies: what a request costs that fits into what is granted, and what it costs to have that renewed.
    let mut config = config(minute);
    let share = r#"{"cluster":"scorer","id_seed":7,"lease_ms":3600000}"#;
    config.share = Some(weir::invalid::read(share.as_bytes()).unwrap());
    let (mut limits, store) = (Limits::new(&config, 7).unwrap(), Memory::default());
    let mut ledger = Ledger::new(Instant::default());
    let now = Instant::from_millis(7_200_000);
    let asked = Asked { facts: &facts, header: &|_| None, repeated: &|_| false, address: None };
    let Verdict::Short(short) = limits.admit(&store, &asked, Reach::Ask, now) else { return };
    let hold = short.holds()[0];
    let mut renew = |limits: &Limits| {
        let keys =
            limits.claim(&store, hold, Spend { tokens: 1 << 40, money: 0 }, 1, now).into_iter().collect();
        let granted = ledger.grant(&Claims { proxy: 1, lease_ms: 3_600_000, keys }, now);
        let heard = Heard { sent: now, lease: Duration::from_secs(3_600), vain: Duration::ZERO };
        limits.hear(&store, hold, &granted.keys[0], heard, now);
    };
    renew(&limits);
    group.bench_function("shared: claimed, granted, heard", |b| b.iter(|| renew(&limits)));
    group.bench_function("shared: admit and settle within what is granted", |b| {
        b.iter(|| {
            let Verdict::Admitted(admitted) = limits.admit(&store, &asked, Reach::Ask, now) else {
                panic!("it is granted")
            };
            limits.settle(&store, admitted.ticket, &Outcome::Nothing, now)
        });
    });
    group.finish();
}

/// A slot that is freed while so many wait: the next is called and comes, and another one joins.
fn queues(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue");
    for waiting in [8_u64, 100, 1_000] {
        let mut line = Line::new(Order::Vtc);
        let mut id = 0;
        let mut join = |line: &mut Line, now| {
            id += 1;
            let until = Instant::from_nanos(u64::MAX);
            line.join(Waiter { id, client: id % 16, priority: 0, cost: 100 + id % 700, warm: 0, until }, now);
        };
        (0..waiting).for_each(|_| join(&mut line, NOW));
        group.bench_function(BenchmarkId::new("freed, called, come, joined", waiting), |b| {
            b.iter(|| {
                line.freed(NOW);
                let called = line.call(NOW).unwrap();
                line.come(called, NOW);
                join(&mut line, NOW);
            });
        });
        // The same with all that is stored: admitted as called, settled, and the next one in line.
        let json =
            r#"{"limits":[{"name":"l","max_in_flight":1,"queue":{"size":1000,"timeout_ms":3600000}}]}"#;
        let config = weir::invalid::read::<weir::limit::Config>(json.as_bytes()).unwrap();
        let (mut limits, store) = (Limits::new(&config, 7).unwrap(), Memory::default());
        let ask = |limits: &Limits, id: u64, at: Option<Wait>| {
            let facts = Facts { tenant: Some(id % 16), prompt_tokens: 100, ..Facts::of(Dialect::Chat) };
            let asked = Asked { facts: &facts, header: &|_| None, repeated: &|_| false, address: None };
            limits.admit_or_wait(&store, &asked, Reach::Ask, Some(Waiting { id, warm: 0, at }), NOW)
        };
        let mut places = HashMap::new();
        let admitted = |verdict| match verdict {
            Verdict::Admitted(admitted) => admitted.ticket,
            other => panic!("{other:?}"),
        };
        let mut running = Some(admitted(ask(&limits, 0, None)));
        let mut next = 0;
        let mut wait = |limits: &Limits, places: &mut HashMap<u64, Wait>| {
            next += 1;
            match ask(limits, next, None) {
                Verdict::Waits(wait) => places.insert(next, wait),
                other => panic!("{other:?}"),
            };
        };
        (0..waiting).for_each(|_| wait(&limits, &mut places));
        group.bench_function(BenchmarkId::new("settled, called, admitted, joined", waiting), |b| {
            b.iter(|| {
                let used = Outcome::Used(Usage { input: 100, output: 9, ..Usage::default() });
                limits.settle(&store, running.take().unwrap(), &used, NOW);
                let called = store.woken.take();
                let place = places.remove(&called).unwrap();
                running = Some(admitted(ask(&limits, called, Some(place))));
                wait(&limits, &mut places);
            });
        });
        let bytes: usize = store.values.borrow().values().map(|(bytes, _)| bytes.len()).sum();
        println!("{waiting} wait: {} bytes for each", bytes as u64 / waiting);
    }
    group.finish();
}

/// Who may be chosen, with one endpoint that is out; and an outcome that is counted.
fn breaker(c: &mut Criterion) {
    let mut group = c.benchmark_group("breaker");
    let breaker = Breaker::new(&BreakerConfig::default()).unwrap();
    let (good, bad) = (breaker::Outcome::of_status(200, None), breaker::Outcome::failed(Reason::Connect));
    for endpoints in [8, 64, 1_000] {
        let mut circuits = vec![Circuit::default(); endpoints];
        for _ in 0..2 {
            black_box(circuits[3].note(&breaker, None, &bad, NOW));
        }
        let (mut open, mut random) = (Vec::new(), Random::new(1));
        group.bench_function(BenchmarkId::new("who may be chosen", endpoints), |b| {
            b.iter(|| breaker.gate(circuits.iter_mut().enumerate(), NOW, &mut random, &mut open));
        });
    }
    for (name, outcome) in [("a success", good), ("a failure", breaker::Outcome::failed(Reason::Error))] {
        // Never so many failures that it trips.
        let mut now = NOW;
        let mut circuit = Circuit::default();
        group.bench_function(BenchmarkId::new("an outcome noted", name), |b| {
            b.iter(|| {
                now = now + std::time::Duration::from_secs(5);
                circuit.note(&breaker, None, black_box(&outcome), now)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, index, leaving, requests, answers, limits, queues, scrapes, choices, breaker);
criterion_main!(benches);
