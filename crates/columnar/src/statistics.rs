// SPDX-License-Identifier: Apache-2.0
//! What is known of the values of a resident column.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, LargeBinaryArray, LargeStringArray, PrimitiveArray,
    StringArray, StringViewArray,
};
use arrow::buffer::MutableBuffer;
use arrow::compute::concat;
use arrow::compute::kernels::aggregate;
use arrow::datatypes::{ArrowNumericType, DataType, Float32Type, Float64Type};
use arrow::downcast_primitive_array;

use crate::narrow::convert;
use crate::upload::fixed_bytes;
use crate::{Carrier, ColumnType, Layout, Result};

/// Exact statistics of a resident column.
#[derive(Debug, Clone, Default)]
pub struct ColumnStatistics {
    /// Number of NULLs, where known.
    pub null_count: Option<usize>,
    /// Least value as an array of one row; `None` where there is none or it is not known: columns
    /// with NaN, dictionary types, fixed-size binary.
    pub min: Option<ArrayRef>,
    /// Greatest value, likewise.
    pub max: Option<ArrayRef>,
    /// Number of distinct values other than NULL, where known.
    pub distinct_count: Option<usize>,
}

/// Least and greatest value of a growing column.
#[derive(Debug, Clone)]
pub(crate) enum Extremes {
    /// No value so far.
    None,
    /// An array of one row each.
    Known(ArrayRef, ArrayRef),
    /// Values that have no order worth telling.
    Unknown,
}

impl Extremes {
    /// Takes in the values of `array`.
    pub(crate) fn add(&mut self, array: &ArrayRef) -> Result<()> {
        if array.logical_null_count() == array.len() {
            return Ok(());
        }
        let Some((mut min, mut max)) = extremes(array) else {
            *self = Extremes::Unknown;
            return Ok(());
        };
        match self {
            Extremes::Unknown => return Ok(()),
            Extremes::None => {}
            Extremes::Known(least, greatest) => {
                let all = concat(&[least, greatest, &min, &max])?;
                let Some(both) = extremes(&all) else { return Ok(()) };
                (min, max) = both;
            }
        }
        *self = Extremes::Known(min, max);
        Ok(())
    }

    /// The two arrays of one row, where known.
    pub(crate) fn arrays(&self) -> (Option<ArrayRef>, Option<ArrayRef>) {
        match self {
            Extremes::Known(min, max) => (Some(Arc::clone(min)), Some(Arc::clone(max))),
            Extremes::None | Extremes::Unknown => (None, None),
        }
    }

    /// The two as integers, of types that are carried as integers.
    pub(crate) fn integers(&self) -> Option<(i128, i128)> {
        let Extremes::Known(min, max) = self else { return None };
        Some((integer(min)?, integer(max)?))
    }
}

/// The integer of an array of one row.
fn integer(array: &ArrayRef) -> Option<i128> {
    // The order of intervals is not that of their bits.
    if matches!(array.data_type(), DataType::Interval(_)) {
        return None;
    }
    let Layout::Fixed(carrier) = ColumnType::of(array.data_type(), true)?.layout else { return None };
    let mut out = MutableBuffer::with_capacity(16);
    convert(&fixed_bytes(array, carrier.width()), carrier, Carrier::I128, None, &mut out).ok()?;
    out.typed_data::<i128>().first().copied()
}

/// Least and greatest value, each as an array of one row.
fn extremes(array: &ArrayRef) -> Option<(ArrayRef, ArrayRef)> {
    fn primitive<T: ArrowNumericType>(array: &PrimitiveArray<T>) -> Option<(ArrayRef, ArrayRef)> {
        let one = |value| {
            let one = PrimitiveArray::<T>::from_value(value, 1).with_data_type(array.data_type().clone());
            Arc::new(one) as ArrayRef
        };
        Some((one(aggregate::min(array)?), one(aggregate::max(array)?)))
    }
    macro_rules! strings {
        ($Array:ident, $array:expr, $min:ident, $max:ident) => {{
            let (min, max) = (aggregate::$min($array)?, aggregate::$max($array)?);
            Some((Arc::new($Array::from(vec![min])), Arc::new($Array::from(vec![max]))))
        }};
    }
    let array: &dyn Array = array;
    match array.data_type() {
        DataType::Float32 if array.as_primitive::<Float32Type>().iter().flatten().any(f32::is_nan) => None,
        DataType::Float64 if array.as_primitive::<Float64Type>().iter().flatten().any(f64::is_nan) => None,
        DataType::Boolean => {
            let array = array.as_boolean();
            let one = |value| Arc::new(BooleanArray::from(vec![value])) as ArrayRef;
            Some((one(aggregate::min_boolean(array)?), one(aggregate::max_boolean(array)?)))
        }
        DataType::Utf8 => strings!(StringArray, array.as_string::<i32>(), min_string, max_string),
        DataType::LargeUtf8 => strings!(LargeStringArray, array.as_string::<i64>(), min_string, max_string),
        DataType::Utf8View => strings!(StringViewArray, array.as_string_view(), min_string_view, max_string_view),
        DataType::Binary => strings!(BinaryArray, array.as_binary::<i32>(), min_binary, max_binary),
        DataType::LargeBinary => strings!(LargeBinaryArray, array.as_binary::<i64>(), min_binary, max_binary),
        DataType::BinaryView => strings!(BinaryViewArray, array.as_binary_view(), min_binary_view, max_binary_view),
        _ => downcast_primitive_array! {
            array => primitive(array),
            _ => None,
        },
    }
}
