//! Compressed bodies, decoded to be read and never to be forwarded.
//!
//! One coding, of those that clients send: gzip, deflate (with zlib's frame as it is specified, or without as many
//! send it) and brotli. Of several on top of each other none is read: every further layer multiplies what a small body
//! can unpack to. The output is bounded while it is made. What an engine that ignores `content-encoding` could read as
//! JSON is not decoded: it and this gateway would see different bodies.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};
use std::io::Read;

/// A coding that can be undone here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Deflate,
    Brotli,
}

/// Why a body was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// It would be larger than it may.
    TooLarge,
    /// It is not of this coding, is cut off, or something follows it.
    Damaged,
    /// It may just as well be no compressed body at all.
    Plain,
}

impl Coding {
    /// The coding that a `content-encoding` names; `Err` when it is not one that is read here.
    pub(crate) fn of(header: &str) -> Result<Option<Self>, ()> {
        let all = header.split(',').map(str::trim);
        let mut codings = all.filter(|one| !one.is_empty() && !one.eq_ignore_ascii_case("identity"));
        let Some(name) = codings.next() else { return Ok(None) };
        let coding = match name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Self::Gzip,
            "deflate" => Self::Deflate,
            "br" => Self::Brotli,
            _ => return Err(()),
        };
        if codings.next().is_some() { Err(()) } else { Ok(Some(coding)) }
    }

    /// Decodes a whole body to at most `most` bytes.
    pub(super) fn decode(self, body: &[u8], most: usize) -> Result<Vec<u8>, Broken> {
        let first = body.trim_ascii_start().first();
        if first == Some(&b'{') && simdutf8::basic::from_utf8(body).is_ok() {
            return Err(Broken::Plain);
        }
        match self {
            Self::Gzip => inflate(GzDecoder::new(body), most, GzDecoder::into_inner),
            // The head of zlib's frame: its method, and a check sum of two bytes.
            Self::Deflate => match *body {
                [method, flags, ..]
                    if method & 15 == 8 && u16::from_be_bytes([method, flags]).is_multiple_of(31) =>
                {
                    inflate(ZlibDecoder::new(body), most, ZlibDecoder::into_inner)
                }
                _ => inflate(DeflateDecoder::new(body), most, DeflateDecoder::into_inner),
            },
            Self::Brotli => brotli(body, most),
        }
    }
}

fn inflate<'a, D: Read>(
    mut decoder: D,
    most: usize,
    rest: impl FnOnce(D) -> &'a [u8],
) -> Result<Vec<u8>, Broken> {
    let mut decoded = Vec::new();
    let most = most as u64;
    decoder.by_ref().take(most.saturating_add(1)).read_to_end(&mut decoded).map_err(|_| Broken::Damaged)?;
    if decoded.len() as u64 > most {
        return Err(Broken::TooLarge);
    }
    if rest(decoder).is_empty() { Ok(decoded) } else { Err(Broken::Damaged) }
}

fn brotli(body: &[u8], most: usize) -> Result<Vec<u8>, Broken> {
    let alloc = StandardAlloc::default;
    let mut state = BrotliState::new(alloc(), alloc(), alloc());
    let (mut left, mut read, mut written) = (body.len(), 0, 0);
    let mut decoded = vec![0; body.len().saturating_mul(4).clamp(1024, most.max(1024))];
    loop {
        let mut room = decoded.len().saturating_sub(written);
        let result = BrotliDecompressStream(
            &mut left,
            &mut read,
            body,
            &mut room,
            &mut written,
            &mut decoded,
            &mut 0,
            &mut state,
        );
        if written > most {
            return Err(Broken::TooLarge);
        }
        match result {
            BrotliResult::ResultSuccess if left == 0 => break,
            BrotliResult::NeedsMoreOutput => {
                let more = decoded.len().saturating_mul(2).min(most.saturating_add(1));
                if more <= decoded.len() {
                    return Err(Broken::TooLarge);
                }
                decoded.resize(more, 0);
            }
            _ => return Err(Broken::Damaged),
        }
    }
    decoded.truncate(written);
    Ok(decoded)
}
