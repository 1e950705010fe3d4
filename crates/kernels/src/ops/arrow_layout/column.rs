// SPDX-License-Identifier: Apache-2.0
//! Builds the columns of the result.

use std::sync::Arc;

use arrow::datatypes::DataType;
use columnar::exchange::has_arrow_layout;
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Buffer, Queue};

use super::validity::Validity;
use super::write::WrittenValues;
use super::{ArrowColumn, ArrowLayout, ArrowShape, ValueSource, heap};
use crate::ops::launch::layout_kernels::LoadedLayoutKernels;
use crate::{Error, Result};

/// Builds one column of the result.
pub(super) struct ColumnBuilder<'a> {
    pub(super) op: &'a ArrowLayout,
    pub(super) queue: &'a Queue,
    pub(super) batch: &'a DeviceBatch,
    pub(super) index: usize,
    pub(super) column: &'a ArrowColumn,
    pub(super) given: &'a DeviceColumn,
    pub(super) layout_kernels: Option<&'a LoadedLayoutKernels<'a>>,
}

impl ColumnBuilder<'_> {
    /// The value buffers, and their first element.
    pub(super) async fn values(&self, written: Option<WrittenValues>) -> Result<(Vec<Buffer>, usize)> {
        let (column, given) = (self.column, self.given);
        let (n, offset) = (given.len(), given.offset());
        if column.concatenates(given, self.op.heap_bytes) {
            return Ok((self.strings(self.concatenated().await?)?, 0));
        }
        match column.values {
            ValueSource::Views if column.merges_heaps(given) => {
                let values = Some(self.layout_kernels()?.merge_view_heaps(given)?);
                Ok((self.views(WrittenValues { values, heap: None })?, 0))
            }
            ValueSource::Pass | ValueSource::Views => Ok((given.buffers().to_vec(), offset)),
            ValueSource::OtherOffsets => {
                let [offsets, heap] = given.buffers() else { return Err(self.missing()) };
                let offsets = match column.target {
                    Layout::Offsets32 => self.layout_kernels()?.narrow_offsets(offsets, offset, n)?,
                    _ => self.layout_kernels()?.widen_offsets(offsets, offset, n)?,
                };
                Ok((vec![offsets, heap.clone()], 0))
            }
            ValueSource::Written => Ok((vec![written.and_then(|written| written.values).ok_or_else(|| self.missing())?], 0)),
            ValueSource::WrittenViews => Ok((self.views(written.ok_or_else(|| self.missing())?)?, 0)),
            ValueSource::Concatenated => Ok((self.strings(written.ok_or_else(|| self.missing())?)?, 0)),
        }
    }

    /// The concatenated strings of the column.
    async fn concatenated(&self) -> Result<WrittenValues> {
        let step = self.column.concatenated.as_ref().ok_or_else(|| self.missing())?;
        let mut written = step.run(self.queue, self.op, &self.op.concat_program, self.batch).await?;
        written.get_mut(self.index).and_then(Option::take).ok_or_else(|| self.missing())
    }

    /// Written views, over the heap of the column or of its dictionary.
    fn views(&self, written: WrittenValues) -> Result<Vec<Buffer>> {
        let values = written.values.ok_or_else(|| self.missing())?;
        let heap = heap(self.given).ok_or_else(|| self.missing())?;
        Ok(vec![values, heap.clone(), self.queue.zeroed(size_of::<u64>())?])
    }

    /// Concatenated strings in the target layout.
    fn strings(&self, written: WrittenValues) -> Result<Vec<Buffer>> {
        let (Some(offsets), Some(heap)) = (written.values, written.heap) else { return Err(self.missing()) };
        let n = self.given.len();
        Ok(match self.column.target {
            Layout::Views => {
                let views = self.layout_kernels()?.views(&offsets, &heap, n)?;
                vec![views, heap, self.queue.zeroed(size_of::<u64>())?]
            }
            Layout::Offsets32 => vec![self.layout_kernels()?.narrow_offsets(&offsets, 0, n)?, heap],
            _ => vec![offsets, heap],
        })
    }

    /// The column of value buffers, with the given first element.
    pub(super) async fn column(
        &self,
        (buffers, offset): (Vec<Buffer>, usize),
        validity: Option<Validity>,
    ) -> Result<DeviceColumn> {
        let (queue, given, n) = (self.queue, self.given, self.given.len());
        let ty = Arc::clone(&self.column.ty);
        let null_count = validity.as_ref().map_or(given.null_count(), |validity| validity.null_count);
        let validity = validity.map(|validity| (validity.bits, validity.first));
        let make = |validity, dictionary| -> Result<DeviceColumn> {
            Ok(DeviceColumn::try_new(Arc::clone(&ty), n, buffers.clone(), validity, null_count, dictionary)?
                .with_offset(offset)?)
        };
        match &self.column.shape {
            ArrowShape::Plain => make(validity, None),
            ArrowShape::Codes(layout) => {
                let dictionary = given.dictionary().ok_or_else(|| self.missing())?;
                if has_arrow_layout(dictionary) {
                    return make(validity, Some(Arc::clone(dictionary)));
                }
                let batch = DeviceBatch::try_new(Arc::clone(&layout.schema), vec![(**dictionary).clone()], dictionary.len())?;
                let dictionary = layout.run_boxed(queue, &batch).await?.columns().first().cloned();
                make(validity, Some(Arc::new(dictionary.ok_or_else(|| self.missing())?)))
            }
            ArrowShape::Numbered(codes) => {
                let DataType::Dictionary(_, value) = &ty.data_type else { return Err(self.missing()) };
                let target = self.column.target.clone();
                let nothing = target == Layout::Null;
                let value = ColumnType { data_type: value.as_ref().clone(), nullable: nothing, layout: target, bounds: None };
                let values = DeviceColumn::try_new(Arc::new(value), n, buffers.clone(), None, None, None)?.with_offset(offset)?;
                let codes = self.layout_kernels()?.row_numbers(*codes, n)?;
                // Values of type Null have no validity; their codes have.
                let (validity, null_count) = match nothing && ty.nullable {
                    true => (Some((queue.zeroed(n.div_ceil(8))?, 0)), Some(n)),
                    false => (validity, null_count),
                };
                Ok(DeviceColumn::try_new(Arc::clone(&ty), n, vec![codes], validity, null_count, Some(Arc::new(values)))?)
            }
        }
    }

    fn layout_kernels(&self) -> Result<&LoadedLayoutKernels<'_>> {
        self.layout_kernels.ok_or_else(|| Error::Internal(format!("column \"{}\" without its kernels", self.column.name)))
    }

    fn missing(&self) -> Error {
        let (name, ty) = (&self.column.name, self.given.ty());
        Error::Internal(format!("column \"{name}\" ({}) in layout {:?} lacks a buffer", ty.data_type, ty.layout))
    }
}

/// A column without rows.
pub(super) fn empty(queue: &Queue, ty: &Arc<ColumnType>) -> Result<DeviceColumn> {
    let buffers = match &ty.layout {
        Layout::Null => vec![],
        Layout::Bits | Layout::Fixed(_) | Layout::Bytes(_) | Layout::Dictionary { .. } | Layout::List(_) => vec![queue.alloc(0)?],
        Layout::Offsets32 => vec![queue.zeroed(size_of::<i32>())?, queue.alloc(0)?],
        Layout::Offsets64 => vec![queue.zeroed(size_of::<i64>())?, queue.alloc(0)?],
        Layout::Views => vec![queue.alloc(0)?, queue.alloc(0)?, queue.zeroed(size_of::<u64>())?],
    };
    let dictionary = match (&ty.data_type, &ty.layout) {
        (DataType::Dictionary(_, value), Layout::Dictionary { values, .. }) => {
            let nullable = **values == Layout::Null;
            let layout = values.as_ref().clone();
            let values = ColumnType { data_type: value.as_ref().clone(), nullable, layout, bounds: None };
            Some(Arc::new(empty(queue, &Arc::new(values))?))
        }
        _ => None,
    };
    let validity = if ty.nullable && ty.layout != Layout::Null { Some((queue.alloc(0)?, 0)) } else { None };
    Ok(DeviceColumn::try_new(Arc::clone(ty), 0, buffers, validity, Some(0), dictionary)?)
}
