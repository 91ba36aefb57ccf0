//! A request, through `extract` as Envoy would drive it and through the core.
//!
//! Whatever comes: it is passed, refused in good form, or read; and then the model is the one that a parser which builds
//! the whole tree reads, it is fit for a header, and everything published can be read back. How the body was cut changes
//! nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir::wire;
use weir_extract::{Config, Extract};
use weir_fuzz::{Message, is_header_safe, pieces};
use weir_host::fake::Worker;

/// What is seen from outside of one request.
#[derive(Debug, PartialEq)]
struct Seen {
    model: Vec<String>,
    facts: Option<String>,
    blocks: Option<Vec<u8>>,
    /// What goes on, if anything does, and the length that it is said to have.
    sent: Vec<u8>,
    length: Vec<String>,
    answer: Option<(u16, String)>,
}

fn send(message: &Message, config: &str, pieces: &[&[u8]], trailers: bool) -> Seen {
    let mut worker = Worker::<Extract>::new(config);
    let no_body = pieces.is_empty() && !trailers;
    let mut exchange = worker.request(&message.request(), &[], no_body);
    for (at, piece) in pieces.iter().enumerate() {
        if exchange.held() {
            worker.body(&mut exchange, piece, !trailers && at + 1 == pieces.len());
        }
    }
    if trailers && exchange.held() && exchange.see().answer().is_none() {
        worker.trailers(&mut exchange);
    }
    assert!(!exchange.held() || exchange.see().answer().is_some(), "held for ever");
    let seen = worker.finish(exchange);
    for name in wire::CONTROL.into_iter().filter(|name| ![wire::MODEL, wire::BASE_MODEL].contains(name)) {
        assert!(seen.header(name).is_empty(), "{name} came through");
    }
    Seen {
        model: seen.header(wire::MODEL),
        facts: seen.state(wire::FACTS),
        blocks: weir_host::Host::property(&seen, &[wire::BLOCKS]),
        sent: if seen.answer().is_none() { seen.sent() } else { Vec::new() },
        length: seen.header("content-length"),
        answer: seen.answer().map(|answer| (answer.status, answer.body)),
    }
}

fn check(seen: &Seen, message: &Message, config: &Config) {
    let body = message.body;
    if let Some((status, answer)) = &seen.answer {
        assert!((400..500).contains(status), "{status}");
        let answer: Value = serde_json::from_str(answer).expect("a refusal is JSON");
        // A header may be quoted, with escapes; the body, which may be megabytes of secrets, may not.
        let most = 300 + message.headers.iter().map(|(_, value)| 8 * value.len()).sum::<usize>();
        assert!(answer["error"]["message"].as_str().is_some_and(|why| why.len() < most), "{answer}");
        assert_eq!(
            (&seen.facts, &seen.blocks, seen.model.len()),
            (&None, &None, 0),
            "refused, and published"
        );
        return;
    }
    let Some(line) = &seen.facts else { return assert!(seen.model.is_empty() && seen.blocks.is_none()) };
    let facts = wire::read_facts(line).expect("facts are readable");
    assert_eq!(&wire::write_facts(&facts), line);
    assert_eq!(seen.model, Vec::from_iter(facts.model.as_deref().map(wire::encode)));
    assert!(
        seen.model.iter().all(|model| is_header_safe(model) && !model.is_empty() && model.len() <= 3 * 256)
    );
    let (again, blocks) = wire::read_blocks(seen.blocks.as_ref().unwrap()).expect("blocks are readable");
    assert_eq!(again, facts);
    assert!(blocks.len() <= config.request.max_blocks);
    // Bodies nested deeper than serde_json follows, and half surrogates, are for engines to judge.
    let tree = |bytes: &[u8]| {
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        serde_json::from_slice::<Value>(text).ok()
    };
    let asked = facts.rewritten_from.as_ref().or(facts.model.as_ref());
    if let Some(before) = tree(body) {
        assert_eq!(before.get("model").and_then(Value::as_str), asked.map(String::as_str), "another model");
    }
    let (Some(asked), Some(target)) = (&facts.rewritten_from, &facts.model) else {
        return assert!(seen.sent == body, "changed, and not renamed");
    };
    assert_eq!(seen.length, [seen.sent.len().to_string()]);
    // What comes before the name and what comes after it is as it was.
    let quoted = serde_json::to_string(target).unwrap();
    let same = |one: &mut dyn Iterator<Item = (u8, u8)>| one.take_while(|(one, other)| one == other).count();
    let before = same(&mut body.iter().copied().zip(seen.sent.iter().copied()));
    let after = same(&mut body.iter().rev().copied().zip(seen.sent.iter().rev().copied()));
    assert!(before + after + quoted.len() >= seen.sent.len(), "{asked} became {target}, and more changed");
}

fuzz_target!(|input: &[u8]| {
    let Some(message) = Message::read(input) else { return };
    let config = Config::read(message.config.as_bytes()).unwrap_or_default();
    let json = serde_json::to_string(&config).unwrap();
    let whole: &[&[u8]] = if message.body.is_empty() { &[] } else { &[message.body] };
    let seen = send(&message, &json, whole, false);
    check(&seen, &message, &config);
    if !message.body.is_empty() {
        let cut = pieces(message.body);
        assert_eq!(send(&message, &json, &cut, false), seen, "in {} pieces", cut.len());
        assert_eq!(send(&message, &json, &cut, true), seen, "in {} pieces, with trailers", cut.len());
    }
});
