//! What travels between scorers: messages of one of them, in order, with the names of the pools that they are about.

use super::ReplicaId;
use crate::pool::Message;

/// Most pools that messages can be about: their places are 16 bits.
const MOST_NAMES: u32 = 1 << 16;
/// The format's number: who does not know it lets a frame go.
const FORMAT: u8 = 1;

/// Messages of one scorer.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Whose they are.
    pub from: ReplicaId,
    /// What they are.
    pub kind: Kind,
    /// The names of the pools, by the places that the messages have.
    pub names: Vec<String>,
    /// The messages.
    pub messages: Vec<Message>,
}

/// What a frame's messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has joined, or hears again after it did not.
    Hello {
        /// Whom it asks for everything, if it knows nothing yet and knows whom to ask.
        asks: Option<ReplicaId>,
    },
    /// What happened.
    News,
    /// All leases that it booked and that are out.
    Whole,
    /// The last part of what one who knew nothing is told.
    Everything,
}

impl Kind {
    /// As a number, and who is asked.
    fn write(self) -> (u8, ReplicaId) {
        match self {
            Self::Hello { asks } => (0, asks.unwrap_or(0)),
            Self::News => (1, 0),
            Self::Whole => (2, 0),
            Self::Everything => (3, 0),
        }
    }

    fn read(kind: u8, asks: ReplicaId) -> Option<Self> {
        Some(match kind {
            0 => Self::Hello { asks: Some(asks).filter(|asks| *asks != 0) },
            1 => Self::News,
            2 => Self::Whole,
            3 => Self::Everything,
            _ => return None,
        })
    }
}

impl Frame {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, asks) = self.kind.write();
        let mut bytes = vec![FORMAT, kind];
        [self.from, asks].iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        let mut add = |piece: &[u8]| {
            bytes.extend(u32::try_from(piece.len()).unwrap_or(0).to_le_bytes());
            bytes.extend(piece);
        };
        add(&u32::try_from(self.names.len()).unwrap_or(0).to_le_bytes());
        self.names.iter().for_each(|name| add(name.as_bytes()));
        self.messages.iter().for_each(|message| add(&message.encode()));
        bytes
    }

    /// Reads what [`Frame::encode`] wrote; a message that makes no sense is left out.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let ([FORMAT, kind], rest) = bytes.split_first_chunk()? else { return None };
        let (from, rest) = rest.split_first_chunk()?;
        let (asks, mut rest) = rest.split_first_chunk()?;
        let kind = Kind::read(*kind, ReplicaId::from_le_bytes(*asks))?;
        let mut piece = || {
            let (length, after) = rest.split_first_chunk()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (piece, after) = after.split_at_checked(length)?;
            rest = after;
            Some(piece)
        };
        let number = u32::from_le_bytes(piece()?.try_into().ok()?);
        if number > MOST_NAMES {
            return None;
        }
        let mut names = Vec::new();
        for _ in 0..number {
            names.push(String::from_utf8(piece()?.to_vec()).ok()?);
        }
        let messages = std::iter::from_fn(piece).filter_map(Message::decode).collect();
        Some(Self { from: ReplicaId::from_le_bytes(*from), kind, names, messages })
    }
}
