use super::*;
use crate::request::Dialect;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const SSE: &str = "text/event-stream; charset=utf-8";

fn read(content_type: &str, body: &str, piece: usize) -> Report {
    let mut reader = Reader::new(content_type, "");
    for bytes in body.as_bytes().chunks(piece) {
        reader.feed(bytes);
    }
    reader.end(true)
}

fn usage(input: u64, cached: u64, output: u64, reasoning: u64) -> Option<Usage> {
    Some(Usage { input, cached, output, reasoning })
}

/// However a stream is cut, it reads the same.
fn stream(body: &str) -> Report {
    let whole = read(SSE, body, body.len().max(1));
    for piece in 1..=body.len().min(200) {
        assert_eq!(read(SSE, body, piece), whole, "pieces of {piece}");
    }
    whole
}

const OPENAI: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    ": keep-alive\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"},\"finish_reason\":null}]}\n\n",
    "data:\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\" \\\"usage\\\" \"},\"finish_reason\":null}]}\r\n\r\n",
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\r\r",
    "data: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
    "data: [DONE]\n\n",
);

#[test]
fn an_openai_stream_reads_the_same_however_it_is_cut() {
    let report = stream(OPENAI);
    assert_eq!((report.usage, report.status), (usage(9, 4, 2, 0), Status::Complete));
    assert_eq!((report.finish.as_deref(), report.deltas, report.error), (Some("stop"), 2, None));
}

#[test]
fn running_totals_are_not_added_up() {
    let chunk = |n| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}],\"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{n}}}}}\n\n"
        )
    };
    let body: String = (1..=5).map(chunk).chain(["data: [DONE]\n\n".to_owned()]).collect();
    assert_eq!(stream(&body).usage, usage(10, 0, 5, 0));
}

#[test]
fn an_anthropic_stream_joins_its_two_usages() {
    let body = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":41,\"cache_read_input_tokens\":9,\"output_tokens\":2}}}\n\n",
        "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"b\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":18}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    let report = stream(body);
    assert_eq!((report.usage, report.status), (usage(50, 9, 18, 0), Status::Complete));
    assert_eq!((report.finish.as_deref(), report.deltas), (Some("end_turn"), 2));
}

#[test]
fn a_responses_stream_ends_with_its_usage() {
    let body = concat!(
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"usage\":null}}\n\n",
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n",
        "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"usage\":{\"input_tokens\":40,\"input_tokens_details\":{\"cached_tokens\":32},\"output_tokens\":30,\"output_tokens_details\":{\"reasoning_tokens\":26}}}}\n\n",
    );
    let report = stream(body);
    assert_eq!((report.usage, report.status), (usage(40, 32, 30, 26), Status::Complete));
    assert_eq!((report.finish.as_deref(), report.deltas), (Some("completed"), 1));
}

#[test]
fn the_first_token_is_output_and_not_an_announcement() {
    let mut reader = Reader::new(SSE, "");
    let mut progress = OPENAI.split_inclusive("\n\n").map(|event| reader.feed(event.as_bytes()));
    assert_eq!(progress.next(), Some(Progress::Nothing), "role");
    assert_eq!(progress.next(), Some(Progress::Nothing), "comment");
    assert_eq!(progress.next(), Some(Progress::FirstToken));
    assert!(progress.all(|progress| progress == Progress::Nothing));
}

/// The same to a request for a stream.
fn wished(content_type: &str, coding: &str, body: &[u8], piece: usize) -> Report {
    let mut reader = Reader::wished_for_stream(content_type, coding);
    for bytes in body.chunks(piece) {
        reader.feed(bytes);
    }
    reader.end(true)
}

#[test]
fn a_stream_that_was_wished_for_is_read_whatever_its_content_type_says() {
    let plain = stream(OPENAI);
    for kind in ["", "text/plain", "application/x-ndjson", "application/octet-stream"] {
        for piece in [1, 3, 1_000] {
            assert_eq!(wished(kind, "", OPENAI.as_bytes(), piece), plain, "{kind}, {piece}");
            assert_eq!(wished(kind, "", format!("\n\n: hi\n{OPENAI}").as_bytes(), piece), plain);
        }
        for (coding, bytes) in compressed(OPENAI.as_bytes()) {
            assert_eq!(wished(kind, coding, &bytes, 5), plain, "{coding}");
        }
        assert!(read(kind, OPENAI, 9).unread, "nobody wished for one");
    }
    assert_eq!(read("audio/mpeg", "ID3", 1), wished("audio/mpeg", "", b"ID3", 1));
}

#[test]
fn what_was_delivered_is_known_only_of_a_stream_that_was_read() {
    let known = |report: &Report| report.streamed && !report.unread;
    for (body, is_known) in [
        ("", true),
        (": keep-alive\n\n", true),
        ("data: [DONE]\n\n", true),
        ("event: ping\ndata: {\"type\":\"ping\"}\n\n", true),
        ("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n", true),
        ("dat", true),
        ("data: {\"choi", true),
        ("{\"choices\":[{\"message\":{\"content\":\"a document\"}}]}", false),
        ("\u{1f}\u{8b}\n\u{8}gzip without a label", false),
        ("hello\n\nworld\n\n", false),
        ("data: hello\n\ndata: world\n\n", false),
        ("data: {\"type\":\"speech.audio.delta\",\"audio\":\"UklGRg==\"}\n\n", false),
    ] {
        assert_eq!(known(&read(SSE, body, body.len().max(1))), is_known, "{body}");
    }
    for (kind, body) in [("application/json", "{\"choices\":[]}"), ("audio/mpeg", "ID3"), ("", "hello")] {
        assert!(!known(&read(kind, body, 5)) && !known(&wished(kind, "", body.as_bytes(), 5)), "{kind}");
    }
    let mut reader = Reader::new(SSE, "");
    reader.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: ");
    for _ in 0..=Reader::MOST_BYTES / 4096 {
        reader.feed(&[b'x'; 4096]);
    }
    reader.feed(b"\n\ndata: [DONE]\n\n");
    assert!(reader.end(true).unread, "an event was too long");
}

#[test]
fn few_events_of_much_text_are_more_than_a_token_each() {
    let event = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let end = "data: [DONE]\n\n";
    let long = stream(&format!("{}{}{end}", event(&"word ".repeat(40)), event(&"word ".repeat(40))));
    assert_eq!((long.deltas, long.text, long.output()), (2, 400, Some(100)));
    let short = stream(&format!("{}{end}", event("a").repeat(30)));
    assert_eq!(short.output(), Some(30));
}

#[test]
fn a_usage_counts_no_less_later_and_zeros_throughout_are_none() {
    let body = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":0,\"output_tokens\":9}}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
    );
    assert_eq!((stream(body).usage, stream(body).status), (usage(25, 0, 9, 0), Status::Complete));
    let zero = "\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0,\"total_tokens\":0}";
    let late = stream(&format!("{OPENAI}data: {{\"choices\":[],{zero}}}\n\n"));
    assert_eq!(late.usage, usage(9, 4, 2, 0));
    let document = read("application/json", &format!("{{\"choices\":[],{zero}}}"), 7);
    assert_eq!((document.usage, document.status), (None, Status::Missing));
}

#[test]
fn a_usage_that_does_not_say_what_was_written_is_not_the_whole() {
    for output in
        ["", ",\"completion_tokens\":-5", ",\"completion_tokens\":4294967296", ",\"completion_tokens\":1e30"]
    {
        let body = format!("{{\"choices\":[],\"usage\":{{\"prompt_tokens\":10{output}}}}}");
        let report = read("application/json", &body, 7);
        assert_eq!((report.usage, report.status), (usage(10, 0, 0, 0), Status::Partial), "{output}");
        assert!(report.unread, "{output}");
    }
}

#[test]
fn a_stream_that_breaks_off_is_partial_or_missing() {
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
    assert_eq!((stream(body).status, stream(body).output()), (Status::Partial, Some(1)));
    let report = stream("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"cho");
    assert_eq!((report.usage, report.status, report.deltas), (None, Status::Missing, 1));
}

#[test]
fn where_nobody_counted_the_output_is_what_was_delivered() {
    let delta = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    assert_eq!(stream(&format!("{}data: [DONE]\n\n", delta.repeat(7))).output(), Some(7), "no include_usage");
    let early = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
    assert_eq!(
        stream(&format!("{early}{}", delta.repeat(4))).output(),
        Some(5),
        "its count is older than what came"
    );
    assert_eq!(stream(OPENAI).output(), stream(OPENAI).usage.map(|usage| usage.output));
    assert_eq!(stream("data: [DONE]\n\n").output(), None);
}

#[test]
fn one_event_of_garbage_spoils_no_other() {
    let body = format!("data: {{\"choices\":[{{\"broken\n\ndata: \u{fffd}\n\nnonsense\n\n{OPENAI}");
    assert_eq!(stream(&body).usage, usage(9, 4, 2, 0));
}

#[test]
fn json_answers_of_every_dialect() {
    for (body, expected, finish) in [
        (
            r#"{"choices":[{"finish_reason":"length","message":{"content":"x"}}],"usage":{"prompt_tokens":1200,"completion_tokens":340,"prompt_tokens_details":{"cached_tokens":1024},"completion_tokens_details":{"reasoning_tokens":256}}}"#,
            usage(1200, 1024, 340, 256),
            Some("length"),
        ),
        (
            r#"{"type":"message","stop_reason":"end_turn","usage":{"input_tokens":21,"cache_creation_input_tokens":400,"cache_read_input_tokens":1600,"output_tokens":9}}"#,
            usage(2021, 1600, 9, 0),
            Some("end_turn"),
        ),
        (
            r#"{"text":"x","meta_info":{"prompt_tokens":3,"completion_tokens":12,"cached_tokens":2,"finish_reason":{"type":"length"}}}"#,
            usage(3, 2, 12, 0),
            Some("length"),
        ),
        (r#"{"data":[],"usage":{"prompt_tokens":6,"total_tokens":6}}"#, usage(6, 0, 0, 0), None),
        (r#"{"choices":[{"finish_reason":"stop"}],"usage":null}"#, None, Some("stop")),
        (r#"{"usage":"odd","choices":7}"#, None, None),
        (
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":18446744073709551615,"prompt_tokens_details":{"cached_tokens":-1}}}"#,
            usage(9, 0, 0, 0),
            None,
        ),
    ] {
        let report = read("application/json", body, 7);
        assert_eq!((report.usage, report.finish.as_deref()), (expected, finish), "{body}");
    }
}

#[test]
fn an_empty_error_is_none() {
    for none in ["null", "\"\"", "false", "{}"] {
        let mut reader = Reader::new("application/json", "");
        reader.feed(format!(r#"{{"choices":[{{"message":{{}}}}],"error":{none}}}"#).as_bytes());
        assert_eq!(reader.end(true).error, None, "{none}");
    }
}

#[test]
fn an_answer_with_an_error_beside_it_was_written() {
    const ERROR: &str = r#""error":{"type":"overloaded"}"#;
    for (beside, written) in [
        (r#""choices":[{"message":{"content":"much"}}],"#, true),
        (r#""type":"message","content":[{"type":"text","text":"much"}],"#, true),
        (r#""output":[{"type":"message"}],"#, true),
        (r#""data":[{"embedding":[1]}],"#, true),
        (r#""text":"much","#, true),
        (r#""choices":[ ],"#, false),
        (r#""output":null,"#, false),
        ("", false),
    ] {
        let report = read("application/json", &format!("{{{beside}{ERROR}}}"), 9);
        assert_eq!((report.error.as_deref(), report.unread), (Some("overloaded"), written), "{beside}");
    }
}

#[test]
fn errors_are_named_in_every_shape() {
    for (body, expected) in [
        (
            r#"{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}"#,
            "BadRequestError",
        ),
        (r#"{"error":{"message":"no","type":"rate_limit_error","code":"x"}}"#, "rate_limit_error"),
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#, "overloaded_error"),
        (r#"{"error":"plain"}"#, "error"),
        (r#"{"error":{"code":500}}"#, "500"),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"m"}}}"#,
            "server_error",
        ),
    ] {
        assert_eq!(read("application/json", body, 9).error.as_deref(), Some(expected), "{body}");
        assert_eq!(stream(&format!("data: {body}\n\n")).error.as_deref(), Some(expected), "{body}");
    }
    assert_eq!(read("application/json", r#"{"error":null,"usage":{}}"#, 9).error, None);
}

#[test]
fn what_cannot_be_read_is_missing_and_bounded() {
    assert!(!Reader::new("application/json", "zstd").reads());
    assert!(!Reader::new("text/html", "").reads());
    let mut reader = Reader::new("application/json", "");
    for _ in 0..=Reader::MOST_BYTES / 4096 {
        reader.feed(&[b' '; 4096]);
    }
    assert_eq!(reader.end(true).status, Status::Missing);
    let mut reader = Reader::new(SSE, "");
    reader.feed(b"data: ");
    for _ in 0..=Reader::MOST_BYTES / 4096 {
        reader.feed(&[b'x'; 4096]);
    }
    reader.feed(b"\n\n");
    reader.feed(OPENAI.as_bytes());
    assert_eq!(reader.end(true).usage, usage(9, 4, 2, 0));
}

#[test]
fn usage_that_has_no_number_is_missing_and_what_was_delivered_counts() {
    const JSON: &str = "application/json";
    for nothing in [
        "{}",
        r#"{"type":"duration","seconds":600}"#,
        r#"{"prompt_tokens":-10,"completion_tokens":-5}"#,
        r#"{"prompt_tokens":1.5}"#,
        r#"{"prompt_tokens":"9"}"#,
        "[]",
    ] {
        let report = read(JSON, &format!("{{\"usage\":{nothing}}}"), 7);
        assert_eq!((report.usage, report.status), (None, Status::Missing), "{nothing}");
        let delta = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n".repeat(3);
        let report = stream(&format!("{delta}data: {{\"usage\":{nothing}}}\n\ndata: [DONE]\n\n"));
        assert_eq!((report.usage, report.status, report.deltas), (None, Status::Missing, 3), "{nothing}");
        // The same for an output that no answer can have.
        let report = stream(&format!(
            "{delta}data: {{\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":5000000000}}}}\n\ndata: [DONE]\n\n"
        ));
        assert_eq!((report.usage, report.status), (usage(9, 0, 0, 0), Status::Partial));
    }
    for (said, expected) in [
        (r#"{"total_tokens":5000}"#, usage(5000, 0, 0, 0)),
        (r#"{"total_tokens":12,"completion_tokens":2}"#, usage(10, 0, 2, 0)),
        (r#"{"prompt_tokens":8,"total_tokens":8}"#, usage(8, 0, 0, 0)),
        (r#"{"prompt_tokens":10.0,"completion_tokens":5e0}"#, usage(10, 0, 5, 0)),
    ] {
        let report = read(JSON, &format!("{{\"results\":[],\"usage\":{said}}}"), 7);
        assert_eq!((report.usage, report.status), (expected, Status::Complete), "{said}");
    }
    for written in
        [r#""choices":[{"message":{}}]"#, r#""content":[{"text":"x"}]"#, r#""output":[{"type":"message"}]"#]
    {
        let sum = read(JSON, &format!("{{{written},\"usage\":{{\"total_tokens\":12}}}}"), 7);
        assert!(sum.status == Status::Partial && sum.unread, "how much of {written} was written nobody says");
    }
}

#[test]
fn of_a_document_that_is_too_long_the_usage_at_its_end_is_read() {
    let mut reader = Reader::new("application/json", "");
    reader.feed(br#"{"choices":[{"message":{"content":""#);
    for _ in 0..=Reader::MOST_BYTES / 4096 {
        reader.feed(&[b'x'; 4096]);
    }
    // What a text says is no usage, nor is a token of that name.
    reader.feed(br#" \"usage\":{\"prompt_tokens\":1} "},"logprobs":[{"token":"usage"}]}],"#);
    reader.feed(br#""usage" : {"prompt_tokens":10,"completion_"#);
    reader.feed(br#"tokens":20000},"id":"usage"}"#);
    let report = reader.end(true);
    assert_eq!((report.usage, report.status), (usage(10, 0, 20_000, 0), Status::Complete));
}

#[test]
fn a_stream_that_ends_without_its_end_breaks_off_and_is_told_so_in_its_dialect() {
    let chat = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let messages = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n";
    let responses = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
    for (dialect, body, ends) in [
        (Dialect::Chat, chat, "data: [DONE]\n\n"),
        (Dialect::Chat, chat, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"),
        (Dialect::Chat, chat, "data: {\"error\":{\"type\":\"x\"}}\n\n"),
        (Dialect::Messages, messages, "data: {\"type\":\"message_stop\"}\n\n"),
        (Dialect::Responses, responses, "data: {\"type\":\"response.completed\",\"response\":{}}\n\n"),
    ] {
        let read = |body: &str| {
            let mut reader = Reader::new("text/event-stream", "");
            reader.feed(body.as_bytes());
            (reader.breaks_off(), reader.end(true).error)
        };
        assert_eq!(read(body), (true, Some(BROKEN_OFF.to_owned())), "{body}");
        assert!(!read(&(body.to_owned() + ends)).0, "{ends}");
        // What the client gets, also behind half an event, is an error to whoever reads it, and no end.
        for cut in [body, &(body.to_owned() + "data: {\"choi")] {
            let told = cut.to_owned() + &closing_event(dialect);
            assert!(
                !told.contains("[DONE]") && !told.contains("message_stop") && !told.contains("completed")
            );
            let (breaks_off, error) = read(&told);
            assert!(!breaks_off && error.is_some_and(|error| error != BROKEN_OFF), "{told}");
        }
    }
}

#[test]
fn a_broken_connection_is_no_stream_that_ended_early() {
    let mut reader = Reader::new("text/event-stream", "");
    reader.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
    assert_eq!(reader.end(false).error, None);
}

/// An answer in each coding.
fn compressed(body: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use std::io::Write;
    let best = Compression::best();
    let (mut gzip, mut zlib) = (GzEncoder::new(Vec::new(), best), ZlibEncoder::new(Vec::new(), best));
    let mut bare = DeflateEncoder::new(Vec::new(), best);
    gzip.write_all(body).unwrap();
    zlib.write_all(body).unwrap();
    bare.write_all(body).unwrap();
    let [gzip, zlib, bare] = [gzip.finish(), zlib.finish(), bare.finish()].map(Result::unwrap);
    let (half, rest) = body.split_at(body.len() / 2);
    let members = [half, rest].map(|part| {
        let mut member = GzEncoder::new(Vec::new(), best);
        member.write_all(part).unwrap();
        member.finish().unwrap()
    });
    vec![
        ("gzip", gzip),
        ("x-gzip", members.concat()),
        ("deflate", zlib),
        ("Deflate", bare),
        ("br", brotli(body)),
    ]
}

/// Brotli of stored blocks: each has its length, and a last one is empty (RFC 7932, 9.2).
fn brotli(body: &[u8]) -> Vec<u8> {
    let mut bits: Vec<bool> = Vec::new();
    let put = |value: usize, number: usize| (0..number).map(|bit| value >> bit & 1 == 1).collect::<Vec<_>>();
    // A window of 16 bits.
    bits.extend(put(0, 1));
    let mut bytes = Vec::new();
    for block in body.chunks(1 << 16) {
        bits.extend([put(0, 1), put(0, 2), put(block.len() - 1, 16), put(1, 1)].concat());
        bytes.extend(
            bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |sum, bit| sum << 1 | u8::from(*bit))),
        );
        bits.clear();
        bytes.extend_from_slice(block);
    }
    bytes.push(3);
    bytes
}

fn read_coded(content_type: &str, coding: &str, body: &[u8], piece: usize) -> Report {
    let mut reader = Reader::new(content_type, coding);
    assert!(reader.reads());
    for bytes in body.chunks(piece) {
        reader.feed(bytes);
    }
    reader.end(true)
}

#[test]
fn a_compressed_answer_reads_as_the_plain_one_however_it_is_cut() {
    const DOCUMENT: &str = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
    for (kind, body) in [(SSE, OPENAI), ("application/json", DOCUMENT)] {
        let plain = read(kind, body, 7);
        assert_eq!(plain.status, Status::Complete);
        for (coding, bytes) in compressed(body.as_bytes()) {
            for piece in [1, 2, 3, 10, bytes.len()] {
                assert_eq!(read_coded(kind, coding, &bytes, piece), plain, "{coding}, pieces of {piece}");
            }
        }
    }
}

#[test]
fn the_first_token_is_seen_when_it_comes_where_the_sender_flushes() {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut reader = Reader::new(SSE, "gzip");
    let mut seen = Vec::new();
    for event in OPENAI.split_inclusive("\n\n") {
        gzip.write_all(event.as_bytes()).unwrap();
        gzip.flush().unwrap();
        seen.push(reader.feed(&std::mem::take(gzip.get_mut())));
    }
    assert_eq!(seen.iter().position(|progress| *progress == Progress::FirstToken), Some(2));
}

#[test]
fn of_a_compressed_stream_that_breaks_off_what_was_delivered_is_known() {
    for (coding, bytes) in compressed(OPENAI.as_bytes()) {
        for cut in 0..bytes.len() {
            let report = read_coded(SSE, coding, &bytes[..cut], 5);
            // An event that is cut off in the right place looks whole.
            assert!(!report.unread && report.deltas <= 3, "{coding}, {cut} of {}: {report:?}", bytes.len());
            assert!(report.status != Status::Complete, "{coding}, {cut} of {}: {report:?}", bytes.len());
        }
        assert_eq!(read_coded(SSE, coding, &bytes[..bytes.len() - 1], 5).deltas, 2, "{coding}");
    }
}

#[test]
fn what_is_damaged_or_out_of_proportion_is_said_to_be_unread() {
    for (coding, _) in compressed(b"x") {
        assert!(read_coded(SSE, coding, OPENAI.as_bytes(), 5).unread, "{coding}");
    }
    let bomb = vec![b' '; 64 << 20];
    let (_, bytes) = compressed(&bomb).swap_remove(0);
    let mut reader = Reader::new("application/json", "gzip");
    for piece in bytes.chunks(1 << 14) {
        reader.feed(piece);
    }
    assert!(!reader.reads() && reader.end(true).unread);
    for other in ["zstd", "gzip, br", "compress"] {
        let reader = Reader::new(SSE, other);
        assert!(!reader.reads() && reader.end(true).unread, "{other}");
    }
}
