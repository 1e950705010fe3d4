// SPDX-License-Identifier: Apache-2.0
//! Small batches of a join as fewer, larger ones: an operator launches as much for a small batch as
//! for a large one.

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::Queue;
use futures::{StreamExt, stream};
use kernels::ops::Concat;

use super::DeviceBatchStream;
use super::memory::free_bytes;
use crate::error::op_error;

/// Limit of pending batches. More would keep more of the memory that their rows refer to, such as
/// heaps of strings.
const MOST_PENDING: usize = 16;

/// Share of the free memory that the copy of several batches takes at most.
const COPY: usize = 4;

/// Concatenates batches, in their order, until they have half of `rows` rows, or as many as memory
/// has room for a copy of. A large first batch passes as it is.
pub(super) fn coalesce_small(
    input: DeviceBatchStream,
    concat: Concat,
    rows: usize,
    queue: Queue,
    operator: String,
) -> DeviceBatchStream {
    let enough = rows.div_ceil(2);
    stream::try_unfold((input, None, concat, queue, operator), move |(mut input, first, concat, queue, operator)| async move {
        let mut pending = Vec::from_iter(first);
        let mut rest = None;
        while sum(&pending, DeviceBatch::num_rows) < enough && pending.len() < MOST_PENDING {
            let Some(batch) = input.next().await.transpose()? else { break };
            if batch.num_rows() == 0 {
                continue;
            }
            let bytes = sum(&pending, DeviceBatch::row_bytes) + batch.row_bytes();
            if !pending.is_empty() && bytes > free_bytes(&queue) / COPY {
                rest = Some(batch);
                break;
            }
            pending.push(batch);
        }
        let coalesced = concat.run(&queue, pending).await.map_err(|error| op_error(&operator, error))?;
        Result::Ok(coalesced.map(|batch| (batch, (input, rest, concat, queue, operator))))
    })
    .boxed()
}

fn sum(batches: &[DeviceBatch], of_batch: impl Fn(&DeviceBatch) -> usize) -> usize {
    batches.iter().map(of_batch).sum()
}
