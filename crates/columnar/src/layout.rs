// SPDX-License-Identifier: Apache-2.0
//! Physical layout of columns in device memory.
//!
//! A [`ColumnType`] is fixed for a source, not for a batch. Kernels are generated from it, so one
//! kernel serves every batch of a source.

use std::fmt;

use arrow::datatypes::{DataType, IntervalUnit, Schema};

use crate::{Error, Result};

/// Physical type of one value of a fixed-width column, as kernels load it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Carrier {
    I8,
    I16,
    I32,
    I64,
    I128,
    /// Four `u64` words, the lowest first.
    I256,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

impl Carrier {
    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Carrier::I8 => "i8",
            Carrier::I16 => "i16",
            Carrier::I32 => "i32",
            Carrier::I64 => "i64",
            Carrier::I128 => "i128",
            Carrier::I256 => "i256",
            Carrier::U8 => "u8",
            Carrier::U16 => "u16",
            Carrier::U32 => "u32",
            Carrier::U64 => "u64",
            Carrier::F32 => "f32",
            Carrier::F64 => "f64",
        }
    }

    /// Bytes of one value.
    pub const fn width(self) -> usize {
        match self {
            Carrier::I8 | Carrier::U8 => 1,
            Carrier::I16 | Carrier::U16 => 2,
            Carrier::I32 | Carrier::U32 | Carrier::F32 => 4,
            Carrier::I64 | Carrier::U64 | Carrier::F64 => 8,
            Carrier::I128 => 16,
            Carrier::I256 => 32,
        }
    }
}

/// Physical layout of a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `DataType::Null`: no buffers, every value is NULL.
    Null,
    /// One bit per value, least significant first. Buffers: bits.
    Bits,
    /// Fixed width. Buffers: values.
    Fixed(Carrier),
    /// `FixedSizeBinary`: this many bytes per value. Buffers: bytes.
    Bytes(u32),
    /// Offsets of 32 bits into a heap. Buffers: offsets (len + 1), heap.
    Offsets32,
    /// Offsets of 64 bits into a heap. Buffers: offsets (len + 1), heap.
    Offsets64,
    /// Arrow's 16-byte views. Buffers:
    /// - views,
    /// - heap: all variadic buffers, concatenated,
    /// - bases: the start of each variadic buffer in the heap, as u64.
    Views,
    /// Codes into the column's dictionary. Buffers: codes.
    Dictionary {
        /// Type of the codes.
        codes: Carrier,
        /// Layout of the dictionary's values.
        values: Box<Layout>,
    },
    /// Lists over the column's elements, which have this type. Buffers: packed offset/length pairs.
    ///
    /// A pair is one u64 per row. Its low 32 bits are the offset of the row's first element, its
    /// high 32 bits the number of elements. Rows may share elements, and elements may be unused.
    List(Box<ColumnType>),
}

/// A description for users.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Null => f.write_str("nothing"),
            Layout::Bits => f.write_str("bits"),
            Layout::Fixed(carrier) => f.write_str(carrier.name()),
            Layout::Bytes(width) => write!(f, "{width} bytes"),
            Layout::Offsets32 => f.write_str("32-bit offsets"),
            Layout::Offsets64 => f.write_str("64-bit offsets"),
            Layout::Views => f.write_str("views"),
            Layout::Dictionary { codes, values } => write!(f, "{} codes of {values}", codes.name()),
            Layout::List(elements) => write!(f, "lists of {}", elements.layout),
        }
    }
}

/// Type and layout of a column of a source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ColumnType {
    /// The logical type, as SQL and downloads have it.
    pub data_type: DataType,
    /// Whether values may be NULL: the column then has a validity bitmap.
    pub nullable: bool,
    /// Physical layout, which may be narrower than the logical type.
    pub layout: Layout,
    /// Proven least and greatest value over all batches of the source.
    ///
    /// Known for integers, dates, times, unscaled decimals and dictionary codes. Resident tables
    /// round bounds outwards to powers of two, so an insert seldom changes kernels.
    pub bounds: Option<(i128, i128)>,
}

impl ColumnType {
    /// The natural layout of `data_type`: Arrow's own, which an upload does not convert.
    ///
    /// `None` if the type is not supported on the device.
    pub fn of(data_type: &DataType, nullable: bool) -> Option<ColumnType> {
        let nullable = nullable || data_type.is_null();
        Some(ColumnType { data_type: data_type.clone(), nullable, layout: natural(data_type)?, bounds: None })
    }

    /// About the device bytes of a value, to size batches by: strings, binary values and lists
    /// count as two words.
    ///
    /// # Examples
    /// ```
    /// # use arrow::datatypes::DataType;
    /// # use columnar::ColumnType;
    /// let bytes = |ty| ColumnType::of(&ty, true).map(|ty| ty.value_bytes());
    /// assert_eq!(bytes(DataType::Int32), Some(4));
    /// assert_eq!(bytes(DataType::Utf8View), Some(16));
    /// ```
    pub fn value_bytes(&self) -> usize {
        match &self.layout {
            Layout::Fixed(carrier) | Layout::Dictionary { codes: carrier, .. } => carrier.width(),
            Layout::Bytes(width) => *width as usize,
            Layout::Null | Layout::Bits => 1,
            Layout::Offsets32 | Layout::Offsets64 | Layout::Views | Layout::List(_) => 16,
        }
    }
}

/// The types of `schema` in their natural layouts, which an upload does not convert.
///
/// # Errors
/// `Unsupported`, naming the first column whose type is not supported on the device.
pub fn natural_types(schema: &Schema) -> Result<Vec<ColumnType>> {
    schema
        .fields()
        .iter()
        .map(|field| {
            ColumnType::of(field.data_type(), field.is_nullable())
                .ok_or_else(|| Error::Unsupported { column: field.name().clone(), data_type: field.data_type().clone() })
        })
        .collect()
}

/// As [`natural_types`], with 32-bit decimals up to 9 digits and 64-bit decimals up to 18 digits.
///
/// For sources whose values have no more digits than their type, such as files. An upload fails
/// with `Range` for a value that does not fit.
///
/// # Errors
/// `Unsupported`, naming the first column whose type is not supported on the device.
pub fn file_types(schema: &Schema) -> Result<Vec<ColumnType>> {
    let mut types = natural_types(schema)?;
    for ty in &mut types {
        ty.layout = match ty.data_type {
            DataType::Decimal128(..=9, _) => Layout::Fixed(Carrier::I32),
            DataType::Decimal128(..=18, _) => Layout::Fixed(Carrier::I64),
            _ => continue,
        };
    }
    Ok(types)
}

fn natural(data_type: &DataType) -> Option<Layout> {
    use Carrier::*;
    Some(match data_type {
        DataType::Null => Layout::Null,
        DataType::Boolean => Layout::Bits,
        DataType::Int8 => Layout::Fixed(I8),
        DataType::Int16 => Layout::Fixed(I16),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(_, _) => Layout::Fixed(I32),
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(_, _)
        | DataType::Duration(_)
        | DataType::Decimal64(_, _) => Layout::Fixed(I64),
        DataType::Decimal128(_, _) | DataType::Interval(IntervalUnit::MonthDayNano) => Layout::Fixed(I128),
        DataType::Decimal256(_, _) => Layout::Fixed(I256),
        DataType::UInt8 => Layout::Fixed(U8),
        DataType::UInt16 => Layout::Fixed(U16),
        DataType::UInt32 => Layout::Fixed(U32),
        DataType::UInt64 => Layout::Fixed(U64),
        DataType::Float32 => Layout::Fixed(F32),
        DataType::Float64 => Layout::Fixed(F64),
        DataType::FixedSizeBinary(width) => Layout::Bytes(u32::try_from(*width).ok()?),
        DataType::Utf8 | DataType::Binary => Layout::Offsets32,
        DataType::LargeUtf8 | DataType::LargeBinary => Layout::Offsets64,
        DataType::Utf8View | DataType::BinaryView => Layout::Views,
        DataType::Dictionary(key, value) => {
            let Layout::Fixed(codes) = natural(key)? else { return None };
            let values = natural(value)?;
            if matches!(values, Layout::Dictionary { .. } | Layout::List(_)) {
                return None;
            }
            Layout::Dictionary { codes, values: Box::new(values) }
        }
        DataType::List(element) | DataType::LargeList(element) => {
            Layout::List(Box::new(ColumnType::of(element.data_type(), element.is_nullable())?))
        }
        // Elements below a NULL list are NULL, also if their field is non-nullable.
        DataType::FixedSizeList(element, _) => Layout::List(Box::new(ColumnType::of(element.data_type(), true)?)),
        _ => return None,
    })
}
