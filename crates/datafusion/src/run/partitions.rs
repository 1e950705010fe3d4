// SPDX-License-Identifier: Apache-2.0
//! Rows in partitions on disk.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use columnar::{DeviceBatch, StorageFormat, StoredColumns};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::HashPartition;

use super::DeviceBatchStream;
use super::errors::explain;
use super::memory::{free_bytes, slices};
use super::spill::{Spill, SpillWriter, SpilledBatches};
use super::state::Run;
use crate::graph::{Checks, Stage};

/// Rows of a partition wait in host memory for others, to be written together: so many rows or
/// bytes.
const BLOCK_ROWS: usize = 1 << 13;
const BLOCK_BYTES: usize = 1 << 18;
/// Times the number of a level it is the seed of that level's hash.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The rows of a partition.
#[derive(Clone, Default)]
pub(super) struct Partition {
    files: Vec<SpilledBatches>,
    pub rows: usize,
    /// Device bytes of the rows, about.
    pub bytes: usize,
}

/// All rows of an input.
pub(super) struct PartitionedInput {
    /// By number.
    pub partitions: Vec<Partition>,
    /// Whether the key of a row is NULL. False where NULLs are equal.
    pub has_null_keys: bool,
}

/// How the rows of an input are partitioned and stored.
#[derive(Clone)]
pub(super) struct Partitioning {
    op: Arc<HashPartition>,
    spill: Spill,
    queue: Queue,
    operator: String,
    /// The keys, for messages.
    checks: Checks,
}

impl Partitioning {
    /// For an input of the operator of a stage, whose metrics get the files. `None` if rows cannot
    /// be stored.
    pub fn of(
        op: HashPartition,
        checks: &[Arc<dyn PhysicalExpr>],
        stage: &Stage,
        run: &Run,
        queue: &Queue,
    ) -> Option<Partitioning> {
        let (schema, types) = op.input();
        Some(Self::with_format(op, StorageFormat::of(&schema, &types)?, checks, stage, run, queue))
    }

    /// The same where rows come back in the layouts of `format`.
    pub fn with_format(
        op: HashPartition,
        format: StorageFormat,
        checks: &[Arc<dyn PhysicalExpr>],
        stage: &Stage,
        run: &Run,
        queue: &Queue,
    ) -> Partitioning {
        let spill = Spill::new(format, stage, &run.task);
        let (op, queue, operator) = (Arc::new(op), queue.clone(), stage.operator.clone());
        Partitioning { op, spill, queue, operator, checks: checks.into() }
    }

    /// Starts the partitions of a level: a partition that is too large is partitioned again.
    pub fn writer(&self, level: u32) -> PartitionWriter {
        let partitions = (0..HashPartition::PARTITIONS).map(|_| PendingPartition::default()).collect();
        let seed = SEED.wrapping_mul(level.into());
        PartitionWriter { partitioning: self.clone(), seed, partitions, has_null_keys: false }
    }

    /// All rows in partitions of a level.
    pub async fn partitioned(&self, mut rows: DeviceBatchStream, level: u32) -> Result<PartitionedInput> {
        let mut writer = self.writer(level);
        while let Some(batch) = rows.try_next().await? {
            writer.write(&batch).await?;
        }
        writer.finish().await
    }

    /// The rows of a partition.
    pub fn read(&self, partition: Partition) -> Result<DeviceBatchStream> {
        let files = partition.files.into_iter().map(|file| self.spill.read(&self.queue, file));
        Ok(stream::iter(files.collect::<Result<Vec<_>>>()?).flatten().boxed())
    }
}

impl Partition {
    /// Rows of both.
    pub fn with(mut self, other: Partition) -> Partition {
        self.files.extend(other.files);
        Partition { files: self.files, rows: self.rows + other.rows, bytes: self.bytes + other.bytes }
    }
}

/// Writes rows to their partitions.
pub(super) struct PartitionWriter {
    partitioning: Partitioning,
    seed: u64,
    partitions: Vec<PendingPartition>,
    has_null_keys: bool,
}

/// A partition that is written.
#[derive(Default)]
struct PendingPartition {
    /// The rows so far, without their files.
    written: Partition,
    writer: Option<SpillWriter>,
    /// Rows in host memory, of the same dictionaries.
    waiting: Vec<RecordBatch>,
    waiting_rows: usize,
    waiting_bytes: usize,
    columns: Option<StoredColumns>,
}

impl PartitionWriter {
    pub async fn write(&mut self, batch: &DeviceBatch) -> Result<()> {
        let of = &self.partitioning;
        let needed = batch.num_rows() * HashPartition::BYTES_PER_ROW + 2 * batch.row_bytes();
        for slice in slices(batch.clone(), needed, free_bytes(&of.queue) / 8) {
            let partitioned = match of.op.run(&of.queue, &slice, self.seed).await {
                Ok(partitioned) => partitioned,
                Err(error) => return Err(explain(error, &of.operator, &of.queue, &slice, &of.checks).await),
            };
            self.has_null_keys |= partitioned.has_null_keys;
            let rows = of.spill.download(&of.queue, &partitioned.rows).await?;
            let columns = of.spill.columns(&partitioned.rows);
            for (number, partition) in self.partitions.iter_mut().enumerate() {
                let range = partitioned.of(number);
                if !range.is_empty() {
                    partition.add(of, copied(&rows, range)?, &columns).await?;
                }
            }
        }
        Ok(())
    }

    /// The rows written.
    pub async fn finish(self) -> Result<PartitionedInput> {
        let mut partitions = Vec::with_capacity(self.partitions.len());
        for mut partition in self.partitions {
            partition.flush(&self.partitioning).await?;
            if let Some(writer) = partition.writer {
                partition.written.files.extend(writer.finish().await?);
            }
            partitions.push(partition.written);
        }
        Ok(PartitionedInput { partitions, has_null_keys: self.has_null_keys })
    }
}

impl PendingPartition {
    async fn add(&mut self, of: &Partitioning, rows: RecordBatch, columns: &StoredColumns) -> Result<()> {
        if self.columns.as_ref().is_some_and(|others| !others.same_dictionaries(columns)) {
            self.flush(of).await?;
        }
        self.columns.get_or_insert_with(|| columns.clone());
        let bytes = rows.get_array_memory_size();
        (self.written.rows, self.written.bytes) = (self.written.rows + rows.num_rows(), self.written.bytes + bytes);
        (self.waiting_rows, self.waiting_bytes) = (self.waiting_rows + rows.num_rows(), self.waiting_bytes + bytes);
        self.waiting.push(rows);
        match self.waiting_rows >= BLOCK_ROWS || self.waiting_bytes >= BLOCK_BYTES {
            true => self.flush(of).await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self, of: &Partitioning) -> Result<()> {
        let (waiting, columns) = (std::mem::take(&mut self.waiting), self.columns.take());
        (self.waiting_rows, self.waiting_bytes) = (0, 0);
        let (Some(first), Some(columns)) = (waiting.first(), columns) else { return Ok(()) };
        let rows = concat_batches(&first.schema(), &waiting)?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(of.spill.writer(&of.queue)?),
        };
        writer.append(rows, columns).await
    }
}

/// A copy of some rows. A slice would keep all rows of its batch in memory, which may be the
/// device's.
fn copied(rows: &RecordBatch, range: Range<usize>) -> Result<RecordBatch> {
    if rows.num_columns() == 0 {
        // A join that reads no column of a side asks for its number of rows alone.
        return Ok(rows.slice(range.start, range.len()));
    }
    let numbers = UInt64Array::from_iter_values(range.map(|row| row as u64));
    let rows = take_record_batch(rows, &numbers)?;
    let columns = rows.columns().iter().map(|column| match column.as_binary_view_opt() {
        Some(views) => Arc::new(views.gc()) as _,
        None => Arc::clone(column),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(rows.schema(), columns.collect(), &options)?)
}
