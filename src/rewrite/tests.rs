use super::*;
use crate::invalid;
use crate::random::Random;
use crate::request::{self, Dialect};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn rules(json: &str) -> Rules {
    Rules::new(&invalid::read(json.as_bytes()).unwrap()).unwrap()
}

fn refused(json: &str) -> String {
    let made = invalid::read(json.as_bytes()).and_then(|config| Rules::new(&config));
    made.unwrap_err().to_string()
}

#[test]
fn exact_comes_before_the_longest_prefix_before_all_in_whatever_order_they_stand() {
    let mut list = [
        r#"{"models":["*"],"targets":[{"model":"rest"}]}"#,
        r#"{"models":["gpt-*"],"targets":[{"model":"gpt"}]}"#,
        r#"{"models":["gpt-4*","o1"],"targets":[{"model":"four"}]}"#,
        r#"{"models":["gpt-4o"],"targets":[{"model":"o"}]}"#,
    ];
    for _ in 0..list.len() {
        let rules = rules(&format!(r#"{{"rules":[{}]}}"#, list.join(",")));
        let target = |model| rules.choose(model, || 1).unwrap().model;
        let targets = ["gpt-4o", "gpt-4o-mini", "gpt-4", "gpt-3", "o1", "o12"].map(target);
        assert_eq!(targets, ["o", "four", "four", "gpt", "four", "rest"]);
        list.rotate_left(1);
    }
    assert_eq!(rules(r#"{"rules":[{"models":["a"],"targets":[{"model":"b"}]}]}"#).choose("b", || 1), None);
    assert!(rules("").is_empty());
}

#[test]
fn a_wrong_rule_is_refused_with_its_place() {
    let rule = |rule: &str| {
        refused(&format!(r#"{{"rules":[{{"models":["a"],"targets":[{{"model":"b"}}]}},{rule}]}}"#))
    };
    let target = |targets: &str| rule(&format!(r#"{{"models":["c"],"targets":[{targets}]}}"#));
    let two = |a: &str, b: &str| target(&format!(r#"{{"model":"x"{a}}},{{"model":"y"{b}}}"#));
    let cases = [
        (rule(r#"{"models":[],"targets":[]}"#), "rules[1].models: empty"),
        (rule(r#"{"models":["c",""],"targets":[]}"#), "rules[1].models[1]: empty"),
        (
            rule(r#"{"models":["c","a"],"targets":[]}"#),
            "rules[1].models[1]: \"a\" is matched by rules[0] already",
        ),
        (rule(r#"{"models":["*c"],"targets":[]}"#), "rules[1].models[0]: \"*c\" has a `*`"),
        (target(""), "rules[1].targets: empty"),
        (target(r#"{"model":"a\tb"}"#), "rules[1].targets[0].model: has the control character U+0009"),
        (target(r#"{"model":"x"},{"model":"x"}"#), "rules[1].targets[1].model: \"x\" is a target"),
        (two(r#","weight":1"#, ""), "rules[1].targets[1].weight: missing"),
        (two(r#","weight":1"#, r#","weight":0"#), "rules[1].targets[1].weight: 0; expected 1 to 1000000"),
        (two("", r#","wait":0"#), "rules[1].targets[1].wait: unknown field"),
    ];
    for (said, expected) in cases {
        assert!(said.starts_with(expected), "{said}, expected {expected}");
    }
}

fn split(weights: [u32; 3]) -> Rules {
    let [a, b, c] = weights;
    rules(&format!(
        r#"{{"rules":[{{"models":["m"],"targets":[{{"model":"a","weight":{a}}},{{"model":"b","weight":{b}}},{{"model":"c","weight":{c}}}]}}]}}"#
    ))
}

/// The target of each of many sessions.
/// The hash that stands for a session.
fn session(n: u32) -> u64 {
    request::Config::default().id(request::Kind::Session, &format!("session-{n}"))
}

fn chosen(rules: &Rules) -> Vec<&str> {
    (0..20_000).map(|n| rules.choose("m", || session(n)).unwrap().model).collect()
}

#[test]
fn shares_are_as_weights_and_a_changed_weight_moves_only_its_share() {
    let (before, after) = (split([90, 5, 5]), split([90, 15, 5]));
    let (before, after) = (chosen(&before), chosen(&after));
    assert_eq!(before, chosen(&split([90, 5, 5])), "a session keeps its target");
    let share =
        |list: &[&str], of| list.iter().filter(|target| **target == of).count() as f64 / list.len() as f64;
    for (list, of, expected) in [(&before, "a", 0.9), (&before, "c", 0.05), (&after, "b", 15.0 / 110.0)] {
        // Five standard deviations of a share of 0.14 among 20,000 are 0.013.
        assert!((share(list, of) - expected).abs() < 0.013, "{of}: {}", share(list, of));
    }
    assert!(before.iter().zip(&after).all(|(was, is)| was == is || *is == "b"), "others moved too");
}

#[test]
fn only_the_models_bytes_change() {
    let bodies = [
        ("{ \"z\":1e400,\"seed\":9007199254740993, \"model\" :\t", ",\"a\":\"\\u003cb>\",\"messages\":[]}\n"),
        ("{\"messages\":[{\"content\":\"\\\"model\\\":\\\"m\\\"\",\"role\":\"user\"}],\"mod\\u0065l\":", "}"),
        ("\u{feff}{\"model\":", "}"),
    ];
    let names = [r#""model""#, r#""m\u006fd\u0065l""#];
    for (before, after) in bodies {
        for (spelt, target) in names
            .into_iter()
            .zip(["much-longer-than-that", "short", r#"q"u\ote"#, "other"].into_iter().cycle())
        {
            let body = format!("{before}{spelt}{after}");
            let rename = |model: &str, _| (model == "model").then(|| target.to_owned());
            let reading = request::Incoming::from(Dialect::Chat)
                .read_as(body.as_bytes(), &request::Config::default(), rename)
                .unwrap();
            assert_eq!(reading.facts.model.as_deref(), Some(target));
            assert_eq!(reading.facts.rewritten_from.as_deref(), Some("model"));
            let mut edited = body.clone().into_bytes();
            assert!(replace(&mut edited, reading.model_at, "model", target));
            let expected = format!("{before}{}{after}", serde_json::to_string(target).unwrap());
            assert_eq!(String::from_utf8(edited).unwrap(), expected);
        }
    }
}

#[test]
fn bytes_that_do_not_name_the_model_are_not_changed() {
    let body = br#"{"model":"m"}"#.to_vec();
    for at in [None, Some(9..11), Some(9..12), Some(9..99), Some(1..8)] {
        let mut edited = body.clone();
        assert_eq!(replace(&mut edited, at.clone(), "m", "n"), at == Some(9..12), "{at:?}");
        assert_eq!(edited == body, at != Some(9..12));
    }
}

#[test]
fn blocks_are_those_of_the_target() {
    let body = |model: &str| {
        format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(200))
    };
    let read = |model: &str, target: Option<&str>| {
        let config = request::Config::default();
        let rename = |_: &str, _| target.map(str::to_owned);
        let body = body(model);
        let reading =
            request::Incoming::from(Dialect::Chat).read_as(body.as_bytes(), &config, rename).unwrap();
        (reading.blocks.clone(), reading.facts.rewritten_from)
    };
    assert_eq!(read("alias", Some("m")).0, read("m", None).0);
    assert_ne!(read("alias", None).0, read("m", None).0);
    assert_eq!(read("m", Some("m")).1, None, "its own name is no rewrite");
}

/// Feeds pieces cut at random, of `most` bytes each at the most.
fn fed(restorer: &mut Restorer, answer: &[u8], most: usize, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
        rest = after;
        match restorer.feed(piece, false) {
            Some(bytes) => out.extend(bytes),
            None => out.extend_from_slice(piece),
        }
    }
    out.extend(restorer.feed(b"", true).unwrap_or_default());
    out
}

const CLIENT: &str = r#"the"client's"#;

/// `§` is where the model's value stands. Whatever the cuts, the client's name comes there and nothing else changes.
fn expect(content_type: &str, template: &str) {
    let mut random = Random::new(5);
    for served in [r#""s""#, r#""served-model-2024-08-06""#, r#""a\"b\\""#, r#""""#] {
        let answer = template.replace('§', served);
        let expected = template.replace('§', &serde_json::to_string(CLIENT).unwrap());
        let check = |out: Vec<u8>, how: &str| assert_eq!(String::from_utf8(out).unwrap(), expected, "{how}");
        let restorer = || Restorer::new(content_type, "", CLIENT).unwrap();
        for cut in 0..=answer.len() {
            let (one, two) = answer.as_bytes().split_at(cut);
            let mut restorer = restorer();
            let mut out = restorer.feed(one, false).unwrap_or_else(|| one.to_vec());
            out.extend(restorer.feed(two, true).unwrap_or_else(|| two.to_vec()));
            check(out, &format!("cut at {cut}"));
        }
        for most in [1, 2, 7, 64] {
            check(
                fed(&mut restorer(), answer.as_bytes(), most, &mut random),
                &format!("pieces of up to {most}"),
            );
        }
    }
}

#[test]
fn the_clients_name_is_restored_in_json_wherever_it_is_cut() {
    let json = "application/json; charset=utf-8";
    expect(json, r#"{"id":"x","model":§,"choices":[]}"#);
    expect(json, "{\n  \"n\": [1, {\"model\": \"deep\"}, -2.5e3, null],\n  \"model\" :  §\n}\n");
    expect(json, r#"{"choices":[{"message":{"content":"\"model\":\"x\" \\","model":"y"}}],"model":§}"#);
    expect(json, r#"{"a":"\\","b":"\\\"model\\\":","message":{"model":"not here"},"model":§}"#);
    expect(json, r#"{"model":§,"é":"ü"}"#);
}

#[test]
fn what_is_not_the_models_name_passes_unchanged() {
    let json = "application/json";
    for answer in [
        r#"{"model":null,"x":1}"#,
        r#"{"model":{"model":"x"}}"#,
        r#"{"model":["x"]}"#,
        r#"{"model" "x"}"#,
        r#"{"model":1 "x"}"#,
        r#"{"object":"model","models":"x","mode":"x","modelmodel":"x"}"#,
        r#"["model",{"model":"x"}]"#,
        r#""model":"x""#,
        r#"{}{"model":"x"}"#,
        r#"{"error":{"message":"The model `x` does not exist.","model":"x"}}"#,
        "{\"model\":\"cut",
        "{\"model\":\"line\nbreak\"}",
        "{{{{\"model\":\"x\"}",
        "}]{\"model\":\"x\"}",
        "garbage \"model\":\"x\"",
        "",
    ] {
        expect(json, answer);
    }
    expect(json, &format!(r#"{{"model":"{}"}}"#, "x".repeat(3000)));
    expect(
        "text/event-stream",
        "event: model\nid: {\"model\":\"x\"}\n: {\"model\":\"x\"}\n\n{\"model\":\"x\"}\n\ndat: {\"model\":\"x\"}\n\n",
    );
    for (kind, encoding) in [("text/plain", ""), ("", ""), ("application/json", "gzip")] {
        assert!(Restorer::new(kind, encoding, CLIENT).is_none());
    }
}

#[test]
fn the_clients_name_is_restored_in_streams_of_each_dialect_wherever_they_are_cut() {
    let events = "Text/Event-Stream; charset=utf-8";
    expect(
        events,
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":§,\"choices\":[{\"delta\":{\"content\":\"\\\"model\\\":\\\"x\\\"\"}}]}\n\n\
         : keep-alive\n\ndata:{\"model\":§}\n\ndata: [DONE]\n\n",
    );
    expect(
        events,
        "event: message_start\r\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[{\"model\":\"x\"}],\"model\":§,\"usage\":{}}}\r\n\r\n\
         event: ping\r\ndata: {\"type\": \"ping\"}\r\n\r\ndata: {\"message\":{\"model\":§}}\r\n\r\n",
    );
    expect(
        events,
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"tools\":{\"model\":\"x\"},\"model\":§},\"model\":§}\n\n\
         data: {\"response\":[{\"model\":\"x\"}],\"other\":{\"model\":\"x\"}}\n\n",
    );
    // Data of several lines, with each kind of line end; an event of broken JSON, then good ones.
    expect(events, "data: {\"a\":1,\rdata: \"model\":\rdata: §}\r\rdata: {\"model\":§}\r\n\r\n");
    expect(events, "data: {\"a\":1,\r\ndata: \"model\":\r\ndata: §}\r\n\r\n");
    expect(events, "data: {\"model\":\"x\ndata: \"}\n\ndata: {\"model\":§}\n\n");
    expect(events, "data: {\"a\":\"\ndata: \",\"model\":\"x\"}\n\ndata: {\"model\":§}\n\ndata: {\"model\":§");
}

#[test]
fn nothing_is_held_back_but_a_name_that_has_begun() {
    let answer = b"data: {\"id\":\"a\",\"model\":\"served\",\"choices\":[]}\n\n";
    let begins = answer.windows(8).position(|bytes| bytes == b"\"served\"").unwrap();
    for cut in 0..answer.len() {
        let mut restorer = Restorer::new("text/event-stream", "", "c").unwrap();
        let piece = &answer[..cut];
        let sent = restorer.feed(piece, false).unwrap_or_else(|| piece.to_vec());
        let expected = match cut {
            _ if cut <= begins => cut,
            _ if cut < begins + 8 => begins,
            _ => cut - 8 + 3,
        };
        assert_eq!(sent.len(), expected, "cut at {cut}");
    }
}

#[test]
fn a_json_answer_is_done_after_its_name() {
    let mut restorer = Restorer::new("application/json", "identity", "c").unwrap();
    assert_eq!(restorer.feed(br#"{"model":"s","#, false).unwrap(), br#"{"model":"c","#);
    assert!(restorer.is_done());
}

#[test]
fn any_bytes_at_all_lose_nothing() {
    let alphabet = [
        &b"\"model\":"[..],
        b"{",
        b"}",
        b"\"",
        b"\\",
        b"\n",
        b"\r",
        b"data:",
        b"[",
        b",",
        b"x",
        b"\xff",
        b" ",
    ];
    let mut random = Random::new(3);
    for round in 0..3_000 {
        let kind = if round % 2 == 0 { "application/json" } else { "text/event-stream" };
        let answer: Vec<u8> = (0..40).flat_map(|_| alphabet[random.below(alphabet.len())]).copied().collect();
        let whole = fed(&mut Restorer::new(kind, "", CLIENT).unwrap(), &answer, usize::MAX, &mut random);
        let cut = fed(&mut Restorer::new(kind, "", CLIENT).unwrap(), &answer, 3, &mut random);
        assert_eq!(whole, cut, "{:?}", String::from_utf8_lossy(&answer));
        // Without the names that were put in, what is left is the answer without some strings.
        let name = serde_json::to_string(CLIENT).unwrap();
        let text = String::from_utf8_lossy(&whole).into_owned();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let mut rest = answer.as_str();
        for kept in text.split(&name) {
            let found = rest.find(kept);
            assert!(found.is_some(), "{answer:?} became {text:?}");
            rest = &rest[found.unwrap() + kept.len()..];
        }
    }
}
