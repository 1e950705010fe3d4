// SPDX-License-Identifier: Apache-2.0
//! Constant patterns of `LIKE` and `ILIKE`, compiled for `prelude/pattern.h`. Its comments describe
//! the layout.

mod alphabet;
mod probe;

use std::mem;
use std::ops::Range;

use alphabet::{ANY, Alphabet};
use probe::ProbeBytes;

/// A struct of `prelude/pattern.h`: its fields of 32 bits, in its order.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident { $($field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Default)]
        struct $name {
            $($field: usize),*
        }

        impl $name {
            const FIELDS: &[&str] = &[$(stringify!($field)),*];

            fn words(&self) -> [usize; Self::FIELDS.len()] {
                [$(self.$field),*]
            }
        }
    };
}

layout! {
    /// `like_pattern`, the head of a compiled pattern.
    LikePattern { parts, last, last_at, whole, ascii_at, others_at, others_mask }
}

layout! {
    /// `like_part`. The head is followed by one for each part.
    LikePart {
        is_found, elements, elements_at, least, has_probe, a, b, c, next, distance, back, slice_at, first, wide_at, wide,
    }
}

/// Elements that one word searches.
const SLICE: usize = 64;
/// Elements of which one `words16` has a bit each.
const WIDE: usize = 1024;
/// `words16` of the longest part.
const WIDEST: usize = 4;
/// Bytes of the largest compiled pattern.
const MOST_BYTES: usize = 1 << 16;

/// Compiles a pattern; `None` for one that is too large.
pub(super) fn compile(pattern: &[u8], ignores_case: bool) -> Option<Vec<u8>> {
    if pattern.len() > MOST_BYTES {
        return None;
    }
    let mut alphabet = Alphabet::new(ignores_case);
    let segments = segments(str::from_utf8(pattern).ok()?, &mut alphabet)?;
    let (last, before) = segments.split_last()?;
    let parts = parts(before);
    let mut data = Data { bytes: vec![0; 4 * (LikePattern::FIELDS.len() + LikePart::FIELDS.len() * parts.len())] };
    let others = alphabet.others();
    let head = LikePattern {
        parts: parts.len(),
        last: last.len(),
        last_at: data.put(last),
        whole: usize::from(before.is_empty()),
        ascii_at: data.put(&alphabet.ascii()),
        others_at: data.put_u32(&others),
        others_mask: others.len() / 2 - 1,
    };
    let mut words = head.words().to_vec();
    let mut least: usize = parts.iter().map(|part| alphabet.least_bytes(&part.elements)).sum();
    for part in &parts {
        words.extend(part.compiled(least, &alphabet, &mut data)?.words());
        if data.bytes.len() > MOST_BYTES {
            return None;
        }
        least -= alphabet.least_bytes(&part.elements);
    }
    for (slot, word) in data.bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *slot = u32::try_from(word).ok()?.to_le_bytes();
    }
    (data.bytes.len() <= MOST_BYTES).then_some(data.bytes)
}

/// The elements between the `%` of a pattern; `None` for too many different characters.
fn segments(pattern: &str, alphabet: &mut Alphabet) -> Option<Vec<Vec<u8>>> {
    let (mut segments, mut segment) = (Vec::new(), Vec::new());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' => segments.push(mem::take(&mut segment)),
            '_' => segment.push(ANY),
            '\\' => segment.push(alphabet.class(chars.next().unwrap_or('\\'))?),
            c => segment.push(alphabet.class(c)?),
        }
    }
    segments.push(segment);
    Some(segments)
}

/// Elements that stand at a position, or are found from there on.
struct Part {
    is_found: bool,
    elements: Vec<u8>,
}

/// The parts of the segments before the last one. A `_` at an end of a found one stands beside it.
fn parts(segments: &[Vec<u8>]) -> Vec<Part> {
    let Some((first, others)) = segments.split_first() else { return Vec::new() };
    let (mut parts, mut standing) = (Vec::new(), first.clone());
    for segment in others {
        let begin = segment.iter().position(|element| *element != ANY).unwrap_or(segment.len());
        let end = segment.iter().rposition(|element| *element != ANY).map_or(begin, |at| at + 1);
        standing.extend(&segment[..begin]);
        if begin < end {
            let before = mem::replace(&mut standing, segment[end..].to_vec());
            parts.push(Part { is_found: false, elements: before });
            parts.push(Part { is_found: true, elements: segment[begin..end].to_vec() });
        }
    }
    parts.push(Part { is_found: false, elements: standing });
    parts.retain(|part| !part.elements.is_empty());
    parts
}

impl Part {
    /// `None` for too many elements. This part and those behind it need `least` bytes.
    fn compiled(&self, least: usize, alphabet: &Alphabet, data: &mut Data) -> Option<LikePart> {
        let elements = &self.elements;
        if !self.is_found {
            return Some(LikePart { elements: elements.len(), elements_at: data.put(elements), least, ..LikePart::default() });
        }
        let (slice, rest) = elements.split_at(elements.len().min(SLICE));
        let probe = ProbeBytes::try_new(elements, alphabet);
        let has_probe = usize::from(probe.is_some());
        let ProbeBytes { bytes: [a, b, c], next, distance, back } = probe.unwrap_or_default();
        let wide = if rest.is_empty() { 0 } else { elements.len().div_ceil(WIDE) };
        if wide > WIDEST {
            return None;
        }
        Some(LikePart {
            is_found: 1,
            elements: rest.len(),
            elements_at: data.put(rest),
            least,
            has_probe,
            a,
            b,
            c,
            next,
            distance,
            back,
            slice_at: data.put_u64(&slice_words(slice, alphabet.classes())),
            first: SLICE - slice.len(),
            wide_at: data.put_u64(&wide_words(elements, wide, alphabet.classes())),
            wide,
        })
    }
}

/// For each class, which of up to 64 elements it is.
fn slice_words(elements: &[u8], classes: usize) -> Vec<u64> {
    let mut words = vec![0u64; classes];
    for (element, bit) in elements.iter().zip(SLICE - elements.len()..) {
        for class in classes_of(*element, classes) {
            words[class] |= 1u64 << bit;
        }
    }
    words
}

/// Rows of `wide` words16: the first element, then for each class which elements it is.
fn wide_words(elements: &[u8], wide: usize, classes: usize) -> Vec<u64> {
    if wide == 0 {
        return Vec::new();
    }
    let mut words = vec![0u64; 16 * wide * (1 + classes)];
    let mut set = |row: usize, bit: usize| {
        words[16 * (row * wide + bit / WIDE) + bit % 16] |= 1u64 << (bit % WIDE / 16);
    };
    let first = WIDE * wide - elements.len();
    set(0, first);
    for (element, bit) in elements.iter().zip(first..) {
        for class in classes_of(*element, classes) {
            set(1 + class, bit);
        }
    }
    words
}

/// The classes whose characters an element takes.
fn classes_of(element: u8, classes: usize) -> Range<usize> {
    let class = usize::from(element);
    if element == ANY { 0..classes } else { class..class + 1 }
}

/// The data behind the head and the parts, from multiples of 8 bytes on.
struct Data {
    bytes: Vec<u8>,
}

impl Data {
    /// Appends bytes; their offset.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let at = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(at, 0);
        self.bytes.extend(bytes);
        at
    }

    fn put_u32(&mut self, words: &[u32]) -> usize {
        self.put(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    fn put_u64(&mut self, words: &[u64]) -> usize {
        self.put(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a part is searched for, and its elements.
    type Found = (bool, Vec<u8>);

    fn parts_of(pattern: &str) -> Vec<Found> {
        let segments = segments(pattern, &mut Alphabet::new(false)).unwrap();
        parts(&segments[..segments.len() - 1]).into_iter().map(|part| (part.is_found, part.elements)).collect()
    }

    /// Names of the fields of a struct of the prelude, in order.
    fn fields(name: &str) -> Vec<&'static str> {
        let header = include_str!("../../../prelude/pattern.h");
        let (before, _) = header.split_once(&format!("}} {name};")).unwrap();
        let (_, body) = before.rsplit_once("typedef struct {").unwrap();
        let code = body.split("/*").map(|text| text.split_once("*/").map_or(text, |(_, code)| code));
        let names = code.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'));
        names.filter(|name| !name.is_empty() && *name != "u32").collect()
    }

    #[test]
    fn layouts_are_those_of_the_prelude() {
        assert_eq!(fields("like_pattern"), LikePattern::FIELDS);
        assert_eq!(fields("like_part"), LikePart::FIELDS);
    }

    #[test]
    fn patterns_have_parts() {
        let cases: [(&str, &[Found]); 5] = [
            ("a_b", &[]),
            ("a_%b", &[(false, vec![1, ANY])]),
            ("%%a%b", &[(true, vec![1])]),
            ("a%_b_a_%", &[(false, vec![1, ANY]), (true, vec![2, ANY, 1]), (false, vec![ANY])]),
            ("%_%__%a%", &[(false, vec![ANY; 3]), (true, vec![1])]),
        ];
        for (pattern, expected) in cases {
            assert_eq!(parts_of(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn large_patterns_are_left_to_the_general_search() {
        let letters: String = ('\u{4e00}'..).take(260).collect();
        assert!(compile(letters.as_bytes(), false).is_none());
        assert!(compile(&letters.as_bytes()[..3 * 200], false).is_some());
        assert!(compile(&letters.as_bytes()[..4], false).is_none());
        for (times, fits) in [(65, true), (WIDE * WIDEST, true), (WIDE * WIDEST + 1, false)] {
            assert_eq!(compile(format!("%{}%", "a".repeat(times)).as_bytes(), true).is_some(), fits, "{times}");
        }
        assert!(compile("a".repeat(MOST_BYTES + 1).as_bytes(), false).is_none());
    }
}
