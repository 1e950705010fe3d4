// SPDX-License-Identifier: Apache-2.0
//! Element ranges of the rows of a list column.
//!
//! Kernels move the offset/length pairs of rows, not the elements. So a download finds the elements
//! out of order, repeated or with gaps. [`ListSpans`] computes which ranges to read and copies the
//! elements into row order.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, MutableArrayData, OffsetSizeTrait, make_array};
use arrow::buffer::{Buffer as HostBuffer, NullBuffer};

use crate::Result;
use crate::host_arrays::copied_bytes;

/// Range of elements of each row.
///
/// `ranges` in the methods are the ranges that were read, as [`Self::merged`] returns them;
/// `elements` are the elements in these ranges, concatenated.
pub(crate) struct ListSpans {
    rows: Vec<Range<usize>>,
}

impl ListSpans {
    /// The spans of packed offset/length pairs; a NULL has no elements.
    pub(crate) fn from_pairs(pairs: &[u64], nulls: Option<&NullBuffer>) -> ListSpans {
        let span = |(row, &pair): (usize, &u64)| match nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            true => (pair as u32) as usize..(pair as u32) as usize + (pair >> 32) as usize,
            false => 0..0,
        };
        ListSpans { rows: pairs.iter().enumerate().map(span).collect() }
    }

    /// The greatest end of a span.
    pub(crate) fn end(&self) -> usize {
        self.rows.iter().filter(|span| !span.is_empty()).map(|span| span.end).max().unwrap_or(0)
    }

    /// Number of elements of all rows, repeated ones included.
    pub(crate) fn total(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }

    /// Ascending ranges that cover all spans. Spans at most `gap` elements apart share a range.
    pub(crate) fn merged(&self, gap: usize) -> Vec<Range<usize>> {
        let mut ranges: Vec<_> = self.rows.iter().filter(|span| !span.is_empty()).cloned().collect();
        ranges.sort_unstable_by_key(|span| span.start);
        ranges.dedup_by(|next, last| {
            let joins = next.start <= last.end.saturating_add(gap);
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        ranges
    }

    /// Arrow's list offsets.
    pub(crate) fn offsets<O: OffsetSizeTrait>(&self) -> HostBuffer {
        let mut end = 0;
        let ends = self.rows.iter().map(|span| {
            end += span.len();
            O::usize_as(end)
        });
        HostBuffer::from_vec(std::iter::once(O::usize_as(0)).chain(ends).collect::<Vec<O>>())
    }

    /// Whether the rows use all elements of `ranges` exactly once and in order.
    ///
    /// For fixed-size lists every row must have `size` elements.
    pub(crate) fn is_contiguous(&self, ranges: &[Range<usize>], size: Option<usize>) -> bool {
        let mut end = 0;
        self.positions(ranges).all(|span| {
            let next = span.is_empty() || span.start == end;
            end += span.len();
            next && size.is_none_or(|size| span.len() == size)
        }) && end == ranges.iter().map(Range::len).sum::<usize>()
    }

    /// Bytes that [`Self::copy`] takes.
    pub(crate) fn copied_bytes(&self, ranges: &[Range<usize>], elements: &dyn Array) -> usize {
        self.positions(ranges).fold(0, |sum, span| sum.saturating_add(copied_bytes(elements, span)))
    }

    /// Copies the elements into row order. For fixed-size lists an empty row gets `size` NULLs.
    pub(crate) fn copy(&self, ranges: &[Range<usize>], elements: &dyn Array, size: Option<usize>) -> Result<ArrayRef> {
        let elements = elements.to_data();
        let rows = size.map_or_else(|| self.total(), |size| self.rows.len() * size);
        let mut copy = MutableArrayData::new(vec![&elements], size.is_some(), rows);
        for span in self.positions(ranges) {
            match (span.is_empty(), size) {
                (false, _) => copy.try_extend(0, span.start, span.end)?,
                (true, Some(size)) => copy.try_extend_nulls(size)?,
                (true, None) => {}
            }
        }
        Ok(make_array(copy.freeze()))
    }

    /// The span of each row within the concatenation of `ranges`.
    fn positions<'a>(&'a self, ranges: &'a [Range<usize>]) -> impl Iterator<Item = Range<usize>> + 'a {
        let mut end = 0;
        let starts = ranges.iter().map(|range| {
            end += range.len();
            end - range.len()
        });
        let starts: Vec<usize> = starts.collect();
        self.rows.iter().map(move |span| match ranges.partition_point(|range| range.start <= span.start).checked_sub(1) {
            Some(index) if !span.is_empty() => {
                let start = starts[index] + span.start - ranges[index].start;
                start..start + span.len()
            }
            _ => 0..0,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn spans(rows: &[Range<usize>]) -> ListSpans {
        ListSpans { rows: rows.to_vec() }
    }

    fn integers(count: i64) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(0..count))
    }

    #[test]
    fn rows_in_order_are_not_copied() {
        let lists = spans(&[2..4, 0..0, 4..5, 5..9]);
        let ranges = lists.merged(0);
        assert_eq!((ranges.as_slice(), lists.end(), lists.total()), (std::slice::from_ref(&(2..9)), 9, 7));
        assert!(lists.is_contiguous(&ranges, None));
        assert!(!lists.is_contiguous(&ranges, Some(2)));
        assert_eq!(lists.offsets::<i32>().typed_data::<i32>(), [0, 2, 2, 3, 7]);
    }

    #[test]
    fn gaps_are_left_out_and_shared_elements_are_read_once() {
        let lists = spans(&[50..52, 1..3, 2..4, 0..0, 50..51]);
        let ranges = lists.merged(4);
        assert_eq!(ranges, [1..4, 50..52]);
        assert!(!lists.is_contiguous(&ranges, None));
        let copy = lists.copy(&ranges, &integers(5), None).unwrap();
        assert_eq!(copy.as_primitive::<Int64Type>().values().to_vec(), [3, 4, 0, 1, 1, 2, 3]);
        assert_eq!(lists.copied_bytes(&ranges, &integers(5)), 7 * 8);
    }

    #[test]
    fn empty_rows_of_fixed_size_lists_get_nulls() {
        let lists = spans(&[2..4, 0..0, 0..2]);
        let copy = lists.copy(&lists.merged(0), &integers(4), Some(2)).unwrap();
        assert_eq!(copy.as_ref(), &Int64Array::from(vec![Some(2), Some(3), None, None, Some(0), Some(1)]));
    }
}
