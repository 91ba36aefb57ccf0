//! Cuts server-sent events out of bytes that may be cut anywhere.
//!
//! The rules are those of the HTML standard (9.2.6): a line ends with LF, CR or CRLF; an empty line ends an event;
//! the `data` lines of an event are joined with LF; a line that starts with a colon is a comment. Fields other
//! than `data` tell nothing here. Bytes stay bytes: a character cut in two is joined again before anybody
//! looks at it.

use memchr::memchr2;

/// The state between two pieces.
#[derive(Debug)]
pub(super) struct Events {
    /// A line whose end has not come yet.
    line: Vec<u8>,
    /// The data of an event whose empty line has not come yet.
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a CR; an LF that follows belongs to it.
    after_cr: bool,
    /// More than this is kept of no line and no event; a longer one is dropped.
    most: usize,
    /// The line or event at hand is too long.
    dropped: bool,
    /// One before it was.
    lost: bool,
    /// Lines that are fields of events or comments, and lines that are not.
    fields: bool,
    others: bool,
    /// A comment has come, or an event without data; or it is no stream of events.
    begun: bool,
}

/// Whether a line is a field of an event, or a comment; `None`: more of it must come to tell.
pub(super) fn is_field(line: &[u8]) -> Option<bool> {
    const FIELDS: [&[u8]; 5] = [b"data:", b":", b"event:", b"id:", b"retry:"];
    if FIELDS.iter().any(|field| line.starts_with(field)) {
        return Some(true);
    }
    if FIELDS.iter().any(|field| field.starts_with(line)) { None } else { Some(false) }
}

impl Events {
    pub(super) fn new(most: usize) -> Self {
        Self {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            most,
            dropped: false,
            lost: false,
            fields: false,
            others: false,
            begun: false,
        }
    }

    /// Whether more came than was read: an event that was too long, or nothing at all that looks like one.
    pub(super) fn has_unread(&self) -> bool {
        let looks_odd = self.others || is_field(&self.line) == Some(false);
        self.lost || self.dropped || !self.fields && is_field(&self.line) != Some(true) && looks_odd
    }

    /// Whether there is something that is no event with data: a sign of life, or no stream of events at all.
    pub(super) fn has_begun(&self) -> bool {
        self.begun || self.dropped || is_field(&self.line) == Some(false)
    }

    /// Takes the next bytes; `event` gets the data of each event that is complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut event: impl FnMut(&[u8])) {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
            if self.line.is_empty() {
                self.take_line(line, &mut event);
            } else {
                let mut whole = std::mem::take(&mut self.line);
                if whole.len().saturating_add(line.len()) <= self.most {
                    whole.extend_from_slice(line);
                    self.take_line(&whole, &mut event);
                } else {
                    self.dropped = true;
                }
                whole.clear();
                self.line = whole;
            }
        }
        if self.line.len().saturating_add(bytes.len()) <= self.most {
            self.line.extend_from_slice(bytes);
        } else {
            self.dropped = true;
        }
    }

    /// No more bytes. An event without its empty line still counts: engines that end abruptly leave one.
    pub(super) fn end(mut self, mut event: impl FnMut(&[u8])) {
        let line = std::mem::take(&mut self.line);
        self.take_line(&line, &mut event);
        self.take_line(b"", &mut event);
    }

    fn take_line(&mut self, line: &[u8], event: &mut impl FnMut(&[u8])) {
        match is_field(line) {
            Some(true) => self.fields = true,
            _ if !line.is_empty() => self.others = true,
            _ => {}
        }
        self.begun |=
            self.others || line.starts_with(b":") || line.is_empty() && self.fields && !self.has_data;
        if line.is_empty() {
            self.lost |= self.dropped;
            if self.has_data && !self.dropped {
                event(&self.data);
            }
            self.data.clear();
            self.has_data = false;
            self.dropped = false;
        } else if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            if self.data.len().saturating_add(data.len()) <= self.most {
                self.data.extend_from_slice(data);
            } else {
                self.dropped = true;
            }
        }
    }
}
