//! An answer in which the client's name for the model is put back: however it is cut the same bytes come out, all but the
//! names are those that went in, and a parser finds the name where it belongs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir::rewrite::Restorer;
use weir_fuzz::{Message, pieces};

/// The client's name: with what JSON has to escape.
const NAME: &str = "its \"own\"";

fn restored(message: &Message, pieces: &[&[u8]]) -> Option<Vec<u8>> {
    let value = |name: &str| {
        message.headers.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value.as_str())
    };
    let mut restorer = Restorer::new(value("content-type"), value("content-encoding"), NAME)?;
    let mut out = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        match restorer.is_done() {
            true => out.extend_from_slice(piece),
            false => {
                out.extend(restorer.feed(piece, at + 1 == pieces.len()).unwrap_or_else(|| piece.to_vec()))
            }
        }
    }
    Some(out)
}

/// The model of a whole JSON answer, if it is one that has it once.
fn model(json: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(json).ok()?;
    let tree: Value = serde_json::from_str(text).ok()?;
    // Of two with the same name the tree has the last, and the reader has taken the first.
    (text.matches("mod").count() == 1 && !text.contains("\\u")).then(|| tree.get("model").cloned())?
}

fuzz_target!(|input: &[u8]| {
    let Some(message) = Message::read(input) else { return };
    let Some(whole) = restored(&message, &[message.body]) else { return };
    let cut = pieces(message.body);
    if !cut.is_empty() {
        let cut_up = restored(&message, &cut).unwrap();
        assert!(cut_up == whole, "in {} pieces: {}", cut.len(), String::from_utf8_lossy(&cut_up));
    }
    if !message.body.windows(3).any(|three| three == b"mod") && !message.body.contains(&b'\\') {
        assert!(whole == message.body, "changed without a name: {}", String::from_utf8_lossy(&whole));
    }
    let json =
        message.headers.iter().any(|(name, value)| name == "content-type" && value == "application/json");
    if let Some(Value::String(_)) = model(message.body).filter(|_| json) {
        let tree: Value = serde_json::from_slice(&whole).expect("JSON it was, and JSON it is");
        let mut before: Value = serde_json::from_slice(message.body).unwrap();
        if tree != before {
            before["model"] = NAME.into();
            assert_eq!(tree, before);
        }
    }
});
