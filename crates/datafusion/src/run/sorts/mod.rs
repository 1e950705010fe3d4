// SPDX-License-Identifier: Apache-2.0
//! Sorts of all rows. Rows that are more than device memory holds are sorted in runs on disk.

mod external;
mod merging;

use std::sync::Arc;

use columnar::DeviceBatch;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{Sort, SortState};

use self::external::ExternalSort;
use super::DeviceBatchStream;
use super::errors::explain;
use super::memory::{MemoryAttribution, free_bytes, slices};
use super::state::Run;
use crate::error::op_error;
use crate::graph::{Checks, Stage};

/// Sorts all rows of the input.
pub(super) fn sort(
    input: DeviceBatchStream,
    op: Arc<Sort>,
    checks: Checks,
    stage: Arc<Stage>,
    run: Arc<Run>,
    queue: Queue,
) -> DeviceBatchStream {
    let memory = MemoryAttribution::new(&stage.operator, "its input");
    let (mut input, held) = (memory.counted(input), memory.clone());
    stream::once(async move {
        let (mut state, mut external, mut may_spill) = (op.start(), None, run.may_spill());
        while let Some(batch) = input.next().await {
            let batch = batch?;
            let slices = if may_spill { sortable_slices(&op, &state, batch, &queue) } else { vec![batch] };
            for slice in slices {
                if may_spill && state.num_rows() > 0 && !fits(&op, &state, &slice, &queue) {
                    if external.is_none() {
                        external = ExternalSort::of(&op, &stage, &run, &queue)?;
                    }
                    match &mut external {
                        Some(external) => {
                            held.spilled();
                            external.add(std::mem::replace(&mut state, op.start())).await?;
                        }
                        None => may_spill = false,
                    }
                }
                if let Err(error) = op.push(&queue, &mut state, &slice).await {
                    return Err(explain(error, &stage.operator, &queue, &slice, &checks).await);
                }
            }
        }
        drop(input);
        match external {
            Some(mut external) => {
                external.add(state).await?;
                Ok(external.finish())
            }
            None => {
                let failed = move |error| op_error(&stage.operator, error);
                let sorted = op.sorted(&queue, state).await.map_err(&failed)?;
                let slices = stream::try_unfold((sorted, op, queue), move |(mut sorted, op, queue)| {
                    let failed = failed.clone();
                    async move {
                        let slice = op.next_slice(&queue, &mut sorted).await.map_err(failed)?;
                        Ok(slice.map(|slice| (slice, (sorted, op, queue))))
                    }
                });
                Ok(slices.boxed())
            }
        }
    })
    .try_flatten()
    .map_err(move |error| memory.attributed(error))
    .boxed()
}

/// Whether the kept rows can be sorted together with a slice, beside two more on their way.
fn fits(op: &Sort, state: &SortState, slice: &DeviceBatch, queue: &Queue) -> bool {
    let of_slice = kept_bytes(op, slice);
    let (rows, bytes) = (state.num_rows() + slice.num_rows(), state.row_bytes() + of_slice);
    let needed = match state.num_rows() {
        0 => op.finish_bytes(1, rows, bytes),
        _ => op.finish_bytes(2, rows, bytes) + 2 * of_slice,
    };
    Sort::accepts_rows(rows) && needed <= free_bytes(queue)
}

/// Device bytes of a batch's outputs and keys: as the rows have, or as their types need.
fn kept_bytes(op: &Sort, batch: &DeviceBatch) -> usize {
    batch.row_bytes().max(op.output_bytes(batch.num_rows()))
}

/// A batch, cut into slices unless it can be sorted at once. Several slices fit memory.
fn sortable_slices(op: &Sort, state: &SortState, batch: DeviceBatch, queue: &Queue) -> Vec<DeviceBatch> {
    if fits(op, state, &batch, queue) {
        return vec![batch];
    }
    let needed = op.finish_bytes(2, batch.num_rows(), kept_bytes(op, &batch));
    slices(batch, needed, free_bytes(queue) / 4)
}
