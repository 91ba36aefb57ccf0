//! Block hashes: as hex digits in messages, as bytes in filter state.

use super::read_facts;
use crate::request::Facts;
use serde::{Deserialize, Serialize};

/// Block hashes in a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blocks(pub Vec<u64>);

impl Serialize for Blocks {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl serde::de::Visitor<'_> for Digits {
            type Value = Blocks;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a string of hex digits")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Blocks, E> {
                let (blocks, rest) = text.as_bytes().as_chunks::<16>();
                let blocks: Option<Vec<u64>> = blocks.iter().map(unhex).collect();
                let blocks = blocks.filter(|_| rest.is_empty()).map(Blocks);
                blocks.ok_or_else(|| E::custom("blocks: not sixteen hex digits a block"))
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

/// Sixteen hex digits per hash.
pub fn hex(blocks: &[u64]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u64| DIGITS.get((nibble & 15) as usize).copied().unwrap_or(b'0');
    let mut text = Vec::with_capacity(blocks.len().saturating_mul(16));
    for hash in blocks {
        let mut digits = [0; 16];
        for (place, written) in (0..16).rev().zip(&mut digits) {
            *written = digit(hash >> (4 * place));
        }
        text.extend_from_slice(&digits);
    }
    String::from_utf8(text).unwrap_or_default()
}

/// The hash that sixteen hex digits write.
fn unhex(digits: &[u8; 16]) -> Option<u64> {
    digits.iter().try_fold(0, |hash: u64, digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        Some(hash << 4 | u64::from(nibble))
    })
}

/// Facts, as written by [`super::write_facts`], and block hashes as filter state.
pub fn write_blocks(facts: &str, blocks: &[u64]) -> Vec<u8> {
    [facts.as_bytes(), b"\n", &block_bytes(blocks)].concat()
}

/// Facts and block hashes from filter state.
pub fn read_blocks(bytes: &[u8]) -> Option<(Facts, Vec<u64>)> {
    let (facts, hashes) = bytes.split_at_checked(bytes.iter().position(|byte| *byte == b'\n')?)?;
    Some((read_facts(std::str::from_utf8(facts).ok()?)?, blocks(hashes.get(1..)?)))
}

/// Block hashes as bytes.
pub fn block_bytes(blocks: &[u64]) -> Vec<u8> {
    blocks.iter().flat_map(|hash| hash.to_le_bytes()).collect()
}

/// Block hashes from bytes.
pub fn blocks(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn blocks_survive_the_way() {
        let all = vec![0, 1, u64::MAX, 0x0123_4567_89ab_cdef];
        assert_eq!(blocks(&block_bytes(&all)), all);
        let json = serde_json::to_string(&Blocks(all.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Blocks>(&json).unwrap(), Blocks(all));
        assert!(serde_json::from_str::<Blocks>("\"012\"").is_err());
        assert!(serde_json::from_str::<Blocks>("\"+123456789abcdef\"").is_err());
    }
}
