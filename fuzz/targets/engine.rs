//! What engines say of themselves: their metrics, the header beside an answer, and how long they want to be left alone.
//! Whatever stands there, what is made of it are numbers that can be reckoned with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use weir::breaker::retry_after;
use weir::signals;

fn check(number: Option<f64>, what: &str) {
    assert!(number.is_none_or(|number| number.is_finite() && number >= 0.0), "{what}: {number:?}");
}

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    let reading = signals::read(&text);
    check(reading.waiting, "waiting");
    check(reading.running, "running");
    check(reading.kv_usage, "kv_usage");
    for rank in reading.ranks.iter().flatten().map(|(_, rank)| rank) {
        check(rank.waiting.or(rank.running).or(rank.kv_usage), "a rank");
    }
    let listed = signals::models(input);
    assert!(listed.is_none_or(|listed| listed.len() <= 4_096), "more adapters than anybody loads");
    let line = text.lines().next().unwrap_or_default();
    if let Some(said) = signals::orca(line) {
        check(said.kv_usage, "kv_usage of a header");
        check(said.utilization, "utilization");
    }
    for name in ["retry-after", "retry-after-ms"] {
        let wait = retry_after([(name, line)], || Duration::from_secs(1_700_000_000));
        // What comes of it is added to times.
        assert!(wait.is_none_or(|wait| wait.as_secs() < 1 << 40), "{wait:?}");
    }
});
