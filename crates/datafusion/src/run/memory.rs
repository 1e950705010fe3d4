// SPDX-License-Identifier: Apache-2.0
//! Free device memory, and its attribution in errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use columnar::DeviceBatch;
use datafusion::common::DataFusionError;
use device::Queue;
use futures::{StreamExt, TryStreamExt};

use super::DeviceBatchStream;

/// Device memory that is free below the limit.
pub(super) fn free_bytes(queue: &Queue) -> usize {
    let pool = queue.context().pool();
    pool.limit().saturating_sub(pool.in_use())
}

/// A batch as it is where the bytes that it needs are at most `most`, else in pieces of at least
/// `fewest` rows.
pub(super) fn pieces(batch: DeviceBatch, needed: usize, most: usize, fewest: usize) -> Vec<DeviceBatch> {
    let rows = batch.num_rows();
    if rows <= fewest || needed <= most {
        return vec![batch];
    }
    let rows_each = rows as u128 * most as u128 / needed as u128;
    batch.chunks((rows_each as usize).max(fewest)).collect()
}

/// Counts the rows that an operator holds, for the message where memory ends.
///
/// Sorts, windows and aggregations by lists hold their input until it ends. A join holds its build
/// side while it builds.
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
