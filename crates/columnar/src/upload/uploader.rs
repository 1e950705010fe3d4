// SPDX-License-Identifier: Apache-2.0
//! Upload of host batches as one device batch, column by column.
//!
//! Small host batches need no prior `concat`. Values in their natural layout are uploaded
//! unchanged; other layouts are converted on the host.

use std::cell::OnceCell;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer, MutableBuffer, NullBuffer};
use arrow::datatypes::SchemaRef;
use device::{Buffer, Queue};

use crate::host_arrays::fixed_width_values;
use crate::narrow::is_integer;
use crate::upload::chunks::{ChunkNulls, ColumnChunks};
use crate::upload::transfer::{all_valid, upload_bitmaps, upload_buffer, upload_concatenated};
use crate::upload::{dictionary, lists, strings};
use crate::{ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result};

/// Enqueues the upload of host batches as one device batch of `types`.
///
/// Returns once queued: later work on `queue` sees the values. Unified memory needs no copy of a
/// single batch in its natural layout.
///
/// # Errors
/// - `Nulls`: a column declared non-nullable has NULLs.
/// - `Type`: a batch differs from the schema.
/// - `Range`: a value does not fit its layout.
/// - `TooLarge`: the batches together exceed a limit of their types.
/// - Errors of the device.
pub fn upload(queue: &Queue, schema: &SchemaRef, types: &[ColumnType], batches: &[RecordBatch]) -> Result<DeviceBatch> {
    let types: Vec<_> = types.iter().map(|ty| Arc::new(ty.clone())).collect();
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    let uploader = Uploader::new(queue, rows);
    let columns = schema
        .fields()
        .iter()
        .zip(&types)
        .enumerate()
        .map(|(index, (field, ty))| {
            let arrays = batches.iter().map(|batch| {
                batch.columns().get(index).ok_or_else(|| {
                    Error::Malformed(format!("batch has no column {index}, which the schema calls \"{}\"", field.name()))
                })
            });
            uploader.column(field.name(), ty, arrays.collect::<Result<_>>()?)
        })
        .collect::<Result<_>>()?;
    DeviceBatch::try_new(Arc::clone(schema), columns, rows)
}

/// State that the columns of one upload share.
pub(crate) struct Uploader<'a> {
    pub(crate) queue: &'a Queue,
    rows: usize,
    /// Validity bitmap of all nullable columns without NULLs.
    all_valid: OnceCell<Buffer>,
}

impl<'a> Uploader<'a> {
    pub(crate) fn new(queue: &'a Queue, rows: usize) -> Self {
        Self { queue, rows, all_valid: OnceCell::new() }
    }

    /// Uploads the chunks of one column.
    pub(crate) fn column(&self, name: &str, ty: &Arc<ColumnType>, mut arrays: Vec<&ArrayRef>) -> Result<DeviceColumn> {
        for array in &arrays {
            self.check_type(name, ty, array)?;
        }
        arrays.retain(|array| !array.is_empty());
        let chunks = ColumnChunks { queue: self.queue, name, ty, arrays: &arrays, rows: self.rows };
        match &ty.layout {
            Layout::Dictionary { codes, values } => {
                let encoded = dictionary::encode(&chunks, *codes)?;
                let data_type = encoded.values.data_type().clone();
                let values = Arc::new(ColumnType { data_type, nullable: false, layout: (**values).clone(), bounds: None });
                let dictionary = Uploader::new(self.queue, encoded.values.len()).column(name, &values, vec![&encoded.values])?;
                return self.nested(name, ty, encoded.codes, &encoded.nulls, Arc::new(dictionary));
            }
            Layout::List(elements) => {
                let encoded = lists::encode(&chunks)?;
                let uploader = Uploader::new(self.queue, encoded.element_count);
                let elements = uploader.column(name, &Arc::new((**elements).clone()), encoded.elements.iter().collect())?;
                let pairs = HostBuffer::from_vec(encoded.pairs);
                return self.nested(name, ty, pairs, &chunk_nulls(&arrays), Arc::new(elements));
            }
            _ => {}
        }
        let (validity, null_count) = self.validity(name, ty, &chunk_nulls(&arrays))?;
        let (buffers, offset) = upload_values(&chunks)?;
        DeviceColumn::try_new(Arc::clone(ty), self.rows, buffers, validity, Some(null_count), None)?.with_offset(offset)
    }

    /// Refuses an array whose type is not the column's.
    pub(crate) fn check_type(&self, name: &str, ty: &ColumnType, array: &dyn Array) -> Result<()> {
        if *array.data_type() == ty.data_type {
            return Ok(());
        }
        Err(Error::Type { column: name.into(), expected: ty.data_type.clone(), actual: array.data_type().clone() })
    }

    /// Uploads codes over a dictionary, or offset/length pairs over elements.
    pub(crate) fn nested(
        &self,
        name: &str,
        ty: &Arc<ColumnType>,
        rows: HostBuffer,
        nulls: &[ChunkNulls],
        values: Arc<DeviceColumn>,
    ) -> Result<DeviceColumn> {
        let (validity, null_count) = self.validity(name, ty, nulls)?;
        let buffers = vec![upload_buffer(self.queue, rows)?];
        DeviceColumn::try_new(Arc::clone(ty), self.rows, buffers, validity, Some(null_count), Some(values))
    }

    /// Uploads the validity bitmap of a column. Returns it with the number of NULLs.
    pub(crate) fn validity(&self, name: &str, ty: &ColumnType, nulls: &[ChunkNulls]) -> Result<(Option<(Buffer, usize)>, usize)> {
        let null_count = nulls.iter().flat_map(|(_, nulls)| nulls).map(NullBuffer::null_count).sum();
        if ty.layout == Layout::Null {
            return Ok((None, self.rows));
        }
        if !ty.nullable {
            return if null_count == 0 {
                Ok((None, 0))
            } else {
                Err(Error::Nulls { column: name.into(), null_count, rows: self.rows })
            };
        }
        if null_count > 0 {
            let bits = nulls.iter().map(|(len, nulls)| match nulls {
                Some(nulls) => nulls.inner().clone(),
                None => BooleanBuffer::new_set(*len),
            });
            return Ok((Some(upload_bitmaps(self.queue, &bits.collect::<Vec<_>>())?), null_count));
        }
        if self.all_valid.get().is_none() {
            let _ = self.all_valid.set(all_valid(self.queue, self.rows)?);
        }
        Ok((self.all_valid.get().map(|bits| (bits.clone(), 0)), 0))
    }
}

fn chunk_nulls(arrays: &[&ArrayRef]) -> Vec<ChunkNulls> {
    arrays.iter().map(|array| (array.len(), array.nulls().cloned())).collect()
}

/// Uploads the buffers that [`Layout`] lists. Returns them with the offset of the first value.
fn upload_values(chunks: &ColumnChunks<'_>) -> Result<(Vec<Buffer>, usize)> {
    let natural = ColumnType::of(&chunks.ty.data_type, true).map(|ty| ty.layout);
    match (&chunks.ty.layout, natural) {
        (Layout::Null, Some(Layout::Null)) => Ok((vec![], 0)),
        (Layout::Bits, Some(Layout::Bits)) => {
            let bits: Vec<&BooleanBuffer> = chunks.arrays.iter().map(|array| array.as_boolean().values()).collect();
            let (buffer, offset) = upload_bitmaps(chunks.queue, &bits)?;
            Ok((vec![buffer], offset))
        }
        (Layout::Fixed(carrier), Some(Layout::Fixed(natural))) if *carrier == natural => {
            Ok((vec![upload_fixed_width(chunks, carrier.width())?], 0))
        }
        (Layout::Fixed(carrier), Some(Layout::Fixed(natural))) if is_integer(*carrier) && is_integer(natural) => {
            let mut converted = MutableBuffer::with_capacity(chunks.rows * carrier.width());
            chunks.convert(natural, *carrier, &mut converted)?;
            Ok((vec![upload_buffer(chunks.queue, converted)?], 0))
        }
        (Layout::Bytes(width), Some(Layout::Bytes(natural))) if *width == natural => {
            Ok((vec![upload_fixed_width(chunks, natural as usize)?], 0))
        }
        (Layout::Offsets32, Some(layout)) if is_variable(&layout) => Ok((strings::upload_offsets::<i32>(chunks)?, 0)),
        (Layout::Offsets64, Some(layout)) if is_variable(&layout) => Ok((strings::upload_offsets::<i64>(chunks)?, 0)),
        (Layout::Views, Some(layout)) if is_variable(&layout) => Ok((strings::upload_views(chunks)?, 0)),
        _ => Err(Error::Malformed(format!(
            "column \"{}\": {} cannot be laid out as {:?}",
            chunks.name, chunks.ty.data_type, chunks.ty.layout
        ))),
    }
}

fn upload_fixed_width(chunks: &ColumnChunks<'_>, width: usize) -> Result<Buffer> {
    let values: Vec<_> = chunks.arrays.iter().map(|array| fixed_width_values(array, width)).collect();
    upload_concatenated(chunks.queue, &values)
}

/// Whether values of the natural layout vary in length.
fn is_variable(natural: &Layout) -> bool {
    matches!(natural, Layout::Offsets32 | Layout::Offsets64 | Layout::Views)
}
