// SPDX-License-Identifier: Apache-2.0
//! Reads of a column's buffers, and arrays built from them.

use std::ops::Range;

use arrow::array::{ArrayData, ArrayRef, make_array};
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer, MutableBuffer, NullBuffer};
use arrow::datatypes::DataType;
use device::{Buffer, Queue};
use futures::future::{BoxFuture, FutureExt, ready};

use crate::narrow::{convert, is_integer};
use crate::{Carrier, ColumnType, DeviceColumn, Error, Layout, Result};

/// Heaps up to this size are read whole, before offsets or views show which bytes are in use.
const MAX_WHOLE_HEAP_BYTES: usize = 1 << 20;
/// Gaps below this fraction of a heap, or of the elements of lists, are read too.
///
/// So the number of separate reads stays at about this value.
pub(crate) const MAX_READS: usize = 256;

/// A pending read of a buffer.
pub(crate) type PendingBuffer = BoxFuture<'static, Result<HostBuffer>>;

/// A pending read of a validity bitmap.
pub(crate) type PendingNulls = BoxFuture<'static, Result<Option<NullBuffer>>>;

/// Download of one column.
pub(crate) struct ColumnReader {
    pub(crate) queue: Queue,
    /// Name of the column, for errors.
    pub(crate) name: String,
    pub(crate) column: DeviceColumn,
    /// Limit of bytes copied for rows that share elements or dictionary values on the device.
    pub(crate) max_copied_bytes: usize,
}

impl ColumnReader {
    pub(crate) fn data_type(&self) -> &DataType {
        &self.column.ty().data_type
    }

    pub(crate) fn malformed<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        Err(Error::Malformed(format!("download of column \"{}\" ({}): {what}", self.name, self.data_type())))
    }

    pub(crate) fn too_large(&self, what: &'static str, actual: usize, limit: usize) -> Error {
        Error::TooLarge { column: self.name.clone(), data_type: self.data_type().clone(), what, actual, limit }
    }

    pub(crate) fn read(&self, buffer: &Buffer, range: Range<usize>) -> PendingBuffer {
        if range.is_empty() {
            return ready(Ok(HostBuffer::default())).boxed();
        }
        let bytes = self.queue.read(buffer, range);
        async move { Ok(HostBuffer::from(bytes.await?)) }.boxed()
    }

    /// Reads the column's values, plus `extra` more, from a buffer of fixed width.
    pub(crate) fn values(&self, buffer: &Buffer, width: usize, extra: usize) -> PendingBuffer {
        let (from, to) = (self.column.offset(), self.column.offset() + self.column.len() + extra);
        self.read(buffer, from * width..to * width)
    }

    /// Reads the column's bits from bit `offset` on. Returns them with the offset of the first bit.
    pub(crate) fn bits(&self, buffer: &Buffer, offset: usize) -> (PendingBuffer, usize) {
        (self.read(buffer, offset / 8..(offset + self.column.len()).div_ceil(8)), offset % 8)
    }

    pub(crate) fn nulls(&self) -> PendingNulls {
        let len = self.column.len();
        let Some((bits, offset)) = self.column.validity().filter(|_| self.column.null_count() != Some(0)) else {
            return ready(Ok(None)).boxed();
        };
        let (bits, offset) = self.bits(bits, offset);
        async move {
            let nulls = NullBuffer::new(BooleanBuffer::new(bits.await?, offset, len));
            Ok(Some(nulls).filter(|nulls| nulls.null_count() > 0))
        }
        .boxed()
    }

    /// Whether to read a heap whole, at the same time as its offsets or views.
    pub(crate) fn reads_whole(&self, heap: &Buffer) -> bool {
        heap.len() <= MAX_WHOLE_HEAP_BYTES || self.queue.context().info().unified_memory
    }

    /// The validated array of `data_type` over `buffers`.
    pub(crate) fn array(
        &self,
        data_type: &DataType,
        buffers: Vec<HostBuffer>,
        nulls: Option<NullBuffer>,
        child: Option<ArrayRef>,
    ) -> Result<ArrayRef> {
        let data = ArrayData::builder(data_type.clone())
            .len(self.column.len())
            .buffers(buffers)
            .nulls(nulls)
            .child_data(child.iter().map(|child| child.to_data()).collect())
            .align_buffers(true)
            .build()?;
        Ok(make_array(data))
    }

    /// The array of the logical type.
    pub(crate) fn build(&self, buffers: Vec<HostBuffer>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        self.array(self.data_type(), buffers, nulls, None)
    }

    pub(crate) fn decode_fixed(&self, carrier: Carrier, values: HostBuffer, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        match ColumnType::of(self.data_type(), true).map(|ty| ty.layout) {
            Some(Layout::Fixed(natural)) => {
                let values = self.convert(values, carrier, natural, nulls.as_ref())?;
                self.build(vec![values], nulls)
            }
            _ => self.malformed(format_args!("carried as {}", carrier.name())),
        }
    }

    /// Converts integers from one carrier to another.
    pub(crate) fn convert(
        &self,
        values: HostBuffer,
        from: Carrier,
        to: Carrier,
        nulls: Option<&NullBuffer>,
    ) -> Result<HostBuffer> {
        if from == to {
            return Ok(values);
        }
        if !is_integer(from) || !is_integer(to) {
            return self.malformed(format_args!("carried as {}", from.name()));
        }
        let mut out = MutableBuffer::with_capacity(self.column.len() * to.width());
        convert(&values, from, to, nulls, &mut out).map_err(|value| Error::Range {
            column: self.name.clone(),
            data_type: self.data_type().clone(),
            value,
            carrier: to.name(),
        })?;
        Ok(out.into())
    }
}
