// SPDX-License-Identifier: Apache-2.0
//! Host lists to packed offset/length pairs over one column of elements.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::datatypes::DataType;

use crate::upload::chunks::ColumnChunks;
use crate::{Error, Result};

/// Most elements that the 32-bit offset of a pair can address.
const MAX_ELEMENTS: usize = u32::MAX as usize;

/// Host side of a [`Layout::List`](crate::Layout::List) column.
pub(crate) struct EncodedLists {
    /// Offset/length pair of each row.
    pub(crate) pairs: Vec<u64>,
    /// Elements of each chunk; offsets count through all of them.
    pub(crate) elements: Vec<ArrayRef>,
    pub(crate) element_count: usize,
}

/// Encodes list arrays of any kind.
pub(crate) fn encode(chunks: &ColumnChunks<'_>) -> Result<EncodedLists> {
    let mut lists = EncodedLists {
        pairs: Vec::with_capacity(chunks.rows),
        elements: Vec::with_capacity(chunks.arrays.len()),
        element_count: 0,
    };
    for array in chunks.arrays {
        let (base, pairs) = (lists.element_count, &mut lists.pairs);
        let elements = match array.data_type() {
            DataType::List(_) => {
                let array = array.as_list::<i32>();
                append_pairs(array.value_offsets(), array.values(), base, pairs)
            }
            DataType::LargeList(_) => {
                let array = array.as_list::<i64>();
                append_pairs(array.value_offsets(), array.values(), base, pairs)
            }
            DataType::FixedSizeList(_, size) => {
                let size = *size as usize;
                pairs.extend((0..array.len()).map(|row| pack(base + row * size, size)));
                array.as_fixed_size_list().values().slice(0, array.len() * size)
            }
            other => return Err(Error::Malformed(format!("column \"{}\": {other} cannot be laid out as lists", chunks.name))),
        };
        lists.element_count += elements.len();
        lists.elements.push(elements);
        if lists.element_count > MAX_ELEMENTS {
            return Err(chunks.too_large("elements of lists", lists.element_count, MAX_ELEMENTS));
        }
    }
    Ok(lists)
}

/// Appends the pairs of lists whose elements start at element `base`. Returns the elements in use.
fn append_pairs<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef, base: usize, pairs: &mut Vec<u64>) -> ArrayRef {
    let (first, last) = match offsets {
        [first, .., last] => (first.as_usize(), last.as_usize()),
        _ => (0, 0),
    };
    let pair = |row: &[O]| pack(base + row[0].as_usize() - first, row[1].as_usize() - row[0].as_usize());
    pairs.extend(offsets.windows(2).map(pair));
    values.slice(first, last - first)
}

/// An offset/length pair: the offset in the low 32 bits, the length in the high 32 bits.
fn pack(offset: usize, len: usize) -> u64 {
    offset as u64 & u64::from(u32::MAX) | (len as u64) << 32
}
