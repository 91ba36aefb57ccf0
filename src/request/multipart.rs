//! `multipart/form-data` (RFC 7578): the few parts that matter, borrowed from the body; files are passed over.
//!
//! The body is searched once for its boundary. Readers differ in what they forgive, and a forgiving one finds other
//! parts than a strict one does. So this accepts what all agree on and refuses the rest: the boundary stands at the start of
//! a line and nowhere else, lines end in CR LF, the closing boundary is there and nothing that looks like one comes after it;
//! a part has one plain `name`, and none in the extended notation (`name*=`), which RFC 7578 does not have.

use super::Dialect;
use super::body::{Body, Model};
use super::parameters::Parameters;
use super::segment::{Content, Segment};
use super::sink::Count;
use memchr::memmem;

/// Most parts of a body, as Starlette has it.
const MOST_PARTS: usize = 1000;
/// Longest headers of a part, in bytes.
const MOST_HEADERS: usize = 8 << 10;
/// Longest text that is read of a part other than the prompt, in bytes.
const MOST_TEXT: usize = 1 << 10;

const CRLF: &[u8] = b"\r\n";

struct Part<'a> {
    name: &'a str,
    file: bool,
    /// The text has an encoding or a charset of its own.
    encoded: bool,
    bytes: &'a [u8],
}

/// Reads a body, or says why it cannot be read for certain.
pub(super) fn read<'a>(body: &'a [u8], boundary: &str, dialect: Dialect) -> Result<Body<'a>, String> {
    let mut read = Body::default();
    let mut seen: Vec<&str> = Vec::new();
    for part in split(body, boundary)? {
        let part = parse(part)?;
        let name = part.name;
        let known = match name {
            "model" | "stream" | "n" | "user" | "max_completion_tokens" => true,
            field => dialect.prompt_fields().contains(&field),
        };
        if name != "model" && name.eq_ignore_ascii_case("model") {
            return Err(format!("model: also given as {name:?}, which some engines take for it"));
        }
        if !known {
            if part.file {
                let role = name.into();
                read.turns.push(Segment { role, content: Content::Media(part.bytes) });
            } else {
                read.unread.add_unread(name, part.bytes.len());
            }
            continue;
        }
        if seen.contains(&name) {
            return Err(format!("{name}: given more than once"));
        }
        seen.push(name);
        if part.file {
            return Err(format!("{name}: a file, where text is expected"));
        }
        if part.encoded {
            return Err(format!("{name}: only UTF-8 text without a transfer encoding is read here"));
        }
        let text = simdutf8::basic::from_utf8(part.bytes).map_err(|_| format!("{name}: not valid UTF-8"))?;
        match name {
            "model" => read.model = Model::One(text.into()),
            _ if dialect.prompt_fields().contains(&name) => {
                read.turns.push(Segment { role: name.into(), content: Content::Text(text.into()) });
            }
            _ if text.len() > MOST_TEXT => return Err(format!("{name}: longer than {MOST_TEXT} bytes")),
            "stream" => {
                read.stream = matches!(text.trim().to_ascii_lowercase().as_str(), "true" | "1" | "on" | "yes")
            }
            "n" => read.n = Count::of(text),
            "max_completion_tokens" => read.max_completion_tokens = Count::of(text),
            _ => read.user = Some(text.into()),
        }
    }
    Ok(read)
}

/// The parts, headers and all.
fn split<'a>(body: &'a [u8], boundary: &str) -> Result<Vec<&'a [u8]>, String> {
    let delimiter = format!("--{boundary}");
    let mut parts = Vec::new();
    let mut start = None;
    let mut closed = false;
    for at in memmem::find_iter(body, delimiter.as_bytes()) {
        let (before, after) = body.split_at_checked(at).unwrap_or_default();
        let after = after.get(delimiter.len()..).unwrap_or_default();
        let own_line = before.is_empty() || before.ends_with(CRLF);
        if closed || !own_line || !(after.starts_with(CRLF) || after.starts_with(b"--")) {
            return Err("the boundary stands where no part begins or ends".into());
        }
        if let Some(start) = start {
            let end = at.saturating_sub(CRLF.len());
            // Without headers and text the line's end is used up by both boundaries.
            parts.push(body.get(start..end).ok_or("a part is empty")?);
        }
        if parts.len() > MOST_PARTS {
            return Err(format!("the body has more than {MOST_PARTS} parts"));
        }
        closed = after.starts_with(b"--");
        start = Some(at.saturating_add(delimiter.len()).saturating_add(CRLF.len()));
    }
    match closed {
        true => Ok(parts),
        false => Err("the closing boundary is missing: the body is cut off, or is no multipart body".into()),
    }
}

fn parse(part: &[u8]) -> Result<Part<'_>, String> {
    let searched = part.get(..MOST_HEADERS).unwrap_or(part);
    let end =
        memmem::find(searched, b"\r\n\r\n").ok_or("a part has no headers, or headers without an end")?;
    let (head, rest) = part.split_at_checked(end).unwrap_or_default();
    let bytes = rest.get(4..).unwrap_or_default();
    let head = std::str::from_utf8(head).map_err(|_| "a part's headers are not valid UTF-8")?;
    let (mut name, mut file, mut encoded) = (None, false, false);
    for line in head.split("\r\n") {
        let (field, value) = line.split_once(':').unwrap_or_default();
        if field.is_empty() || field.contains([' ', '\t']) || line.contains(['\r', '\n', '\0']) {
            return Err("a part's headers have a line that is not of the form NAME: VALUE".into());
        }
        let unclear = || format!("a part's {field} could be read in more than one way");
        match field.to_ascii_lowercase().as_str() {
            "content-disposition" => {
                let read = Parameters::read(value).ok_or_else(unclear)?;
                let form = read.value.eq_ignore_ascii_case("form-data");
                if name.is_some() || !form || read.get("name*").is_some() {
                    return Err(unclear());
                }
                name = read.get("name");
                file = read.get("filename").is_some() || read.get("filename*").is_some();
            }
            "content-type" => {
                // Of a file it may be anything.
                let charset = Parameters::read(value).map(|read| read.get("charset").unwrap_or("utf-8"));
                encoded |= !charset.is_some_and(|charset| charset.eq_ignore_ascii_case("utf-8"));
            }
            "content-transfer-encoding" => {
                encoded |=
                    !["7bit", "8bit", "binary"].iter().any(|own| own.eq_ignore_ascii_case(value.trim()));
            }
            _ => {}
        }
    }
    let name = name.ok_or("a part has no name")?;
    Ok(Part { name, file, encoded, bytes })
}
