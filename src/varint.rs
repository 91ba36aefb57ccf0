//! Numbers as bytes, short ones in few: what workers share is read and written with every request.

/// Appends a number, seven bits a byte, little end first.
pub(crate) fn write_number(to: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Takes a number off the front of bytes.
pub(crate) fn read_number(from: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0, 0);
    for (at, byte) in from.iter().enumerate() {
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            *from = from.get(at + 1..)?;
            return Some(number);
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
    None
}
