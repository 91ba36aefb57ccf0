//! What a proxy that listens and its scorer say in one call: the proxy what happened there, the scorer what happened elsewhere.
//!
//! The scorer numbers what it tells. The proxy says up to which number it has heard, so an answer that is lost is told again, and one
//! that has been away for too long, or speaks to another scorer than before, is told all from the beginning, part by part. `from`
//! and `epoch` are never 0.

use super::{Frame, ReplicaId};

/// The format's number: who does not know it refuses.
const FORMAT: u8 = 1;

/// Where a listener stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// It knows nothing, or not all.
    #[default]
    Nothing,
    /// It has heard so many parts of all that there is.
    Parts(u32),
    /// It knows all up to this number.
    Upto(u64),
}

/// A proxy tells and asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Asking {
    /// The proxy.
    pub from: ReplicaId,
    /// Whom it has heard so far.
    pub epoch: u64,
    /// Where it stands with that one.
    pub step: Step,
    /// What happened at the proxy.
    pub frames: Vec<Frame>,
}

/// The scorer's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Which scorer this is; one that starts anew is another.
    pub epoch: u64,
    /// Where a listener stands for whom this is.
    pub after: Step,
    /// Where it stands once it has heard it.
    pub then: Step,
    /// There is more: ask again at once.
    pub more: bool,
    /// What it is told.
    pub frames: Vec<Frame>,
}

impl Step {
    const BYTES: usize = 9;

    fn write(self) -> [u8; Self::BYTES] {
        let (kind, number) = match self {
            Self::Nothing => (0, 0),
            Self::Parts(parts) => (1, u64::from(parts)),
            Self::Upto(number) => (2, number),
        };
        let mut bytes = [kind; Self::BYTES];
        if let Some(rest) = bytes.last_chunk_mut() {
            *rest = number.to_le_bytes();
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let ([kind], rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_le_bytes(*number);
        let step = match kind {
            0 => Self::Nothing,
            1 => Self::Parts(u32::try_from(number).ok()?),
            2 => Self::Upto(number),
            _ => return None,
        };
        Some((step, rest))
    }
}

/// Where a listener stands, and with whom, in bytes: for those who listen with it.
pub(super) fn write_standing(epoch: u64, step: Step) -> Vec<u8> {
    [&epoch.to_le_bytes()[..], &step.write()].concat()
}

/// Reads what [`write_standing`] wrote.
pub(super) fn read_standing(bytes: &[u8]) -> Option<(u64, Step)> {
    let (epoch, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*epoch), Step::read(rest)?.0))
}

impl Asking {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.from.to_le_bytes());
        bytes.extend(write_standing(self.epoch, self.step));
        write_frames(&mut bytes, &self.frames);
        bytes
    }

    /// Reads what [`Asking::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let ([FORMAT], rest) = bytes.split_first_chunk()? else { return None };
        let (from, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (step, rest) = Step::read(rest)?;
        let (from, epoch) = (ReplicaId::from_le_bytes(*from), u64::from_le_bytes(*epoch));
        Some(Self { from, epoch, step, frames: read_frames(rest)? })
    }
}

impl Told {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.after.write());
        bytes.extend(self.then.write());
        bytes.push(u8::from(self.more));
        write_frames(&mut bytes, &self.frames);
        bytes
    }

    /// Reads what [`Told::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let ([FORMAT], rest) = bytes.split_first_chunk()? else { return None };
        let (epoch, rest) = rest.split_first_chunk()?;
        let (after, rest) = Step::read(rest)?;
        let (then, rest) = Step::read(rest)?;
        let ([more], rest) = rest.split_first_chunk()?;
        let epoch = u64::from_le_bytes(*epoch);
        Some(Self { epoch, after, then, more: *more == 1, frames: read_frames(rest)? })
    }
}

fn write_frames(bytes: &mut Vec<u8>, frames: &[Frame]) {
    for frame in frames {
        let frame = frame.encode();
        bytes.extend(u32::try_from(frame.len()).unwrap_or(0).to_le_bytes());
        bytes.extend(frame);
    }
}

/// `None` when one of them is none, or they break off.
fn read_frames(mut rest: &[u8]) -> Option<Vec<Frame>> {
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (frame, after) = after.split_at_checked(length)?;
        frames.push(Frame::decode(frame)?);
        rest = after;
    }
    Some(frames)
}
