//! What one worker tells another: nonsense is let go, and afterwards requests still go to endpoints of the pool and
//! leave nothing behind.
//!
//! The input is a sequence of messages, each behind its length in one byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir::wire;
use weir_fuzz::A_WHILE;
use weir_host::Host;
use weir_host::fake::Worker;
use weir_pick::Pick;

const CONFIG: &str = r#"{"pools":[{"name":"p","models":["m"],"endpoints":["10.0.0.1:1","10.0.0.2:1"]}],
                         "choose":{"index_tokens":4096}}"#;

fn request(worker: &mut Worker<Pick>) {
    let state = wire::write_blocks("dialect=chat stream=1 prompt_tokens=40 model=m", &[1, 2]);
    let mut exchange = worker.request(&[], &[(wire::BLOCKS, &state)], true);
    let chosen = exchange.see().header(wire::DESTINATION);
    let chosen: Vec<&str> = chosen.iter().flat_map(|list| list.split(',')).collect();
    assert!(!chosen.is_empty() && chosen.iter().all(|one| ["10.0.0.1:1", "10.0.0.2:1"].contains(one)));
    worker.response(&mut exchange, chosen[0], &[(":status", "200")]);
    worker.piece(&mut exchange, b"data: x\n\n", true);
    worker.finish(exchange);
}

fuzz_target!(|input: &[u8]| {
    let mut worker = Worker::<Pick>::new(CONFIG);
    // With its first request a worker joins.
    request(&mut worker);
    let exchange = worker.request(&[], &[], true);
    let mut rest = input;
    while let Some((length, after)) = rest.split_first() {
        let (message, after) = after.split_at(usize::from(*length).min(after.len()));
        exchange.see().enqueue(0, message);
        rest = after;
    }
    worker.finish(exchange);
    worker.hear(0);
    request(&mut worker);
    worker.world().pass(A_WHILE);
    worker.tick();
    worker.hear(0);
    request(&mut worker);
});
