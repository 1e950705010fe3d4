// SPDX-License-Identifier: Apache-2.0
//! Rows that the offloaded subplans of one plan share: those of scalar subqueries, and of the main
//! query after them.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use device::Queue;
use futures::future::{BoxFuture, Shared};

use crate::run::DeviceBatchStream;

/// Rows that any number of readers may read.
pub(crate) trait ReadableRows: Send + Sync {
    /// The rows for one reader, whose work is in `queue`.
    fn read(self: Arc<Self>, queue: &Queue) -> Result<DeviceBatchStream>;
}

/// Rows, computed when the first reader polls them.
pub(crate) type SharedRows = Shared<BoxFuture<'static, Result<Arc<dyn ReadableRows>, Arc<DataFusionError>>>>;

/// Rows of one execution, kept until its last reader has come.
///
/// A reader that never comes leaves them here for as long as the plan lives.
#[derive(Default)]
pub(crate) struct CrossSubplanCache(parking_lot::Mutex<Option<CachedRows>>);

struct CachedRows {
    task: Weak<TaskContext>,
    /// Buffers carry their queue; other queues wait automatically.
    rows: SharedRows,
    missing_readers: usize,
}

impl fmt::Debug for CrossSubplanCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrossSubplanCache").field("filled", &self.0.lock().is_some()).finish()
    }
}

impl CrossSubplanCache {
    /// Drops the rows.
    pub fn clear(&self) {
        let cached = self.0.lock().take();
        drop(cached);
    }

    /// The rows of the execution `task`, which the first of `readers` makes with `compute`.
    /// `is_last`: no reader comes after.
    pub fn rows(
        &self,
        readers: usize,
        is_last: bool,
        task: &Arc<TaskContext>,
        compute: impl FnOnce() -> SharedRows,
    ) -> SharedRows {
        let mut slot = self.0.lock();
        let (mut cached, stale) = match slot.take() {
            Some(cached) if std::ptr::eq(cached.task.as_ptr(), Arc::as_ptr(task)) => (cached, None),
            stale => (CachedRows { task: Arc::downgrade(task), rows: compute(), missing_readers: readers }, stale),
        };
        cached.missing_readers = cached.missing_readers.saturating_sub(1);
        let rows = cached.rows.clone();
        if !is_last && cached.missing_readers > 0 {
            *slot = Some(cached);
        }
        drop(slot);
        drop(stale);
        rows
    }
}
