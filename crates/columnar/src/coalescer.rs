// SPDX-License-Identifier: Apache-2.0
//! Coalescing of small host batches into one device batch.
//!
//! A decoder leaves a small batch in the CPU's caches. Values of fixed width are converted and
//! uploaded from there at once. Strings, dictionaries and booleans wait for the last batch.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::MutableBuffer;
use arrow::datatypes::SchemaRef;
use device::{Buffer, Queue};

use crate::host_arrays::fixed_width_values;
use crate::narrow::is_integer;
use crate::upload::chunks::{ChunkNulls, ColumnChunks};
use crate::upload::uploader::Uploader;
use crate::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result, upload};

/// Concatenates small host batches and uploads them as one large device batch.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use arrow::array::{Int64Array, RecordBatch};
/// use columnar::{BatchCoalescer, download, natural_types};
///
/// # futures::executor::block_on(async {
/// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
/// let context = device::Context::new(device::DeviceConfig::default())?;
/// let queue = context.queue()?;
/// let types = natural_types(&host.schema())?;
/// let mut coalescer = BatchCoalescer::new(&queue, &host.schema(), &types, 1000);
/// coalescer.push(host.slice(0, 2))?;
/// coalescer.push(host.slice(2, 1))?;
/// let [batch] = &coalescer.finish()?[..] else { panic!() };
/// assert_eq!(download(&queue, batch).await?, host);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct BatchCoalescer {
    queue: Queue,
    schema: SchemaRef,
    types: Vec<Arc<ColumnType>>,
    /// Rows of a full batch.
    capacity: usize,
    /// Estimate of the total rows, for the first allocation.
    expected: usize,
    rows: usize,
    /// The first batch until a second one arrives: alone it needs no copy.
    first: Option<RecordBatch>,
    /// Rows of each host batch.
    batch_rows: Vec<usize>,
    columns: Vec<CoalescedColumn>,
}

#[derive(Debug)]
enum CoalescedColumn {
    FixedWidth(FixedWidthColumn),
    Arrays(Vec<ArrayRef>),
}

/// A column of fixed width. Most values are in the device buffer, the last ones on the host.
#[derive(Debug)]
struct FixedWidthColumn {
    natural: Carrier,
    carrier: Carrier,
    buffer: Option<Buffer>,
    /// Bytes written to the buffer.
    written: usize,
    pending: MutableBuffer,
    nulls: Vec<ChunkNulls>,
}

/// Bytes of a column per transfer, on devices without unified memory.
const TRANSFER_BYTES: usize = 4 << 20;

impl BatchCoalescer {
    /// An empty coalescer of columns in `types`. `capacity` is the number of rows of a full batch.
    pub fn new(queue: &Queue, schema: &SchemaRef, types: &[ColumnType], capacity: usize) -> Self {
        Self {
            queue: queue.clone(),
            schema: Arc::clone(schema),
            types: types.iter().map(|ty| Arc::new(ty.clone())).collect(),
            capacity,
            expected: 0,
            rows: 0,
            first: None,
            batch_rows: vec![],
            columns: types.iter().map(CoalescedColumn::new).collect(),
        }
    }

    /// Sets the rows that buffers are first allocated for; by default buffers grow with the rows.
    #[must_use]
    pub fn with_expected_rows(mut self, rows: usize) -> Self {
        self.expected = rows.min(self.capacity);
        self
    }

    /// Rows left until the batch is full.
    pub fn remaining_rows(&self) -> usize {
        self.capacity.saturating_sub(self.rows)
    }

    /// Whether no rows were added.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds a batch. Any but the first must fit into [`Self::remaining_rows`].
    ///
    /// A batch without rows is ignored.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload()); `Malformed` for too many rows.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let (rows, remaining) = (batch.num_rows(), self.remaining_rows());
        if rows == 0 {
            return Ok(());
        }
        if self.is_empty() {
            self.rows = rows;
            self.first = Some(batch);
            return Ok(());
        }
        if rows > remaining {
            return Err(Error::Malformed(format!("{rows} rows where there is room for {remaining}")));
        }
        if let Some(first) = self.first.take() {
            self.rows = 0;
            self.add(&first)?;
        }
        self.add(&batch)
    }

    /// Enqueues the remaining uploads.
    ///
    /// Returns one batch, or one for each host batch if strings or dictionaries exceed a limit of
    /// their types.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload()).
    pub fn finish(mut self) -> Result<Vec<DeviceBatch>> {
        if let Some(batch) = &self.first {
            let types: Vec<_> = self.types.iter().map(|ty| (**ty).clone()).collect();
            return Ok(vec![upload(&self.queue, &self.schema, &types, std::slice::from_ref(batch))?]);
        }
        if self.is_empty() {
            return Ok(vec![]);
        }
        for column in &mut self.columns {
            if let CoalescedColumn::FixedWidth(column) = column {
                column.flush(&self.queue, self.rows, self.capacity.max(self.rows))?;
            }
        }
        match self.batch(0..self.batch_rows.len()) {
            Err(Error::TooLarge { .. }) if self.batch_rows.len() > 1 => {
                (0..self.batch_rows.len()).map(|index| self.batch(index..index + 1)).collect()
            }
            batch => Ok(vec![batch?]),
        }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let uploader = Uploader::new(&self.queue, batch.num_rows());
        let unified = self.queue.context().info().unified_memory;
        let transfer_bytes = if unified { 1 } else { TRANSFER_BYTES };
        self.rows += batch.num_rows();
        for (index, (column, ty)) in self.columns.iter_mut().zip(&self.types).enumerate() {
            let name = self.schema.field(index).name();
            let array = batch
                .columns()
                .get(index)
                .ok_or_else(|| Error::Malformed(format!("batch has no column {index}, which the schema calls \"{name}\"")))?;
            uploader.check_type(name, ty, array)?;
            match column {
                CoalescedColumn::Arrays(arrays) => arrays.push(Arc::clone(array)),
                CoalescedColumn::FixedWidth(column) => {
                    column.nulls.push((array.len(), array.nulls().cloned()));
                    let rows = self.rows.max(self.expected);
                    if unified && column.natural == column.carrier {
                        let values = fixed_width_values(array, column.carrier.width());
                        column.write(&self.queue, &values, rows, self.capacity)?;
                        continue;
                    }
                    let chunks = ColumnChunks { queue: &self.queue, name, ty, arrays: &[array], rows: array.len() };
                    chunks.convert(column.natural, column.carrier, &mut column.pending)?;
                    if column.pending.len() >= transfer_bytes {
                        column.flush(&self.queue, rows, self.capacity)?;
                    }
                }
            }
        }
        self.batch_rows.push(batch.num_rows());
        Ok(())
    }

    /// The device batch of the host batches `batches`.
    fn batch(&self, batches: Range<usize>) -> Result<DeviceBatch> {
        let first: usize = self.batch_rows[..batches.start].iter().sum();
        let rows = self.batch_rows[batches.clone()].iter().sum();
        let uploader = Uploader::new(&self.queue, rows);
        let columns = self.columns.iter().zip(&self.types).enumerate().map(|(index, (column, ty))| {
            let name = self.schema.field(index).name();
            match column {
                CoalescedColumn::Arrays(arrays) => uploader.column(name, ty, arrays[batches.clone()].iter().collect()),
                CoalescedColumn::FixedWidth(FixedWidthColumn { buffer, nulls, .. }) => {
                    let (validity, null_count) = uploader.validity(name, ty, &nulls[batches.clone()])?;
                    let buffers = buffer.iter().cloned().collect();
                    DeviceColumn::try_new(Arc::clone(ty), rows, buffers, validity, Some(null_count), None)?.with_offset(first)
                }
            }
        });
        DeviceBatch::try_new(Arc::clone(&self.schema), columns.collect::<Result<_>>()?, rows)
    }
}

impl FixedWidthColumn {
    /// Writes the pending values to the buffer.
    fn flush(&mut self, queue: &Queue, rows: usize, max_rows: usize) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        self.write(queue, &pending, rows, max_rows)?;
        pending.clear();
        self.pending = pending;
        Ok(())
    }

    /// Appends values to the buffer.
    ///
    /// A new buffer has room for `rows`, and for four times the old rows up to `max_rows`. So a
    /// capacity far above the actual rows costs no memory.
    fn write(&mut self, queue: &Queue, values: &[u8], rows: usize, max_rows: usize) -> Result<()> {
        let width = self.carrier.width();
        let capacity = self.buffer.as_ref().map_or(0, |buffer| buffer.len() / width);
        let buffer = match self.buffer.take() {
            Some(buffer) if capacity >= rows => buffer,
            old => {
                let grown = queue.alloc_for_writes(rows.max(capacity * 4).min(max_rows) * width)?;
                if let Some(old) = old {
                    queue.copy(&old, 0, &grown, 0, self.written)?;
                }
                grown
            }
        };
        queue.write(&buffer, self.written, values)?;
        self.written += values.len();
        self.buffer = Some(buffer);
        Ok(())
    }
}

impl CoalescedColumn {
    fn new(ty: &ColumnType) -> CoalescedColumn {
        let natural = ColumnType::of(&ty.data_type, true).map(|ty| ty.layout);
        match (&ty.layout, natural) {
            (Layout::Fixed(carrier), Some(Layout::Fixed(natural)))
                if *carrier == natural || is_integer(*carrier) && is_integer(natural) =>
            {
                let (pending, nulls) = (MutableBuffer::new(0), vec![]);
                CoalescedColumn::FixedWidth(FixedWidthColumn {
                    natural,
                    carrier: *carrier,
                    buffer: None,
                    written: 0,
                    pending,
                    nulls,
                })
            }
            _ => CoalescedColumn::Arrays(vec![]),
        }
    }
}
