// SPDX-License-Identifier: Apache-2.0
//! Host batches to one device batch, as they come.
//!
//! A decoder leaves a small batch in the processor's caches. Numbers leave for the device from there, converted on
//! the way; strings, dictionaries and bits wait for the last batch.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::MutableBuffer;
use arrow::datatypes::SchemaRef;
use device::{Buffer, Queue};

use crate::narrow::is_integer;
use crate::upload::{PieceNulls, Pieces, Uploader, fixed_bytes};
use crate::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result, upload};

/// Gathers small host batches and uploads them as a large device batch.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use arrow::array::{Int64Array, RecordBatch};
/// use columnar::{Gathering, download, natural_types};
///
/// # futures::executor::block_on(async {
/// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
/// let context = device::Context::new(device::DeviceConfig::default())?;
/// let queue = context.queue()?;
/// let mut gathering = Gathering::new(&queue, &host.schema(), &natural_types(&host.schema())?, 1000);
/// gathering.push(host.slice(0, 2))?;
/// gathering.push(host.slice(2, 1))?;
/// let [batch] = &gathering.finish()?[..] else { panic!() };
/// assert_eq!(download(&queue, batch).await?, host);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Gathering {
    queue: Queue,
    schema: SchemaRef,
    types: Vec<Arc<ColumnType>>,
    /// Rows of a full batch.
    capacity: usize,
    /// Rows that most likely come.
    expected: usize,
    rows: usize,
    /// The first batch, until another one follows: alone it need not be copied.
    first: Option<RecordBatch>,
    /// Rows of the batches.
    pieces: Vec<usize>,
    columns: Vec<Gathered>,
}

/// What has come of a column.
#[derive(Debug)]
enum Gathered {
    Numbers(Numbers),
    Arrays(Vec<ArrayRef>),
}

/// Numbers on their way: most in the buffer, the last ones still on the host.
#[derive(Debug)]
struct Numbers {
    natural: Carrier,
    carrier: Carrier,
    buffer: Option<Buffer>,
    /// Bytes written to the buffer.
    written: usize,
    waiting: MutableBuffer,
    nulls: Vec<PieceNulls>,
}

/// Bytes of a column that wait for one another where each write is a transfer.
const TRANSFER: usize = 4 << 20;

impl Gathering {
    /// Nothing gathered yet, of columns in the given types. `capacity` is the number of rows at which the batch is full.
    pub fn new(queue: &Queue, schema: &SchemaRef, types: &[ColumnType], capacity: usize) -> Self {
        Self {
            queue: queue.clone(),
            schema: Arc::clone(schema),
            types: types.iter().map(|ty| Arc::new(ty.clone())).collect(),
            capacity,
            expected: 0,
            rows: 0,
            first: None,
            pieces: vec![],
            columns: types.iter().map(Gathered::new).collect(),
        }
    }

    /// Makes room for so many rows at once, where more than one batch comes; else buffers grow with the rows.
    #[must_use]
    pub fn with_expected_rows(mut self, rows: usize) -> Self {
        self.expected = rows.min(self.capacity);
        self
    }

    /// Rows that there still is room for.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.rows)
    }

    /// Whether nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds rows: of the first batch any number, of others no more than there is room for. A batch without rows is nothing.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload()).
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let (rows, room) = (batch.num_rows(), self.room());
        if rows == 0 {
            return Ok(());
        }
        if self.is_empty() {
            self.rows = rows;
            self.first = Some(batch);
            return Ok(());
        }
        if rows > room {
            return Err(Error::Malformed(format!("{rows} rows where there is room for {room}")));
        }
        if let Some(first) = self.first.take() {
            self.rows = 0;
            self.add(&first)?;
        }
        self.add(&batch)
    }

    /// Enqueues what is left to upload. More than one batch where the strings or dictionaries are too much for one.
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
            if let Gathered::Numbers(numbers) = column {
                numbers.send(&self.queue, self.rows, self.capacity.max(self.rows))?;
            }
        }
        match self.batch(0..self.pieces.len()) {
            Err(Error::TooLarge { .. }) if self.pieces.len() > 1 => {
                (0..self.pieces.len()).map(|piece| self.batch(piece..piece + 1)).collect()
            }
            batch => Ok(vec![batch?]),
        }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let uploader = Uploader::new(&self.queue, batch.num_rows());
        let unified = self.queue.context().info().unified_memory;
        let enough = if unified { 1 } else { TRANSFER };
        self.rows += batch.num_rows();
        for (index, (gathered, ty)) in self.columns.iter_mut().zip(&self.types).enumerate() {
            let name = self.schema.field(index).name();
            let array = batch
                .columns()
                .get(index)
                .ok_or_else(|| Error::Malformed(format!("batch has no column {index}, which the schema calls \"{name}\"")))?;
            uploader.check_type(name, ty, array)?;
            match gathered {
                Gathered::Arrays(arrays) => arrays.push(Arc::clone(array)),
                Gathered::Numbers(numbers) => {
                    numbers.nulls.push((array.len(), array.nulls().cloned()));
                    let rows = self.rows.max(self.expected);
                    if unified && numbers.natural == numbers.carrier {
                        let values = fixed_bytes(array, numbers.carrier.width());
                        numbers.write(&self.queue, &values, rows, self.capacity)?;
                        continue;
                    }
                    let pieces = Pieces { queue: &self.queue, name, ty, arrays: &[array], rows: array.len() };
                    pieces.convert(numbers.natural, numbers.carrier, &mut numbers.waiting)?;
                    if numbers.waiting.len() >= enough {
                        numbers.send(&self.queue, rows, self.capacity)?;
                    }
                }
            }
        }
        self.pieces.push(batch.num_rows());
        Ok(())
    }

    /// The device batch of some of the host batches.
    fn batch(&self, pieces: Range<usize>) -> Result<DeviceBatch> {
        let first: usize = self.pieces[..pieces.start].iter().sum();
        let rows = self.pieces[pieces.clone()].iter().sum();
        let uploader = Uploader::new(&self.queue, rows);
        let columns = self.columns.iter().zip(&self.types).enumerate().map(|(index, (gathered, ty))| {
            let name = self.schema.field(index).name();
            match gathered {
                Gathered::Arrays(arrays) => uploader.column(name, ty, arrays[pieces.clone()].iter().collect()),
                Gathered::Numbers(Numbers { buffer, nulls, .. }) => {
                    let (validity, null_count) = uploader.validity(name, ty, &nulls[pieces.clone()])?;
                    let buffers = buffer.iter().cloned().collect();
                    DeviceColumn::try_new(Arc::clone(ty), rows, buffers, validity, Some(null_count), None)?.with_offset(first)
                }
            }
        });
        DeviceBatch::try_new(Arc::clone(&self.schema), columns.collect::<Result<_>>()?, rows)
    }
}

impl Numbers {
    /// Writes what waits to the buffer.
    fn send(&mut self, queue: &Queue, rows: usize, most: usize) -> Result<()> {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.write(queue, &waiting, rows, most)?;
        waiting.clear();
        self.waiting = waiting;
        Ok(())
    }

    /// Writes to the buffer, which gets room for `rows`, or for more where it has to grow, `most` at most.
    fn write(&mut self, queue: &Queue, bytes: &[u8], rows: usize, most: usize) -> Result<()> {
        let width = self.carrier.width();
        let room = self.buffer.as_ref().map_or(0, |buffer| buffer.len() / width);
        let buffer = match self.buffer.take() {
            Some(buffer) if room >= rows => buffer,
            old => {
                // A limit far above what comes costs nothing.
                let grown = queue.alloc_for_writes(rows.max(room * 4).min(most) * width)?;
                if let Some(old) = old {
                    queue.copy(&old, 0, &grown, 0, self.written)?;
                }
                grown
            }
        };
        queue.write(&buffer, self.written, bytes)?;
        self.written += bytes.len();
        self.buffer = Some(buffer);
        Ok(())
    }
}

impl Gathered {
    fn new(ty: &ColumnType) -> Gathered {
        let natural = ColumnType::of(&ty.data_type, true).map(|ty| ty.layout);
        match (&ty.layout, natural) {
            (Layout::Fixed(carrier), Some(Layout::Fixed(natural)))
                if *carrier == natural || is_integer(*carrier) && is_integer(natural) =>
            {
                let (waiting, nulls) = (MutableBuffer::new(0), vec![]);
                Gathered::Numbers(Numbers { natural, carrier: *carrier, buffer: None, written: 0, waiting, nulls })
            }
            _ => Gathered::Arrays(vec![]),
        }
    }
}
