//! One system prompt that all share, on engines with few slots, in injected time: affinity must not cost more waiting than
//! it saves (fault 17).

use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const ENGINES: usize = 8;
const SLOTS: usize = 4;
/// Tokens of 6 kB, which all prompts share, and of what each has for itself.
const SHARED: u32 = 1_536;
const OWN: u32 = 64;
const NANOS_PER_TOKEN: u64 = 100_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Arrives,
    FirstToken(u64),
    Ends(u64),
}

#[derive(Default)]
struct Engine {
    running: usize,
    /// Requests that wait for a slot, and when they came.
    waiting: VecDeque<(u64, u64)>,
    is_warm: bool,
    served: usize,
}

/// So many clients send so many requests, each its next when the last was answered. Gives what each engine served, and the
/// 99th percentile of the time to the first token, in milliseconds.
fn run(policy: &str, clients: usize, requests: u64) -> (Vec<usize>, u64) {
    let mut pool = with(json!(policy), ENGINES);
    let all = addresses(ENGINES);
    let mut engines: Vec<Engine> = (0..ENGINES).map(|_| Engine::default()).collect();
    let mut random = Random::new(5);
    let mut places = HashMap::new();
    let mut events: BinaryHeap<Reverse<(u64, Happens)>> =
        (0..clients).map(|_| Reverse((1_000_000_000, Happens::Arrives))).collect();
    let (mut sent, mut waits) = (0, Vec::new());
    while let Some(Reverse((nanos, happens))) = events.pop() {
        let now = Instant::from_nanos(nanos);
        let engine = match happens {
            Happens::Arrives if sent == requests => continue,
            Happens::Arrives => {
                sent += 1;
                let units = (SHARED + OWN) as usize / 16;
                let mut hashes = blocks(0, SHARED as usize / 16);
                let own = blocks(sent, units).into_iter().skip(hashes.len());
                hashes.extend(own);
                let demand = Demand {
                    prompt_tokens: SHARED + OWN,
                    prompt_units: units as u32,
                    stream: true,
                    ..Demand::default()
                };
                let order =
                    pool.reserve(sent, &Ask { blocks: &hashes, demand, prompt: None }, now).unwrap().order;
                let place = all.iter().position(|address| *address == order[0]).unwrap();
                places.insert(sent, place);
                engines[place].waiting.push_back((sent, nanos));
                place
            }
            Happens::FirstToken(id) => {
                pool.first_token(id, None, now);
                // From half a second to one and a half.
                let answer = 500_000_000 + random.below(1_000_000_000) as u64;
                events.push(Reverse((nanos + answer, Happens::Ends(id))));
                continue;
            }
            Happens::Ends(id) => {
                pool.end(id);
                events.push(Reverse((nanos, Happens::Arrives)));
                engines[places[&id]].running -= 1;
                places[&id]
            }
        };
        let engine = &mut engines[engine];
        while engine.running < SLOTS
            && let Some((id, came)) = engine.waiting.pop_front()
        {
            let tokens = if std::mem::replace(&mut engine.is_warm, true) { OWN } else { SHARED + OWN };
            let first = nanos + u64::from(tokens) * NANOS_PER_TOKEN;
            waits.push((first - came) / 1_000_000);
            (engine.running, engine.served) = (engine.running + 1, engine.served + 1);
            events.push(Reverse((first, Happens::FirstToken(id))));
        }
    }
    waits.sort_unstable();
    (engines.iter().map(|engine| engine.served).collect(), waits[waits.len() * 99 / 100])
}

#[test]
fn a_hot_prefix_has_nobody_wait_twice_as_long_as_the_least_load_would() {
    let (alone, _) = run("least_prefill", 1, 100);
    assert!(alone.iter().max().unwrap() >= &95, "alone they stay together: {alone:?}");
    let (spread, waits) = run("least_prefill", 32, 1_000);
    let (_, least) = run("least_requests", 32, 1_000);
    assert!(spread.iter().filter(|served| **served > 0).count() >= 6, "{spread:?}");
    assert!(waits <= 2 * least, "{waits} ms at the 99th percentile, {least} ms by least load");
}
