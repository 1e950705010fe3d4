// SPDX-License-Identifier: Apache-2.0
//! Rows that a scalar subquery's run keeps for the main query's, which comes after it.

use std::fmt;
use std::sync::{Arc, Weak};

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use futures::{StreamExt, TryStreamExt, stream};

use super::{DeviceBatchStream, Run, merge};
use crate::graph::Stage;

/// Rows of one execution, until somebody takes them. They stay as long as the plan does where nobody comes.
#[derive(Default)]
pub(crate) struct KeptRows(parking_lot::Mutex<Option<Kept>>);

struct Kept {
    task: Weak<TaskContext>,
    /// Their buffers know of what queue they are, and another one waits for it.
    batches: Vec<DeviceBatch>,
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

    fn take(&self, task: &Arc<TaskContext>) -> Option<Kept> {
        self.0.lock().take_if(|kept| std::ptr::eq(kept.task.as_ptr(), Arc::as_ptr(task)))
    }
}

/// Passes rows on when all of them are there, and keeps them.
pub(super) fn keep(kept: &Arc<KeptRows>, rows: DeviceBatchStream, run: &Arc<Run>) -> DeviceBatchStream {
    let (kept, task) = (Arc::clone(kept), Arc::downgrade(&run.task));
    stream::once(async move {
        let batches = rows.try_collect::<Vec<_>>().await?;
        let before = kept.0.lock().replace(Kept { task, batches: batches.clone() });
        drop(before);
        Ok::<_, DataFusionError>(stream::iter(batches.into_iter().map(Ok)))
    })
    .try_flatten()
    .boxed()
}

/// The rows that another run kept; where it did not come to that, they are computed.
pub(super) fn take(kept: &KeptRows, input: &Arc<Stage>, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    match kept.take(&run.task) {
        Some(Kept { batches, .. }) => Ok(stream::iter(batches.into_iter().map(Ok)).boxed()),
        None => merge(input, run),
    }
}
