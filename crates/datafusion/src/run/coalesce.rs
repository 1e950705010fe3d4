// SPDX-License-Identifier: Apache-2.0
//! Small batches of a join as fewer, larger ones: an operator launches as much for a small batch as
//! for a large one.

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::Queue;
use futures::{StreamExt, stream};
use kernels::ops::Concat;

use super::DeviceBatchStream;
use crate::error::op_error;

/// Limit of pending batches. More would keep more of the memory that their rows refer to, such as
/// heaps of strings.
const MOST_PENDING: usize = 16;

/// Concatenates batches, in their order, until they have half of `rows` rows. A large first batch
/// passes as it is.
pub(super) fn coalesce_small(
    input: DeviceBatchStream,
    concat: Concat,
    rows: usize,
    queue: Queue,
    operator: String,
) -> DeviceBatchStream {
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
        let coalesced = concat.run(&queue, pending).await.map_err(|error| op_error(&operator, error))?;
        Result::Ok(coalesced.map(|batch| (batch, (input, concat, queue, operator))))
    })
    .boxed()
}
