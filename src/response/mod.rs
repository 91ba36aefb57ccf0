//! What an answer used, when its first token came, how it ended: read from its bytes, however they are cut.
//!
//! A [`Reader`] is fed what passes, changes nothing and holds nothing back. Two forms exist: one JSON document,
//! kept (up to a bound) and read at its end; and server-sent events, read as they come. In a stream most events
//! carry one token and nothing to know, so an event is parsed only while the first token is awaited, or when it
//! holds a `usage`, an error or a reason to finish.
//!
//! Usage in a stream is a running total: the largest of each number wins, and a later one that leaves a number out, or says zero, keeps
//! the earlier number (Anthropic sends the input first and the output last). A usage that is zero throughout is none.
//!
//! What was delivered of a stream without usage is known only where it was read: as events, whole, of a kind that is known here.
//! Of all else [`Report::unread`] or [`Report::streamed`] say that it was not. What the client wished for proves nothing.
//!
//! Compressed answers are decoded as they pass (`coded.rs`), as far as that is in proportion. Of those that cannot be the usage is
//! `missing`, and they are said to be unread: nobody knows what was in them.
//!
//! Not here: clocks (the caller notes when [`Progress::FirstToken`] came).

mod broken;
mod coded;
mod event;
mod overflow;
mod plain;
mod sse;
mod text;

pub use broken::{BROKEN_OFF, closing_event};
pub use overflow::TOO_LONG;

use crate::request::Coding;
use coded::Coded;
use plain::{Form, Found, Plain};
use sse::Events;

/// Tokens that an answer used. A part that the engine did not name is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Prompt tokens found in the engine's cache; part of `input`.
    pub cached: u64,
    /// Tokens written, reasoning included.
    pub output: u64,
    /// Tokens of hidden reasoning; part of `output`.
    pub reasoning: u64,
}

/// How far [`Report::usage`] can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// The engine's last word.
    Complete,
    /// The engine's word so far; the answer broke off.
    Partial,
    /// The engine said nothing.
    #[default]
    Missing,
}

impl Status {
    /// As written in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Missing => "missing",
        }
    }

    /// The status of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Complete, Self::Partial, Self::Missing].into_iter().find(|status| status.name() == name)
    }
}

/// What came of the bytes just fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing to note.
    Nothing,
    /// The first token is among these bytes.
    FirstToken,
}

/// What is known of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tokens used, when the engine said so.
    pub usage: Option<Usage>,
    /// How far `usage` can be trusted.
    pub status: Status,
    /// Why the engine stopped: `stop`, `length`, `end_turn`, …
    pub finish: Option<String>,
    /// The engine's error, also one inside a 200: its type, or its code; [`TOO_LONG`] where it says that, in whatever words.
    pub error: Option<String>,
    /// It was read as a stream of events.
    pub streamed: bool,
    /// Events of the stream that carried output.
    pub deltas: u64,
    /// Bytes of text in them.
    pub text: u64,
    /// There may have been more than is known: it was compressed in a way that is not read here, damaged, of a form that is not
    /// read, an answer with an error beside it, or its usage did not say how much was written.
    pub unread: bool,
}

impl Report {
    /// Tokens delivered, about: a token an event, or more if so much text came.
    pub fn delivered(&self) -> u64 {
        self.deltas.max(self.text.div_ceil(text::BYTES_PER_TOKEN))
    }

    /// Whether a stream that has ended was none: events that are read here, and not one that says anything.
    pub fn says_nothing(&self) -> bool {
        let something = self.usage.is_some() || self.finish.is_some() || self.error.is_some();
        self.streamed && self.deltas == 0 && !something && !self.unread
    }

    /// Tokens written: the engine's count, or, where it is missing or the answer broke off, what was delivered if that is more.
    /// `None` when neither is known.
    pub fn output(&self) -> Option<u64> {
        let delivered = (self.status != Status::Complete && self.deltas > 0).then(|| self.delivered());
        self.usage.map(|usage| usage.output).max(delivered)
    }
}

/// Reads one answer.
#[derive(Debug)]
pub struct Reader(Bytes);

/// How the bytes come.
#[derive(Debug)]
enum Bytes {
    Plain(Plain),
    Coded(Coded<Plain>),
    /// In a coding that is not read.
    Unread,
}

/// What a compressed answer may be decoded to: so much at the least, and so much more for each byte of it. A stream of events with a token
/// each is fifty times as long as it is compressed.
const ROOM: usize = 1 << 20;
const ROOM_PER_BYTE: usize = 256;

/// What a `content-type` says before its parameters, in lower case.
pub(crate) fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether an answer with this `content-encoding` can be read as it is.
pub(crate) fn is_plain(content_encoding: &str) -> bool {
    matches!(content_encoding, "" | "identity")
}

impl Reader {
    /// Longest JSON document, and longest event of a stream, that is read; of a longer document only the usage at its end, and of a
    /// longer event nothing.
    pub const MOST_BYTES: usize = 8 << 20;

    /// A reader for an answer with these headers.
    pub fn new(content_type: &str, content_encoding: &str) -> Self {
        Self::of(content_type, content_encoding, Form::Opaque)
    }

    /// A reader for an answer with these headers to a request for a stream: it is read as one if it begins like one, even where
    /// its content type is of no kind that is read.
    pub fn wished_for_stream(content_type: &str, content_encoding: &str) -> Self {
        Self::of(content_type, content_encoding, Form::Begins(Vec::new()))
    }

    fn of(content_type: &str, content_encoding: &str, otherwise: Form) -> Self {
        let form = match media_type(content_type).as_str() {
            "text/event-stream" => Form::Sse(Box::new(Events::new(Self::MOST_BYTES))),
            kind if kind == "application/json" || kind.ends_with("+json") => {
                Form::Json { body: Vec::new(), most: Self::MOST_BYTES }
            }
            _ => otherwise,
        };
        let plain = Plain { form, found: Found::default(), room: ROOM };
        Self(match Coding::of(content_encoding) {
            Ok(None) => Bytes::Plain(plain),
            Ok(Some(coding)) => Bytes::Coded(Coded::new(coding, plain)),
            Err(()) => Bytes::Unread,
        })
    }

    fn plain(&self) -> Option<&Plain> {
        match &self.0 {
            Bytes::Plain(plain) => Some(plain),
            Bytes::Coded(coded) => Some(coded.sink()).filter(|_| !coded.is_damaged()),
            Bytes::Unread => None,
        }
    }

    /// Whether feeding this reader can tell anything; if not, the bytes need not be fetched.
    pub fn reads(&self) -> bool {
        self.plain().is_some_and(|plain| !matches!(plain.form, Form::Opaque))
    }

    /// Whether the answer is a stream of events.
    pub fn is_stream(&self) -> bool {
        self.plain().is_some_and(|plain| matches!(plain.form, Form::Sse(_)))
    }

    /// Whether it is known how a stream begins: an event is whole that does more than announce an answer, or a sign of life has come, as comments
    /// are. Of what is no stream nothing more is awaited.
    pub fn has_begun(&self) -> bool {
        self.plain().is_none_or(Plain::has_begun)
    }

    /// Whether a stream that ends here, by the rules of HTTP, is no whole answer: it wrote something, and neither a reason to finish, nor
    /// an error, nor that it is over.
    pub fn breaks_off(&self) -> bool {
        // To what is compressed nothing can be added.
        matches!(&self.0, Bytes::Plain(plain) if plain.breaks_off())
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) -> Progress {
        match &mut self.0 {
            Bytes::Plain(plain) => plain.feed(bytes),
            Bytes::Coded(coded) => {
                let before = coded.sink().found.deltas;
                let room = &mut coded.sink_mut().room;
                *room = room.saturating_add(bytes.len().saturating_mul(ROOM_PER_BYTE));
                coded.feed(bytes);
                match before == 0 && coded.sink().found.deltas > 0 {
                    true => Progress::FirstToken,
                    false => Progress::Nothing,
                }
            }
            Bytes::Unread => Progress::Nothing,
        }
    }

    /// The answer is over; `whole` says that it ended as HTTP demands, not by a broken connection.
    pub fn end(self, whole: bool) -> Report {
        match self.0 {
            Bytes::Plain(plain) => plain.end(whole),
            Bytes::Coded(coded) => {
                let damaged = coded.is_damaged();
                let (plain, ended) = coded.end();
                let report = plain.end(whole && ended);
                Report { unread: damaged || report.unread, ..report }
            }
            Bytes::Unread => Report { unread: true, ..Plain::default().end(whole) },
        }
    }
}

#[cfg(test)]
mod tests;
