// SPDX-License-Identifier: Apache-2.0
//! Statistics of resident columns.

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

use crate::host_arrays::fixed_width_values;
use crate::narrow::convert;
use crate::{Carrier, ColumnType, Layout, Result};

/// Exact statistics of a resident column.
#[derive(Debug, Clone, Default)]
pub struct ColumnStatistics {
    /// Number of NULLs, if known.
    pub null_count: Option<usize>,
    /// Least and greatest value, each as an array of one row. `None` without values, and for
    /// columns with NaN, dictionary types and fixed-size binary.
    pub min_max: Option<(ArrayRef, ArrayRef)>,
    /// Number of distinct values other than NULL, if known.
    pub distinct_count: Option<usize>,
}

/// Running minimum and maximum of a column.
#[derive(Debug, Clone)]
pub(crate) enum MinMax {
    /// No value so far.
    Empty,
    /// Minimum and maximum, each as an array of one row.
    Known(ArrayRef, ArrayRef),
    /// Values without a supported order.
    Unknown,
}

impl MinMax {
    /// Adds the values of `array`.
    pub(crate) fn add(&mut self, array: &ArrayRef) -> Result<()> {
        if array.logical_null_count() == array.len() {
            return Ok(());
        }
        let Some((mut min, mut max)) = min_max(array) else {
            *self = MinMax::Unknown;
            return Ok(());
        };
        match self {
            MinMax::Unknown => return Ok(()),
            MinMax::Empty => {}
            MinMax::Known(least, greatest) => {
                let all = concat(&[least, greatest, &min, &max])?;
                let Some(both) = min_max(&all) else { return Ok(()) };
                (min, max) = both;
            }
        }
        *self = MinMax::Known(min, max);
        Ok(())
    }

    /// Minimum and maximum as arrays of one row, if known.
    pub(crate) fn arrays(&self) -> Option<(ArrayRef, ArrayRef)> {
        match self {
            MinMax::Known(min, max) => Some((Arc::clone(min), Arc::clone(max))),
            MinMax::Empty | MinMax::Unknown => None,
        }
    }

    /// Minimum and maximum as integers, for types with an integer carrier.
    pub(crate) fn integers(&self) -> Option<(i128, i128)> {
        let MinMax::Known(min, max) = self else { return None };
        Some((integer(min)?, integer(max)?))
    }
}

/// The value of an array of one row, for types with an integer carrier.
fn integer(array: &ArrayRef) -> Option<i128> {
    // Intervals do not compare as their 128 bits.
    if matches!(array.data_type(), DataType::Interval(_)) {
        return None;
    }
    let Layout::Fixed(carrier) = ColumnType::of(array.data_type(), true)?.layout else { return None };
    let mut out = MutableBuffer::with_capacity(16);
    convert(&fixed_width_values(array, carrier.width()), carrier, Carrier::I128, None, &mut out).ok()?;
    out.typed_data::<i128>().first().copied()
}

/// Minimum and maximum, each as an array of one row.
fn min_max(array: &ArrayRef) -> Option<(ArrayRef, ArrayRef)> {
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
