//! The table of `docs/bodies.md`, row by row.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const DOC: &str = include_str!("../../../docs/bodies.md");

/// The documentation has a row of this name and verdict.
fn documented(what: &str, verdict: &str) {
    let row = format!("| {what} | {verdict} |");
    assert!(DOC.contains(&row), "docs/bodies.md lacks {row}");
}

fn refused_with(what: &str, body: impl AsRef<[u8]>, why: &str) {
    documented(what, "400");
    let refusal = read(Dialect::Chat, body.as_ref(), &Config::default()).expect_err(what);
    assert_eq!(refusal.status, 400, "{what}");
    assert!(refusal.message.contains(why), "{what}: {}", refusal.message);
}

fn read_with(what: &str, body: &[u8]) -> Facts {
    documented(what, "read");
    let reading = read(Dialect::Chat, body, &Config::default());
    reading.unwrap_or_else(|refusal| panic!("{what}: {}", refusal.message)).facts
}

fn is_m(what: &str, body: impl AsRef<[u8]>) {
    assert_eq!(read_with(what, body.as_ref()).model.as_deref(), Some("m"), "{what}");
}

fn bound(what: &str, more: &str) -> Option<u32> {
    read_with(what, format!(r#"{{"model":"m",{more}}}"#).as_bytes()).max_output_tokens
}

#[test]
fn the_model() {
    refused_with("no `model`, or `null`", r#"{"messages":[]}"#, "model: missing");
    refused_with("no `model`, or `null`", r#"{"model":null}"#, "model: not a string");
    for wrong in ["7", "[\"m\"]", "{\"id\":\"m\"}", "true"] {
        let body = format!(r#"{{"model":{wrong}}}"#);
        refused_with("`model` that is not a string", body, "model: not a string");
    }
    for empty in ["", " ", "\\t\u{a0}"] {
        refused_with("`model` that is empty or blank", format!(r#"{{"model":"{empty}"}}"#), "model: empty");
    }
    for other in [r#""model":"m""#, r#""mod\u0065l":"m""#, r#""model":null"#] {
        refused_with("`model` twice", format!(r#"{{"model":"m",{other}}}"#), "model: given more than once");
    }
    for other in ["Model", "MODEL", "mode\\u004c"] {
        let body = format!(r#"{{"model":"m","{other}":"n"}}"#);
        refused_with("`Model` beside `model`, or in its place", body, "another spelling");
        let body = format!(r#"{{"{other}":"n"}}"#);
        refused_with("`Model` beside `model`, or in its place", body, "another spelling");
    }
    is_m("`model` with an escaped key or value", r#"{"mod\u0065l":"\u006d"}"#);
    is_m(
        "`model` inside something else",
        r#"{"metadata":{"model":"x"},"model":"m","__proto__":{"model":"y"}}"#,
    );
    for control in ["\\n", "\\r\\nx: y", "\\u0000", "\\u007f", "\\u0085"] {
        let body = format!(r#"{{"model":"m{control}"}}"#);
        refused_with("`model` with a control character", body, "control character");
    }
    for surrogate in ["\\ud83d", "\\udc00", "\\ud83dx"] {
        let body = format!(r#"{{"model":"m{surrogate}"}}"#);
        refused_with(
            "a lone surrogate in the model, a text of the prompt or a key",
            body,
            "model: has a lone surrogate",
        );
    }
    refused_with("`model` over 256 bytes", format!(r#"{{"model":"{}"}}"#, "m".repeat(257)), "257 bytes long");
    let spaced =
        read_with("`model` with spaces, `%` or letters beyond ASCII", "{\"model\":\" Größe 7%\"}".as_bytes());
    assert_eq!(spaced.model.as_deref(), Some(" Größe 7%"));
}

#[test]
fn the_text() {
    is_m("UTF-8 byte order mark", "\u{feff}{\"model\":\"m\"}");
    is_m("white space around the document", " \r\n\t{\"model\":\"m\"} \n");
    let utf16 = |order: fn(u16) -> [u8; 2], mark: &[u16]| {
        let units = mark.iter().copied().chain("{\"model\":\"m\"}".encode_utf16());
        units.flat_map(order).collect::<Vec<u8>>()
    };
    for mark in [&[][..], &[0xfeff]] {
        refused_with("UTF-16 or UTF-32", utf16(u16::to_be_bytes, mark), "UTF-16");
        refused_with("UTF-16 or UTF-32", utf16(u16::to_le_bytes, mark), "UTF-16");
    }
    let utf32: Vec<u8> = "{\"model\":\"m\"}".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
    refused_with("UTF-16 or UTF-32", utf32, "UTF-16");
    for wrong in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\xbd", b"\xf8\x88\x80\x80\x80"] {
        let body = [b"{\"model\":\"m\",\"x\":\"", wrong, b"\"}"].concat();
        refused_with("invalid UTF-8: overlong, surrogates, stray bytes", body, "not valid UTF-8");
    }
    for after in ["x", "{\"model\":\"n\"}", "\0", ","] {
        let body = format!("{{\"model\":\"m\"}}{after}");
        refused_with("anything after the document", body, "trailing characters");
    }
    for cut in ["", " ", "{", r#"{"model":"m"#, r#"{"model":"m","x":"#] {
        refused_with("a document cut off, or none", cut, "not the JSON");
    }
    for other in ["[\"model\"]", "\"model\"", "7", "null"] {
        refused_with("a document that is not an object", other, "not a JSON object");
    }
    for odd in ["// c\n", "/* c */", "'a':1,", "a:1,"] {
        let body = format!("{{{odd}\"model\":\"m\"}}");
        refused_with("comments, single quotes, bare keys, trailing commas", body, "not the JSON");
    }
    refused_with("comments, single quotes, bare keys, trailing commas", "{\"model\":\"m\",}", "not the JSON");
    for odd in ["\"\0\"", "\"\n\"", "\0"] {
        let body = format!("{{\"model\":\"m\",\"user\":{odd}}}");
        refused_with(
            "NUL or another raw control character in a string, or outside of one",
            body,
            "not the JSON",
        );
    }
}

#[test]
fn texts_of_the_prompt() {
    let what = "a lone surrogate in the model, a text of the prompt or a key";
    let body = |text: &str| format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    refused_with(what, body("\\ud83d"), "not the JSON");
    refused_with(what, body("a\\ude00b"), "not the JSON");
    refused_with(what, r#"{"model":"m","\ud83d":1}"#, "not the JSON");
    is_m(
        "a lone surrogate elsewhere",
        r#"{"model":"m","metadata":{"x":"\ud83d"},"tools":["\ud83d"],"y":"\ud83d"}"#,
    );
    is_m("a surrogate pair, an escaped NUL in a text", body("\\ud83d\\ude00 \\u0000"));
}

#[test]
fn nesting_and_numbers() {
    let deep = format!(r#"{{"x":{}{},"model":"m"}}"#, "[".repeat(100_000), "]".repeat(100_000));
    is_m("nesting of any depth", deep);
    for odd in ["NaN", "Infinity", "-Infinity"] {
        refused_with("`NaN`, `Infinity`", format!(r#"{{"model":"m","x":{odd}}}"#), "not the JSON");
    }
    for odd in ["01", "+1", ".5", "1.", "0x10", "1_000"] {
        refused_with(
            "numbers that are not JSON's",
            format!(r#"{{"model":"m","max_tokens":{odd}}}"#),
            "not the JSON",
        );
    }
    let huge = r#"{"model":"m","max_tokens":1e400}"#;
    refused_with("`1e400` in a field that is read", huge, "not the JSON");
    is_m("`1e400` elsewhere", r#"{"model":"m","temperature":1e400}"#);
}

#[test]
fn bounds() {
    let what = "a bound that is a whole number, also as float, text or bool";
    for (value, most) in [("5", 5), ("5.0", 5), ("\"5\"", 5), ("true", 1), ("0", 0), ("-0", 0), ("-0.0", 0)] {
        assert_eq!(bound(what, &format!("\"max_tokens\":{value}")), Some(most), "{value}");
    }
    let what = "a bound beyond 32 bits";
    for value in ["99999999999", "99999999999999999999999", "1e300", "18446744073709551615"] {
        assert_eq!(bound(what, &format!("\"max_tokens\":{value},\"n\":3")), Some(u32::MAX), "{value}");
    }
    let what = "a bound that is negative, or a text like `\" 5 \"`, `\"1_000\"`, `\"5.0\"`";
    for value in ["-1", "-0.5", "-9999999999999999999999", "\" 5 \"", "\"1_000\"", "\"5.0\"", "\"x\""] {
        assert_eq!(bound(what, &format!("\"max_tokens\":{value}")), None, "{value}");
        assert_eq!(bound(what, &format!("\"max_tokens\":7,\"n\":{value}")), None, "{value}");
        let body = format!(r#"{{"model":"m","max_tokens":{value}}}"#);
        assert_eq!(read_as(Dialect::Completions, &body).unwrap().facts.max_output_tokens, None, "{value}");
    }
    let what = "a bound that is `null`, a list or an object";
    for value in ["null", "[5]", "{}"] {
        assert_eq!(bound(what, &format!("\"max_tokens\":{value}")), None, "{value}");
    }
    let what = "`max_tokens` and `max_completion_tokens`";
    assert_eq!(bound(what, r#""max_tokens":5,"max_completion_tokens":9"#), Some(9));
    assert_eq!(bound(what, r#""max_tokens":5,"max_completion_tokens":-1"#), None);
    for n in ["0", "1", "null"] {
        assert_eq!(bound("`n` of 0", &format!("\"max_tokens\":5,\"n\":{n}")), Some(5));
    }
    for field in ["messages", "max_tokens", "stream", "n", "tools", "priority"] {
        let body = format!(r#"{{"model":"m","{field}":1,"{field}":2}}"#);
        refused_with("any other field that is read, twice", body, &format!("{field}: given more than once"));
    }
    is_m("a field that is not read, twice", r#"{"model":"m","seed":1,"seed":2,"Max_Tokens":3}"#);
}
