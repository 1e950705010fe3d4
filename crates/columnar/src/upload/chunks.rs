// SPDX-License-Identifier: Apache-2.0
//! The host arrays of one column, as in Arrow C++'s `ChunkedArray`.

use arrow::array::ArrayRef;
use arrow::buffer::{MutableBuffer, NullBuffer};
use arrow::datatypes::i256;
use device::Queue;

use crate::host_arrays::fixed_width_values;
use crate::narrow::convert;
use crate::{Carrier, ColumnType, Error, Result};

/// Length of a chunk, and its validity bitmap if it has one.
pub(crate) type ChunkNulls = (usize, Option<NullBuffer>);

/// The arrays that become one device column; none is empty.
pub(crate) struct ColumnChunks<'a> {
    pub(crate) queue: &'a Queue,
    /// Name of the column, for errors.
    pub(crate) name: &'a str,
    pub(crate) ty: &'a ColumnType,
    pub(crate) arrays: &'a [&'a ArrayRef],
    /// Rows of all arrays.
    pub(crate) rows: usize,
}

impl ColumnChunks<'_> {
    /// Appends the values to `out`, converted to the carrier `to`.
    pub(crate) fn convert(&self, from: Carrier, to: Carrier, out: &mut MutableBuffer) -> Result<()> {
        for array in self.arrays {
            let values = fixed_width_values(array, from.width());
            match from == to {
                true => out.extend_from_slice(&values),
                false => convert(&values, from, to, array.nulls(), out).map_err(|value| self.out_of_range(value, to))?,
            }
        }
        Ok(())
    }

    fn out_of_range(&self, value: i256, carrier: Carrier) -> Error {
        Error::Range { column: self.name.into(), data_type: self.ty.data_type.clone(), value, carrier: carrier.name() }
    }

    pub(crate) fn too_large(&self, what: &'static str, actual: usize, limit: usize) -> Error {
        Error::TooLarge { column: self.name.into(), data_type: self.ty.data_type.clone(), what, actual, limit }
    }
}
