//! A request as it goes over the wire in HTTP/1.1: for files that hold one.
//!
//! Only as much as a file needs: no limits, no trailers. The body is what `content-length` says, or the chunks
//! joined, or, where neither is said, the rest of the file.

/// A request read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Why a file holds no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawError {
    /// The first line is no `METHOD PATH HTTP/1.1`.
    RequestLine,
    /// A line before the empty one is no `name: value`.
    Header,
    /// The chunks of the body do not add up.
    Chunk,
}

impl std::fmt::Display for RawError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RequestLine => "the first line is no request line, METHOD PATH HTTP/1.1",
            Self::Header => "a line before the body is no header, NAME: VALUE",
            Self::Chunk => "the chunks of the body do not add up",
        })
    }
}

impl std::error::Error for RawError {}

impl Raw {
    /// Reads a request.
    pub fn read(bytes: &[u8]) -> Result<Self, RawError> {
        let (line, mut rest) = line(bytes);
        let line = String::from_utf8_lossy(line).into_owned();
        let mut words = line.split_ascii_whitespace();
        let (Some(method), Some(path), Some(_version)) = (words.next(), words.next(), words.next()) else {
            return Err(RawError::RequestLine);
        };
        let mut headers = Vec::new();
        loop {
            let (line, after) = self::line(rest);
            rest = after;
            if line.is_empty() {
                break;
            }
            headers.push(super::header(&String::from_utf8_lossy(line)).map_err(|_| RawError::Header)?);
        }
        let length = super::value(&headers, "content-length").and_then(|length| length.parse().ok());
        let body = match (super::value(&headers, "transfer-encoding"), length) {
            (Some(encoding), _) if encoding.ends_with("chunked") => unchunked(rest).ok_or(RawError::Chunk)?,
            (_, Some(length)) => rest.get(..length).unwrap_or(rest).to_vec(),
            _ => rest.to_vec(),
        };
        Ok(Self { method: method.to_owned(), path: path.to_owned(), headers, body })
    }
}

/// The first line, without its end, and what follows it.
fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (line, rest) = match end.and_then(|end| bytes.split_at_checked(end)) {
        Some((line, rest)) => (line, rest.get(1..).unwrap_or_default()),
        None => (bytes, &[][..]),
    };
    (line.strip_suffix(b"\r").unwrap_or(line), rest)
}

fn unchunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let (size, rest) = line(bytes);
        let size = std::str::from_utf8(size).ok()?.split(';').next()?.trim();
        let (chunk, rest) = rest.split_at_checked(usize::from_str_radix(size, 16).ok()?)?;
        if chunk.is_empty() {
            return Some(body);
        }
        body.extend_from_slice(chunk);
        bytes = line(rest).1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_as_long_as_it_says() {
        let raw = Raw::read(b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\n").unwrap();
        assert_eq!((raw.method.as_str(), raw.path.as_str(), &*raw.body), ("POST", "/a?b", &b"abc"[..]));
        assert_eq!(raw.headers, [("host".into(), "x".into()), ("content-length".into(), "3".into())]);
        let chunked =
            Raw::read(b"POST / HTTP/1.1\nTransfer-Encoding: chunked\n\n2;x\nab\n1\nc\n0\n\n").unwrap();
        assert_eq!(chunked.body, b"abc");
        assert_eq!(Raw::read(b"POST / HTTP/1.1\n\nrest").unwrap().body, b"rest");
        assert_eq!(Raw::read(b"GET / HTTP/1.1").unwrap().body, b"");
    }

    #[test]
    fn what_is_no_request_is_said() {
        assert_eq!(Raw::read(b"{}"), Err(RawError::RequestLine));
        assert_eq!(Raw::read(b"GET / HTTP/1.1\nnonsense\n\n"), Err(RawError::Header));
        let broken = b"POST / HTTP/1.1\ntransfer-encoding: chunked\n\nff\nabc";
        assert_eq!(Raw::read(broken), Err(RawError::Chunk));
    }
}
