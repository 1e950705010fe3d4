// SPDX-License-Identifier: Apache-2.0
//! Tables that stay in device memory, in the narrowest types that hold their values.
//!
//! Rows come in any portions and leave as batches of [`ResidentBuilder::with_batch_rows`] rows. Each
//! batch goes up as soon as it is full, in the types that the rows so far allow; batches that turn
//! out too narrow in the end are laid out anew then, which is rare. So the host never holds more
//! than one batch.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::{Buffer as HostBuffer, MutableBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use device::Queue;

use crate::batch::memory_bytes;
use crate::dictionary::keys;
use crate::download::download_column;
use crate::gather::{ones, place};
use crate::interner::{Interner, for_each_bytes};
use crate::narrow::{convert, limits};
use crate::statistics::{ColumnStatistics, Extremes};
use crate::upload::{Pieces, Uploader};
use crate::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result, natural_types};

/// Strings with more distinct values than this get no dictionary.
const DICTIONARY_VALUES: usize = 1024;
/// Columns whose own type is a dictionary keep one for the whole table up to this many values.
const OWN_DICTIONARY_VALUES: usize = 1 << 16;
/// And up to this many bytes of values.
const DICTIONARY_BYTES: usize = 1 << 26;

/// A table in device memory.
#[derive(Debug, Clone)]
pub struct Resident {
    /// Names and logical types.
    pub schema: SchemaRef,
    /// The types of every batch.
    pub types: Vec<ColumnType>,
    /// The rows.
    pub batches: Vec<DeviceBatch>,
    /// What is known of each column's values.
    pub statistics: Vec<ColumnStatistics>,
    columns: Vec<Column>,
}

impl Resident {
    /// Rows of a full batch, where nothing else is asked for.
    pub const BATCH_ROWS: usize = 1 << 20;

    /// Device bytes behind all columns, or one of them. Memory that batches share is counted once.
    pub fn memory_bytes(&self, column: Option<usize>) -> usize {
        let chosen = |batch: &'_ DeviceBatch| match column {
            Some(index) => index..(index + 1).min(batch.columns().len()),
            None => 0..batch.columns().len(),
        };
        memory_bytes(self.batches.iter().flat_map(|batch| batch.columns().get(chosen(batch)).unwrap_or_default()))
    }

    /// A table of batches that lie on the device already, of `types`. They stay as they lie, but for batches of many rows, which
    /// are cut; nothing is known of their values.
    ///
    /// # Errors
    /// `Malformed` for a batch of other types.
    pub fn of_batches(schema: SchemaRef, types: Vec<ColumnType>, batches: &[DeviceBatch]) -> Result<Resident> {
        let columns = schema.fields().len();
        if types.len() != columns || batches.iter().any(|batch| batch.columns().len() != columns) {
            return Err(Error::Malformed(format!("a table of {columns} columns: a batch, or its types, are not as many")));
        }
        for column in batches.iter().flat_map(|batch| batch.columns().iter().zip(schema.fields()).zip(&types)) {
            let ((column, field), ty) = column;
            if **column.ty() != *ty {
                let (name, actual) = (field.name(), column.ty());
                return Err(Error::Malformed(format!("column \"{name}\": expected {ty:?}, got {actual:?}")));
            }
        }
        let unknown = |(field, ty): (&FieldRef, &ColumnType)| Column::unknown(field.name(), ty.clone());
        let columns: Vec<Column> = schema.fields().iter().zip(&types).map(unknown).collect();
        Ok(Resident {
            statistics: columns.iter().map(Column::statistics).collect(),
            batches: batches.iter().flat_map(|batch| batch.pieces(Self::BATCH_ROWS)).collect(),
            schema,
            types,
            columns,
        })
    }
}

/// Uploads rows as they come and finds the narrowest types for them.
///
/// - Decimals of 128 and 256 bits are carried in the fewest bits, from 32 on, that hold all their values.
/// - Columns without NULLs have no validity, whatever their field says.
/// - Strings of at most 1024 distinct values become codes of 8 or 16 bits with one dictionary for
///   the whole table.
/// - Integers, dates, times, decimals and codes get bounds, rounded outwards to powers of two.
#[derive(Debug)]
pub struct ResidentBuilder {
    queue: Queue,
    schema: SchemaRef,
    batch_rows: usize,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    columns: Vec<Column>,
    batches: Vec<DeviceBatch>,
}

impl ResidentBuilder {
    /// A builder of an empty table.
    ///
    /// # Errors
    /// `Unsupported`, naming the first column whose type is not supported on the device.
    pub fn try_new(queue: &Queue, schema: &SchemaRef) -> Result<Self> {
        let types = natural_types(schema)?;
        let columns = schema.fields().iter().zip(types).map(|(field, ty)| Column::new(field.name(), ty)).collect();
        Ok(Self {
            queue: queue.clone(),
            schema: Arc::clone(schema),
            batch_rows: Resident::BATCH_ROWS,
            pending: vec![],
            pending_rows: 0,
            columns,
            batches: vec![],
        })
    }

    /// A builder that begins with the rows of a table, which stays as it is. Its batches are shared
    /// as far as their types remain.
    pub fn extending(queue: &Queue, table: &Resident) -> Self {
        Self {
            queue: queue.clone(),
            schema: Arc::clone(&table.schema),
            batch_rows: Resident::BATCH_ROWS,
            pending: vec![],
            pending_rows: 0,
            columns: table.columns.clone(),
            batches: table.batches.clone(),
        }
    }

    /// Rows of a full batch, at least 1. More rows make fewer launches, fewer make better use of small memory.
    #[must_use]
    pub fn with_batch_rows(mut self, batch_rows: usize) -> Self {
        self.batch_rows = batch_rows.max(1);
        self
    }

    /// Adds rows. Uploads as many full batches as there are then.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload).
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let mut rest = batch;
        while self.pending_rows + rest.num_rows() >= self.batch_rows {
            let room = self.batch_rows - self.pending_rows;
            self.pending.push(rest.slice(0, room));
            rest = rest.slice(room, rest.num_rows() - room);
            self.upload_pending()?;
        }
        if rest.num_rows() > 0 {
            self.pending_rows += rest.num_rows();
            self.pending.push(rest);
        }
        Ok(())
    }

    /// Uploads the last rows and brings all batches to the same types.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload) and [`download`](crate::download()).
    pub async fn finish(mut self) -> Result<Resident> {
        if !self.pending.is_empty() {
            self.upload_pending()?;
        }
        let types: Vec<_> = self.columns.iter().map(|column| Arc::new(column.ty())).collect();
        for batch in &mut self.batches {
            let mut columns = Vec::with_capacity(types.len());
            for ((state, ty), column) in self.columns.iter_mut().zip(&types).zip(batch.columns()) {
                columns.push(state.adapt(&self.queue, ty, column).await?);
            }
            *batch = DeviceBatch::try_new(Arc::clone(&self.schema), columns, batch.num_rows())?;
        }
        Ok(Resident {
            types: types.iter().map(|ty| (**ty).clone()).collect(),
            statistics: self.columns.iter().map(Column::statistics).collect(),
            schema: self.schema,
            batches: self.batches,
            columns: self.columns,
        })
    }

    fn upload_pending(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.pending);
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        self.pending_rows = 0;
        let uploader = Uploader::new(&self.queue, rows);
        let mut columns = Vec::with_capacity(self.columns.len());
        for (index, column) in self.columns.iter_mut().enumerate() {
            let arrays = batches.iter().filter_map(|batch| batch.columns().get(index));
            let arrays: Vec<_> = arrays.filter(|array| !array.is_empty()).collect();
            columns.push(column.upload(&uploader, &arrays)?);
        }
        self.batches.push(DeviceBatch::try_new(Arc::clone(&self.schema), columns, rows)?);
        Ok(())
    }
}

/// What is known of one column so far.
#[derive(Debug, Clone)]
struct Column {
    name: String,
    /// The type without narrowing, as the schema declares it.
    natural: ColumnType,
    rows: usize,
    null_count: usize,
    extremes: Extremes,
    /// The dictionary of all rows, while there is one.
    dictionary: Option<Dictionary>,
    /// Whether all rows came through the host.
    is_known: bool,
}

/// A dictionary that grows with the table. Codes never change.
#[derive(Debug, Clone)]
struct Dictionary {
    interner: Interner,
    /// Most values that it may have.
    limit: usize,
    value_type: DataType,
    /// The values on the device, as many as when it was last needed.
    uploaded: Option<Arc<DeviceColumn>>,
}

impl Column {
    fn new(name: &str, natural: ColumnType) -> Self {
        let dictionary = match &natural.data_type {
            DataType::Dictionary(key, value) => key_limit(key).map(|limit| (limit.min(OWN_DICTIONARY_VALUES), &**value)),
            plain => Some((DICTIONARY_VALUES, plain)),
        };
        let dictionary = dictionary.filter(|(_, value)| crate::strings::is_text(value)).map(|(limit, value)| Dictionary {
            interner: Interner::default(),
            limit,
            value_type: value.clone(),
            uploaded: None,
        });
        Self { name: name.into(), natural, rows: 0, null_count: 0, extremes: Extremes::None, dictionary, is_known: true }
    }

    /// A column of values that the host has not seen, which keeps its type.
    fn unknown(name: &str, ty: ColumnType) -> Self {
        Self { dictionary: None, is_known: false, ..Self::new(name, ty) }
    }

    /// The narrowest type for the rows so far.
    fn ty(&self) -> ColumnType {
        let mut ty = self.natural.clone();
        if !self.is_known || self.rows == 0 || ty.layout == Layout::Null {
            return ty;
        }
        ty.nullable = self.null_count > 0;
        if let Some(dictionary) = &self.dictionary {
            let greatest = dictionary.interner.len().max(1).next_power_of_two() - 1;
            let codes = if greatest <= usize::from(u8::MAX) { Carrier::U8 } else { Carrier::U16 };
            ty.layout = Layout::Dictionary { codes, values: Box::new(Layout::Offsets32) };
            ty.bounds = Some((0, greatest as i128));
            return ty;
        }
        ty.bounds = self.extremes.integers().map(round_outwards);
        if let (DataType::Decimal128(_, _) | DataType::Decimal256(_, _), Some((least, greatest))) = (&ty.data_type, ty.bounds) {
            let holds = |carrier: &Carrier| limits(*carrier).0 <= least && greatest <= limits(*carrier).1;
            if let Some(carrier) = [Carrier::I32, Carrier::I64, Carrier::I128].into_iter().find(holds) {
                ty.layout = Layout::Fixed(carrier);
            }
        }
        ty
    }

    fn statistics(&self) -> ColumnStatistics {
        if !self.is_known {
            return ColumnStatistics::default();
        }
        let (min, max) = self.extremes.arrays();
        let distinct_count = self.dictionary.as_ref().map(|dictionary| dictionary.interner.len());
        ColumnStatistics { null_count: Some(self.null_count), min, max, distinct_count }
    }

    /// Takes in the pieces of a batch and uploads them.
    fn upload(&mut self, uploader: &Uploader<'_>, arrays: &[&ArrayRef]) -> Result<DeviceColumn> {
        for array in arrays {
            uploader.check_type(&self.name, &self.natural, array)?;
            self.rows += array.len();
            self.null_count += array.logical_null_count();
            if self.is_known {
                self.extremes.add(array)?;
            }
        }
        if !self.natural.nullable && self.null_count > 0 {
            return Err(Error::Nulls { column: self.name.clone(), null_count: self.null_count, rows: self.rows });
        }
        let ty = Arc::new(self.ty());
        if let (DataType::Dictionary(_, value), false) = (&ty.data_type, matches!(ty.layout, Layout::Dictionary { .. })) {
            let plain = arrays
                .iter()
                .map(|array| cast(array, value).map_err(|error| Error::Malformed(format!("column \"{}\": {error}", self.name))));
            let plain = plain.collect::<Result<Vec<_>>>()?;
            let of_values = Arc::new(ColumnType { data_type: value.as_ref().clone(), ..(*ty).clone() });
            return uploader.column(&self.name, &of_values, plain.iter().collect())?.with_type(ty, None);
        }
        let numbers = self.number(uploader.queue, arrays)?;
        let ty = Arc::new(self.ty());
        let (Some(numbers), Layout::Dictionary { codes, .. }) = (numbers, &ty.layout) else {
            return uploader.column(&self.name, &ty, arrays.to_vec());
        };
        self.upload_codes(uploader, &ty, *codes, arrays, &numbers)
    }

    /// The numbers of all values in the table's dictionary, which ends where there are too many.
    fn number(&mut self, queue: &Queue, arrays: &[&ArrayRef]) -> Result<Option<Vec<u32>>> {
        let Some(dictionary) = &mut self.dictionary else { return Ok(None) };
        let mut numbers = Vec::with_capacity(arrays.iter().map(|array| array.len()).sum());
        for array in arrays {
            let pieces = Pieces { queue, name: &self.name, ty: &self.natural, arrays: &[array], rows: array.len() };
            if !dictionary.number(array, &pieces, &mut numbers)? {
                self.dictionary = None;
                return Ok(None);
            }
        }
        Ok(Some(numbers))
    }

    fn upload_codes(
        &mut self,
        uploader: &Uploader<'_>,
        ty: &Arc<ColumnType>,
        carrier: Carrier,
        arrays: &[&ArrayRef],
        numbers: &[u32],
    ) -> Result<DeviceColumn> {
        let Some(dictionary) = &mut self.dictionary else {
            return Err(Error::Malformed(format!("column \"{}\": codes without a dictionary", self.name)));
        };
        let mut codes = MutableBuffer::with_capacity(numbers.len() * carrier.width());
        let converted = convert(&HostBuffer::from_slice_ref(numbers), Carrier::U32, carrier, None, &mut codes);
        if converted.is_err() {
            return Err(Error::Malformed(format!("column \"{}\": codes beyond the dictionary", self.name)));
        }
        let nulls: Vec<_> = arrays.iter().map(|array| (array.len(), array.logical_nulls())).collect();
        let values = dictionary.on_device(uploader.queue)?;
        uploader.codes(&self.name, ty, codes.into(), &nulls, values)
    }

    /// The same column in the table's final type.
    async fn adapt(&mut self, queue: &Queue, ty: &Arc<ColumnType>, column: &DeviceColumn) -> Result<DeviceColumn> {
        let old = column.ty();
        let dictionary = match (&old.layout, &mut self.dictionary) {
            (Layout::Dictionary { .. }, Some(dictionary)) => Some(dictionary.on_device(queue)?),
            _ => None,
        };
        if old.layout == ty.layout && (ty.nullable || !old.nullable) {
            let column = match dictionary {
                Some(dictionary) => column.with_dictionary(dictionary),
                None => column.clone(),
            };
            let missing = ty.nullable && !old.nullable && ty.layout != Layout::Null;
            let validity = if missing { Some(ones(queue, column.len())?) } else { None };
            return column.with_type(Arc::clone(ty), validity);
        }
        let array = download_column(queue, &self.name, column).await?;
        let uploader = Uploader::new(queue, array.len());
        match &ty.layout {
            Layout::Dictionary { codes, .. } if self.dictionary.is_some() => {
                let numbers = self.number(queue, &[&array])?.unwrap_or_default();
                self.upload_codes(&uploader, ty, *codes, &[&array], &numbers)
            }
            _ => uploader.column(&self.name, ty, vec![&array]),
        }
    }
}

impl Dictionary {
    /// Appends the number of every value of `array`, 0 for NULLs; false where there are too many values.
    fn number(&mut self, array: &ArrayRef, pieces: &Pieces<'_>, numbers: &mut Vec<u32>) -> Result<bool> {
        let interner = &mut self.interner;
        let limit = self.limit;
        let mut fits = true;
        match array.as_any_dictionary_opt() {
            None => for_each_bytes(array, |value| {
                numbers.push(value.map_or(0, |value| interner.intern(value)));
                fits = interner.len() <= limit && interner.heap().len() <= DICTIONARY_BYTES;
                fits
            }),
            Some(array) => {
                // Only values that rows use count.
                let keys = keys(array.keys(), pieces)?;
                let nulls = array.logical_nulls();
                let mut used = vec![false; array.values().len()];
                for (row, key) in keys.iter().enumerate() {
                    if let Some(used) = used.get_mut(*key as usize)
                        && nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
                    {
                        *used = true;
                    }
                }
                let mut used = used.into_iter();
                let mut of_key = Vec::with_capacity(array.values().len());
                for_each_bytes(array.values(), |value| {
                    let used = used.next().unwrap_or(false);
                    let value = value.filter(|_| used);
                    of_key.push(value.map_or(0, |value| interner.intern(value)));
                    fits = interner.len() <= limit && interner.heap().len() <= DICTIONARY_BYTES;
                    fits
                });
                numbers.extend(keys.iter().enumerate().map(|(row, key)| match &nulls {
                    Some(nulls) if nulls.is_null(row) => 0,
                    _ => of_key.get(*key as usize).copied().unwrap_or(0),
                }));
            }
        }
        Ok(fits)
    }

    /// The values so far as a column.
    fn on_device(&mut self, queue: &Queue) -> Result<Arc<DeviceColumn>> {
        // Never without any value, so that the code of a NULL can be read.
        let len = self.interner.len().max(1);
        if let Some(uploaded) = &self.uploaded
            && uploaded.len() == len
        {
            return Ok(Arc::clone(uploaded));
        }
        let mut offsets: Vec<i32> = self.interner.offsets().iter().map(|&offset| offset as i32).collect();
        offsets.resize(len + 1, offsets.last().copied().unwrap_or(0));
        let ty = ColumnType { data_type: self.value_type.clone(), nullable: false, layout: Layout::Offsets32, bounds: None };
        let buffers =
            vec![place(queue, HostBuffer::from_vec(offsets))?, place(queue, HostBuffer::from_slice_ref(self.interner.heap()))?];
        let column = Arc::new(DeviceColumn::try_new(Arc::new(ty), len, buffers, None, None, None)?);
        self.uploaded = Some(Arc::clone(&column));
        Ok(column)
    }
}

/// Number of values that a dictionary with keys of this type can have.
fn key_limit(key: &DataType) -> Option<usize> {
    match ColumnType::of(key, true)?.layout {
        Layout::Fixed(carrier) => usize::try_from(limits(carrier).1.saturating_add(1)).ok(),
        _ => None,
    }
}

/// The least bounds around these of the form 0 or -2^k, and 0 or 2^k - 1.
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
