// SPDX-License-Identifier: Apache-2.0
//! Interner of byte strings: codes in the order of first appearance.

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// A growing set of byte strings, each with a code.
#[derive(Clone)]
pub(crate) struct Interner {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    heap: Vec<u8>,
    /// Start of each string in the heap, plus the end of the last one.
    offsets: Vec<usize>,
}

impl fmt::Debug for Interner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interner").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Default for Interner {
    fn default() -> Self {
        Self { table: HashTable::new(), hasher: DefaultHashBuilder::default(), heap: Vec::new(), offsets: vec![0] }
    }
}

impl Interner {
    /// Number of distinct strings.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// All strings, concatenated in the order of their codes.
    pub(crate) fn heap(&self) -> &[u8] {
        &self.heap
    }

    /// Start of each string in the heap, plus the end of the last one.
    pub(crate) fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    #[cfg(test)]
    pub(crate) fn get(&self, code: u32) -> &[u8] {
        let code = code as usize;
        &self.heap[self.offsets[code]..self.offsets[code + 1]]
    }

    /// The code of `value`; a new value is added.
    pub(crate) fn intern(&mut self, value: &[u8]) -> u32 {
        let Self { table, hasher, heap, offsets } = self;
        let string = |code: u32| &heap[offsets[code as usize]..offsets[code as usize + 1]];
        let hash = hasher.hash_one(value);
        if let Some(&code) = table.find(hash, |&code| string(code) == value) {
            return code;
        }
        let code = (offsets.len() - 1) as u32;
        table.insert_unique(hash, code, |&code| hasher.hash_one(string(code)));
        heap.extend_from_slice(value);
        offsets.push(heap.len());
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_first_appearance() {
        let mut interner = Interner::default();
        let codes: Vec<u32> = ["b", "", "a", "b", "", "c"].iter().map(|s| interner.intern(s.as_bytes())).collect();
        assert_eq!(codes, [0, 1, 2, 0, 1, 3]);
        assert_eq!((interner.len(), interner.get(1), interner.get(2)), (4, &b""[..], &b"a"[..]));
        assert_eq!((interner.heap(), interner.offsets()), (&b"bac"[..], &[0, 1, 1, 2, 3][..]));
    }
}
