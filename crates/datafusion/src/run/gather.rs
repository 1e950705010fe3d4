// SPDX-License-Identifier: Apache-2.0
//! Small batches of a join as fewer, larger ones: what an operator launches for a batch, it launches whatever its rows.

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::Queue;
use futures::{StreamExt, stream};
use kernels::ops::Concat;

use super::{DeviceBatchStream, op_error};

/// Batches that wait for others. More would keep more of what their rows refer to, such as heaps of strings.
const MOST_PENDING: usize = 16;

/// Gathers batches, in their order, until they have half of `rows` rows. A first one that has as many is passed on as it is.
pub(super) fn gather(input: DeviceBatchStream, concat: Concat, rows: usize, queue: Queue, operator: String) -> DeviceBatchStream {
    let enough = rows.div_ceil(2);
    stream::try_unfold((input, concat, queue, operator), move |(mut input, concat, queue, operator)| async move {
        let (mut pending, mut total) = (Vec::<DeviceBatch>::new(), 0);
        while total < enough && pending.len() < MOST_PENDING {
            let Some(batch) = input.next().await else { break };
            let batch = batch?;
            if batch.num_rows() > 0 {
                total += batch.num_rows();
                pending.push(batch);
            }
        }
        let gathered = concat.run(&queue, pending).await.map_err(|error| op_error(&operator, error))?;
        Result::Ok(gathered.map(|batch| (batch, (input, concat, queue, operator))))
    })
    .boxed()
}
