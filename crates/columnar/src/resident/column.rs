// SPDX-License-Identifier: Apache-2.0
//! One column of a resident table: its narrowest type, its statistics and its uploads.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{Buffer as HostBuffer, MutableBuffer};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use device::Queue;

use crate::download::column::download_column;
use crate::host_arrays::view_string_bytes;
use crate::narrow::{convert, limits};
use crate::resident::dictionary::TableDictionary;
use crate::statistics::{ColumnStatistics, MinMax};
use crate::upload::chunks::ColumnChunks;
use crate::upload::transfer::all_valid;
use crate::upload::uploader::Uploader;
use crate::{Carrier, ColumnType, DeviceColumn, Error, Layout, Result};

/// Rows of a table after which its strings keep their codes, though these may not pay any more.
const DECIDED_ROWS: usize = 1 << 20;

/// State of one column over the rows so far.
#[derive(Debug, Clone)]
pub(crate) struct ColumnState {
    name: String,
    /// The type before narrowing.
    natural: ColumnType,
    rows: usize,
    null_count: usize,
    min_max: MinMax,
    /// The dictionary of all rows; `None` once it was dropped.
    dictionary: Option<TableDictionary>,
    /// Most bytes of strings of a batch, for views.
    most_bytes: usize,
    /// Whether all rows were uploaded from the host, with their values read.
    is_known: bool,
}

impl ColumnState {
    pub(crate) fn new(name: &str, natural: ColumnType) -> Self {
        let dictionary = TableDictionary::new(&natural.data_type);
        let (rows, null_count, most_bytes) = (0, 0, 0);
        Self { name: name.into(), natural, rows, null_count, min_max: MinMax::Empty, dictionary, most_bytes, is_known: true }
    }

    /// A column whose values the host has not read. It keeps its type.
    pub(crate) fn unknown(name: &str, ty: ColumnType) -> Self {
        Self { dictionary: None, is_known: false, ..Self::new(name, ty) }
    }

    /// The narrowest type for the rows so far.
    pub(crate) fn ty(&self) -> ColumnType {
        let mut ty = self.natural.clone();
        if !self.is_known || self.rows == 0 || ty.layout == Layout::Null {
            return ty;
        }
        ty.nullable = self.null_count > 0;
        if let Some(dictionary) = &self.dictionary {
            let greatest = dictionary.len().max(1).next_power_of_two() - 1;
            let codes = if greatest <= usize::from(u8::MAX) { Carrier::U8 } else { Carrier::U16 };
            ty.layout = Layout::Dictionary { codes, values: Box::new(Layout::Offsets32) };
            ty.bounds = Some((0, greatest as i128));
            return ty;
        }
        // A view takes 16 bytes beside its string, an offset 4.
        if ty.layout == Layout::Views && self.most_bytes <= i32::MAX as usize {
            ty.layout = Layout::Offsets32;
        }
        ty.bounds = self.min_max.integers().map(round_outwards);
        if let (Layout::Fixed(natural), Some(bounds)) = (&ty.layout, ty.bounds) {
            ty.layout = Layout::Fixed(narrowest(*natural, bounds));
        }
        ty
    }

    pub(crate) fn statistics(&self) -> ColumnStatistics {
        if !self.is_known {
            return ColumnStatistics::default();
        }
        let min_max = self.min_max.arrays();
        let distinct_count = self.dictionary.as_ref().map(TableDictionary::len);
        ColumnStatistics { null_count: Some(self.null_count), min_max, distinct_count }
    }

    /// Updates the state with the chunks of a batch and uploads them.
    pub(crate) fn upload(&mut self, uploader: &Uploader<'_>, arrays: &[&ArrayRef]) -> Result<DeviceColumn> {
        let is_small = self.rows < DECIDED_ROWS;
        for array in arrays {
            uploader.check_type(&self.name, &self.natural, array)?;
            self.rows += array.len();
            self.null_count += array.logical_null_count();
            if self.is_known {
                self.min_max.add(array)?;
            }
        }
        if self.natural.layout == Layout::Views {
            self.most_bytes = self.most_bytes.max(arrays.iter().map(|array| view_string_bytes(array)).sum());
        }
        if !self.natural.nullable && self.null_count > 0 {
            let rows = arrays.iter().map(|array| array.len()).sum();
            return Err(Error::Nulls { column: self.name.clone(), null_count: self.null_count, rows });
        }
        let ty = Arc::new(self.ty());
        if let (DataType::Dictionary(_, value), false) = (&ty.data_type, matches!(ty.layout, Layout::Dictionary { .. })) {
            let plain = arrays
                .iter()
                .map(|array| cast(array, value).map_err(|error| Error::Malformed(format!("column \"{}\": {error}", self.name))));
            let plain = plain.collect::<Result<Vec<_>>>()?;
            let value_type = Arc::new(ColumnType { data_type: value.as_ref().clone(), ..(*ty).clone() });
            return uploader.column(&self.name, &value_type, plain.iter().collect())?.with_type(ty, None);
        }
        let row_codes = self.encode(uploader.queue, arrays, is_small)?;
        let ty = Arc::new(self.ty());
        let (Some(row_codes), Layout::Dictionary { codes, .. }) = (row_codes, &ty.layout) else {
            return uploader.column(&self.name, &ty, arrays.to_vec());
        };
        self.upload_codes(uploader, &ty, *codes, arrays, &row_codes)
    }

    /// Codes of all values in the table's dictionary. Drops the dictionary if it exceeds a limit,
    /// or does not pay in a small table: all of its batches are rewritten then.
    fn encode(&mut self, queue: &Queue, arrays: &[&ArrayRef], is_small: bool) -> Result<Option<Vec<u32>>> {
        let Some(dictionary) = &mut self.dictionary else { return Ok(None) };
        let mut row_codes = Vec::with_capacity(arrays.iter().map(|array| array.len()).sum());
        for array in arrays {
            let chunks = ColumnChunks { queue, name: &self.name, ty: &self.natural, arrays: &[array], rows: array.len() };
            if !dictionary.encode(array, &chunks, &mut row_codes)? {
                self.dictionary = None;
                return Ok(None);
            }
        }
        if is_small && !dictionary.pays() {
            self.dictionary = None;
            return Ok(None);
        }
        Ok(Some(row_codes))
    }

    fn upload_codes(
        &mut self,
        uploader: &Uploader<'_>,
        ty: &Arc<ColumnType>,
        carrier: Carrier,
        arrays: &[&ArrayRef],
        row_codes: &[u32],
    ) -> Result<DeviceColumn> {
        let Some(dictionary) = &mut self.dictionary else {
            return Err(Error::Malformed(format!("column \"{}\": codes without a dictionary", self.name)));
        };
        let mut codes = MutableBuffer::with_capacity(row_codes.len() * carrier.width());
        let converted = convert(&HostBuffer::from_slice_ref(row_codes), Carrier::U32, carrier, None, &mut codes);
        if converted.is_err() {
            return Err(Error::Malformed(format!("column \"{}\": codes beyond the dictionary", self.name)));
        }
        let nulls: Vec<_> = arrays.iter().map(|array| (array.len(), array.logical_nulls())).collect();
        let values = dictionary.on_device(uploader.queue)?;
        uploader.nested(&self.name, ty, codes.into(), &nulls, values)
    }

    /// Converts a column of an earlier batch to the table's final type.
    ///
    /// A change of nullability or dictionary shares the buffers. A change of layout goes through
    /// the host.
    pub(crate) async fn convert(&mut self, queue: &Queue, ty: &Arc<ColumnType>, column: &DeviceColumn) -> Result<DeviceColumn> {
        let old = column.ty();
        let dictionary = match (&old.layout, &mut self.dictionary) {
            (Layout::Dictionary { .. }, Some(dictionary)) => Some(dictionary.on_device(queue)?),
            _ => None,
        };
        if shares_buffers(old, ty) {
            let column = match dictionary {
                Some(dictionary) => column.with_dictionary(dictionary),
                None => column.clone(),
            };
            let missing = ty.nullable && !old.nullable && ty.layout != Layout::Null;
            let validity = if missing { Some(all_valid(queue, column.len())?) } else { None };
            return column.with_type(Arc::clone(ty), validity);
        }
        let array = download_column(queue, &self.name, column).await?;
        let uploader = Uploader::new(queue, array.len());
        match &ty.layout {
            Layout::Dictionary { codes, .. } if self.dictionary.is_some() => {
                let row_codes = self.encode(queue, &[&array], false)?.unwrap_or_default();
                self.upload_codes(&uploader, ty, *codes, &[&array], &row_codes)
            }
            _ => uploader.column(&self.name, ty, vec![&array]),
        }
    }
}

/// Whether a column of an earlier batch keeps its buffers in the table's final type.
pub(crate) fn shares_buffers(old: &ColumnType, ty: &ColumnType) -> bool {
    old.layout == ty.layout && (ty.nullable || !old.nullable)
}

/// The narrowest integer type with the sign of `natural` that holds all values within bounds.
fn narrowest(natural: Carrier, (least, greatest): (i128, i128)) -> Carrier {
    use Carrier::*;
    let narrower: &[Carrier] = match natural {
        U8 | U16 | U32 | U64 => &[U8, U16, U32],
        I8 | I16 | I32 | I64 | I128 | I256 => &[I8, I16, I32, I64, I128],
        F32 | F64 => &[],
    };
    let holds = |carrier: &&Carrier| {
        let (lowest, highest) = limits(**carrier);
        carrier.width() < natural.width() && lowest <= least && greatest <= highest
    };
    narrower.iter().find(holds).copied().unwrap_or(natural)
}

/// The least bounds of the form 0 or -2^k, and 0 or 2^k - 1, around the given ones.
fn round_outwards((least, greatest): (i128, i128)) -> (i128, i128) {
    let ones = |value: i128| i128::MAX.checked_shr(value.leading_zeros() - 1).unwrap_or(0);
    let least = if least >= 0 { 0 } else { -ones(-(least + 1)) - 1 };
    (least, if greatest <= 0 { 0 } else { ones(greatest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_round_outwards_to_powers_of_two() {
        for (bounds, rounded) in [
            ((0, 0), (0, 0)),
            ((1, 1), (0, 1)),
            ((3, 4), (0, 7)),
            ((-1, 255), (-1, 255)),
            ((-2, 256), (-2, 511)),
            ((-3, -2), (-4, 0)),
            ((i64::MIN as i128, i64::MAX as i128), (i64::MIN as i128, i64::MAX as i128)),
            ((0, u64::MAX as i128), (0, u64::MAX as i128)),
            ((i128::MIN, i128::MAX), (i128::MIN, i128::MAX)),
        ] {
            assert_eq!(round_outwards(bounds), rounded, "{bounds:?}");
        }
    }
}
