// SPDX-License-Identifier: Apache-2.0
//! Rows of a join's side in partitions on disk.

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

use crate::error::op_error;
use crate::graph::{BuildSide, Checks, Stage};
use crate::run::DeviceBatchStream;
use crate::run::errors::explain;
use crate::run::memory::{free_bytes, pieces};
use crate::run::spill::{Spill, SpillWriter, SpilledBatches};
use crate::run::state::Run;

/// Rows of a partition wait in host memory for others, to be written together: so many rows or
/// bytes.
const BLOCK_ROWS: usize = 1 << 13;
const BLOCK_BYTES: usize = 1 << 18;
/// Rows of a piece of input under any limit.
const FEWEST_ROWS: usize = 1 << 8;
/// Share of the limit that a build side leaves free, for the rows that probe it.
const LEFT_FREE: usize = 8;
/// Times the number of a level it is the seed of that level's hash.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The rows of a build side.
pub(super) enum GatheredSide {
    Rows(Vec<DeviceBatch>),
    Spilled(PartitionedSide),
}

/// A side in partitions.
pub(super) struct PartitionedSide {
    pub partitioning: SidePartitioning,
    pub partitions: Vec<Partition>,
}

/// The rows of a partition.
#[derive(Clone, Default)]
pub(super) struct Partition {
    files: Vec<SpilledBatches>,
    pub rows: usize,
    /// Device bytes of the rows, about.
    pub bytes: usize,
}

/// How the rows of a side are partitioned and stored.
#[derive(Clone)]
pub(super) struct SidePartitioning {
    op: Arc<HashPartition>,
    spill: Spill,
    queue: Queue,
    operator: String,
    /// The keys, for messages.
    checks: Checks,
}

/// Collects the rows of a build side, in partitions on disk if `can_spill` and they do not fit
/// memory with their table.
pub(super) async fn gather(
    mut rows: DeviceBatchStream,
    side: &BuildSide,
    can_spill: bool,
    stage: &Stage,
    run: &Run,
    queue: &Queue,
) -> Result<GatheredSide> {
    let (mut batches, mut total, mut bytes) = (Vec::<DeviceBatch>::new(), 0, 0);
    while let Some(batch) = rows.try_next().await? {
        (total, bytes) = (total + batch.num_rows(), bytes + batch.row_bytes());
        batches.push(batch);
        // Several batches are concatenated.
        let copied = if batches.len() > 1 { bytes } else { 0 };
        let free = free_bytes(queue);
        let left_free = (queue.context().pool().limit() / LEFT_FREE).min(free / 2);
        if !can_spill || copied + side.build.table_bytes(total) + left_free <= free {
            continue;
        }
        let op = HashPartition::of_build_side(&side.build, Arc::clone(&side.stage.schema), side.stage.types.clone());
        let op = op.map_err(|error| op_error(&side.operator, error))?;
        let Some(partitioning) = SidePartitioning::of(op, &side.checks, stage, run, queue) else { continue };
        let mut writer = partitioning.writer(0);
        for batch in batches {
            writer.write(&batch).await?;
        }
        while let Some(batch) = rows.try_next().await? {
            writer.write(&batch).await?;
        }
        return Ok(GatheredSide::Spilled(PartitionedSide { partitions: writer.finish().await?, partitioning }));
    }
    Ok(GatheredSide::Rows(batches))
}

impl SidePartitioning {
    /// For a side of the joins of a stage, whose metrics get the files. `None` if rows cannot be
    /// stored.
    pub fn of(
        op: HashPartition,
        checks: &[Arc<dyn PhysicalExpr>],
        stage: &Stage,
        run: &Run,
        queue: &Queue,
    ) -> Option<SidePartitioning> {
        let (schema, types) = op.input();
        let spill = Spill::new(StorageFormat::of(&schema, &types)?, stage, &run.task);
        let (op, queue, operator) = (Arc::new(op), queue.clone(), stage.operator.clone());
        Some(SidePartitioning { op, spill, queue, operator, checks: checks.into() })
    }

    /// Starts the partitions of a level: a partition that is too large is partitioned again.
    pub fn writer(&self, level: u32) -> PartitionWriter {
        let partitions = (0..HashPartition::PARTITIONS).map(|_| PendingPartition::default()).collect();
        PartitionWriter { side: self.clone(), seed: SEED.wrapping_mul(level.into()), partitions }
    }

    /// The rows of a partition in partitions of another level.
    pub async fn partitioned_again(&self, partition: Partition, level: u32) -> Result<Vec<Partition>> {
        let (mut writer, mut rows) = (self.writer(level), self.read(partition)?);
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
    side: SidePartitioning,
    seed: u64,
    partitions: Vec<PendingPartition>,
}

/// A partition that is written.
#[derive(Default)]
struct PendingPartition {
    /// The rows so far, without their files.
    written: Partition,
    writer: Option<SpillWriter>,
    /// Rows in host memory, of the same dictionaries.
    waiting: Vec<RecordBatch>,
    columns: Option<StoredColumns>,
}

impl PartitionWriter {
    pub async fn write(&mut self, batch: &DeviceBatch) -> Result<()> {
        let side = &self.side;
        let needed = batch.num_rows() * HashPartition::BYTES_PER_ROW + 2 * batch.row_bytes();
        for piece in pieces(batch.clone(), needed, free_bytes(&side.queue) / 4, FEWEST_ROWS) {
            let partitioned = match side.op.run(&side.queue, &piece, self.seed).await {
                Ok(partitioned) => partitioned,
                Err(error) => return Err(explain(error, &side.operator, &side.queue, &piece, &side.checks).await),
            };
            let rows = side.spill.download(&side.queue, &partitioned.rows).await?;
            let columns = side.spill.columns(&partitioned.rows);
            let bytes_per_row = partitioned.rows.row_bytes() / rows.num_rows().max(1);
            for (number, partition) in self.partitions.iter_mut().enumerate() {
                let range = partitioned.of(number);
                if !range.is_empty() {
                    partition.written.rows += range.len();
                    partition.written.bytes += bytes_per_row * range.len();
                    partition.add(side, copied(&rows, range)?, &columns).await?;
                }
            }
        }
        Ok(())
    }

    /// The partitions by number.
    pub async fn finish(self) -> Result<Vec<Partition>> {
        let mut partitions = Vec::with_capacity(self.partitions.len());
        for mut partition in self.partitions {
            partition.flush(&self.side).await?;
            if let Some(writer) = partition.writer {
                partition.written.files.extend(writer.finish().await?);
            }
            partitions.push(partition.written);
        }
        Ok(partitions)
    }
}

impl PendingPartition {
    async fn add(&mut self, side: &SidePartitioning, rows: RecordBatch, columns: &StoredColumns) -> Result<()> {
        if self.columns.as_ref().is_some_and(|others| !others.same_dictionaries(columns)) {
            self.flush(side).await?;
        }
        self.columns.get_or_insert_with(|| columns.clone());
        self.waiting.push(rows);
        let rows = self.waiting.iter().map(RecordBatch::num_rows).sum::<usize>();
        let bytes = self.waiting.iter().map(RecordBatch::get_array_memory_size).sum::<usize>();
        match rows >= BLOCK_ROWS || bytes >= BLOCK_BYTES {
            true => self.flush(side).await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self, side: &SidePartitioning) -> Result<()> {
        let (waiting, columns) = (std::mem::take(&mut self.waiting), self.columns.take());
        let (Some(first), Some(columns)) = (waiting.first(), columns) else { return Ok(()) };
        let rows = concat_batches(&first.schema(), &waiting)?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(side.spill.writer(&side.queue)?),
        };
        writer.append(rows, columns).await
    }
}

/// A copy of some rows. A slice would keep all rows of its batch in memory, which may be the
/// device's.
fn copied(rows: &RecordBatch, range: Range<usize>) -> Result<RecordBatch> {
    let numbers = UInt64Array::from_iter_values(range.map(|row| row as u64));
    let rows = take_record_batch(rows, &numbers)?;
    let columns = rows.columns().iter().map(|column| match column.as_binary_view_opt() {
        Some(views) => Arc::new(views.gc()) as _,
        None => Arc::clone(column),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(rows.schema(), columns.collect(), &options)?)
}
