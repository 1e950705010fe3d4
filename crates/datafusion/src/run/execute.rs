// SPDX-License-Identifier: Apache-2.0
//! Start of a run, and the download of its rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use columnar::{DeviceColumn, Layout};
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};

use super::metrics::{output_rows, timed};
use super::state::{EndsOnDrop, OFFLOADED_SUBPLAN, Run};
use super::{DeviceBatchStream, subqueries};
use crate::error::columnar_error;
use crate::graph::Stage;

/// Rows that a download brings to the host at once. An operator may give its whole result as one
/// batch.
const DOWNLOADED_ROWS: usize = 1 << 20;

/// Runs a partition and leaves its rows on the device.
pub(crate) fn execute_device(stage: &Arc<Stage>, partition: usize, task: &Arc<TaskContext>) -> Result<DeviceBatchStream> {
    let run = Run::start(stage, task)?;
    compile_ahead(stage, &run.queue);
    let batches = open_run(stage, partition, &run)?;
    let end = stream::once(async move { run.finish().await }).filter_map(|result| async { result.err().map(Err) });
    Ok(batches.chain(end).boxed())
}

/// Runs a partition and downloads its rows in batches of the session's size.
pub(crate) fn execute_host(
    stage: &Arc<Stage>,
    schema: SchemaRef,
    partition: usize,
    task: &Arc<TaskContext>,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<SendableRecordBatchStream> {
    let run = Run::start(stage, task)?;
    let queue = run.metered(&run.queue, OFFLOADED_SUBPLAN, metrics, partition);
    compile_ahead(stage, &queue);
    let batches = open_run(stage, partition, &run)?;
    let output_rows = output_rows(metrics, partition);
    let host_batch_rows = task.session_config().batch_size().max(1);
    let downloaded = batches
        .map_ok(move |batch| {
            // DataFusion fills a dictionary for each of its batches. More rows may have more values
            // than its keys can number.
            let rows = if batch.columns().iter().any(is_packed_by_download) { host_batch_rows } else { DOWNLOADED_ROWS };
            let queue = queue.clone();
            let parts = stream::iter(batch.chunks(rows)).flat_map(move |chunk| columnar::download_parts(&queue, chunk));
            parts.map_err(|error| columnar_error(OFFLOADED_SUBPLAN, error))
        })
        .try_flatten()
        .map_ok(move |batch| stream::iter(slices(batch, host_batch_rows).map(Ok)))
        .try_flatten()
        .inspect_ok(move |batch| output_rows.add(batch.num_rows()));
    let end = stream::once(async move { run.finish().await }).filter_map(|result| async { result.err().map(Err) });
    let batches = timed(downloaded.chain(end).boxed(), metrics, &[], partition, task);
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
}

/// Has the programs of a run compiled before its operators request them.
fn compile_ahead(stage: &Stage, queue: &Queue) {
    // The first operators come last.
    queue.compile_ahead(|| stage.likely_programs().unwrap_or_default().into_iter().rev().collect());
}

/// Whether a dictionary column was computed as plain values. Its download packs them.
fn is_packed_by_download(column: &DeviceColumn) -> bool {
    matches!(column.ty().data_type, DataType::Dictionary(..)) && !matches!(column.ty().layout, Layout::Dictionary { .. })
}

fn slices(batch: RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> {
    let total = batch.num_rows();
    (0..total).step_by(rows).map(move |start| batch.slice(start, rows.min(total - start)))
}

/// Opens the last stage, after the scalar subqueries of all stages have run.
pub(super) fn open_run(stage: &Arc<Stage>, partition: usize, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    let ends = EndsOnDrop(Arc::clone(run));
    let batches = match stage.scalar_subqueries().is_empty() {
        true => run.open(stage, partition)?,
        false => {
            let (stage, run) = (Arc::clone(stage), Arc::clone(run));
            let after = async move {
                subqueries::run_all(&stage, &run).await?;
                run.open(&stage, partition)
            };
            stream::once(after).try_flatten().boxed()
        }
    };
    let of_run = move |batch| {
        let _ = &ends;
        batch
    };
    Ok(batches.map(of_run).boxed())
}
