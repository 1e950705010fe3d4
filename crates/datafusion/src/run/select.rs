// SPDX-License-Identifier: Apache-2.0
//! Filter and computed columns, batch by batch.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::Queue;
use futures::future::ready;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kernels::ops::Select;

use super::DeviceBatchStream;
use super::errors::explain;
use super::memory::fitting_slices;
use crate::graph::Checks;

/// Batches whose first kernels run, or wait for their number of selected rows, at the same time.
pub(super) const BATCHES_STARTED: usize = 2;

/// Parts of a batch that memory refused.
const PARTS: usize = 8;
/// Batches of more rows are cut if memory is short. Injected faults in smaller ones are errors.
const FEWEST_ROWS: usize = 1 << 9;

pub(super) fn select(
    input: DeviceBatchStream,
    op: Arc<Select>,
    checks: Checks,
    operator: String,
    queue: Queue,
) -> DeviceBatchStream {
    let for_bytes = Arc::clone(&op);
    let input = fitting_slices(input, &queue, move |rows| for_bytes.output_bytes(rows));
    let selection = Arc::new(Selection { op, checks, operator, queue });
    let whole = Arc::clone(&selection);
    let run = move |batch: Result<DeviceBatch>| {
        let selection = Arc::clone(&whole);
        started(async move { selection.run(batch?).await })
    };
    // The device tests the next batch while the host waits for the number of selected rows. Errors
    // of the input stay in their order.
    let selected = input.map(run).buffered(BATCHES_STARTED);
    let selected = selected.map_ok(move |selected| match selected {
        Selected::Rows(rows) => stream::once(ready(Ok(rows))).boxed(),
        Selected::TooLarge(batch) => Arc::clone(&selection).run_in_parts(&batch),
    });
    selected.try_flatten().try_filter(|batch| ready(batch.num_rows() > 0)).boxed()
}

struct Selection {
    op: Arc<Select>,
    checks: Checks,
    operator: String,
    queue: Queue,
}

enum Selected {
    Rows(DeviceBatch),
    /// Memory did not suffice for the batch: strings may take more than their columns promise.
    TooLarge(DeviceBatch),
}

impl Selection {
    async fn run(&self, batch: DeviceBatch) -> Result<Selected> {
        match self.op.run(&self.queue, &batch).await {
            Ok(rows) => Ok(Selected::Rows(rows)),
            Err(error) if error.is_out_of_memory() && batch.num_rows() > FEWEST_ROWS => Ok(Selected::TooLarge(batch)),
            Err(error) => Err(explain(error, &self.operator, &self.queue, &batch, &self.checks).await),
        }
    }

    fn run_in_parts(self: Arc<Self>, batch: &DeviceBatch) -> DeviceBatchStream {
        let selected = stream::try_unfold((self, parts(batch)), |(selection, mut pending)| async move {
            while let Some(batch) = pending.pop() {
                match selection.run(batch).await? {
                    Selected::Rows(rows) => return Ok(Some((rows, (selection, pending)))),
                    Selected::TooLarge(batch) => pending.extend(parts(&batch)),
                }
            }
            Ok(None)
        });
        selected.boxed()
    }
}

/// Parts of a refused batch, as a stack. They are small, so that operators above have memory, too.
fn parts(batch: &DeviceBatch) -> Vec<DeviceBatch> {
    let mut parts: Vec<_> = batch.chunks(batch.num_rows().div_ceil(PARTS)).collect();
    parts.reverse();
    parts
}

/// Polls a future once: its first kernels run while the input makes the next batch.
pub(super) fn started<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> impl Future<Output = T> + Send {
    let mut future = future.boxed();
    let done = future.as_mut().now_or_never();
    async move {
        match done {
            Some(done) => done,
            None => future.await,
        }
    }
}
