// SPDX-License-Identifier: Apache-2.0
//! Free device memory, and its attribution in errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use columnar::DeviceBatch;
use datafusion::common::DataFusionError;
use device::Queue;
use futures::{StreamExt, TryStreamExt};

use super::DeviceBatchStream;
use super::state::Run;

/// Device memory that is free below the limit.
pub(super) fn free_bytes(queue: &Queue) -> usize {
    let pool = queue.context().pool();
    pool.limit().saturating_sub(pool.in_use())
}

/// Share of the free memory that reservations leave to others. With none, a sort would write each
/// few rows as a run.
const UNRESERVED: usize = 4;

/// Device memory that is free below the limit, and that no operator of the run has reserved.
pub(super) fn unreserved_bytes(run: &Run, queue: &Queue) -> usize {
    let free = free_bytes(queue);
    free.saturating_sub(run.reserved.load(Relaxed)).max(free / UNRESERVED)
}

/// Device memory that an operator counts on, until it is dropped. Other operators of the run that
/// ask for memory at the same time leave it free.
pub(super) struct Reservation {
    run: Arc<Run>,
    bytes: usize,
}

impl Reservation {
    /// Without bytes yet.
    pub fn new(run: &Arc<Run>) -> Reservation {
        Reservation { run: Arc::clone(run), bytes: 0 }
    }

    /// Reserves `bytes` in all, if the others and `left_free` bytes have room beside them.
    pub fn try_grow(&mut self, bytes: usize, left_free: usize) -> bool {
        let of_others = self.run.reserved.load(Relaxed).saturating_sub(self.bytes);
        let fits = bytes + left_free + of_others <= free_bytes(&self.run.queue);
        if fits && bytes > self.bytes {
            self.run.reserved.fetch_add(bytes - self.bytes, Relaxed);
            self.bytes = bytes;
        }
        fits
    }

    /// Reserves at least `bytes` in all, whether or not they are free.
    pub fn grow(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.bytes);
        self.run.reserved.fetch_add(more, Relaxed);
        self.bytes += more;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.run.reserved.fetch_sub(self.bytes, Relaxed);
    }
}

/// Rows of a slice of input under any limit.
const FEWEST_ROWS: usize = 1 << 8;

/// A batch as it is where the bytes that it needs are at most `most`, else in slices.
pub(super) fn slices(batch: DeviceBatch, needed: usize, most: usize) -> Vec<DeviceBatch> {
    let rows = batch.num_rows();
    if rows <= FEWEST_ROWS || needed <= most {
        return vec![batch];
    }
    let rows_each = rows as u128 * most as u128 / needed as u128;
    batch.chunks((rows_each as usize).max(FEWEST_ROWS)).collect()
}

/// Counts the rows that an operator holds, for the message where memory ends.
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

    /// Adds the operator and its rows to an out-of-memory error, which names the operator that
    /// asked for the last bytes.
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
