// SPDX-License-Identifier: Apache-2.0
//! Accessors for the bytes of Arrow arrays in host memory that arrow-rs does not offer.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::buffer::Buffer as HostBuffer;
use arrow::datatypes::DataType;

/// Longest string that Arrow stores inline in a view, in bytes.
pub(crate) const MAX_INLINE_VIEW_BYTES: u32 = 12;

/// Whether a string type holds UTF-8 rather than binary.
pub(crate) fn is_utf8(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// The values buffer of an array of fixed width, without the part before its offset.
pub(crate) fn fixed_width_values(array: &dyn Array, width: usize) -> HostBuffer {
    if let DataType::FixedSizeBinary(_) = array.data_type() {
        return array.as_fixed_size_binary().values().slice_with_length(0, array.len() * width);
    }
    let data = array.to_data();
    match data.buffers() {
        [values, ..] => values.slice_with_length(data.offset() * width, array.len() * width),
        [] => HostBuffer::default(),
    }
}

/// Total length of the strings of a view array; 0 for any other type.
pub(crate) fn view_string_bytes(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::Utf8View => array.as_string_view().lengths().map(|len| len as usize).sum(),
        DataType::BinaryView => array.as_binary_view().lengths().map(|len| len as usize).sum(),
        _ => 0,
    }
}

/// Bytes that a copy of the rows `range` takes. Heaps of views are shared, so they do not count.
pub(crate) fn copied_bytes(array: &dyn Array, range: Range<usize>) -> usize {
    fn delimited<O: OffsetSizeTrait>(offsets: &[O], range: &Range<usize>, of: impl Fn(Range<usize>) -> usize) -> usize {
        size_of::<O>() * range.len() + of(offsets[range.start].as_usize()..offsets[range.end].as_usize())
    }
    let len = |range: Range<usize>| range.len();
    match array.data_type() {
        DataType::Utf8 => delimited(array.as_string::<i32>().value_offsets(), &range, len),
        DataType::LargeUtf8 => delimited(array.as_string::<i64>().value_offsets(), &range, len),
        DataType::Binary => delimited(array.as_binary::<i32>().value_offsets(), &range, len),
        DataType::LargeBinary => delimited(array.as_binary::<i64>().value_offsets(), &range, len),
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            delimited(lists.value_offsets(), &range, |elements| copied_bytes(lists.values(), elements))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            delimited(lists.value_offsets(), &range, |elements| copied_bytes(lists.values(), elements))
        }
        DataType::FixedSizeList(_, size) => {
            let size = *size as usize;
            copied_bytes(array.as_fixed_size_list().values(), range.start * size..range.end * size)
        }
        DataType::Dictionary(_, _) => copied_bytes(array.as_any_dictionary().keys(), range),
        DataType::Utf8View | DataType::BinaryView => range.len() * size_of::<u128>(),
        DataType::FixedSizeBinary(width) => range.len() * *width as usize,
        DataType::Boolean => range.len().div_ceil(8),
        other => range.len() * other.primitive_width().unwrap_or(0),
    }
}

/// Calls `f` with the bytes of every value, `None` for NULL, until `f` returns `false`.
///
/// A value of a string type is its string; a value of fixed width is its memory.
pub(crate) fn for_each_value(array: &dyn Array, mut f: impl FnMut(Option<&[u8]>) -> bool) {
    fn strings<'a>(mut values: impl Iterator<Item = Option<&'a str>>, mut f: impl FnMut(Option<&[u8]>) -> bool) {
        let _ = values.all(|value| f(value.map(str::as_bytes)));
    }
    fn binary<'a>(mut values: impl Iterator<Item = Option<&'a [u8]>>, f: impl FnMut(Option<&[u8]>) -> bool) {
        let _ = values.all(f);
    }
    match array.data_type() {
        DataType::Utf8 => strings(array.as_string::<i32>().iter(), f),
        DataType::LargeUtf8 => strings(array.as_string::<i64>().iter(), f),
        DataType::Utf8View => strings(array.as_string_view().iter(), f),
        DataType::Binary => binary(array.as_binary::<i32>().iter(), f),
        DataType::LargeBinary => binary(array.as_binary::<i64>().iter(), f),
        DataType::BinaryView => binary(array.as_binary_view().iter(), f),
        DataType::FixedSizeBinary(_) => binary(array.as_fixed_size_binary().iter(), f),
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
    use std::sync::Arc;

    use arrow::array::{BooleanArray, ListArray, StringArray, StringViewArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn copied_bytes_of_nested_and_of_long_elements() {
        let strings = StringArray::from(vec!["a", "bcd", ""]);
        assert_eq!(copied_bytes(&strings, 1..3), 2 * 4 + 3);
        let fields = Arc::new(Field::new("item", DataType::Utf8, true));
        let lists = ListArray::new(fields, OffsetBuffer::from_lengths([2, 1]), Arc::new(strings), None);
        assert_eq!(copied_bytes(&lists, 0..1), 4 + 2 * 4 + 4);
        assert_eq!(copied_bytes(&StringViewArray::from(vec!["far too long to lie in a view"; 2]), 0..2), 32);
        assert_eq!(copied_bytes(&BooleanArray::from(vec![true; 9]), 0..9), 2);
    }
}
