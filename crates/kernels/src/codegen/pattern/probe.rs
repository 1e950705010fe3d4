// SPDX-License-Identifier: Apache-2.0
//! Bytes of every match of a part, for a search of many offsets at once.

use super::alphabet::Alphabet;

/// Most bytes between the start of a match and the first byte.
const MOST_BACK: usize = 16;

/// A byte, the next one, and one further behind. Bits above a byte are to be ignored, and set in
/// the byte: those of `é` and `É` differ in one bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ProbeBytes {
    pub(super) bytes: [usize; 3],
    /// Bytes from the first to the second, 0 if there is no next one.
    pub(super) next: usize,
    /// Bytes from the first to the third.
    pub(super) distance: usize,
    /// Most bytes from the start of a match to the first.
    pub(super) back: usize,
}

impl ProbeBytes {
    /// Prefers a last byte that differs from the first one; `None` for elements without a known
    /// byte.
    pub(super) fn try_new(elements: &[u8], alphabet: &Alphabet) -> Option<ProbeBytes> {
        let bytes = known_bytes(elements, alphabet);
        let mut same = None;
        for (index, first) in bytes.iter().enumerate().take_while(|(_, byte)| byte.at <= MOST_BACK) {
            let mut run = bytes[index..].iter().filter(|byte| byte.run == first.run);
            let second = run.clone().nth(1).unwrap_or(first);
            let probe = |third: &Byte| ProbeBytes {
                bytes: [first.code, second.code, third.code],
                next: second.at - first.at,
                distance: third.at - first.at,
                back: first.at,
            };
            if let Some(third) = run.clone().rfind(|byte| byte.code != first.code) {
                return Some(probe(third));
            }
            same = same.or_else(|| run.next_back().map(probe));
        }
        same
    }
}

/// A byte with the bits to ignore above it.
struct Byte {
    code: usize,
    /// Most bytes from the start.
    at: usize,
    /// Bytes of the same run are as far apart in each match.
    run: usize,
}

/// The bytes up to the first `_`, without those of characters whose cases differ in length.
fn known_bytes(elements: &[u8], alphabet: &Alphabet) -> Vec<Byte> {
    let (mut known, mut at, mut run) = (Vec::new(), 0, 0);
    for element in elements {
        let variants = alphabet.variants(*element).iter();
        let variants: Vec<String> = variants.map(char::to_string).collect();
        let lengths = || variants.iter().map(String::len);
        let (Some(least), Some(most)) = (lengths().min(), lengths().max()) else { break };
        if least < most {
            (at, run) = (at + most, run + 1);
            continue;
        }
        for index in 0..most {
            let bytes = || variants.iter().map(|variant| variant.as_bytes()[index]);
            let (any, all) = (bytes().fold(0, |any, byte| any | byte), bytes().fold(0xff, |all, byte| all & byte));
            known.push(Byte { code: usize::from(any) | usize::from(any & !all) << 8, at, run });
            at += 1;
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::super::alphabet::ANY;
    use super::*;

    fn probe(pattern: &str, ignores_case: bool) -> Option<ProbeBytes> {
        let mut alphabet = Alphabet::new(ignores_case);
        let element = |c| if c == '_' { ANY } else { alphabet.class(c).unwrap() };
        let elements: Vec<u8> = pattern.chars().map(element).collect();
        ProbeBytes::try_new(&elements, &alphabet)
    }

    fn bytes(bytes: [u8; 3], next: usize, distance: usize) -> Option<ProbeBytes> {
        Some(ProbeBytes { bytes: bytes.map(usize::from), next, distance, back: 0 })
    }

    #[test]
    fn last_bytes_differ_from_the_first() {
        assert_eq!(probe("special", false), bytes(*b"spl", 1, 6));
        assert_eq!(probe("abaa_c", false), bytes(*b"abb", 1, 1));
        assert_eq!(probe("aaa_b", false), bytes(*b"aaa", 1, 2));
        assert_eq!(probe("a", false), bytes(*b"aaa", 0, 0));
        assert_eq!(probe("é", false), bytes([0xc3, 0xa9, 0xa9], 1, 1));
        assert_eq!(probe("_", false), None);
    }

    #[test]
    fn bytes_ignore_case() {
        let either = |byte: u8| usize::from(byte) | 0x2000;
        let special = ProbeBytes { bytes: [b'p', b'e', b'l'].map(either), next: 1, distance: 5, back: 2 };
        assert_eq!(probe("special", true), Some(special));
        let accent = ProbeBytes { bytes: [0xc3, either(0xa9), either(0xa9)], next: 1, distance: 1, back: 0 };
        assert_eq!(probe("É", true), Some(accent));
        assert_eq!(probe("sks", true), None);
        assert_eq!(probe("1K2", true), bytes(*b"111", 0, 0));
    }
}
