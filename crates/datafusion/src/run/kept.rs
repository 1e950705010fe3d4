// SPDX-License-Identifier: Apache-2.0
//! Rows that the runs of scalar subqueries keep for each other, and for the main query's, which comes after them.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::execution::TaskContext;
use futures::{FutureExt, TryStreamExt};

use super::{SharedRows, execute_device};
use crate::exec::Sharing;
use crate::graph::Stage;

/// Rows of one execution, until all have come who read them. They stay as long as the plan does where somebody does not.
#[derive(Default)]
pub(crate) struct KeptRows(parking_lot::Mutex<Option<Kept>>);

struct Kept {
    task: Weak<TaskContext>,
    /// Their buffers know of what queue they are, and another one waits for it.
    rows: SharedRows,
    /// How many have not come yet.
    missing: usize,
}

impl fmt::Debug for KeptRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptRows").field("there", &self.0.lock().is_some()).finish()
    }
}

impl KeptRows {
    /// Lets go of the rows.
    pub fn clear(&self) {
        let kept = self.0.lock().take();
        drop(kept);
    }

    /// The rows of `input`, that another reader keeps or computes. The first one computes them, by a run of their own: it goes on
    /// when the reader's has ended.
    pub(super) fn read(&self, sharing: &Sharing, input: &Arc<Stage>, task: &Arc<TaskContext>) -> SharedRows {
        let mut place = self.0.lock();
        let before = place.take();
        let (mut kept, stale) = match before {
            Some(kept) if std::ptr::eq(kept.task.as_ptr(), Arc::as_ptr(task)) => (kept, None),
            stale => {
                let rows = compute(Arc::clone(input), Arc::clone(task));
                (Kept { task: Arc::downgrade(task), rows, missing: sharing.readers }, stale)
            }
        };
        kept.missing = kept.missing.saturating_sub(1);
        let rows = kept.rows.clone();
        if !sharing.last && kept.missing > 0 {
            *place = Some(kept);
        }
        drop(place);
        drop(stale);
        rows
    }
}

fn compute(input: Arc<Stage>, task: Arc<TaskContext>) -> SharedRows {
    let rows = async move { execute_device(&input, 0, &task)?.try_collect().await.map(Arc::new) };
    rows.map(|rows| rows.map_err(Arc::new)).boxed().shared()
}
