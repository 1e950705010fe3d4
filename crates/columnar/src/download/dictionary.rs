// SPDX-License-Identifier: Apache-2.0
//! Dictionary codes to dictionary arrays or to plain arrays, and plain values to dictionary arrays.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{Buffer as HostBuffer, NullBuffer};
use arrow::compute::kernels::length::length;
use arrow::compute::{TakeOptions, cast, sum, take};
use arrow::datatypes::{ArrowNativeType, DataType, Int64Type};

use crate::download::reader::ColumnReader;
use crate::{Carrier, ColumnType, Layout, Result};

impl ColumnReader {
    pub(crate) fn decode_codes(
        &self,
        carrier: Carrier,
        codes: HostBuffer,
        values: ArrayRef,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        if let DataType::Dictionary(key, _) = self.data_type() {
            let Some(Layout::Fixed(natural)) = ColumnType::of(key, true).map(|ty| ty.layout) else {
                return self.malformed("keys that are no integers");
            };
            let keys = self.convert(codes, carrier, natural, nulls.as_ref())?;
            return self.array(self.data_type(), vec![keys], nulls, Some(values));
        }
        let indices = self.array(&index_type(carrier), vec![codes], nulls, None)?;
        let checked = || Some(TakeOptions { check_bounds: true });
        if matches!(values.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary) {
            let lengths = take(&cast(&length(&values)?, &DataType::Int64)?, &indices, checked())?;
            let bytes = sum(lengths.as_primitive::<Int64Type>()).unwrap_or(0).as_usize();
            let has_32_bit_offsets = matches!(values.data_type(), DataType::Utf8 | DataType::Binary);
            let limit = if has_32_bit_offsets { self.max_copied_bytes.min(i32::MAX as usize) } else { self.max_copied_bytes };
            if bytes > limit {
                return Err(self.too_large("bytes of strings", bytes, limit));
            }
        }
        Ok(take(&values, &indices, checked())?)
    }
}

/// Encodes plain values as an array of a dictionary type.
pub(crate) fn encode(plain: &ArrayRef, dictionary: &DataType) -> Result<ArrayRef> {
    // arrow-cast does not encode these types, but encodes the integers behind them.
    let integers = match plain.data_type() {
        DataType::Boolean => DataType::Int8,
        DataType::Duration(_) => DataType::Int64,
        _ => return Ok(cast(plain, dictionary)?),
    };
    let DataType::Dictionary(key, _) = dictionary else { return Ok(cast(plain, dictionary)?) };
    let encoded = cast(&cast(plain, &integers)?, &DataType::Dictionary(key.clone(), Box::new(integers)))?;
    Ok(cast(&encoded, dictionary)?)
}

/// The Arrow integer type of a carrier.
fn index_type(carrier: Carrier) -> DataType {
    match carrier {
        Carrier::I8 => DataType::Int8,
        Carrier::I16 => DataType::Int16,
        Carrier::I32 => DataType::Int32,
        Carrier::U8 => DataType::UInt8,
        Carrier::U16 => DataType::UInt16,
        Carrier::U32 => DataType::UInt32,
        Carrier::U64 => DataType::UInt64,
        Carrier::I64 | Carrier::I128 | Carrier::I256 | Carrier::F32 | Carrier::F64 => DataType::Int64,
    }
}
