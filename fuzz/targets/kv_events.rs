//! What an engine publishes of its cache: nonsense is let go, what is remembered stays bounded, and what a prompt is said to
//! hit is never more than the prompt.
//!
//! The input is a sequence of batches, each behind its length in two bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::num::NonZeroU32;
use weir::instant::Instant;
use weir::kv::{Config, Engine, Event, News, Tokens};

// By its path: the scorer is too much to compile for this.
#[path = "../../scorer/src/kv_events/decode.rs"]
mod decode;

const MOST: u32 = 50;
const NOW: Instant = Instant::from_millis(1);

fuzz_target!(|input: &[u8]| {
    let config = Config { max_blocks: NonZeroU32::new(MOST).expect("not zero"), ..Config::default() };
    let mut engine = Engine::new(&config, 1, 1);
    let mut rest = input;
    while let Some((length, after)) = rest.split_at_checked(2) {
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let (payload, after) = after.split_at(length.min(after.len()));
        rest = after;
        let Some(batch) = decode::batch(payload) else { continue };
        let stored = batch.events.iter().filter_map(|event| match event {
            Event::Stored(stored) => Some((stored.tokens.clone(), stored.adapter)),
            _ => None,
        });
        let prompts: Vec<_> = stored.collect();
        engine.hear(0, &News::Batch(batch));
        assert!(engine.known(NOW).blocks <= u64::from(MOST));
        let sizes = engine.block_sizes().collect();
        for (ids, adapter) in prompts {
            let prompt = Tokens { ids, adapter, salt: None }.cut(&sizes);
            engine.expect(&prompt, NOW);
            assert!(prompt.tokens == 0 || engine.cached(&prompt, NOW) < prompt.tokens);
        }
        assert!(engine.known(NOW).predicted <= u64::from(MOST));
    }
});
