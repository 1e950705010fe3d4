// SPDX-License-Identifier: Apache-2.0
//! Rows that several stages read, computed once.

use std::sync::Arc;

use columnar::{DeviceBatch, StorageFormat};
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::TaskContext;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::DeviceBatchStream;
use super::execute::execute_device;
use super::kept_rows::{KeptRows, RowsOfRun};
use super::spill::Spill;
use super::state::{RUN_ENDED, Run};
use crate::exec::{SharedRows, Sharing};
use crate::graph::Stage;

/// The rows of `input`, from the run or from the cache of several offloaded subplans.
pub(super) fn open(input: &Arc<Stage>, sharing: &Sharing, stage: &Arc<Stage>, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    let Some(cache) = &sharing.cache else {
        let (rows, queue) = (of_run(sharing, input, stage, run)?, run.queue.clone());
        let batches = async move { rows.await.map_err(DataFusionError::Shared)?.read(&queue) };
        return Ok(stream::once(batches).try_flatten().boxed());
    };
    let rows: SharedRows = cache
        .rows(sharing.readers, sharing.is_last, &run.task, || computed_by_separate_run(Arc::clone(input), Arc::clone(&run.task)));
    let batches = async move { rows.await.map(in_memory).map_err(DataFusionError::Shared) };
    Ok(stream::once(batches).try_flatten().boxed())
}

fn in_memory(rows: Arc<Vec<DeviceBatch>>) -> DeviceBatchStream {
    stream::iter((0..rows.len()).map(move |index| Ok(rows[index].clone()))).boxed()
}

/// Rows kept by the run until its last reader has come.
fn of_run(sharing: &Sharing, input: &Arc<Stage>, stage: &Arc<Stage>, run: &Arc<Run>) -> Result<RowsOfRun> {
    let mut shared = run.shared.lock();
    let Some(shared) = shared.as_mut() else { return internal_err!("{RUN_ENDED}") };
    let (rows, missing_readers) = shared.entry(sharing.number).or_insert_with(|| {
        // A weak reference: the run holds the rows.
        let (input, stage, run) = (Arc::clone(input), Arc::clone(stage), Arc::downgrade(run));
        let rows = async move {
            let Some(run) = run.upgrade() else { return internal_err!("{RUN_ENDED}") };
            let spill = || {
                let format = run.may_spill().then(|| StorageFormat::of(&stage.schema, &stage.types)).flatten();
                format.map(|format| Spill::new(format, &stage, &run.task))
            };
            KeptRows::of(run.merge(&input)?, &run.queue, &run.kept, run.batch_rows, spill).await
        };
        (rows.map(|rows| rows.map(Arc::new).map_err(Arc::new)).boxed().shared(), sharing.readers)
    });
    *missing_readers = missing_readers.saturating_sub(1);
    let (rows, is_last) = (rows.clone(), *missing_readers == 0);
    if is_last {
        shared.remove(&sharing.number);
    }
    Ok(rows)
}

/// Rows of a run of their own, which goes on after the end of the reader's run.
fn computed_by_separate_run(input: Arc<Stage>, task: Arc<TaskContext>) -> SharedRows {
    let rows = async move { execute_device(&input, 0, &task)?.try_collect().await.map(Arc::new) };
    rows.map(|rows| rows.map_err(Arc::new)).boxed().shared()
}
