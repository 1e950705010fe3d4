// SPDX-License-Identifier: Apache-2.0
//! Classes of the characters of a pattern.

use std::collections::BTreeMap;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// The element `_`.
pub(super) const ANY: u8 = 255;

/// The classes of a pattern's characters, from 1. A class has the characters that equal one of the
/// pattern; class 0 has all others.
pub(super) struct Alphabet {
    ignores_case: bool,
    of: BTreeMap<char, u8>,
    /// The characters of each class.
    variants: Vec<Vec<char>>,
}

impl Alphabet {
    pub(super) fn new(ignores_case: bool) -> Alphabet {
        Alphabet { ignores_case, of: BTreeMap::new(), variants: Vec::new() }
    }

    /// The class of a character of the pattern, new or not; `None` where no number is left.
    pub(super) fn class(&mut self, c: char) -> Option<u8> {
        if let Some(class) = self.of.get(&c) {
            return Some(*class);
        }
        let variants = if self.ignores_case { cases(c)? } else { vec![c] };
        let class = u8::try_from(self.classes()).ok().filter(|class| *class < ANY)?;
        self.of.extend(variants.iter().map(|variant| (*variant, class)));
        self.variants.push(variants);
        Some(class)
    }

    /// The number of classes, with 0.
    pub(super) fn classes(&self) -> usize {
        1 + self.variants.len()
    }

    /// The characters of an element's class, none of `_`.
    pub(super) fn variants(&self, element: u8) -> &[char] {
        let class = usize::from(element).checked_sub(1);
        class.and_then(|class| self.variants.get(class)).map_or(&[][..], Vec::as_slice)
    }

    /// The least number of bytes that match elements.
    pub(super) fn least_bytes(&self, elements: &[u8]) -> usize {
        let least = |element: &u8| self.variants(*element).iter().map(|c| c.len_utf8()).min().unwrap_or(1);
        elements.iter().map(least).sum()
    }

    /// The class of each ASCII character.
    pub(super) fn ascii(&self) -> Vec<u8> {
        (0..128u8).map(|byte| self.of.get(&char::from(byte)).copied().unwrap_or(0)).collect()
    }

    /// A hash table of the other characters, with free slots: pairs of code point and class.
    pub(super) fn others(&self) -> Vec<u32> {
        let others = || self.of.range('\u{80}'..);
        let slots = (2 * others().count()).next_power_of_two();
        let mut table = vec![0; 2 * slots];
        for (c, class) in others() {
            let mut slot = u32::from(*c) as usize % slots;
            while table[2 * slot] != 0 {
                slot = (slot + 1) % slots;
            }
            table[2 * slot] = u32::from(*c);
            table[2 * slot + 1] = u32::from(*class);
        }
        table
    }
}

/// A character and those that differ from it in case only, as in arrow's regular expressions.
fn cases(c: char) -> Option<Vec<char>> {
    let mut class = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
    class.try_case_fold_simple().ok()?;
    Some(class.iter().flat_map(|range| range.start()..=range.end()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_classes() {
        let mut alphabet = Alphabet::new(true);
        let classes: Vec<_> = "kaKſ\u{212a}é".chars().map(|c| alphabet.class(c)).collect();
        assert_eq!(classes, [Some(1), Some(2), Some(1), Some(3), Some(1), Some(4)]);
        assert_eq!(alphabet.variants(3), ['S', 's', 'ſ']);
        assert!(alphabet.variants(ANY).is_empty());
        assert_eq!(alphabet.least_bytes(&[1, 4, ANY]), 4);
        assert_eq!(alphabet.ascii().iter().filter(|class| **class > 0).count(), 6);
        let others = alphabet.others();
        let mut known: Vec<_> = others.chunks(2).filter(|pair| pair[0] > 0).map(|pair| (pair[0], pair[1])).collect();
        known.sort_unstable();
        assert_eq!(known, [('É', 4), ('é', 4), ('ſ', 3), ('\u{212a}', 1)].map(|(c, class): (char, u32)| (u32::from(c), class)));
        assert_eq!(Alphabet::new(false).others(), [0, 0]);
    }
}
