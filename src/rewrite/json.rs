//! Finds the model's value in a JSON document that comes in pieces.
//!
//! A document is looked at byte by byte, in constant memory, and only as closely as needed: strings and brackets
//! everywhere, keys in two objects. These are the document itself and, in events, the object under its key `response`
//! (OpenAI's responses) or `message` (Anthropic's messages): there engines say which model answers. The same letters
//! inside a text, or deeper, mean nothing. A document that is no JSON is left alone from where that shows.

use memchr::memchr2;

/// What a byte means to the model's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing.
    None,
    /// It is the first, a quote.
    Open,
    /// It is the last, a quote.
    Close,
    /// What seemed to be the value is none.
    Broken,
}

/// What comes next in an object whose keys are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Key,
    Colon(Role),
    Value(Role),
    Comma,
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Model,
    Parent,
    Other,
}

/// Where in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Outside,
    Key,
    Model,
    Other,
}

/// The longest key that matters.
const LONGEST: usize = 8;

/// A document, up to some byte.
#[derive(Debug)]
pub(super) struct Document {
    /// Whether the objects under `response` and `message` count.
    nested: bool,
    /// Brackets that are open.
    depth: u32,
    /// How many of them, from the outermost, are objects whose keys are read.
    read: u32,
    expect: Expect,
    text: Text,
    escaped: bool,
    key: [u8; LONGEST],
    key_len: usize,
    /// Over, or no JSON.
    over: bool,
}

impl Document {
    pub(super) fn new(nested: bool) -> Self {
        Self {
            nested,
            depth: 0,
            read: 0,
            expect: Expect::Comma,
            text: Text::Outside,
            escaped: false,
            key: [0; LONGEST],
            key_len: 0,
            over: false,
        }
    }

    /// Leaves the rest of it alone.
    pub(super) fn give_up(&mut self) {
        self.over = true;
    }

    /// How many of the bytes that come next can mean nothing.
    pub(super) fn skip(&self, bytes: &[u8]) -> usize {
        match self.text {
            _ if self.over => bytes.len(),
            Text::Other if !self.escaped => memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len()),
            _ => 0,
        }
    }

    /// Takes the next byte.
    pub(super) fn step(&mut self, byte: u8) -> Mark {
        if self.over {
            return Mark::None;
        }
        match self.text {
            Text::Outside => self.outside(byte),
            text => self.inside(text, byte),
        }
    }

    fn inside(&mut self, text: Text, byte: u8) -> Mark {
        let escaped = std::mem::take(&mut self.escaped);
        match byte {
            // A text does not run over the end of a line.
            ..b' ' => {
                self.over = true;
                return if text == Text::Model { Mark::Broken } else { Mark::None };
            }
            b'"' if !escaped => {
                self.text = Text::Outside;
                match text {
                    Text::Key => self.expect = Expect::Colon(self.role()),
                    Text::Model => return Mark::Close,
                    Text::Other | Text::Outside => {}
                }
            }
            _ => {
                self.escaped = byte == b'\\' && !escaped;
                if text == Text::Key {
                    if let Some(place) = self.key.get_mut(self.key_len) {
                        *place = byte;
                    }
                    self.key_len = self.key_len.saturating_add(1);
                }
            }
        }
        Mark::None
    }

    fn outside(&mut self, byte: u8) -> Mark {
        let reads = self.depth == self.read;
        match (byte, self.expect) {
            (b' ' | b'\t' | b'\n' | b'\r', _) => {}
            (b'{', _) if self.depth == 0 => self.enter(),
            (_, _) if self.depth == 0 => self.over = true,
            (b'}' | b']', _) => self.leave(),
            (b'"', _) if !reads => self.text = Text::Other,
            (b'{' | b'[', _) if !reads => self.depth = self.depth.saturating_add(1),
            (_, _) if !reads => {}
            (b'"', Expect::Key) => {
                self.text = Text::Key;
                self.key_len = 0;
            }
            (b':', Expect::Colon(role)) => self.expect = Expect::Value(role),
            (b',', Expect::Comma) => self.expect = Expect::Key,
            (b'"', Expect::Value(role)) => {
                self.expect = Expect::Comma;
                self.text = if role == Role::Model { Text::Model } else { Text::Other };
                if role == Role::Model {
                    return Mark::Open;
                }
            }
            (b'{', Expect::Value(Role::Parent)) if self.nested && self.read == 1 => self.enter(),
            (b'{' | b'[', Expect::Value(_)) => {
                self.expect = Expect::Comma;
                self.depth = self.depth.saturating_add(1);
            }
            (b'"' | b'{' | b'[' | b':' | b',', _) | (_, Expect::Key | Expect::Colon(_)) => self.over = true,
            // A number, `true`, `null`.
            (_, Expect::Value(_) | Expect::Comma) => self.expect = Expect::Comma,
        }
        Mark::None
    }

    /// Into an object whose keys are read.
    fn enter(&mut self) {
        self.depth = self.depth.saturating_add(1);
        self.read = self.depth;
        self.expect = Expect::Key;
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.read > self.depth {
            self.read = self.depth;
            self.expect = Expect::Comma;
        }
        self.over = self.depth == 0;
    }

    fn role(&self) -> Role {
        match self.key.get(..self.key_len).unwrap_or_default() {
            b"model" => Role::Model,
            b"response" | b"message" => Role::Parent,
            _ => Role::Other,
        }
    }
}
