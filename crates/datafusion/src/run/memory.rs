// SPDX-License-Identifier: Apache-2.0
//! Free device memory, and its attribution in errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use columnar::DeviceBatch;
use datafusion::common::DataFusionError;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};

use super::DeviceBatchStream;

/// Share of the free memory that soft reservations leave to others. With none, a sort would write
/// each few rows as a run.
const UNRESERVED: usize = 4;

/// Free device memory below the limit that no operator counts on: of this query, or of others at
/// the same time.
pub(super) fn free_bytes(queue: &Queue) -> usize {
    let unused = unused_bytes(queue);
    unused.saturating_sub(queue.context().pool().soft_reserved()).max(unused / UNRESERVED)
}

/// Free device memory below the limit, with the part that operators count on.
pub(super) fn unused_bytes(queue: &Queue) -> usize {
    queue.context().pool().available()
}

/// Rows of a slice of input under any limit.
const FEWEST_ROWS: usize = 1 << 8;

/// A batch as it is where its `needed` bytes are at most `most`, else in slices.
pub(super) fn slices(batch: DeviceBatch, needed: usize, most: usize) -> Vec<DeviceBatch> {
    let rows = batch.num_rows();
    if rows <= FEWEST_ROWS || needed <= most {
        return vec![batch];
    }
    let rows_each = rows as u128 * most as u128 / needed as u128;
    batch.chunks((rows_each as usize).max(FEWEST_ROWS)).collect()
}

/// Cuts batches so that what `output_bytes` says of their rows is small beside the free memory.
pub(super) fn fitting_slices(
    input: DeviceBatchStream,
    queue: &Queue,
    output_bytes: impl Fn(usize) -> usize + Send + 'static,
) -> DeviceBatchStream {
    let queue = queue.clone();
    let slices = move |batch: DeviceBatch| {
        let needed = output_bytes(batch.num_rows());
        stream::iter(slices(batch, needed, free_bytes(&queue) / 4).into_iter().map(Ok))
    };
    input.map_ok(slices).try_flatten().boxed()
}

/// Counts the rows held by an operator, for the message where memory ends.
///
/// Sorts and aggregations by lists hold their input until it ends, windows at least a partition. A
/// join holds its build side while it builds.
#[derive(Clone)]
pub(super) struct MemoryAttribution {
    operator: String,
    /// The rows, such as "its input".
    held: &'static str,
    rows: Arc<AtomicUsize>,
    /// Whether rows are on disk, so that not all are held.
    spilled: Arc<AtomicBool>,
}

impl MemoryAttribution {
    pub fn new(operator: &str, held: &'static str) -> MemoryAttribution {
        MemoryAttribution { operator: operator.to_string(), held, rows: Arc::default(), spilled: Arc::default() }
    }

    /// Counts the rows of the operator's input as they come.
    pub fn counted(&self, rows: DeviceBatchStream) -> DeviceBatchStream {
        let count = Arc::clone(&self.rows);
        rows.inspect_ok(move |batch| _ = count.fetch_add(batch.num_rows(), Relaxed)).boxed()
    }

    /// Sets the number of rows that the operator holds.
    pub fn holds(&self, rows: usize) {
        self.rows.store(rows, Relaxed);
    }

    /// Ends the attribution: the operator no longer holds all rows.
    pub fn spilled(&self) {
        self.spilled.store(true, Relaxed);
    }

    /// Adds the operator and its rows to an out-of-memory error. The error itself names the
    /// operator that asked for the last bytes.
    pub fn attributed(&self, error: DataFusionError) -> DataFusionError {
        let (operator, held, rows) = (&self.operator, self.held, self.rows.load(Relaxed));
        match error {
            DataFusionError::ResourcesExhausted(message) if rows > 0 && !self.spilled.load(Relaxed) => {
                DataFusionError::ResourcesExhausted(format!("{message}; {operator} holds all rows of {held}, {rows} so far"))
            }
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use device::Context;
    use device::testing::config;

    use super::*;

    #[test]
    fn soft_reservations_leave_others_a_quarter_of_what_is_free() {
        let context = Context::new(config().unwrap().with_memory_bytes(1 << 20)).unwrap();
        let queue = context.queue().unwrap();
        let reservation = context.pool().reserve_softly();
        reservation.grow(256 << 10);
        assert_eq!(free_bytes(&queue), 768 << 10);
        reservation.grow(2 << 20);
        assert_eq!(free_bytes(&queue), 256 << 10);
        let _rows = queue.alloc(512 << 10).unwrap();
        assert_eq!(free_bytes(&queue), 128 << 10);
        drop(reservation);
        assert_eq!(free_bytes(&queue), 512 << 10);
    }
}
