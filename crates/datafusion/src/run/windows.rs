// SPDX-License-Identifier: Apache-2.0
//! Window functions. Where not all rows fit memory, partitions are computed once they have ended.
//!
//! The input is sorted by the partition keys, so the last partition alone can go on. One too large
//! for memory is cut if all functions carry on behind a cut. Ranks do, aggregates of the rows up to
//! the current one, and functions of so many rows around it. With others it fails.

use std::collections::VecDeque;
use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{Window, WindowState};

use super::DeviceBatchStream;
use super::errors::explain;
use super::memory::{MemoryAttribution, free_bytes, slices};
use crate::error::op_error;
use crate::graph::{Checks, Stage};

/// The rows that a window holds, for messages.
const HELD: &str = "its input since the last result";

/// Computes the window functions of a stage.
pub(super) fn window(
    input: DeviceBatchStream,
    op: Arc<Window>,
    checks: Checks,
    stage: Arc<Stage>,
    batch_rows: usize,
    queue: Queue,
) -> DeviceBatchStream {
    let memory = MemoryAttribution::new(&stage.operator, if op.may_split() { HELD } else { "its input" });
    let held = memory.clone();
    let state = Some(op.start());
    let (slices, is_cut, tried_rows, has_split) = (VecDeque::new(), false, 0, false);
    let windowing = Windowing { input, slices, is_cut, state, tried_rows, has_split, batch_rows, op, checks, stage, queue, held };
    let results = stream::try_unfold(windowing, |mut windowing| async move {
        let batches = windowing.next().await?;
        Ok::<_, DataFusionError>(batches.map(|batches| (stream::iter(batches.into_iter().map(Ok)), windowing)))
    });
    results.try_flatten().map_err(move |error| memory.attributed(error)).boxed()
}

/// Window functions on their way.
struct Windowing {
    input: DeviceBatchStream,
    /// The slices that are left of a batch of the input.
    slices: VecDeque<DeviceBatch>,
    /// Whether the batch is in several slices.
    is_cut: bool,
    /// The rows that are kept. `None` after the last one.
    state: Option<WindowState>,
    /// Number of the rows that the last search left.
    tried_rows: usize,
    /// Whether memory was short. From then on results have at most `batch_rows` rows, since
    /// operators above have little, too.
    has_split: bool,
    batch_rows: usize,
    op: Arc<Window>,
    checks: Checks,
    stage: Arc<Stage>,
    queue: Queue,
    held: MemoryAttribution,
}

impl Windowing {
    /// The results of ended partitions, of rows before a cut, or of all remaining rows.
    async fn next(&mut self) -> Result<Option<Vec<DeviceBatch>>> {
        let (op, stage, queue) = (&self.op, &self.stage, &self.queue);
        let failed = |error| op_error(&stage.operator, error);
        let Some(mut state) = self.state.take() else { return Ok(None) };
        loop {
            let Some(slice) = self.slices.pop_front() else {
                let Some(batch) = self.input.next().await else { break };
                self.slices.extend(fitting_slices(op, &state, batch?, queue));
                self.is_cut = self.slices.len() > 1;
                continue;
            };
            let is_full = self.is_searched(&state) && !fits(op, &state, &slice, queue);
            let split = match is_full {
                true => op.split_off(queue, &mut state).await.map_err(failed)?,
                false => None,
            };
            if is_full {
                self.tried_rows = state.num_rows();
            }
            let of_split = split.as_ref().map_or(0, WindowState::num_rows);
            self.held.holds(of_split + state.num_rows() + slice.num_rows());
            let pushed = match self.is_cut {
                true => op.push_copy(queue, &mut state, &slice).await,
                false => op.push(queue, &mut state, &slice).await,
            };
            if let Err(error) = pushed {
                return Err(explain(error, &stage.operator, queue, &slice, &self.checks).await);
            }
            if let Some(split) = split {
                (self.state, self.has_split) = (Some(state), true);
                return self.results(split).await.map(Some);
            }
        }
        self.input = stream::empty().boxed();
        self.results(state).await.map(Some)
    }

    /// The rows with their functions.
    async fn results(&mut self, state: WindowState) -> Result<Vec<DeviceBatch>> {
        let finished = self.op.finish(&self.queue, state).await;
        let batches = finished.map_err(|error| op_error(&self.stage.operator, error))?;
        Ok(match self.has_split {
            true => batches.iter().flat_map(|batch| batch.chunks(self.batch_rows)).collect(),
            false => batches,
        })
    }

    /// Whether to search for ended partitions. A quarter more rows come before the next search, so
    /// that all searches take linear time.
    fn is_searched(&self, state: &WindowState) -> bool {
        self.op.may_split() && 4 * state.num_rows() > 5 * self.tried_rows
    }
}

/// Whether the kept rows and a slice can be computed together, in half of the free memory. The
/// other half is for the operators above, which get the results.
fn fits(op: &Window, state: &WindowState, slice: &DeviceBatch, queue: &Queue) -> bool {
    let of_slice = slice.row_bytes();
    let (rows, bytes) = (state.num_rows() + slice.num_rows(), state.row_bytes() + of_slice);
    // Two more slices are on their way.
    let needed = match state.num_rows() {
        0 => op.finish_bytes(1, rows, bytes),
        _ => op.finish_bytes(2, rows, bytes) + 2 * of_slice,
    };
    Window::accepts_rows(rows) && needed <= free_bytes(queue) / 2
}

/// A batch, cut into slices unless it fits beside the kept rows. Several slices fit memory.
fn fitting_slices(op: &Window, state: &WindowState, batch: DeviceBatch, queue: &Queue) -> Vec<DeviceBatch> {
    if !op.may_split() || fits(op, state, &batch, queue) {
        return vec![batch];
    }
    let needed = op.finish_bytes(2, batch.num_rows(), batch.row_bytes());
    slices(batch, needed, free_bytes(queue) / 8)
}
