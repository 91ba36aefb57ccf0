use super::*;
use crate::random::Random;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const NOW: Instant = Instant::from_millis(1_000_000);
const SIZE: u32 = 4;

fn config(max_blocks: u32) -> Config {
    Config { max_blocks: NonZeroU32::new(max_blocks).unwrap(), ..Config::default() }
}

/// An engine that is linked and of which everything is known.
fn engine(max_blocks: u32) -> Engine {
    let mut engine = Engine::new(&config(max_blocks), 1, 7);
    engine.hear(0, &News::Linked(true));
    engine.hear(0, &News::Anew { whole: true });
    engine
}

fn say(engine: &mut Engine, events: Vec<Event>) {
    engine.hear(0, &News::Batch(Batch { at: 0.0, events, odd: 0 }));
}

/// The names that an engine gives the blocks of a prompt.
fn names(tokens: &[u32]) -> Vec<u64> {
    let name = |before: &mut u64, block: &[u32]| {
        *before = block.iter().fold(*before, |hash, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3).rotate_left(23)
        });
        Some(*before)
    };
    tokens.chunks_exact(SIZE as usize).scan(0xcbf2_9ce4_8422_2325, name).collect()
}

/// The blocks of `tokens` from block `from` on come.
fn stored(tokens: &[u32], from: usize) -> Event {
    let names = names(tokens);
    let rest = &tokens[from * SIZE as usize..names.len() * SIZE as usize];
    Event::Stored(Stored {
        parent: from.checked_sub(1).map(|at| names[at]),
        blocks: names[from..].to_vec(),
        tokens: rest.to_vec(),
        block_tokens: SIZE,
        whole: true,
        ..Stored::default()
    })
}

fn removed(names: &[u64]) -> Event {
    Event::Removed { blocks: names.to_vec(), tier: Tier::Device, group: 0 }
}

fn prompt(ids: &[u32]) -> Prompt {
    Tokens { ids: ids.to_vec(), ..Tokens::default() }.cut(&BTreeSet::from([SIZE]))
}

/// A prompt whose `blocks` blocks may all be cached.
fn ids(first: u32, blocks: u32) -> Vec<u32> {
    (first..first + blocks * SIZE + 1).collect()
}

#[test]
fn what_an_engine_holds_counts_up_to_the_first_hole_and_never_the_last_token() {
    let mut engine = engine(100);
    let ids = ids(0, 5);
    say(&mut engine, vec![stored(&ids, 0)]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 20);
    assert_eq!(
        engine.cached(&prompt(&ids[..20]), NOW),
        16,
        "its last token is computed, and with it its block"
    );
    assert_eq!(engine.cached(&prompt(&ids[1..]), NOW), 0);
    say(&mut engine, vec![removed(&names(&ids)[2..3])]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 8);
    say(&mut engine, vec![stored(&ids[..13], 2)]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 20, "the hole is filled");
}

#[test]
fn a_block_that_came_twice_goes_with_the_second_time() {
    let mut engine = engine(100);
    let ids = ids(0, 2);
    say(&mut engine, vec![stored(&ids, 0), stored(&ids, 0), removed(&names(&ids))]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 8);
    say(&mut engine, vec![removed(&names(&ids))]);
    assert_eq!((engine.cached(&prompt(&ids), NOW), engine.known(NOW).blocks), (0, 0));
    say(&mut engine, vec![removed(&names(&ids)), stored(&ids, 0)]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 8, "removed too often is removed once");
}

#[test]
fn blocks_behind_one_that_nobody_told_of_are_let_go_and_counted() {
    let mut engine = engine(100);
    let ids = ids(0, 4);
    say(&mut engine, vec![stored(&ids, 2)]);
    assert_eq!((engine.cached(&prompt(&ids), NOW), engine.known(NOW).blocks), (0, 0));
    assert_eq!(engine.known(NOW).counts.unknown_parent, 1);
    let root = Event::Stored(Stored {
        tokens: vec![1; 5],
        ..match stored(&ids, 0) {
            Event::Stored(stored) => stored,
            other => panic!("{other:?}"),
        }
    });
    say(&mut engine, vec![root]);
    assert_eq!(engine.known(NOW).counts.odd, 1, "five tokens are not four blocks");
}

#[test]
fn adapters_salts_and_other_keys_match_only_their_own() {
    let mut engine = engine(100);
    let ids = ids(0, 3);
    let with = |adapter, keys: Vec<Option<u64>>, name: u64| {
        let Event::Stored(stored) = stored(&ids, 0) else { panic!("stored") };
        let blocks = stored.blocks.iter().map(|block| block ^ name).collect();
        Event::Stored(Stored { adapter, keys, blocks, ..stored })
    };
    say(
        &mut engine,
        vec![
            with(Some(5), vec![], 1),
            with(None, vec![salt("a")], 2),
            with(None, vec![None, keys([b"image".as_slice()])], 3),
            with(Some(unnamed(1)), vec![], 4),
        ],
    );
    let cached = |adapter, word: Option<&str>| {
        let tokens = Tokens { ids: ids.clone(), adapter, salt: word.and_then(salt) };
        engine.cached(&tokens.cut(&BTreeSet::from([SIZE])), NOW)
    };
    assert_eq!(cached(None, None), 4, "before the image, and no further");
    assert_eq!((cached(Some(5), None), cached(Some(6), None), cached(Some(1), None)), (12, 0, 0));
    assert_eq!((cached(None, Some("a")), cached(None, Some("b")), cached(Some(5), Some("a"))), (12, 0, 0));
}

#[test]
fn slower_tiers_count_in_part_and_copies_need_no_tokens() {
    let mut engine = engine(100);
    let ids = ids(0, 4);
    let names = names(&ids);
    let copy = |blocks: &[u64], tier| {
        Event::Stored(Stored { blocks: blocks.to_vec(), tier, whole: true, ..Stored::default() })
    };
    say(&mut engine, vec![stored(&ids, 0), copy(&names[1..], Tier::Host), copy(&names[3..], Tier::Disk)]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 16, "the quickest counts");
    say(&mut engine, vec![removed(&names[1..])]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 4 + 3 * 3);
    say(&mut engine, vec![Event::Removed { blocks: names[3..].to_vec(), tier: Tier::Host, group: 0 }]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 4 + 2 * 3 + 1);
    say(&mut engine, vec![copy(&[99], Tier::Host)]);
    assert_eq!(engine.known(NOW).counts.unknown_parent, 1, "a copy of what nobody told of");
    assert_eq!(engine.known(NOW).blocks, 4);
}

#[test]
fn layers_that_see_a_window_only_say_nothing_of_a_prefix() {
    let mut engine = engine(100);
    let ids = ids(0, 2);
    let of = |group, whole| {
        let Event::Stored(stored) = stored(&ids, 0) else { panic!("stored") };
        Event::Stored(Stored { group, whole, ..stored })
    };
    let gone = |group| Event::Removed { blocks: names(&ids), tier: Tier::Device, group };
    say(&mut engine, vec![of(0, false)]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 0);
    say(&mut engine, vec![of(1, true), of(2, true), gone(0), gone(2)]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 8);
    say(&mut engine, vec![gone(1)]);
    assert_eq!(engine.cached(&prompt(&ids), NOW), 0);
}

#[test]
fn what_was_sent_counts_until_the_engine_tells_or_a_time_has_passed() {
    let mut engine = engine(100);
    let (first, second) = (ids(0, 4), ids(1_000, 4));
    say(&mut engine, vec![stored(&first, 0)]);
    let second_prompt = prompt(&second);
    engine.expect(&second_prompt, NOW);
    assert_eq!((engine.cached(&second_prompt, NOW), engine.known(NOW).predicted), (16, 4));
    say(&mut engine, vec![stored(&second[..8], 0)]);
    assert_eq!((engine.cached(&second_prompt, NOW), engine.known(NOW).predicted), (16, 2));
    let later = NOW + Duration::from_millis(10_001);
    assert_eq!(engine.cached(&second_prompt, later), 8, "two of them never came");
    engine.expect(&prompt(&ids(2_000, 1)), later);
    assert_eq!(engine.known(later).predicted, 1, "what is late is forgotten");
}

#[test]
fn an_engine_that_says_nothing_of_what_it_was_sent_is_not_trusted_until_it_speaks() {
    let mut engine = engine(1_000);
    say(&mut engine, vec![stored(&ids(0, 4), 0)]);
    for at in 1..=3 {
        assert_eq!(engine.standing(NOW + Duration::from_secs(60)), Standing::Whole, "{at}");
        engine.expect(&prompt(&ids(at * 1_000, 4)), NOW);
    }
    assert_eq!(engine.standing(NOW + Duration::from_secs(9)), Standing::Whole);
    assert_eq!(engine.standing(NOW + Duration::from_secs(11)), Standing::Stale);
    say(&mut engine, vec![]);
    assert_eq!(engine.standing(NOW + Duration::from_secs(11)), Standing::Whole);
    let known = prompt(&ids(0, 4));
    (0..9).for_each(|_| engine.expect(&known, NOW));
    assert_eq!(
        engine.standing(NOW + Duration::from_secs(60)),
        Standing::Whole,
        "nothing new, nothing to tell"
    );
}

#[test]
fn standing_is_that_of_the_least_known_engine_and_the_best_of_them_counts() {
    let mut engine = Engine::new(&config(100), 2, 7);
    assert_eq!(engine.standing(NOW), Standing::Silent);
    for rank in 0..2 {
        engine.hear(rank, &News::Linked(true));
        assert_eq!(engine.standing(NOW), Standing::Silent, "linked and never heard");
    }
    engine.hear(0, &News::Anew { whole: true });
    engine.hear(1, &News::Anew { whole: false });
    assert_eq!(engine.standing(NOW), Standing::Part);
    let ids = ids(0, 3);
    let batch = |events| News::Batch(Batch { at: 0.0, events, odd: 0 });
    engine.hear(0, &batch(vec![stored(&ids[..5], 0)]));
    engine.hear(1, &batch(vec![stored(&ids, 0)]));
    engine.hear(9, &batch(vec![stored(&ids, 0)]));
    assert_eq!(engine.cached(&prompt(&ids), NOW), 12);
    engine.hear(1, &batch(vec![Event::Cleared]));
    assert_eq!((engine.standing(NOW), engine.cached(&prompt(&ids), NOW)), (Standing::Whole, 4));
    engine.hear(0, &News::Linked(false));
    assert_eq!(engine.standing(NOW), Standing::Silent);
    engine.hear(0, &News::Linked(true));
    assert_eq!(engine.standing(NOW), Standing::Silent, "until it is heard again");
}

#[test]
fn a_full_index_loses_tails_and_of_those_the_oldest() {
    let mut engine = engine(10);
    let (old, young) = (ids(0, 6), ids(1_000, 3));
    say(&mut engine, vec![stored(&old, 0), stored(&young, 0), stored(&ids(2_000, 3), 0)]);
    assert_eq!(engine.known(NOW).blocks, 10);
    assert_eq!((engine.cached(&prompt(&old), NOW), engine.cached(&prompt(&young), NOW)), (16, 12));
    let mut small = self::engine(4);
    say(&mut small, vec![stored(&old, 0)]);
    assert_eq!(small.cached(&prompt(&old), NOW), 16, "a chain that is too long keeps its head");
}

/// A random engine against a table of what it holds.
#[test]
fn random_events_leave_what_a_table_of_names_would_hold() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let capacity = if seed % 2 == 0 { 100_000 } else { 40 };
        let mut engine = engine(capacity);
        let mut table: HashMap<u64, u32> = HashMap::new();
        // Prompts over two tokens share much.
        let draw = |random: &mut Random| -> Vec<u32> {
            (0..1 + random.below(10) as u32 * SIZE)
                .map(|at| u32::from(at % SIZE == 0) * random.below(2) as u32)
                .collect()
        };
        let mut seen: Vec<u64> = Vec::new();
        for step in 0..3_000 {
            let tokens = draw(&mut random);
            let names = names(&tokens);
            match random.below(20) {
                0 if random.below(20) == 0 => {
                    table.clear();
                    say(&mut engine, vec![Event::Cleared]);
                }
                0..12 => {
                    // As an engine does: only what it does not hold is computed and told.
                    let from = names.iter().take_while(|name| table.contains_key(name)).count();
                    if from < names.len() {
                        say(&mut engine, vec![stored(&tokens, from)]);
                        for name in &names[from..] {
                            *table.entry(*name).or_insert(0) += 1;
                            seen.push(*name);
                        }
                    }
                }
                _ if !seen.is_empty() => {
                    let gone = seen[random.below(seen.len())];
                    say(&mut engine, vec![removed(&[gone])]);
                    if let Some(count) = table.get_mut(&gone) {
                        *count -= 1;
                        if *count == 0 {
                            table.remove(&gone);
                        }
                    }
                }
                _ => {}
            }
            let asked = draw(&mut random);
            let most = (asked.len() - 1) / SIZE as usize;
            let held =
                self::names(&asked).iter().take(most).take_while(|name| table.contains_key(name)).count();
            let cached = engine.cached(&prompt(&asked), NOW) / SIZE;
            match capacity {
                40 => assert!(cached as usize <= held, "seed {seed} step {step}: {cached} of {held}"),
                _ => assert_eq!(cached as usize, held, "seed {seed} step {step}"),
            }
            assert!(engine.known(NOW).blocks <= u64::from(capacity));
        }
    }
}

/// Unique prompts come and mostly go again: `events` of them, over an index of 10,000 blocks.
fn churn(events: u64) -> Engine {
    const CAPACITY: u32 = 10_000;
    let mut engine = engine(CAPACITY);
    let mut random = Random::new(1);
    let mut alive: Vec<Vec<u64>> = Vec::new();
    let (mut told, mut next) = (0, 0_u32);
    while told < events {
        let ids = ids(next, 1 + random.below(8) as u32);
        next = next.wrapping_add(64) % (u32::MAX / 2);
        let names = names(&ids);
        told += names.len() as u64;
        say(&mut engine, vec![stored(&ids, 0)]);
        // One in ten is never told to go: only the bound forgets it.
        if random.below(10) > 0 {
            alive.push(names);
        }
        while alive.len() > 1_500 {
            let gone = alive.swap_remove(random.below(alive.len()));
            told += gone.len() as u64;
            say(&mut engine, vec![removed(&gone)]);
        }
        assert!(engine.known(NOW).blocks <= u64::from(CAPACITY));
        engine.expect(&prompt(&ids), NOW + Duration::from_millis(told));
        let room = engine.ranks[0].held.room();
        assert!(room.iter().all(|room| *room <= 4 * CAPACITY as usize), "{room:?} after {told} events");
    }
    engine
}

#[test]
fn memory_is_flat_over_a_million_events_with_churn() {
    let engine = churn(if cfg!(target_arch = "wasm32") { 100_000 } else { 1_000_000 });
    assert!(engine.known(NOW).blocks > 5_000);
}

#[test]
fn what_was_forgotten_costs_nothing_when_it_is_forgotten_again() {
    let mut engine = churn(10_000);
    engine.hear(0, &News::Batch(Batch { events: vec![Event::Cleared], ..Batch::default() }));
    assert_eq!(
        engine.ranks[0].held.room(),
        [0; 4],
        "an empty table of many places is cleared place by place"
    );
}

/// The same at length: `cargo test --release -p weir --lib kv:: -- --ignored`.
#[test]
#[ignore = "takes a minute"]
fn memory_is_flat_over_fifty_million_events_with_churn() {
    churn(50_000_000);
}

#[test]
fn ten_times_its_capacity_in_unique_prefixes_leaves_the_last_ones() {
    let mut engine = engine(1_000);
    for at in 0..10_000 {
        say(&mut engine, vec![stored(&ids(at * 100, 1), 0)]);
        assert!(engine.known(NOW).blocks <= 1_000);
    }
    assert_eq!(engine.cached(&prompt(&ids(9_999 * 100, 1)), NOW), 4);
    assert_eq!(engine.cached(&prompt(&ids(9_000 * 100, 1)), NOW), 4);
    assert_eq!(engine.cached(&prompt(&ids(8_999 * 100, 1)), NOW), 0);
}
