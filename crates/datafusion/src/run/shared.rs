// SPDX-License-Identifier: Apache-2.0
//! Rows that several stages read, computed once.

use std::sync::Arc;

use columnar::StorageFormat;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::TaskContext;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::DeviceBatchStream;
use super::execute::open_run;
use super::kept_rows::KeptRows;
use super::spill::Spill;
use super::state::{RUN_ENDED, Run};
use crate::exec::{ReadableRows, SharedRows, Sharing};
use crate::graph::Stage;

/// The rows of `input`, from the run or from the cache of several offloaded subplans.
pub(super) fn open(input: &Arc<Stage>, sharing: &Sharing, stage: &Arc<Stage>, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    let (rows, queue) = match &sharing.cache {
        None => (of_run(sharing, input, stage, run)?, run.queue.clone()),
        Some(cache) => {
            let compute = || of_separate_run(Arc::clone(input), spill_of(stage), Arc::clone(&run.task));
            (cache.rows(sharing.readers, sharing.is_last, &run.task, compute), run.queue.clone())
        }
    };
    let batches = async move { rows.await.map_err(DataFusionError::Shared)?.read(&queue) };
    Ok(stream::once(batches).try_flatten().boxed())
}

/// Rows kept by the run until its last reader has come.
fn of_run(sharing: &Sharing, input: &Arc<Stage>, stage: &Arc<Stage>, run: &Arc<Run>) -> Result<SharedRows> {
    let mut shared = run.shared.lock();
    let Some(shared) = shared.as_mut() else { return internal_err!("{RUN_ENDED}") };
    let (rows, missing_readers) = shared.entry(sharing.number).or_insert_with(|| {
        // A weak reference: the run holds the rows.
        let (input, spill, run) = (Arc::clone(input), spill_of(stage), Arc::downgrade(run));
        let rows = async move {
            let Some(run) = run.upgrade() else { return internal_err!("{RUN_ENDED}") };
            kept(run.merge(&input)?, &spill, &run).await
        };
        (rows.map(|rows| rows.map_err(Arc::new)).boxed().shared(), sharing.readers)
    });
    *missing_readers = missing_readers.saturating_sub(1);
    let (rows, is_last) = (rows.clone(), *missing_readers == 0);
    if is_last {
        shared.remove(&sharing.number);
    }
    Ok(rows)
}

/// Rows of a run of their own, which ends before its readers.
fn of_separate_run(input: Arc<Stage>, spill: impl SpillOf, task: Arc<TaskContext>) -> SharedRows {
    let rows = async move {
        let run = Run::start(&input, &task)?;
        let rows = kept(open_run(&input, 0, &run)?, &spill, &run).await?;
        run.finish().await?;
        Ok(rows)
    };
    rows.map(|rows| rows.map_err(Arc::new)).boxed().shared()
}

/// Keeps rows in memory, and those beyond a share of it on disk.
async fn kept(rows: DeviceBatchStream, spill: &impl SpillOf, run: &Run) -> Result<Arc<dyn ReadableRows>> {
    Ok(Arc::new(KeptRows::of(rows, &run.queue, &run.kept, run.batch_rows, || spill(run)).await?))
}

/// Makes the files of a run, if its rows may and can be stored.
trait SpillOf: Fn(&Run) -> Option<Spill> + Send + Sync + 'static {}

impl<F: Fn(&Run) -> Option<Spill> + Send + Sync + 'static> SpillOf for F {}

/// For the rows of a stage. It does not keep the stage, which keeps the cache of the rows.
fn spill_of(stage: &Stage) -> impl SpillOf + use<> {
    let (format, metrics) = (StorageFormat::of(&stage.schema, &stage.types), stage.metrics.set());
    let operator = stage.operator.clone();
    move |run: &Run| {
        let format = format.clone().filter(|_| run.may_spill())?;
        Some(Spill::of(format, &operator, &metrics, &run.task))
    }
}
