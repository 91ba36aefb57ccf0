//! An answer, through the core's reader and through `meter`: however it is cut it reads the same, and what is logged of
//! it is one line that nobody can forge a field of.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir::response::{Progress, Reader, Report, Status};
use weir::wire;
use weir_fuzz::{Message, pieces};
use weir_host::fake::Worker;
use weir_meter::Meter;

fn read(message: &Message, pieces: &[&[u8]], whole: bool) -> Report {
    let value = |name: &str| {
        message.headers.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value.as_str())
    };
    let mut reader = Reader::new(value("content-type"), value("content-encoding"));
    let firsts = pieces.iter().filter(|piece| reader.feed(piece) == Progress::FirstToken).count();
    let report = reader.end(whole);
    assert!(firsts <= 1 && firsts as u64 <= report.deltas, "{firsts} first tokens");
    report
}

fn check(report: &Report, whole: bool) {
    assert_eq!(report.usage.is_none(), report.status == Status::Missing);
    assert!(whole || report.status != Status::Complete);
    let line = wire::write_usage(report, Some(0.5), None);
    let fields: Vec<_> = line.split(' ').map(|field| field.split_once('=').expect("key=value").0).collect();
    let known = [
        "status", "input", "cached", "output", "reasoning", "deltas", "text", "unread", "ttft_ms", "finish", "error",
    ];
    assert!(fields.iter().all(|field| known.contains(field)), "{line}");
    assert!(fields.iter().enumerate().all(|(at, field)| !fields[..at].contains(field)), "{line}");
    assert!(line.is_ascii() && !line.contains(['\n', '\r', '\0']), "{line}");
}

fn metered(message: &Message, pieces: &[&[u8]]) -> Option<String> {
    let mut worker = Worker::<Meter>::new(r#"{"models":["m"]}"#);
    let facts = b"dialect=chat stream=1 prompt_tokens=3 model=m";
    let mut exchange = worker.request(&[(":method", "POST")], &[(wire::FACTS, facts)], true);
    let status = [(":status", message.first.0)];
    let headers = message.headers.iter().map(|(name, value)| (&**name, &**value));
    worker.response(&mut exchange, "10.0.0.1:1", &status.into_iter().chain(headers).collect::<Vec<_>>());
    for (at, piece) in pieces.iter().enumerate() {
        worker.piece(&mut exchange, piece, at + 1 == pieces.len());
    }
    worker.finish(exchange).state(wire::USAGE)
}

fuzz_target!(|input: &[u8]| {
    let Some(message) = Message::read(input) else { return };
    let cut = pieces(message.body);
    for whole in [true, false] {
        let report = read(&message, &[message.body], whole);
        check(&report, whole);
        assert_eq!(read(&message, &cut, whole), report, "in {} pieces", cut.len());
    }
    assert_eq!(metered(&message, &cut), metered(&message, &[message.body]));
});
