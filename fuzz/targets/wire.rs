//! Messages between filters, and between filters and the scorer: what can be read is written as it can be read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use weir::wire::{self, Event, Reserve, Reserved};

fn json<T: DeserializeOwned + Serialize + PartialEq + Debug>(input: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(input) {
        let written = serde_json::to_vec(&message).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<T>(&written).expect("and read again"), message);
    }
}

fuzz_target!(|input: &[u8]| {
    json::<Reserve>(input);
    json::<Reserved>(input);
    json::<Vec<Event>>(input);
    if let Some((facts, blocks)) = wire::read_blocks(input) {
        let again = wire::write_blocks(&wire::write_facts(&facts), &blocks);
        assert_eq!(wire::read_blocks(&again), Some((facts, blocks)));
    }
    if let Ok(text) = std::str::from_utf8(input) {
        if let Some(facts) = wire::read_facts(text) {
            assert_eq!(wire::read_facts(&wire::write_facts(&facts)), Some(facts));
        }
        let header = wire::explanation(text);
        assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header:?}");
        let word = wire::one_word(text);
        assert!(word.len() <= 64 && weir_fuzz::is_header_safe(&word));
    }
});
