// SPDX-License-Identifier: Apache-2.0
//! Lists: words that say where each row's elements lie among all of a column's, which are a column of their own.
//!
//! An upload makes words of offsets and brings the elements of all pieces up as one column. Kernels move words and leave the
//! elements where they are, so that a download finds them out of order, several times, or with gaps: [`Spans`] says which parts of
//! them to read, and copies them to rows.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MutableArrayData, OffsetSizeTrait, make_array};
use arrow::buffer::{Buffer as HostBuffer, NullBuffer};
use arrow::datatypes::DataType;

use crate::upload::{Pieces, Uploader};
use crate::{ColumnType, DeviceColumn, Error, Result};

/// Most elements that words can point at.
const MOST_ELEMENTS: usize = u32::MAX as usize;

/// Uploads pieces as words and elements of type `elements`.
pub(crate) fn column(uploader: &Uploader<'_>, pieces: &Pieces<'_>, elements: &ColumnType) -> Result<DeviceColumn> {
    let (mut words, mut parts, mut at) = (Vec::with_capacity(pieces.rows), Vec::with_capacity(pieces.arrays.len()), 0);
    for array in pieces.arrays {
        let part = match array.data_type() {
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                add_words(lists.value_offsets(), lists.values(), at, &mut words)
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                add_words(lists.value_offsets(), lists.values(), at, &mut words)
            }
            DataType::FixedSizeList(_, size) => {
                let size = *size as usize;
                words.extend((0..array.len()).map(|row| word(at + row * size, size)));
                array.as_fixed_size_list().values().slice(0, array.len() * size)
            }
            other => return Err(Error::Malformed(format!("column \"{}\": {other} cannot be laid out as lists", pieces.name))),
        };
        at += part.len();
        parts.push(part);
        if at > MOST_ELEMENTS {
            return Err(pieces.too_large("elements of lists", at, MOST_ELEMENTS));
        }
    }
    let elements = Uploader::new(pieces.queue, at).column(pieces.name, &Arc::new(elements.clone()), parts.iter().collect())?;
    let nulls: Vec<_> = pieces.arrays.iter().map(|array| (array.len(), array.nulls().cloned())).collect();
    uploader.codes(pieces.name, &Arc::new(pieces.ty.clone()), HostBuffer::from_vec(words), &nulls, Arc::new(elements))
}

/// Appends the words of lists whose elements come behind `at` others; these elements.
fn add_words<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef, at: usize, words: &mut Vec<u64>) -> ArrayRef {
    let (first, last) = match offsets {
        [first, .., last] => (first.as_usize(), last.as_usize()),
        _ => (0, 0),
    };
    let span = |pair: &[O]| word(at + pair[0].as_usize() - first, pair[1].as_usize() - pair[0].as_usize());
    words.extend(offsets.windows(2).map(span));
    values.slice(first, last - first)
}

fn word(start: usize, len: usize) -> u64 {
    start as u64 & u64::from(u32::MAX) | (len as u64) << 32
}

/// Which elements each row has.
pub(crate) struct Spans {
    rows: Vec<Range<usize>>,
}

impl Spans {
    /// Those that words say; a NULL has none.
    pub(crate) fn of(words: &[u64], nulls: Option<&NullBuffer>) -> Spans {
        let span = |(row, &word): (usize, &u64)| match nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            true => (word as u32) as usize..(word as u32) as usize + (word >> 32) as usize,
            false => 0..0,
        };
        Spans { rows: words.iter().enumerate().map(span).collect() }
    }

    /// The end of the last element.
    pub(crate) fn end(&self) -> usize {
        self.rows.iter().filter(|span| !span.is_empty()).map(|span| span.end).max().unwrap_or(0)
    }

    /// Elements of all rows, each as often as it appears.
    pub(crate) fn total(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }

    /// Parts of the elements, in order, in which all spans lie, with gaps of more than `gap` elements between them.
    pub(crate) fn parts(&self, gap: usize) -> Vec<Range<usize>> {
        let mut parts: Vec<_> = self.rows.iter().filter(|span| !span.is_empty()).cloned().collect();
        parts.sort_unstable_by_key(|span| span.start);
        parts.dedup_by(|next, last| {
            let joins = next.start <= last.end.saturating_add(gap);
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        parts
    }

    /// Arrow's offsets.
    pub(crate) fn offsets<O: OffsetSizeTrait>(&self) -> HostBuffer {
        let mut end = 0;
        let ends = self.rows.iter().map(|span| {
            end += span.len();
            O::usize_as(end)
        });
        HostBuffer::from_vec(std::iter::once(O::usize_as(0)).chain(ends).collect::<Vec<O>>())
    }

    /// Whether the rows have all elements of `parts`, in order, and each of them `size` where they have one size.
    pub(crate) fn are_all(&self, parts: &[Range<usize>], size: Option<usize>) -> bool {
        let mut end = 0;
        self.places(parts).all(|place| {
            let next = place.is_empty() || place.start == end;
            end += place.len();
            next && size.is_none_or(|size| place.len() == size)
        }) && end == parts.iter().map(Range::len).sum::<usize>()
    }

    /// Bytes that a copy of each row's elements takes; `elements` are those of `parts`.
    pub(crate) fn bytes(&self, parts: &[Range<usize>], elements: &dyn Array) -> usize {
        self.places(parts).fold(0, |sum, place| sum.saturating_add(bytes(elements, place)))
    }

    /// A copy of each row's elements, one row after another; of rows of one size `size` NULLs, where a row has none.
    pub(crate) fn copy(&self, parts: &[Range<usize>], elements: &dyn Array, size: Option<usize>) -> Result<ArrayRef> {
        let elements = elements.to_data();
        let rows = size.map_or_else(|| self.total(), |size| self.rows.len() * size);
        let mut copy = MutableArrayData::new(vec![&elements], size.is_some(), rows);
        for place in self.places(parts) {
            match (place.is_empty(), size) {
                (false, _) => copy.try_extend(0, place.start, place.end)?,
                (true, Some(size)) => copy.try_extend_nulls(size)?,
                (true, None) => {}
            }
        }
        Ok(make_array(copy.freeze()))
    }

    /// Where each row's elements are among those of `parts`, one part after the other.
    fn places<'a>(&'a self, parts: &'a [Range<usize>]) -> impl Iterator<Item = Range<usize>> + 'a {
        let mut end = 0;
        let starts = parts.iter().map(|part| {
            end += part.len();
            end - part.len()
        });
        let starts: Vec<usize> = starts.collect();
        self.rows.iter().map(move |span| match parts.partition_point(|part| part.start <= span.start).checked_sub(1) {
            Some(part) if !span.is_empty() => {
                let start = starts[part] + span.start - parts[part].start;
                start..start + span.len()
            }
            _ => 0..0,
        })
    }
}

/// Bytes of a part of an array that a copy of it takes. The bytes that views look at are shared.
pub(crate) fn bytes(array: &dyn Array, part: Range<usize>) -> usize {
    fn delimited<O: OffsetSizeTrait>(offsets: &[O], part: &Range<usize>, of: impl Fn(Range<usize>) -> usize) -> usize {
        size_of::<O>() * part.len() + of(offsets[part.start].as_usize()..offsets[part.end].as_usize())
    }
    let len = |range: Range<usize>| range.len();
    match array.data_type() {
        DataType::Utf8 => delimited(array.as_string::<i32>().value_offsets(), &part, len),
        DataType::LargeUtf8 => delimited(array.as_string::<i64>().value_offsets(), &part, len),
        DataType::Binary => delimited(array.as_binary::<i32>().value_offsets(), &part, len),
        DataType::LargeBinary => delimited(array.as_binary::<i64>().value_offsets(), &part, len),
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            delimited(lists.value_offsets(), &part, |elements| bytes(lists.values(), elements))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            delimited(lists.value_offsets(), &part, |elements| bytes(lists.values(), elements))
        }
        DataType::FixedSizeList(_, size) => {
            let size = *size as usize;
            bytes(array.as_fixed_size_list().values(), part.start * size..part.end * size)
        }
        DataType::Dictionary(_, _) => bytes(array.as_any_dictionary().keys(), part),
        DataType::Utf8View | DataType::BinaryView => part.len() * size_of::<u128>(),
        DataType::FixedSizeBinary(width) => part.len() * *width as usize,
        DataType::Boolean => part.len().div_ceil(8),
        other => part.len() * other.primitive_width().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BooleanArray, Int64Array, ListArray, StringArray, StringViewArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, Int64Type};

    use super::*;

    fn spans(rows: &[Range<usize>]) -> Spans {
        Spans { rows: rows.to_vec() }
    }

    fn numbers(count: i64) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(0..count))
    }

    #[test]
    fn rows_in_order_are_not_copied() {
        let lists = spans(&[2..4, 0..0, 4..5, 5..9]);
        let parts = lists.parts(0);
        assert_eq!((parts.as_slice(), lists.end(), lists.total()), (std::slice::from_ref(&(2..9)), 9, 7));
        assert!(lists.are_all(&parts, None));
        assert!(!lists.are_all(&parts, Some(2)));
        assert_eq!(lists.offsets::<i32>().typed_data::<i32>(), [0, 2, 2, 3, 7]);
    }

    #[test]
    fn gaps_are_left_out_and_shared_elements_come_once() {
        let lists = spans(&[50..52, 1..3, 2..4, 0..0, 50..51]);
        let parts = lists.parts(4);
        assert_eq!(parts, [1..4, 50..52]);
        assert!(!lists.are_all(&parts, None));
        let copy = lists.copy(&parts, &numbers(5), None).unwrap();
        assert_eq!(copy.as_primitive::<Int64Type>().values().to_vec(), [3, 4, 0, 1, 1, 2, 3]);
        assert_eq!(lists.bytes(&parts, &numbers(5)), 7 * 8);
    }

    #[test]
    fn rows_of_one_size_are_filled_up_with_nulls() {
        let lists = spans(&[2..4, 0..0, 0..2]);
        let copy = lists.copy(&lists.parts(0), &numbers(4), Some(2)).unwrap();
        assert_eq!(copy.as_ref(), &Int64Array::from(vec![Some(2), Some(3), None, None, Some(0), Some(1)]));
    }

    #[test]
    fn bytes_of_nested_and_of_long_elements() {
        let texts = StringArray::from(vec!["a", "bcd", ""]);
        assert_eq!(bytes(&texts, 1..3), 2 * 4 + 3);
        let fields = Arc::new(Field::new("item", DataType::Utf8, true));
        let lists = ListArray::new(fields, OffsetBuffer::from_lengths([2, 1]), Arc::new(texts), None);
        assert_eq!(bytes(&lists, 0..1), 4 + 2 * 4 + 4);
        assert_eq!(bytes(&StringViewArray::from(vec!["far too long to lie in a view"; 2]), 0..2), 32);
        assert_eq!(bytes(&BooleanArray::from(vec![true; 9]), 0..9), 2);
    }
}
