//! Compressed answers, decoded as they pass: gzip, deflate (with zlib's frame or, as some send it, without) and brotli.
//!
//! What is decoded goes straight into the reader and is kept no longer than there; [`Sink`] says when enough has come. Of
//! several codings on top of each other, and of others (zstd), nothing is read.

use crate::request::Coding;
use brotli_decompressor::DecompressorWriter;
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use std::io::{self, Write};

/// Takes what is decoded.
pub(super) trait Sink: Default + Write {}

impl<T: Default + Write> Sink for T {}

/// A decoder, and the sink behind it.
pub(super) struct Coded<S: Sink> {
    decoder: Decoder<S>,
    damaged: bool,
}

enum Decoder<S: Sink> {
    Gzip(Box<MultiGzDecoder<S>>),
    /// `deflate` of which nothing has come: its first byte says which form it has.
    Undecided(S),
    Zlib(Box<ZlibDecoder<S>>),
    Deflate(Box<DeflateDecoder<S>>),
    Brotli(Box<DecompressorWriter<S>>),
}

/// A buffer of the decoder's own.
const BUFFER: usize = 16 << 10;

impl<S: Sink> Coded<S> {
    /// A decoder in front of a sink.
    pub(super) fn new(coding: Coding, sink: S) -> Self {
        let decoder = match coding {
            Coding::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(sink))),
            Coding::Deflate => Decoder::Undecided(sink),
            Coding::Brotli => Decoder::Brotli(Box::new(DecompressorWriter::new(sink, BUFFER))),
        };
        Self { decoder, damaged: false }
    }

    /// Takes the next bytes, and hands on all that can be decoded by them.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        if let (Decoder::Undecided(sink), Some(first)) = (&mut self.decoder, bytes.first()) {
            let sink = std::mem::take(sink);
            // The method in zlib's head; without one it would be a stored block with odd padding.
            self.decoder = match first & 15 == 8 {
                true => Decoder::Zlib(Box::new(ZlibDecoder::new(sink))),
                false => Decoder::Deflate(Box::new(DeflateDecoder::new(sink))),
            };
        }
        if !self.damaged {
            let decoder = self.writer();
            let fed = decoder.write_all(bytes).and_then(|()| decoder.flush());
            self.damaged = fed.is_err();
        }
    }

    /// Whether it was none of its coding, or more than the sink took.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The sink, and whether all has come.
    pub(super) fn end(mut self) -> (S, bool) {
        let ended = match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.try_finish(),
            Decoder::Undecided(_) => Ok(()),
            Decoder::Zlib(decoder) => decoder.try_finish(),
            Decoder::Deflate(decoder) => decoder.try_finish(),
            Decoder::Brotli(decoder) => decoder.close(),
        };
        (std::mem::take(self.sink_mut()), ended.is_ok() && !self.damaged)
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder,
            Decoder::Undecided(sink) => sink,
            Decoder::Zlib(decoder) => decoder,
            Decoder::Deflate(decoder) => decoder,
            Decoder::Brotli(decoder) => decoder,
        }
    }

    pub(super) fn sink(&self) -> &S {
        match &self.decoder {
            Decoder::Gzip(decoder) => decoder.get_ref(),
            Decoder::Undecided(sink) => sink,
            Decoder::Zlib(decoder) => decoder.get_ref(),
            Decoder::Deflate(decoder) => decoder.get_ref(),
            Decoder::Brotli(decoder) => decoder.get_ref(),
        }
    }

    pub(super) fn sink_mut(&mut self) -> &mut S {
        match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.get_mut(),
            Decoder::Undecided(sink) => sink,
            Decoder::Zlib(decoder) => decoder.get_mut(),
            Decoder::Deflate(decoder) => decoder.get_mut(),
            Decoder::Brotli(decoder) => decoder.get_mut(),
        }
    }
}

/// The error of a sink that has had enough.
pub(super) fn enough() -> io::Error {
    io::ErrorKind::FileTooLarge.into()
}

impl<S: Sink> std::fmt::Debug for Coded<S> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Coded").field("damaged", &self.damaged).finish_non_exhaustive()
    }
}
