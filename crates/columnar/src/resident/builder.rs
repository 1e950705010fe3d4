// SPDX-License-Identifier: Apache-2.0
//! Builder of resident tables.
//!
//! Rows arrive in batches of any size and are stored in batches of
//! [`ResidentBuilder::with_batch_rows`] rows, or fewer where rows are wide. A full batch is
//! uploaded at once, in the types that the rows so far allow, so the host holds at most one batch.
//! If a later value needs a wider type, [`ResidentBuilder::finish`] converts the earlier batches.
//! This is rare.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use device::Queue;

use crate::resident::column::{ColumnState, shares_buffers};
use crate::resident::table::Resident;
use crate::upload::uploader::Uploader;
use crate::{DeviceBatch, Result, natural_types};

/// Most bytes of a batch of more than [`Resident::BATCH_ROWS`] rows: offsets have 32 bits, and the
/// host holds the batch until it is full.
const MOST_BATCH_BYTES: usize = 1 << 30;

/// Bytes of a row on the host. Each row counts a value of its dictionary.
fn row_bytes(batch: &RecordBatch) -> usize {
    let each = |array: &dyn Array| array.get_array_memory_size() / array.len().max(1);
    let of_column = |array: &ArrayRef| match array.as_any_dictionary_opt() {
        Some(dictionary) => each(dictionary.keys()) + each(dictionary.values()),
        None => each(array),
    };
    batch.columns().iter().map(of_column).sum()
}

/// Uploads rows as they arrive and finds their narrowest types.
///
/// - Integers, dates, times and decimals use the fewest bytes that hold all values.
/// - Columns without NULLs have no validity bitmap, even if their field is nullable.
/// - Strings of few distinct values become codes of 8 or 16 bits with one dictionary for the whole
///   table. Few are at most 1024, or at most 65,536 for half of the bytes.
/// - Other strings have 32-bit offsets instead of views, where a batch has at most 2 GiB of them.
/// - Integers, dates, times, decimals and codes get bounds, rounded outwards to powers of two.
#[derive(Debug)]
pub struct ResidentBuilder {
    queue: Queue,
    schema: SchemaRef,
    batch_rows: usize,
    batch_bytes: usize,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_bytes: usize,
    columns: Vec<ColumnState>,
    batches: Vec<DeviceBatch>,
}

impl ResidentBuilder {
    /// A builder of an empty table.
    ///
    /// # Errors
    /// `Unsupported`, naming the first column whose type is not supported on the device.
    pub fn try_new(queue: &Queue, schema: &SchemaRef) -> Result<Self> {
        let types = natural_types(schema)?;
        let columns = schema.fields().iter().zip(types).map(|(field, ty)| ColumnState::new(field.name(), ty)).collect();
        Ok(Self {
            queue: queue.clone(),
            schema: Arc::clone(schema),
            batch_rows: Resident::BATCH_ROWS,
            batch_bytes: MOST_BATCH_BYTES,
            pending: vec![],
            pending_rows: 0,
            pending_bytes: 0,
            columns,
            batches: vec![],
        })
    }

    /// A builder that starts with the rows of `table`. The table does not change.
    ///
    /// Both tables share a batch as long as its types stay the same.
    pub fn extending(queue: &Queue, table: &Resident) -> Self {
        Self {
            queue: queue.clone(),
            schema: Arc::clone(&table.schema),
            batch_rows: Resident::BATCH_ROWS,
            batch_bytes: MOST_BATCH_BYTES,
            pending: vec![],
            pending_rows: 0,
            pending_bytes: 0,
            columns: table.columns.clone(),
            batches: table.batches.clone(),
        }
    }

    /// Sets the rows of a full batch, at least 1.
    ///
    /// More rows mean fewer launches; fewer rows need less memory at once.
    #[must_use]
    pub fn with_batch_rows(mut self, batch_rows: usize) -> Self {
        self.batch_rows = batch_rows.max(1);
        self
    }

    /// Sets the bytes at which a batch of at least [`Resident::BATCH_ROWS`] rows is full, by the
    /// size of its arrays on the host.
    #[must_use]
    pub fn with_batch_bytes(mut self, batch_bytes: usize) -> Self {
        self.batch_bytes = batch_bytes.min(MOST_BATCH_BYTES);
        self
    }

    /// Adds rows and uploads all full batches.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload()).
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let row_bytes = row_bytes(&batch);
        let mut rest = batch;
        while rest.num_rows() > 0 {
            let taken = self.room(row_bytes).min(rest.num_rows());
            if taken > 0 {
                self.pending.push(rest.slice(0, taken));
                self.pending_rows += taken;
                self.pending_bytes += taken * row_bytes;
                rest = rest.slice(taken, rest.num_rows() - taken);
            }
            if self.room(row_bytes) == 0 {
                self.upload_pending()?;
            }
        }
        Ok(())
    }

    /// Rows of so many bytes each that the next batch has room for.
    fn room(&self, row_bytes: usize) -> usize {
        let fewest = Resident::BATCH_ROWS.saturating_sub(self.pending_rows);
        let by_bytes = self.batch_bytes.saturating_sub(self.pending_bytes) / row_bytes.max(1);
        (self.batch_rows - self.pending_rows).min(by_bytes.max(fewest))
    }

    /// Uploads the last rows and converts all batches to the final types.
    ///
    /// # Errors
    /// Those of [`upload`](crate::upload()) and [`download`](crate::download()).
    pub async fn finish(mut self) -> Result<Resident> {
        if !self.pending.is_empty() {
            self.upload_pending()?;
        }
        let types: Vec<_> = self.columns.iter().map(|column| Arc::new(column.ty())).collect();
        // Rows that go through the host go there by parts of any large batch.
        let parts = self.batches.iter().flat_map(|batch| {
            let is_shared = batch.columns().iter().zip(&types).all(|(column, ty)| shares_buffers(column.ty(), ty));
            batch.chunks(if is_shared { batch.num_rows() } else { Resident::BATCH_ROWS })
        });
        let mut batches: Vec<_> = parts.collect();
        for batch in &mut batches {
            let mut columns = Vec::with_capacity(types.len());
            for ((state, ty), column) in self.columns.iter_mut().zip(&types).zip(batch.columns()) {
                columns.push(state.convert(&self.queue, ty, column).await?);
            }
            *batch = DeviceBatch::try_new(Arc::clone(&self.schema), columns, batch.num_rows())?;
        }
        Ok(Resident {
            types: types.iter().map(|ty| (**ty).clone()).collect(),
            statistics: self.columns.iter().map(ColumnState::statistics).collect(),
            schema: self.schema,
            batches,
            columns: self.columns,
        })
    }

    /// Names and types of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn upload_pending(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.pending);
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        (self.pending_rows, self.pending_bytes) = (0, 0);
        let uploader = Uploader::new(&self.queue, rows);
        let mut columns = Vec::with_capacity(self.columns.len());
        for (index, column) in self.columns.iter_mut().enumerate() {
            let arrays = batches.iter().filter_map(|batch| batch.columns().get(index));
            let arrays: Vec<_> = arrays.filter(|array| !array.is_empty()).collect();
            columns.push(column.upload(&uploader, &arrays)?);
        }
        let pool = self.queue.context().pool();
        columns.iter().try_for_each(|column| column.count_in_place(pool))?;
        self.batches.push(DeviceBatch::try_new(Arc::clone(&self.schema), columns, rows)?);
        Ok(())
    }
}
