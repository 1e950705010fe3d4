// SPDX-License-Identifier: Apache-2.0
//! The buffers, children and dictionary of each Arrow type in C, and the sizes of its buffers.
//!
//! Only this module lists the types one by one; validation, views, export and the host import use
//! it.

use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, UnionMode};

use BufferKind::*;

/// The content of an array's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferKind {
    /// One bit per element, 1 where it is not null. May be a null pointer if no element is null.
    Validity,
    /// One bit per element: Boolean values.
    Bits,
    /// Values of this many bytes each.
    Fixed(usize),
    /// Integers of this many bytes: the start of each string or list, and the end of the last.
    Offsets(usize),
    /// The bytes of strings; only the last offset tells their number.
    Bytes,
    /// 16 bytes per element: a string view.
    Views,
    /// One of the buffers that string views point into.
    Variadic,
    /// The sizes of all [`Variadic`] buffers, in bytes, as `i64`s in host
    /// memory (R35).
    VariadicLengths,
}

impl BufferKind {
    /// The size for `elements` elements; `None` if the elements alone do not determine it.
    pub(crate) fn byte_len(self, elements: usize) -> Result<Option<usize>, Overflow> {
        let bytes = match self {
            Validity | Bits => Some(elements.div_ceil(8)),
            Fixed(width) => Some(elements.checked_mul(width).ok_or(Overflow)?),
            Offsets(width) => Some(elements.checked_add(1).and_then(|n| n.checked_mul(width)).ok_or(Overflow)?),
            Views => Some(elements.checked_mul(16).ok_or(Overflow)?),
            Bytes | Variadic | VariadicLengths => None,
        };
        match bytes {
            Some(bytes) if bytes > MAX_BYTES => Err(Overflow),
            bytes => Ok(bytes),
        }
    }
}

/// Size limit of a buffer: process addresses end below 2^56, on x86-64 and AArch64 alike.
pub(crate) const MAX_BYTES: usize = if usize::BITS == 64 { 1 << 56 } else { isize::MAX as usize };

/// A size in bytes beyond [`MAX_BYTES`].
#[derive(Debug)]
pub(crate) struct Overflow;

/// The buffers of an array, without the variadic ones (see [`Layout::variadic`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    kinds: [BufferKind; 3],
    len: usize,
    /// Whether any number of variadic buffers follows, then one with their lengths.
    pub(crate) variadic: bool,
}

impl Layout {
    fn new(kinds: &[BufferKind]) -> Self {
        let mut all = [Validity; 3];
        for (to, from) in all.iter_mut().zip(kinds) {
            *to = *from;
        }
        Self { kinds: all, len: kinds.len(), variadic: false }
    }

    /// The fixed buffers in C's order.
    pub(crate) fn kinds(&self) -> &[BufferKind] {
        &self.kinds[..self.len]
    }

    /// Whether buffer 0 is the validity.
    pub(crate) fn has_validity(&self) -> bool {
        self.kinds().first() == Some(&Validity)
    }
}

/// The layout of a type, or the reason why the type is invalid, phrased to follow its name.
pub(crate) fn layout(data_type: &DataType) -> Result<Layout, String> {
    let fixed = |width| Ok(Layout::new(&[Validity, Fixed(width)]));
    match data_type {
        DataType::Null => Ok(Layout::new(&[])),
        DataType::Boolean => Ok(Layout::new(&[Validity, Bits])),
        DataType::Int8 | DataType::UInt8 => fixed(1),
        DataType::Int16 | DataType::UInt16 | DataType::Float16 => fixed(2),
        DataType::Int32 | DataType::UInt32 | DataType::Float32 | DataType::Date32 | DataType::Time32(_) => fixed(4),
        DataType::Int64
        | DataType::UInt64
        | DataType::Float64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(_, _)
        | DataType::Duration(_) => fixed(8),
        DataType::Interval(IntervalUnit::YearMonth) => fixed(4),
        DataType::Interval(IntervalUnit::DayTime) => fixed(8),
        DataType::Interval(IntervalUnit::MonthDayNano) => fixed(16),
        DataType::Decimal32(precision, scale) => decimal(*precision, *scale, 9).and_then(|()| fixed(4)),
        DataType::Decimal64(precision, scale) => decimal(*precision, *scale, 18).and_then(|()| fixed(8)),
        DataType::Decimal128(precision, scale) => decimal(*precision, *scale, 38).and_then(|()| fixed(16)),
        DataType::Decimal256(precision, scale) => decimal(*precision, *scale, 76).and_then(|()| fixed(32)),
        DataType::FixedSizeBinary(width) => fixed(size(*width)?),
        DataType::Utf8 | DataType::Binary => Ok(Layout::new(&[Validity, Offsets(4), Bytes])),
        DataType::LargeUtf8 | DataType::LargeBinary => Ok(Layout::new(&[Validity, Offsets(8), Bytes])),
        DataType::Utf8View | DataType::BinaryView => Ok(Layout { variadic: true, ..Layout::new(&[Validity, Views]) }),
        DataType::List(_) => Ok(Layout::new(&[Validity, Offsets(4)])),
        DataType::LargeList(_) => Ok(Layout::new(&[Validity, Offsets(8)])),
        DataType::ListView(_) => Ok(Layout::new(&[Validity, Fixed(4), Fixed(4)])),
        DataType::LargeListView(_) => Ok(Layout::new(&[Validity, Fixed(8), Fixed(8)])),
        DataType::FixedSizeList(_, len) => size(*len).map(|_| Layout::new(&[Validity])),
        DataType::Struct(_) => Ok(Layout::new(&[Validity])),
        DataType::Map(entries, _) => map(entries).map(|()| Layout::new(&[Validity, Offsets(4)])),
        DataType::Union(_, UnionMode::Sparse) => Ok(Layout::new(&[Fixed(1)])),
        DataType::Union(_, UnionMode::Dense) => Ok(Layout::new(&[Fixed(1), Fixed(4)])),
        DataType::Dictionary(keys, _) if keys.is_dictionary_key_type() => layout(keys),
        DataType::Dictionary(keys, _) => Err(format!("keys of a dictionary must be integers, not {keys}")),
        DataType::RunEndEncoded(run_ends, _) => run_ends_type(run_ends).map(|()| Layout::new(&[])),
    }
}

fn decimal(precision: u8, scale: i8, max: u8) -> Result<(), String> {
    if precision == 0 || precision > max {
        return Err(format!("precision must lie between 1 and {max}, not {precision}"));
    }
    // arrow-rs panics where it prints such a value.
    if u8::try_from(scale).is_ok_and(|scale| scale > precision) {
        return Err(format!("scale must not be greater than the precision {precision}, got {scale}"));
    }
    Ok(())
}

fn size(size: i32) -> Result<usize, String> {
    usize::try_from(size).map_err(|_| format!("its size must not be negative, got {size}"))
}

fn map(entries: &Field) -> Result<(), String> {
    match entries.data_type() {
        DataType::Struct(fields) if fields.len() == 2 => {
            // arrow-rs panics where it rebuilds a map with nullable entries or keys.
            let nullable = [(entries, "entries"), (&fields[0], "keys")].into_iter().find(|(field, _)| field.is_nullable());
            nullable.map_or(Ok(()), |(_, what)| Err(format!("{what} of a map must not be nullable")))
        }
        other => Err(format!("entries of a map must be a struct of key and value, not {other}")),
    }
}

fn run_ends_type(run_ends: &Field) -> Result<(), String> {
    match run_ends.data_type() {
        _ if run_ends.is_nullable() => Err("run ends must not be nullable".into()),
        DataType::Int16 | DataType::Int32 | DataType::Int64 => Ok(()),
        other => Err(format!("run ends must be Int16, Int32 or Int64, not {other}")),
    }
}

/// The number of children of an array of this type.
pub(crate) fn num_children(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => fields.len(),
        DataType::Union(fields, _) => fields.len(),
        DataType::RunEndEncoded(_, _) => 2,
        other => usize::from(child_field(other, 0).is_some()),
    }
}

/// The field of child `index`.
pub(crate) fn child_field(data_type: &DataType, index: usize) -> Option<&FieldRef> {
    match (data_type, index) {
        (DataType::Struct(fields), _) => fields.get(index),
        (DataType::Union(fields, _), _) => fields.iter().nth(index).map(|(_, field)| field),
        (DataType::RunEndEncoded(run_ends, _), 0) => Some(run_ends),
        (DataType::RunEndEncoded(_, values), 1) => Some(values),
        (
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::ListView(field)
            | DataType::LargeListView(field)
            | DataType::FixedSizeList(field, _)
            | DataType::Map(field, _),
            0,
        ) => Some(field),
        _ => None,
    }
}

/// The minimum length of each child, for a parent that ends at element `end`.
///
/// `None` where only the data tells: lists, dense unions, runs.
pub(crate) fn min_child_len(data_type: &DataType, end: usize) -> Result<Option<usize>, Overflow> {
    match data_type {
        DataType::Struct(_) | DataType::Union(_, UnionMode::Sparse) => Ok(Some(end)),
        DataType::FixedSizeList(_, len) => {
            let len = usize::try_from(*len).map_err(|_| Overflow)?;
            end.checked_mul(len).filter(|elements| i64::try_from(*elements).is_ok()).map(Some).ok_or(Overflow)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_the_limit_are_overflows() {
        assert_eq!(Fixed(8).byte_len(3).unwrap(), Some(24));
        assert_eq!(Offsets(4).byte_len(0).unwrap(), Some(4));
        assert_eq!(Validity.byte_len(9).unwrap(), Some(2));
        assert_eq!(Bytes.byte_len(9).unwrap(), None);
        Fixed(8).byte_len(usize::MAX / 8).unwrap_err();
        Fixed(32).byte_len(usize::MAX / 8).unwrap_err();
        Offsets(8).byte_len(usize::MAX).unwrap_err();
        Bits.byte_len(i64::MAX as usize).unwrap_err();
        Validity.byte_len(1 << 60).unwrap_err();
    }

    #[test]
    fn r8_errors_of_invalid_types_give_the_reason() {
        let says = |data_type: DataType| layout(&data_type).unwrap_err();
        assert_eq!(says(DataType::FixedSizeBinary(-1)), "its size must not be negative, got -1");
        assert_eq!(says(DataType::Decimal128(39, 0)), "precision must lie between 1 and 38, not 39");
        assert_eq!(says(DataType::Decimal32(0, 0)), "precision must lie between 1 and 9, not 0");
        assert_eq!(says(DataType::Decimal128(5, 9)), "scale must not be greater than the precision 5, got 9");
        assert!(layout(&DataType::Decimal64(5, 5)).is_ok() && layout(&DataType::Decimal64(5, -9)).is_ok());
        let keys = DataType::Dictionary(Box::new(DataType::Utf8), Box::new(DataType::Utf8));
        assert_eq!(says(keys), "keys of a dictionary must be integers, not Utf8");
        let entries = DataType::Map(Field::new("entries", DataType::Utf8, false).into(), false);
        assert_eq!(says(entries), "entries of a map must be a struct of key and value, not Utf8");
        let ends = Field::new("run_ends", DataType::Int32, true).into();
        let runs = DataType::RunEndEncoded(ends, Field::new("values", DataType::Int8, true).into());
        assert_eq!(says(runs), "run ends must not be nullable");
        let map = |entries_null: bool, keys_null: bool| {
            let fields = vec![Field::new("key", DataType::Utf8, keys_null), Field::new("value", DataType::Utf8, true)];
            DataType::Map(Field::new("entries", DataType::Struct(fields.into()), entries_null).into(), false)
        };
        assert!(layout(&map(false, false)).is_ok());
        assert_eq!(says(map(true, false)), "entries of a map must not be nullable");
        assert_eq!(says(map(false, true)), "keys of a map must not be nullable");
    }
}
