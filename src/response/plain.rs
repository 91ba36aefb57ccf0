//! An answer that is not compressed, or no more: one document, a stream of events, or nothing that is read here.

use super::event::{Counted, Event, Worth, usage_at_end};
use super::sse::{Events, is_field};
use super::{BROKEN_OFF, Progress, Reader, Report, Status, Usage, coded, text};
use std::io;

/// Reads what is not compressed, or no more.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub(super) form: Form,
    pub(super) found: Found,
    /// So much more is taken of what is decoded.
    pub(super) room: usize,
}

#[derive(Debug, Default)]
pub(super) enum Form {
    Json {
        body: Vec<u8>,
        most: usize,
    },
    /// A document that is too long to be kept: its last bytes.
    Tail(Vec<u8>),
    Sse(Box<Events>),
    /// Of an unknown kind; its first bytes may tell that it is events all the same.
    Begins(Vec<u8>),
    #[default]
    Opaque,
}

/// So much of a long document's end is kept: all engines write the usage last.
const TAIL: usize = 16 << 10;

fn last(bytes: &[u8]) -> Vec<u8> {
    bytes.get(bytes.len().saturating_sub(TAIL)..).unwrap_or_default().to_vec()
}

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    usage: Option<Usage>,
    finish: Option<String>,
    error: Option<String>,
    /// A usage said how much was written.
    counted: bool,
    pub(super) deltas: u64,
    text: u64,
    /// An event is of no kind that is known here.
    strange: bool,
    /// The stream said that it is over.
    over: bool,
    /// An event has come that does more than announce an answer.
    begun: bool,
}

impl io::Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.room = self.room.checked_sub(bytes.len()).ok_or_else(coded::enough)?;
        self.feed(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Plain {
    pub(super) fn breaks_off(&self) -> bool {
        let Found { finish, error, deltas, over, .. } = &self.found;
        let is_stream = matches!(self.form, Form::Sse(_));
        is_stream && *deltas > 0 && finish.is_none() && error.is_none() && !over
    }

    /// See [`Reader::has_begun`].
    pub(super) fn has_begun(&self) -> bool {
        match &self.form {
            Form::Sse(events) => events.has_begun() || self.found.begun,
            _ => true,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Progress {
        match &mut self.form {
            Form::Opaque => Progress::Nothing,
            Form::Begins(first) => {
                first.extend_from_slice(bytes);
                let begun = first.trim_ascii_start().to_vec();
                match is_field(&begun) {
                    Some(true) => {
                        self.form = Form::Sse(Box::new(Events::new(Reader::MOST_BYTES)));
                        return self.feed(&begun);
                    }
                    Some(false) => self.form = Form::Opaque,
                    None => *first = begun,
                }
                Progress::Nothing
            }
            Form::Json { body, most } => {
                body.extend_from_slice(bytes);
                if body.len() > *most {
                    self.form = Form::Tail(last(body));
                }
                Progress::Nothing
            }
            Form::Tail(tail) => {
                tail.extend_from_slice(bytes);
                if tail.len() > 2 * TAIL {
                    *tail = last(tail);
                }
                Progress::Nothing
            }
            Form::Sse(events) => {
                let found = &mut self.found;
                let before = found.deltas;
                events.feed(bytes, |data| found.event(data));
                if before == 0 && found.deltas > 0 { Progress::FirstToken } else { Progress::Nothing }
            }
        }
    }

    pub(super) fn end(mut self, whole: bool) -> Report {
        let found = &mut self.found;
        let mut complete = whole;
        let mut streamed = false;
        let mut unread = false;
        match self.form {
            Form::Opaque | Form::Begins(_) => unread = true,
            Form::Json { body, .. } => {
                if let Some(event) = Event::parse(&body) {
                    found.take(&event);
                    // An answer with an error beside it was written all the same.
                    unread = found.error.is_some() && event.is_answer();
                }
            }
            Form::Tail(tail) => found.note(usage_at_end(&tail)),
            Form::Sse(events) => {
                streamed = true;
                unread = events.has_unread() || found.strange && found.deltas == 0;
                events.end(|data| found.event(data));
                let ended = found.over || found.finish.is_some() || found.error.is_some();
                if whole && found.deltas > 0 && !ended {
                    found.error = Some(BROKEN_OFF.to_owned());
                }
                complete &= found.over || found.finish.is_some();
                // It wrote, and says that it did not.
                complete &= found.deltas == 0 || found.usage.is_none_or(|usage| usage.output > 0);
            }
        }
        if found.usage.is_some_and(|usage| (usage.input, usage.output) == (0, 0)) {
            found.usage = None;
        }
        complete &= found.counted;
        unread |= !streamed && found.usage.is_some() && !found.counted;
        let status = match found.usage {
            None => Status::Missing,
            Some(_) if complete => Status::Complete,
            Some(_) => Status::Partial,
        };
        Report {
            usage: found.usage,
            status,
            finish: found.finish.take(),
            error: found.error.take(),
            streamed,
            deltas: found.deltas,
            text: found.text,
            unread,
        }
    }
}

impl Found {
    fn event(&mut self, data: &[u8]) {
        let begun = std::mem::replace(&mut self.begun, true);
        match Worth::of(data, self.deltas == 0) {
            Worth::Nothing => {}
            Worth::End => (self.over, self.begun) = (true, begun),
            Worth::Delta => self.deliver(data),
            Worth::Parsing => match Event::parse(data) {
                Some(event) => {
                    self.take(&event);
                    self.begun = begun || self.error.is_some() || !event.is_announcement();
                    if event.has_output() {
                        self.deliver(data);
                    }
                    self.strange |= !event.is_known();
                }
                None => self.strange = true,
            },
        }
    }

    fn deliver(&mut self, data: &[u8]) {
        self.deltas = self.deltas.saturating_add(1);
        self.text = self.text.saturating_add(text::delivered(data));
    }

    fn note(&mut self, counted: Option<Counted>) {
        if let Some(Counted { usage, output_said }) = counted {
            self.usage = Some(usage);
            self.counted |= output_said;
        }
    }

    fn take(&mut self, event: &Event<'_>) {
        self.note(event.usage(self.usage));
        self.finish = event.finish().or(self.finish.take());
        self.error = event.error().or(self.error.take());
        self.over |= event.is_last();
    }
}
