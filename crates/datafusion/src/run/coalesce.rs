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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch};
    use columnar::{natural_types, upload};
    use device::Context;
    use device::testing::config;
    use futures::TryStreamExt;
    use kernels::codegen::Profile;
    use kernels::ops::Options;

    use super::*;

    /// Asserts the rows of the batches that batches of `sizes` rows of 8 bytes are coalesced to,
    /// with so many free KiB. On devices with their own memory uploaded rows take some of them.
    fn assert_coalesced(sizes: &[usize], free: usize, expected: &[usize]) {
        let queue = Context::new(config().unwrap().with_memory_bytes(1 << 20)).unwrap().queue().unwrap();
        let batch = |rows: usize| RecordBatch::try_from_iter([("i", Arc::new(Int64Array::from(vec![7; rows])) as _)]).unwrap();
        let (schema, types) = (batch(0).schema(), natural_types(&batch(0).schema()).unwrap());
        let batches: Vec<_> = sizes.iter().map(|rows| Ok(upload(&queue, &schema, &types, &[batch(*rows)]).unwrap())).collect();
        let concat = Concat::try_new_keeping_layouts(schema, types, Options::new(Profile::Cpu)).unwrap();
        if !queue.context().info().unified_memory {
            return;
        }
        let _others = queue.alloc((1024 - free) << 10).unwrap();
        let coalesced = coalesce_small(stream::iter(batches).boxed(), concat, 20_000, queue.clone(), "Test".to_string());
        let rows = coalesced.map_ok(|batch| batch.num_rows()).try_collect();
        let rows: Vec<usize> = futures::executor::block_on(rows).unwrap();
        assert_eq!(rows, expected);
    }

    #[test]
    fn small_batches_are_one_until_they_have_half_of_the_rows() {
        assert_coalesced(&[3000; 6], 512, &[12_000, 6000]);
        assert_coalesced(&[15_000, 10, 0, 10], 512, &[15_000, 20]);
        assert_coalesced(&[0, 0], 512, &[]);
    }

    #[test]
    fn where_memory_is_short_fewer_are_one_and_none_is_lost() {
        // A quarter of the memory holds two batches.
        assert_coalesced(&[2000; 5], 128, &[4000, 4000, 2000]);
        assert_coalesced(&[5000, 0, 5000, 5000, 0], 128, &[5000; 3]);
    }
}
