//! What the targets share: the text form of their inputs, and ways to cut bytes.
//!
//! Inputs are text where that is possible, so that a seed can be written by hand, a dictionary helps, and a new kind of
//! request needs no new target: it is a header and a body like any other.

use std::time::Duration;
use weir::random::Random;

/// A message in the form of the seeds: a first line, header lines, an empty line, the body.
#[derive(Debug)]
pub struct Message<'a> {
    /// The words of the first line: method and path of a request.
    pub first: (&'a str, &'a str),
    /// Headers, names in lower case, as Envoy hands them over; without those that configure the target.
    pub headers: Vec<(String, String)>,
    /// The configuration of the filter: the value of the header `weir-config`.
    pub config: &'a str,
    /// The body.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads a message; `None` for bytes that have no head.
    pub fn read(input: &'a [u8]) -> Option<Self> {
        let end = input.windows(2).position(|two| two == b"\n\n")?;
        let (head, body) = (std::str::from_utf8(&input[..end]).ok()?, &input[end + 2..]);
        let mut lines = head.lines();
        let first = lines.next()?;
        let mut message = Self {
            first: first.split_once(' ').unwrap_or((first, "")),
            headers: Vec::new(),
            config: "",
            body,
        };
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            match name {
                "weir-config" => message.config = value,
                // Envoy lets no other through.
                "content-length" if value != body.len().to_string() => {}
                _ => message.headers.push((name.to_ascii_lowercase(), value.to_owned())),
            }
        }
        Some(message)
    }

    /// The headers with the pseudo-headers of a request.
    pub fn request(&self) -> Vec<(&str, &str)> {
        let line = [(":method", self.first.0), (":path", self.first.1)];
        line.into_iter().chain(self.headers.iter().map(|(name, value)| (&**name, &**value))).collect()
    }
}

/// The bytes in pieces: mostly a few large ones, sometimes one a byte. The same for the same bytes.
pub fn pieces(bytes: &[u8]) -> Vec<&[u8]> {
    let sum = bytes.iter().fold(bytes.len() as u64, |sum, byte| sum.rotate_left(7) ^ u64::from(*byte));
    let mut random = Random::new(sum);
    let most = [1, 3, 16, bytes.len() / 3][random.below(4)];
    let (mut rest, mut pieces) = (bytes, Vec::new());
    while !rest.is_empty() {
        // Empty ones come too.
        let (piece, after) = rest.split_at(random.below(most + 2).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// One line of printable ASCII without a way to forge another field: what may stand in a header or a log.
pub fn is_header_safe(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Long enough for every timer of a filter.
pub const A_WHILE: Duration = Duration::from_secs(2);
