// SPDX-License-Identifier: Apache-2.0
//! Host batches to device batches.
//!
//! Several small host batches become one device batch without being concatenated first. Values of
//! the natural layout go as they lie; others are converted on the host. Strings, dictionaries
//! and lists have files of their own.

use std::cell::OnceCell;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer, MutableBuffer, NullBuffer};
use arrow::datatypes::{DataType, SchemaRef, i256};
use device::{Buffer, Queue};

use crate::gather::{gather, gather_bits, ones, place};
use crate::narrow::{convert, is_integer};
use crate::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result};

/// Enqueues the upload of host batches, which become one device batch, in the given types.
///
/// Returns once queued: work enqueued later on `queue` sees the values. On devices that share the
/// host's memory a single batch of the natural layout is not copied.
///
/// # Errors
/// `Nulls` where a column declared non-nullable has NULLs, `Type` where a batch differs from the
/// source, `Range` where a value does not fit its layout, `TooLarge` where the batches are too much
/// for one batch of their types; those of the device.
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

/// Length of a piece, and its NULLs where it has a bitmap for them.
pub(crate) type PieceNulls = (usize, Option<NullBuffer>);

/// What the columns of one upload share.
pub(crate) struct Uploader<'a> {
    pub(crate) queue: &'a Queue,
    rows: usize,
    /// One validity bitmap for all nullable columns without NULLs.
    ones: OnceCell<Buffer>,
}

impl<'a> Uploader<'a> {
    pub(crate) fn new(queue: &'a Queue, rows: usize) -> Self {
        Self { queue, rows, ones: OnceCell::new() }
    }

    /// Uploads the pieces of one column.
    pub(crate) fn column(&self, name: &str, ty: &Arc<ColumnType>, mut arrays: Vec<&ArrayRef>) -> Result<DeviceColumn> {
        for array in &arrays {
            self.check_type(name, ty, array)?;
        }
        arrays.retain(|array| !array.is_empty());
        let pieces = Pieces { queue: self.queue, name, ty, arrays: &arrays, rows: self.rows };
        if let Layout::Dictionary { codes, values } = &ty.layout {
            return crate::dictionary::column(self, &pieces, *codes, values);
        }
        if let Layout::List(elements) = &ty.layout {
            return crate::lists::column(self, &pieces, elements);
        }
        let nulls: Vec<_> = arrays.iter().map(|array| (array.len(), array.nulls().cloned())).collect();
        let (validity, null_count) = self.validity(name, ty, &nulls)?;
        let (buffers, offset) = pieces.buffers()?;
        DeviceColumn::try_new(Arc::clone(ty), self.rows, buffers, validity, Some(null_count), None)?.with_offset(offset)
    }

    /// Refuses an array of another type than the column's.
    pub(crate) fn check_type(&self, name: &str, ty: &ColumnType, array: &dyn Array) -> Result<()> {
        if *array.data_type() == ty.data_type {
            return Ok(());
        }
        Err(Error::Type { column: name.into(), expected: ty.data_type.clone(), actual: array.data_type().clone() })
    }

    /// Uploads a column of dictionary codes, or of words of lists.
    pub(crate) fn codes(
        &self,
        name: &str,
        ty: &Arc<ColumnType>,
        codes: HostBuffer,
        nulls: &[PieceNulls],
        values: Arc<DeviceColumn>,
    ) -> Result<DeviceColumn> {
        let (validity, null_count) = self.validity(name, ty, nulls)?;
        let buffers = vec![place(self.queue, codes)?];
        DeviceColumn::try_new(Arc::clone(ty), self.rows, buffers, validity, Some(null_count), Some(values))
    }

    /// Uploads the validity of a column, given the NULLs of its pieces.
    pub(crate) fn validity(&self, name: &str, ty: &ColumnType, nulls: &[PieceNulls]) -> Result<(Option<(Buffer, usize)>, usize)> {
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
            return Ok((Some(gather_bits(self.queue, &bits.collect::<Vec<_>>())?), null_count));
        }
        if self.ones.get().is_none() {
            let _ = self.ones.set(ones(self.queue, self.rows)?);
        }
        Ok((self.ones.get().map(|bits| (bits.clone(), 0)), 0))
    }
}

/// The arrays that make one column, none of them empty.
pub(crate) struct Pieces<'a> {
    pub(crate) queue: &'a Queue,
    pub(crate) name: &'a str,
    pub(crate) ty: &'a ColumnType,
    pub(crate) arrays: &'a [&'a ArrayRef],
    pub(crate) rows: usize,
}

impl Pieces<'_> {
    /// Uploads what [`Layout`] lists; the element at which the first value lies.
    fn buffers(&self) -> Result<(Vec<Buffer>, usize)> {
        let natural = ColumnType::of(&self.ty.data_type, true).map(|ty| ty.layout);
        match (&self.ty.layout, natural) {
            (Layout::Null, Some(Layout::Null)) => Ok((vec![], 0)),
            (Layout::Bits, Some(Layout::Bits)) => {
                let bits: Vec<&BooleanBuffer> = self.arrays.iter().map(|array| array.as_boolean().values()).collect();
                let (buffer, offset) = gather_bits(self.queue, &bits)?;
                Ok((vec![buffer], offset))
            }
            (Layout::Fixed(carrier), Some(Layout::Fixed(natural))) if *carrier == natural => {
                Ok((vec![self.values(carrier.width())?], 0))
            }
            (Layout::Fixed(carrier), Some(Layout::Fixed(natural))) if is_integer(*carrier) && is_integer(natural) => {
                Ok((vec![self.converted(natural, *carrier)?], 0))
            }
            (Layout::Bytes(width), Some(Layout::Bytes(natural))) if *width == natural => {
                Ok((vec![self.values(natural as usize)?], 0))
            }
            (Layout::Offsets32, Some(layout)) if is_variable(&layout) => Ok((self.offsets::<i32>()?, 0)),
            (Layout::Offsets64, Some(layout)) if is_variable(&layout) => Ok((self.offsets::<i64>()?, 0)),
            (Layout::Views, Some(layout)) if is_variable(&layout) => Ok((self.views()?, 0)),
            _ => Err(Error::Malformed(format!(
                "column \"{}\": {} cannot be laid out as {:?}",
                self.name, self.ty.data_type, self.ty.layout
            ))),
        }
    }

    fn values(&self, width: usize) -> Result<Buffer> {
        gather(self.queue, &self.arrays.iter().map(|array| fixed_bytes(array, width)).collect::<Vec<_>>())
    }

    fn converted(&self, from: Carrier, to: Carrier) -> Result<Buffer> {
        let mut out = MutableBuffer::with_capacity(self.rows * to.width());
        self.convert(from, to, &mut out)?;
        place(self.queue, out)
    }

    /// Appends the values in the carrier `to` to `out`.
    pub(crate) fn convert(&self, from: Carrier, to: Carrier, out: &mut MutableBuffer) -> Result<()> {
        for array in self.arrays {
            let values = fixed_bytes(array, from.width());
            match from == to {
                true => out.extend_from_slice(&values),
                false => convert(&values, from, to, array.nulls(), out).map_err(|value| self.outside(value, to))?,
            }
        }
        Ok(())
    }

    /// The error for a value that `carrier` cannot hold.
    pub(crate) fn outside(&self, value: i256, carrier: Carrier) -> Error {
        Error::Range { column: self.name.into(), data_type: self.ty.data_type.clone(), value, carrier: carrier.name() }
    }

    /// The error for more of something than a batch may have.
    pub(crate) fn too_large(&self, what: &'static str, actual: usize, limit: usize) -> Error {
        Error::TooLarge { column: self.name.into(), data_type: self.ty.data_type.clone(), what, actual, limit }
    }
}

/// Whether values of the natural layout vary in length.
fn is_variable(natural: &Layout) -> bool {
    matches!(natural, Layout::Offsets32 | Layout::Offsets64 | Layout::Views)
}

/// The values of an array of fixed width.
pub(crate) fn fixed_bytes(array: &dyn Array, width: usize) -> HostBuffer {
    if let DataType::FixedSizeBinary(_) = array.data_type() {
        return array.as_fixed_size_binary().values().slice_with_length(0, array.len() * width);
    }
    let data = array.to_data();
    match data.buffers() {
        [values, ..] => values.slice_with_length(data.offset() * width, array.len() * width),
        [] => HostBuffer::default(),
    }
}
