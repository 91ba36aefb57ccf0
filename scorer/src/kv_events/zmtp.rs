//! As much of ZeroMQ's wire protocol (ZMTP 3.0, RFC 23) as a subscriber and a fetcher need.
//!
//! ```text
//! greeting   64 bytes: signature, version, mechanism NULL
//! command    READY with the type of the socket; PING is answered with PONG
//! message    frames: flags (1 more, 2 long, 4 command), length in 1 or 8 bytes, content
//! ```
//!
//! The crates there are reserve as much memory as a peer says that its next frame will have: one that says 2^50 ends the
//! process. Here a frame has a bound, and a connection that breaks a rule is closed, which concerns that endpoint alone.

use socket2::{SockRef, TcpKeepalive};
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The most bytes of a message: some ten times what an engine says at once.
const MOST_BYTES: usize = 4 << 20;
/// The most frames of a message.
const MOST_FRAMES: usize = 8;
/// A peer that is gone without a word is noticed after about four times this long.
const KEEPALIVE: Duration = Duration::from_secs(10);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a socket is to its peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Hears what is published.
    Sub,
    /// Asks and is answered any number of times.
    Dealer,
}

/// A connection to one peer.
#[derive(Debug)]
pub(super) struct Socket(BufReader<TcpStream>);

fn broken(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

impl Socket {
    /// Connects and agrees with the peer on who is who.
    pub(super) async fn connect(address: SocketAddr, kind: Kind) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        let mut socket = Self(BufReader::new(stream));
        let mut greeting = [0; 64];
        for (at, byte) in [(0, 0xff), (9, 0x7f), (10, 3)].into_iter().chain((12..16).zip(*b"NULL")) {
            if let Some(place) = greeting.get_mut(at) {
                *place = byte;
            }
        }
        socket.0.write_all(&greeting).await?;
        let mut theirs = [0; 64];
        socket.0.read_exact(&mut theirs).await?;
        match theirs {
            [0xff, _, _, _, _, _, _, _, _, 0x7f, major, _, b'N', b'U', b'L', b'L', 0, ..] if major >= 3 => {}
            _ => return Err(broken("it does not greet as ZeroMQ 3 without security")),
        }
        let kind: &[u8] = match kind {
            Kind::Sub => b"\x05READY\x0bSocket-Type\0\0\0\x03SUB",
            Kind::Dealer => b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0",
        };
        socket.frame(COMMAND, kind).await?;
        let (flags, ready) = socket.read_frame(MOST_BYTES).await?;
        if flags & COMMAND == 0 || !ready.starts_with(b"\x05READY") {
            return Err(broken("it does not say READY"));
        }
        Ok(socket)
    }

    /// Subscribes to all topics that begin so.
    pub(super) async fn subscribe(&mut self, topic: &str) -> Result<()> {
        self.frame(0, &[b"\x01", topic.as_bytes()].concat()).await
    }

    /// Sends a message of these frames.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<()> {
        let last = frames.len().saturating_sub(1);
        for (at, frame) in frames.iter().enumerate() {
            self.frame(if at == last { 0 } else { MORE }, frame).await?;
        }
        Ok(())
    }

    /// The next message. Not to be given up half way: what was read of it is lost then.
    pub(super) async fn receive(&mut self) -> Result<Vec<Vec<u8>>> {
        let (mut frames, mut left) = (Vec::new(), MOST_BYTES);
        loop {
            let (flags, content) = self.read_frame(left).await?;
            if flags & COMMAND != 0 {
                self.obey(&content).await?;
                continue;
            }
            left = left.saturating_sub(content.len());
            frames.push(content);
            if flags & MORE == 0 {
                return Ok(frames);
            }
            if frames.len() == MOST_FRAMES {
                return Err(broken("a message has too many frames"));
            }
        }
    }

    /// A PING is answered, with its context; what else is not known asks for nothing.
    async fn obey(&mut self, command: &[u8]) -> Result<()> {
        match command.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) {
            Some(context) => {
                let context = context.get(..16).unwrap_or(context);
                self.frame(COMMAND, &[b"\x04PONG", context].concat()).await
            }
            None => Ok(()),
        }
    }

    async fn frame(&mut self, flags: u8, content: &[u8]) -> Result<()> {
        let mut bytes = Vec::with_capacity(content.len().saturating_add(9));
        match u8::try_from(content.len()) {
            Ok(length) => bytes.extend([flags, length]),
            Err(_) => {
                bytes.push(flags | LONG);
                bytes.extend((content.len() as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(content);
        self.0.write_all(&bytes).await
    }

    async fn read_frame(&mut self, most: usize) -> Result<(u8, Vec<u8>)> {
        let flags = self.0.read_u8().await?;
        let length = match flags & LONG {
            0 => u64::from(self.0.read_u8().await?),
            _ => self.0.read_u64().await?,
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= most);
        let length = length.ok_or_else(|| broken("a message is too long"))?;
        let mut content = vec![0; length];
        self.0.read_exact(&mut content).await?;
        Ok((flags, content))
    }
}
