// SPDX-License-Identifier: Apache-2.0
//! Sorted runs on disk.

use std::sync::Arc;

use columnar::{DeviceBatch, StorageFormat};
use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{Sort, SortMerge, SortState};

use super::merging::{BLOCKS, merged};
use crate::error::op_error;
use crate::graph::Stage;
use crate::run::DeviceBatchStream;
use crate::run::memory::unused_bytes;
use crate::run::spill::{Spill, SpilledBatches, StoredRows};
use crate::run::state::Run;

/// Most runs that are merged at once. More are merged to one run first.
const MAX_RUNS: usize = 32;
/// Most rows of a step: their numbers go to the host.
const MAX_STEP_ROWS: usize = 1 << 26;
/// Rows of a block under any limit.
const FEWEST_ROWS: usize = 1 << 5;

/// A sort that spills.
pub(super) struct ExternalSort {
    op: Arc<Sort>,
    merge: Arc<SortMerge>,
    spill: Spill,
    queue: Queue,
    operator: String,
    runs: Vec<SortedRun>,
}

/// Sorted rows in a file, as blocks.
pub(super) struct SortedRun {
    pub blocks: SpilledBatches,
    /// First and last row of each block.
    pub ends: Vec<StoredRows>,
}

impl ExternalSort {
    /// `None` if the rows cannot be stored.
    pub fn of(op: &Arc<Sort>, stage: &Stage, run: &Run, queue: &Queue) -> Result<Option<ExternalSort>> {
        let merge = op.merge().map_err(|error| op_error(&stage.operator, error))?;
        let Some(merge) = merge.map(Arc::new) else { return Ok(None) };
        let Some(format) = StorageFormat::of(merge.schema(), merge.types()) else { return Ok(None) };
        let spill = Spill::new(format, stage, &run.task);
        let (op, queue, operator) = (Arc::clone(op), queue.clone(), stage.operator.clone());
        Ok(Some(ExternalSort { op, merge, spill, queue, operator, runs: vec![] }))
    }

    /// Sorts rows, and writes them as a run.
    pub async fn add(&mut self, state: SortState) -> Result<()> {
        let sorted = self.op.finish_run(&self.queue, state).await.map_err(|error| self.failed(error))?;
        let Some(sorted) = sorted else { return Ok(()) };
        let written = self.write(stream::iter([Ok(sorted)]).boxed()).await?;
        self.runs.extend(written);
        if self.runs.len() >= MAX_RUNS {
            let merged = self.merged();
            let written = self.write(merged).await?;
            self.runs.extend(written);
        }
        Ok(())
    }

    /// The rows of all runs in order, without the keys that are no outputs.
    pub fn finish(mut self) -> DeviceBatchStream {
        let merged = self.merged();
        let state = (merged, self.op.fetch().unwrap_or(usize::MAX));
        let limited = stream::try_unfold(state, |(mut merged, left)| async move {
            if left == 0 {
                return Ok::<_, DataFusionError>(None);
            }
            let Some(rows) = merged.try_next().await? else { return Ok(None) };
            let rows: DeviceBatch = rows.slice(0, left);
            let left = left - rows.num_rows();
            Ok(Some((rows, (merged, left))))
        });
        let (op, operator) = (self.op, self.operator);
        limited.map(move |rows| op.outputs(&rows?).map_err(|error| op_error(&operator, error))).boxed()
    }

    /// All runs, merged.
    fn merged(&mut self) -> DeviceBatchStream {
        let runs = std::mem::take(&mut self.runs);
        merged(Arc::clone(&self.merge), self.spill.clone(), self.queue.clone(), self.operator.clone(), runs)
    }

    /// Writes sorted batches as one run.
    async fn write(&self, mut sorted: DeviceBatchStream) -> Result<Option<SortedRun>> {
        let (mut writer, mut ends) = (self.spill.writer(&self.queue)?, vec![]);
        while let Some(batch) = sorted.try_next().await? {
            let rows = block_rows(&self.op, &batch, &self.queue);
            let of_batch = self.merge.ends(&self.queue, &batch, rows).await.map_err(|error| self.failed(error))?;
            ends.push(self.spill.store(&self.queue, &of_batch).await?);
            for block in batch.chunks(rows) {
                writer.write(&block).await?;
            }
        }
        Ok(writer.finish().await?.map(|blocks| SortedRun { blocks, ends }))
    }

    fn failed(&self, error: kernels::Error) -> DataFusionError {
        op_error(&self.operator, error)
    }
}

/// Rows of the blocks of a batch, so that a step of the merge takes half of the memory that is free
/// then. The memory of the batch itself is free by then, and so is what a merge that gave it counts
/// on.
fn block_rows(op: &Sort, batch: &DeviceBatch, queue: &Queue) -> usize {
    let (rows, bytes) = (batch.num_rows(), batch.row_bytes());
    let of_block = (unused_bytes(queue) + bytes) / (2 * BLOCKS);
    // A step has its blocks, and sorts them.
    let needed = bytes + op.finish_bytes(BLOCKS, rows, bytes);
    let block = rows as u128 * of_block as u128 / needed.max(1) as u128;
    let most = MAX_STEP_ROWS / BLOCKS;
    (block as usize).min(most).clamp(FEWEST_ROWS, rows.max(FEWEST_ROWS))
}
