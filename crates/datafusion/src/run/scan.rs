// SPDX-License-Identifier: Apache-2.0
//! Scans of resident tables.

use std::collections::VecDeque;
use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::DeviceKind;
use futures::{StreamExt, stream};

use super::DeviceBatchStream;
use super::state::Run;
use crate::graph::Stage;

/// Rows on a CPU device after which the host looks how far the device is. A core takes some ten
/// milliseconds for as many.
const ROWS_AHEAD: usize = 1 << 21;

/// The batches of a table, few of them ahead of the device. Kernels that return nothing would be
/// enqueued for all of them at once, and a cancelled query would run them to their end. On a GPU
/// that takes milliseconds.
pub(super) fn scan(batches: Vec<Result<DeviceBatch>>, stage: &Stage, run: &Arc<Run>) -> DeviceBatchStream {
    let batches = stream::iter(batches);
    if run.queue.context().info().kind != DeviceKind::Cpu {
        return batches.boxed();
    }
    let (operator, run) = (stage.operator.clone(), Arc::clone(run));
    let paced = stream::try_unfold((batches, 0, VecDeque::new()), move |(mut batches, mut rows, mut consumed)| {
        let (operator, run) = (operator.clone(), Arc::clone(&run));
        async move {
            if rows >= ROWS_AHEAD {
                run.throttle(&mut consumed, &operator).await?;
                rows = 0;
            }
            let Some(batch) = batches.next().await.transpose()? else { return Ok(None) };
            rows += batch.num_rows();
            Ok(Some((batch, (batches, rows, consumed))))
        }
    });
    paced.boxed()
}
