//! The client's name in the answer, as it passes.
//!
//! What stands where engines name the model is replaced, whatever name it is: some answer with the name of a file or of
//! a dated release instead of the one asked for, and none of these is the client's. All other bytes pass as they are
//! and at once; held back is nothing but a name of which only the first bytes have come.

use super::json::{Document, Mark};
use super::quoted;
use crate::response::{is_plain, media_type};
use memchr::memchr2;

/// More than any name takes. What is longer is none.
const MOST_HELD: usize = 1024;

/// Puts a name into one answer.
#[derive(Debug)]
pub struct Restorer {
    /// As a JSON string.
    name: String,
    form: Form,
    /// The beginning of a name, from earlier pieces.
    held: Vec<u8>,
    /// A name has begun.
    holds: bool,
    done: bool,
}

#[derive(Debug)]
enum Form {
    Json(Document),
    Events(Events),
}

impl Restorer {
    /// For an answer with these headers; `None` if no name can be put into it: it is neither JSON nor a stream of events,
    /// or compressed.
    pub fn new(content_type: &str, content_encoding: &str, name: &str) -> Option<Self> {
        if !is_plain(content_encoding) {
            return None;
        }
        let form = match media_type(content_type).as_str() {
            "application/json" => Form::Json(Document::new(false)),
            "text/event-stream" => Form::Events(Events::new()),
            _ => return None,
        };
        Some(Self { name: quoted(name), form, held: Vec::new(), holds: false, done: false })
    }

    /// Whether nothing more will be changed, so that no further piece need be fed.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Takes the next piece. What is to be sent in its place; `None`: the piece itself. `end`: nothing follows.
    pub fn feed(&mut self, piece: &[u8], end: bool) -> Option<Vec<u8>> {
        let mut changed = !self.held.is_empty();
        let mut out = Vec::new();
        // What is before `copied` is in `out` or gone; while a name is coming, it begins there.
        let (mut copied, mut at) = (0, 0);
        let bytes = |from: usize, to: usize| piece.get(from..to).unwrap_or_default();
        while at < piece.len() {
            at = at.saturating_add(self.form.skip(bytes(at, piece.len())));
            let Some(byte) = piece.get(at) else { break };
            let mut mark = self.form.step(*byte);
            if self.holds && self.held.len().saturating_add(at - copied) > MOST_HELD && mark != Mark::Close {
                self.form.give_up();
                mark = Mark::Broken;
            }
            match mark {
                Mark::None => {}
                Mark::Open => {
                    out.extend_from_slice(bytes(copied, at));
                    copied = at;
                    self.holds = true;
                }
                Mark::Close => {
                    out.extend_from_slice(self.name.as_bytes());
                    copied = at + 1;
                    changed = true;
                    self.holds = false;
                    self.held.clear();
                    self.done = matches!(self.form, Form::Json(_));
                }
                Mark::Broken => {
                    out.append(&mut self.held);
                    self.holds = false;
                }
            }
            at += 1;
            if self.done {
                break;
            }
        }
        let rest = bytes(copied, piece.len());
        if self.holds && !end {
            changed |= !rest.is_empty();
            self.held.extend_from_slice(rest);
        } else {
            out.append(&mut self.held);
            out.extend_from_slice(rest);
        }
        changed.then_some(out)
    }
}

impl Form {
    fn skip(&self, bytes: &[u8]) -> usize {
        match self {
            Self::Json(document) => document.skip(bytes),
            Self::Events(events) => events.skip(bytes),
        }
    }

    fn step(&mut self, byte: u8) -> Mark {
        match self {
            Self::Json(document) => document.step(byte),
            Self::Events(events) => events.step(byte),
        }
    }

    fn give_up(&mut self) {
        match self {
            Self::Json(document) => document.give_up(),
            Self::Events(events) => events.data.give_up(),
        }
    }
}

/// A stream of events: which bytes belong to a document. [`crate::response`] keeps each event whole to read it; here
/// nothing is kept.
#[derive(Debug)]
struct Events {
    line: Line,
    /// The last byte was a CR; an LF that follows belongs to it.
    after_cr: bool,
    /// The data of the event at hand.
    data: Document,
}

#[derive(Debug)]
enum Line {
    /// So many bytes of [`DATA`] and none other.
    Field(usize),
    Data,
    Other,
}

const DATA: &[u8] = b"data:";

impl Events {
    fn new() -> Self {
        Self { line: Line::Field(0), after_cr: false, data: Document::new(true) }
    }

    fn skip(&self, bytes: &[u8]) -> usize {
        let line = |bytes: &[u8]| memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
        match self.line {
            Line::Field(_) => 0,
            Line::Other => line(bytes),
            Line::Data => line(bytes.get(..self.data.skip(bytes)).unwrap_or_default()),
        }
    }

    fn step(&mut self, byte: u8) -> Mark {
        if std::mem::take(&mut self.after_cr) && byte == b'\n' {
            return Mark::None;
        }
        if matches!(byte, b'\n' | b'\r') {
            self.after_cr = byte == b'\r';
            return match std::mem::replace(&mut self.line, Line::Field(0)) {
                Line::Data => self.data.step(b'\n'),
                Line::Field(0) => {
                    self.data = Document::new(true);
                    Mark::None
                }
                Line::Field(_) | Line::Other => Mark::None,
            };
        }
        match self.line {
            Line::Data => return self.data.step(byte),
            Line::Other => {}
            Line::Field(n) => {
                self.line = match DATA.get(n) == Some(&byte) {
                    true if n + 1 == DATA.len() => Line::Data,
                    true => Line::Field(n + 1),
                    false => Line::Other,
                }
            }
        }
        Mark::None
    }
}
