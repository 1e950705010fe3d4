// SPDX-License-Identifier: Apache-2.0
//! The merge of sorted runs, in steps of a few blocks.
//!
//! The first and last rows of all blocks are sorted once. Their order tells the blocks to read in a
//! step, and up to which row these are complete ("forecasting"; Knuth, volume 3, section 5.4.6).

use std::collections::BTreeMap;
use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use device::{Queue, SoftReservation};
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::SortMerge;

use super::external::SortedRun;
use crate::error::op_error;
use crate::run::DeviceBatchStream;
use crate::run::spill::Spill;

/// Blocks that a step has in memory: twice the runs, so that most rows of a step are complete.
pub(super) const BLOCKS: usize = 64;

/// A block: its run, and its position there.
type BlockNumber = (usize, usize);

/// An end of a block, in the order of all ends.
#[derive(Clone, Copy)]
struct BlockEnd {
    block: BlockNumber,
    is_last_row: bool,
}

/// A merge on its way.
struct Merging {
    merge: Arc<SortMerge>,
    queue: Queue,
    operator: String,
    ends: Vec<BlockEnd>,
    /// The first end that no step has passed.
    at: usize,
    runs: Vec<DeviceBatchStream>,
    /// The remaining rows of read blocks.
    blocks: BTreeMap<BlockNumber, DeviceBatch>,
    /// The bytes of a step beside the blocks that are left. An operator above would take them
    /// between two steps.
    reservation: SoftReservation,
}

/// The rows of sorted runs in order. Equal rows keep the order of runs.
pub(super) fn merged(
    merge: Arc<SortMerge>,
    spill: Spill,
    queue: Queue,
    operator: String,
    runs: Vec<SortedRun>,
) -> DeviceBatchStream {
    stream::once(async move {
        let ends = sorted_ends(&merge, &spill, &queue, &operator, &runs).await?;
        let runs = runs.into_iter().map(|run| spill.read(&queue, run.blocks)).collect::<Result<_>>()?;
        let reservation = queue.context().pool().reserve_softly();
        let (blocks, at) = Default::default();
        let merging = Merging { merge, queue, operator, ends, at, runs, blocks, reservation };
        Ok::<_, DataFusionError>(stream::try_unfold(merging, |mut merging| async move {
            let step = merging.step().await?;
            Ok(step.map(|rows| (rows, merging)))
        }))
    })
    .try_flatten()
    .boxed()
}

/// The ends of all blocks in the order of their rows.
async fn sorted_ends(
    merge: &SortMerge,
    spill: &Spill,
    queue: &Queue,
    operator: &str,
    runs: &[SortedRun],
) -> Result<Vec<BlockEnd>> {
    let (mut rows, mut ends) = (vec![], vec![]);
    for (number, run) in runs.iter().enumerate() {
        let mut block = 0;
        for stored in &run.ends {
            rows.push(spill.restore(queue, stored)?);
            for _ in 0..stored.num_rows() / 2 {
                ends.extend([false, true].map(|is_last_row| BlockEnd { block: (number, block), is_last_row }));
                block += 1;
            }
        }
    }
    let order = merge.order(queue, rows).await.map_err(|error| op_error(operator, error))?;
    let ends = order.iter().map(|row| ends.get(*row as usize).copied());
    ends.collect::<Option<_>>().ok_or_else(|| internal_datafusion_err!("{operator}: blocks without ends"))
}

impl Merging {
    /// The next rows: up to the last row of a block, and few enough blocks.
    async fn step(&mut self) -> Result<Option<DeviceBatch>> {
        let Some(last) = self.last_of_step() else { return Ok(None) };
        let missing = || internal_datafusion_err!("{}: a run without its block", self.operator);
        let mut new_bytes = 0;
        for end in &self.ends[self.at..=last] {
            if !end.is_last_row {
                let run = self.runs.get_mut(end.block.0).ok_or_else(missing)?;
                let block = run.try_next().await?.ok_or_else(missing)?;
                new_bytes += block.row_bytes();
                self.blocks.insert(end.block, block);
            }
        }
        let until = self.blocks.keys().position(|block| *block == self.ends[last].block).ok_or_else(missing)?;
        let is_end = last + 1 == self.ends.len();
        let blocks: Vec<DeviceBatch> = self.blocks.values().cloned().collect();
        let (rows, bytes) =
            blocks.iter().fold((0, 0), |(rows, bytes), block| (rows + block.num_rows(), bytes + block.row_bytes()));
        self.reservation.grow(new_bytes + self.merge.step_bytes(blocks.len(), rows, bytes));
        let merged = self.merge.merge(&self.queue, &blocks, (!is_end).then_some(until)).await;
        let merged = merged.map_err(|error| op_error(&self.operator, error))?;
        for (block, taken) in self.blocks.values_mut().zip(merged.taken) {
            *block = block.slice(taken, block.num_rows());
        }
        self.blocks.retain(|_, block| block.num_rows() > 0);
        self.at = last + 1;
        Ok(Some(merged.rows))
    }

    /// The end at which a step ends. `None` after the last step.
    fn last_of_step(&self) -> Option<usize> {
        let (mut blocks, mut last) = (self.blocks.len(), None);
        for (index, end) in self.ends.iter().enumerate().skip(self.at) {
            if end.is_last_row {
                last = Some(index);
            } else if blocks == BLOCKS && last.is_some() {
                break;
            } else {
                blocks += 1;
            }
        }
        last
    }
}
