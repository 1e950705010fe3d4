// SPDX-License-Identifier: Apache-2.0
//! Filter and computed columns, batch by batch.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::Queue;
use futures::{FutureExt, StreamExt, TryStreamExt};
use kernels::ops::Select;

use super::DeviceBatchStream;
use super::errors::explain;
use crate::graph::Checks;

/// Batches whose first kernels run, or wait for their number of selected rows, at the same time.
pub(super) const BATCHES_STARTED: usize = 2;

pub(super) fn select(
    input: DeviceBatchStream,
    op: Arc<Select>,
    checks: Checks,
    operator: String,
    queue: Queue,
) -> DeviceBatchStream {
    let run = move |batch: Result<DeviceBatch>| {
        let (op, checks) = (Arc::clone(&op), Arc::clone(&checks));
        let (operator, queue) = (operator.clone(), queue.clone());
        started(async move {
            let batch = batch?;
            match op.run(&queue, &batch).await {
                Ok(selected) => Ok(selected),
                Err(error) => Err(explain(error, &operator, &queue, &batch, &checks).await),
            }
        })
    };
    // The device tests the next batch while the host waits for the number of selected rows. Errors
    // of the input stay in their order.
    input.map(run).buffered(BATCHES_STARTED).try_filter(|batch| futures::future::ready(batch.num_rows() > 0)).boxed()
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
