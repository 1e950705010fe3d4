// SPDX-License-Identifier: Apache-2.0
//! Host batches to one device batch, as they come.
//!
//! A decoder leaves a small batch in the processor's caches. Values of fixed width leave for the device
//! from there, converted on the way; strings, dictionaries and bits wait for the last batch.

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
    room: usize,
    rows: usize,
    /// The first batch, until another one follows: alone it need not be copied.
    first: Option<RecordBatch>,
    /// Rows of the batches.
    pieces: Vec<usize>,
    columns: Vec<Gathered>,
    converted: MutableBuffer,
}

/// Rows that a column's buffer has room for at first.
const FIRST_ROWS: usize = 1 << 17;

/// What has come of a column.
#[derive(Debug)]
enum Gathered {
    Values { natural: Carrier, carrier: Carrier, buffer: Option<Buffer>, nulls: Vec<PieceNulls> },
    Arrays(Vec<ArrayRef>),
}

impl Gathering {
    /// Nothing gathered yet, of columns in the given types. `room` is the number of rows at which the batch is full.
    pub fn new(queue: &Queue, schema: &SchemaRef, types: &[ColumnType], room: usize) -> Self {
        Self {
            queue: queue.clone(),
            schema: Arc::clone(schema),
            types: types.iter().map(|ty| Arc::new(ty.clone())).collect(),
            room,
            rows: 0,
            first: None,
            pieces: vec![],
            columns: types.iter().map(Gathered::new).collect(),
            converted: MutableBuffer::new(0),
        }
    }

    /// Rows that there is room for.
    pub fn room(&self) -> usize {
        self.room.saturating_sub(self.rows)
    }

    /// Whether nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds rows: of the first batch any number, of others no more than there is room for.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload).
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let (rows, room) = (batch.num_rows(), self.room());
        if self.is_empty() {
            self.rows = rows;
            self.first = (rows > 0).then_some(batch);
            return Ok(());
        }
        if rows > room {
            return Err(Error::Malformed(format!("{rows} rows where there is room for {room}")));
        }
        self.settle()?;
        self.add(&batch)
    }

    /// Enqueues what is left to upload. More than one batch where the strings or dictionaries are too much for one.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload).
    pub fn finish(self) -> Result<Vec<DeviceBatch>> {
        if let Some(batch) = &self.first {
            let types: Vec<_> = self.types.iter().map(|ty| (**ty).clone()).collect();
            return Ok(vec![upload(&self.queue, &self.schema, &types, std::slice::from_ref(batch))?]);
        }
        if self.is_empty() {
            return Ok(vec![]);
        }
        match self.batch(0..self.pieces.len()) {
            Err(Error::TooLarge { .. }) if self.pieces.len() > 1 => {
                (0..self.pieces.len()).map(|piece| self.batch(piece..piece + 1)).collect()
            }
            batch => Ok(vec![batch?]),
        }
    }

    /// Moves the first batch among the others.
    fn settle(&mut self) -> Result<()> {
        let Some(first) = self.first.take() else { return Ok(()) };
        self.rows = 0;
        self.add(&first)
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let uploader = Uploader::new(&self.queue, batch.num_rows());
        for (index, (gathered, ty)) in self.columns.iter_mut().zip(&self.types).enumerate() {
            let name = self.schema.field(index).name();
            let array = batch
                .columns()
                .get(index)
                .ok_or_else(|| Error::Malformed(format!("batch has no column {index}, which the schema calls \"{name}\"")))?;
            uploader.check_type(name, ty, array)?;
            let (natural, carrier, buffer, nulls) = match gathered {
                Gathered::Arrays(arrays) => {
                    arrays.push(Arc::clone(array));
                    continue;
                }
                Gathered::Values { natural, carrier, buffer, nulls } => (*natural, *carrier, buffer, nulls),
            };
            let at = self.rows * carrier.width();
            let buffer = with_room(&self.queue, buffer, carrier.width(), self.rows, (self.rows + array.len(), self.room))?;
            if natural == carrier {
                self.queue.write(buffer, at, &fixed_bytes(array, carrier.width()))?;
            } else {
                self.converted.clear();
                Pieces { queue: &self.queue, name, ty, arrays: &[array], rows: array.len() }.convert(
                    natural,
                    carrier,
                    &mut self.converted,
                )?;
                self.queue.write(buffer, at, &self.converted)?;
            }
            nulls.push((array.len(), array.nulls().cloned()));
        }
        self.rows += batch.num_rows();
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
                Gathered::Values { buffer, nulls, .. } => {
                    let (validity, null_count) = uploader.validity(name, ty, &nulls[pieces.clone()])?;
                    let buffers = buffer.iter().cloned().collect();
                    DeviceColumn::try_new(Arc::clone(ty), rows, buffers, validity, Some(null_count), None)?.with_offset(first)
                }
            }
        });
        DeviceBatch::try_new(Arc::clone(&self.schema), columns.collect::<Result<_>>()?, rows)
    }
}

/// A buffer of values of `width` bytes, `rows` of which are written, with room for `needed` of at most `most`.
fn with_room<'a>(
    queue: &Queue,
    buffer: &'a mut Option<Buffer>,
    width: usize,
    rows: usize,
    (needed, most): (usize, usize),
) -> Result<&'a Buffer> {
    let room = buffer.as_ref().map_or(0, |buffer| buffer.len() / width);
    if room < needed {
        // A limit far above what comes costs nothing.
        let grown = queue.alloc_for_writes(width * needed.max(room * 2).max(FIRST_ROWS).min(most.max(needed)))?;
        if let Some(buffer) = buffer.as_ref() {
            queue.copy(buffer, 0, &grown, 0, rows * width)?;
        }
        *buffer = Some(grown);
    }
    buffer.as_ref().ok_or_else(|| Error::Malformed("a column without a buffer".into()))
}

impl Gathered {
    fn new(ty: &ColumnType) -> Gathered {
        let natural = ColumnType::of(&ty.data_type, true).map(|ty| ty.layout);
        match (&ty.layout, natural) {
            (Layout::Fixed(carrier), Some(Layout::Fixed(natural)))
                if *carrier == natural || is_integer(*carrier) && is_integer(natural) =>
            {
                Gathered::Values { natural, carrier: *carrier, buffer: None, nulls: vec![] }
            }
            _ => Gathered::Arrays(vec![]),
        }
    }
}
