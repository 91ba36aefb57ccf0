//! What stands in the scorer's place: whatever it answers, a request goes to an endpoint of its pool.
//!
//! The input is a status, headers, and a body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir::wire;
use weir_fuzz::Message;
use weir_host::fake::Worker;
use weir_pick::Pick;

const CONFIG: &str = r#"{"pools":[{"name":"p","models":["m"],"endpoints":["10.0.0.1:1","10.0.0.2:1"]}],
                         "scorer":{"cluster":"scorer","retry_ms":1}}"#;

fuzz_target!(|input: &[u8]| {
    let Some(message) = Message::read(input) else { return };
    let mut worker = Worker::<Pick>::new(CONFIG);
    let state = wire::write_blocks("dialect=chat stream=1 prompt_tokens=40 model=m", &[1, 2]);
    let mut exchange = worker.request(&[], &[(wire::BLOCKS, &state)], true);
    assert!(exchange.held() && exchange.see().calls().len() == 1, "the scorer is asked");
    let status = [(":status", message.first.0)];
    let headers = message.headers.iter().map(|(name, value)| (&**name, &**value));
    worker.reply(&mut exchange, &status.into_iter().chain(headers).collect::<Vec<_>>(), message.body);
    assert!(!exchange.held(), "held after the answer");
    let chosen = exchange.see().header(wire::DESTINATION);
    let chosen: Vec<&str> = chosen.iter().flat_map(|list| list.split(',')).collect();
    assert!(!chosen.is_empty() && chosen.iter().all(|one| ["10.0.0.1:1", "10.0.0.2:1"].contains(one)));
    let line = exchange.see().state(wire::PICK).expect("the choice is logged");
    assert!(line.is_ascii() && line.len() < 1000 && !line.contains(['\n', '\r', '\0']), "{line}");
    assert!(line.split(' ').all(|field| field.contains('=')), "{line}");
    worker.finish(exchange);
});
