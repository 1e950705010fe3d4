// SPDX-License-Identifier: Apache-2.0
//! Distinct byte strings, numbered in the order of their first appearance.

use std::fmt;
use std::hash::BuildHasher;

use arrow::array::{Array, AsArray};
use arrow::datatypes::DataType;
use hashbrown::{DefaultHashBuilder, HashTable};

/// A growing set of byte strings with a number for each.
#[derive(Clone)]
pub(crate) struct Interner {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    heap: Vec<u8>,
    /// Where each string begins in the heap; one more at the end.
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

    /// All strings, one after another.
    pub(crate) fn heap(&self) -> &[u8] {
        &self.heap
    }

    /// Where each string begins in the heap; one more at the end.
    pub(crate) fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The string with this number.
    #[cfg(test)]
    pub(crate) fn get(&self, number: u32) -> &[u8] {
        let number = number as usize;
        &self.heap[self.offsets[number]..self.offsets[number + 1]]
    }

    /// The number of `value`, a new one where it has none yet.
    pub(crate) fn intern(&mut self, value: &[u8]) -> u32 {
        let Self { table, hasher, heap, offsets } = self;
        let string = |number: u32| &heap[offsets[number as usize]..offsets[number as usize + 1]];
        let hash = hasher.hash_one(value);
        if let Some(&number) = table.find(hash, |&number| string(number) == value) {
            return number;
        }
        let number = (offsets.len() - 1) as u32;
        table.insert_unique(hash, number, |&number| hasher.hash_one(string(number)));
        heap.extend_from_slice(value);
        offsets.push(heap.len());
        number
    }
}

/// Calls `f` with the bytes of every value, `None` for NULL, until it answers `false`.
///
/// For strings these are the strings; for values of a fixed width, their memory.
pub(crate) fn for_each_bytes(array: &dyn Array, mut f: impl FnMut(Option<&[u8]>) -> bool) {
    fn text<'a>(mut values: impl Iterator<Item = Option<&'a str>>, mut f: impl FnMut(Option<&[u8]>) -> bool) {
        let _ = values.all(|value| f(value.map(str::as_bytes)));
    }
    fn bytes<'a>(mut values: impl Iterator<Item = Option<&'a [u8]>>, f: impl FnMut(Option<&[u8]>) -> bool) {
        let _ = values.all(f);
    }
    match array.data_type() {
        DataType::Utf8 => text(array.as_string::<i32>().iter(), f),
        DataType::LargeUtf8 => text(array.as_string::<i64>().iter(), f),
        DataType::Utf8View => text(array.as_string_view().iter(), f),
        DataType::Binary => bytes(array.as_binary::<i32>().iter(), f),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().iter(), f),
        DataType::BinaryView => bytes(array.as_binary_view().iter(), f),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().iter(), f),
        DataType::Boolean => {
            let _ = array.as_boolean().iter().all(|value| match value {
                Some(value) => f(Some(&[u8::from(value)])),
                None => f(None),
            });
        }
        data_type => {
            let Some(width) = data_type.primitive_width() else {
                let _ = (0..array.len()).all(|_| f(None));
                return;
            };
            let data = array.to_data();
            let Some(values) = data.buffers().first() else { return };
            let mut values = values.as_slice()[data.offset() * width..].chunks_exact(width).take(array.len());
            let nulls = array.nulls();
            let mut row = 0;
            let _ = values.all(|value| {
                let valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
                row += 1;
                f(valid.then_some(value))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_first_appearance() {
        let mut interner = Interner::default();
        let numbers: Vec<u32> = ["b", "", "a", "b", "", "c"].iter().map(|s| interner.intern(s.as_bytes())).collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1, 3]);
        assert_eq!((interner.len(), interner.get(1), interner.get(2)), (4, &b""[..], &b"a"[..]));
        assert_eq!((interner.heap(), interner.offsets()), (&b"bac"[..], &[0, 1, 1, 2, 3][..]));
    }
}
