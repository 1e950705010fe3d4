// SPDX-License-Identifier: Apache-2.0
//! State that the stages of one execution share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use columnar::ColumnType;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use device::{DeviceKind, Event, Queue, RunningQuery};
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use kernels::ops::JoinTable;

use super::kept_rows::KeptBytes;
use super::metrics::StageMeter;
use super::subqueries::ScalarRows;
use crate::error::device_error;
use crate::exec::{ScalarSubquery, SharedRows};
use crate::graph::Stage;
use crate::session::{DeviceOptions, SpillSetting, file_cache, number_of_query, task_context};
use crate::table::RunFileCache;

/// Operator that errors of downloads and waits name.
pub(super) const OFFLOADED_SUBPLAN: &str = "DeviceToHostExec";

/// Error for a task that outlives its run.
pub(super) const RUN_ENDED: &str = "rows of a run that has ended";

/// Batches of one input that may be on their way through the kernels at the upload of the next one.
pub(super) const BATCHES_AHEAD: usize = 3;

/// Bytes of the limit for each row of a batch. Several batches are on their way at once, with
/// input, output and the state of operators.
const LIMIT_PER_ROW: usize = 1 << 10;

/// Share of the limit for a batch of many columns, for each partition that is read at once. A
/// partition has a few batches on their way.
const BATCHES_OF_LIMIT: usize = 16;

/// Rows of a batch under any limit.
const FEWEST_ROWS: usize = 1 << 10;

/// One execution of an offloaded subplan's partition.
pub(super) struct Run {
    pub queue: Queue,
    /// Uploads beside the kernels; the same queue where the device shares the host's memory.
    pub uploads: Queue,
    pub task: Arc<TaskContext>,
    pub batch_rows: usize,
    /// Most bytes of a batch, which `device.batch_rows` lifts.
    pub batch_bytes: usize,
    spill: SpillSetting,
    meters: parking_lot::Mutex<Vec<StageMeter>>,
    /// Tables of joins by dynamic filter number. A table lives as long as its join probes.
    pub tables: parking_lot::Mutex<HashMap<usize, Weak<JoinTable>>>,
    /// Rows of `StageKind::Shared` by number, each with its missing readers. `None` once the run
    /// has ended.
    pub shared: parking_lot::Mutex<Option<HashMap<usize, (SharedRows, usize)>>>,
    /// Rows of scalar subqueries.
    pub scalars: parking_lot::Mutex<Vec<(ScalarSubquery, ScalarRows)>>,
    /// Device bytes of the rows of `shared` that are in memory.
    pub kept: KeptBytes,
    /// Columns of files on the device; `None` where they do not stay there.
    pub file_cache: Option<RunFileCache>,
    /// Has compilations in the background wait.
    _query: RunningQuery,
    /// Reads of metrics, awaited when the run ends.
    at_end: parking_lot::Mutex<Vec<BoxFuture<'static, Result<()>>>>,
}

impl Run {
    pub fn start(stage: &Stage, task: &Arc<TaskContext>) -> Result<Arc<Run>> {
        let (context, options) = task_context(task)?;
        let batch_rows = batch_rows(&options, context.info().kind, context.pool().limit());
        let partitions = task.session_config().target_partitions().max(2);
        let batch_bytes = context.pool().limit() / BATCHES_OF_LIMIT / partitions;
        let batch_bytes = if options.batch_rows == 0 { batch_bytes } else { usize::MAX };
        let new_queue = || context.queue().map_err(|error| device_error(OFFLOADED_SUBPLAN, error));
        let queue = new_queue()?;
        let separate = stage.uploads() && !context.info().unified_memory;
        let uploads = if separate { new_queue()? } else { queue.clone() };
        let file_cache = file_cache(task, &context, &options);
        let query = context.begin_query(number_of_query(task));
        let task = Arc::clone(task);
        let (meters, tables, scalars, kept, at_end) = Default::default();
        let shared = parking_lot::Mutex::new(Some(HashMap::new()));
        let spill = options.spill;
        Ok(Arc::new(Run {
            queue,
            uploads,
            task,
            batch_rows,
            batch_bytes,
            spill,
            meters,
            tables,
            shared,
            scalars,
            kept,
            file_cache,
            _query: query,
            at_end,
        }))
    }

    /// Rows of a batch of columns of these types.
    pub fn rows_of_batch(&self, types: &[ColumnType]) -> usize {
        self.rows_of_bytes(types).min(self.batch_rows)
    }

    /// Rows of columns of these types in the most bytes of a batch.
    pub fn rows_of_bytes(&self, types: &[ColumnType]) -> usize {
        rows_of_bytes(self.batch_bytes, types)
    }

    /// Whether operators may write rows to the session's temporary files.
    pub fn may_spill(&self) -> bool {
        self.spill.allows_files() && self.task.runtime_env().disk_manager.tmp_files_enabled()
    }

    /// A handle of a queue, with its work charged to an operator's metrics, and its memory to its
    /// name.
    pub fn metered(&self, queue: &Queue, operator: &str, metrics: &ExecutionPlanMetricsSet, partition: usize) -> Queue {
        let (meter, metered) = StageMeter::new(queue, operator, metrics, partition, &self.task);
        self.meters.lock().push(meter);
        metered
    }

    /// Waits until at most [`BATCHES_AHEAD`] batches of an input are in the queue.
    ///
    /// A reader that asks for another batch has enqueued at least the first kernels on the one
    /// before.
    pub async fn throttle(&self, consumed: &mut VecDeque<Event>, operator: &str) -> Result<()> {
        consumed.push_back(self.queue.record().map_err(|error| device_error(operator, error))?);
        if consumed.len() > BATCHES_AHEAD
            && let Some(oldest) = consumed.pop_front()
        {
            oldest.wait().await.map_err(|error| device_error(operator, error))?;
        }
        Ok(())
    }

    /// Registers work for the end of the run.
    pub fn at_end(&self, work: impl Future<Output = Result<()>> + Send + 'static) {
        self.at_end.lock().push(work.boxed());
    }

    /// Waits for the queues, then writes the meters into the operators' metrics.
    pub async fn finish(&self) -> Result<()> {
        let at_end = try_join_all(std::mem::take(&mut *self.at_end.lock()));
        let (uploaded, computed, ended) = futures::join!(self.uploads.finish(), self.queue.finish(), at_end);
        self.meters.lock().clear();
        uploaded.and(computed).map_err(|error| device_error(OFFLOADED_SUBPLAN, error))?;
        ended.map(drop)
    }
}

/// Rows of a batch: the setting, or the profile's default where the limit has room for it.
fn batch_rows(options: &DeviceOptions, kind: DeviceKind, limit: usize) -> usize {
    let most = match (options.batch_rows, kind) {
        (0, DeviceKind::Cpu) => 1 << 17,
        (0, _) => 1 << 20,
        (rows, _) => return rows,
    };
    (limit / LIMIT_PER_ROW).clamp(FEWEST_ROWS, most)
}

/// Rows of so many bytes, in columns of these types.
fn rows_of_bytes(bytes: usize, types: &[ColumnType]) -> usize {
    let of_row: usize = types.iter().map(ColumnType::value_bytes).sum();
    (bytes / of_row.max(1)).max(FEWEST_ROWS)
}

/// Ends a run when its stream is dropped: drops shared rows without a reader, and rows of scalar
/// subqueries.
pub(super) struct EndsOnDrop(pub Arc<Run>);

impl Drop for EndsOnDrop {
    fn drop(&mut self) {
        let shared = self.0.shared.lock().take();
        let scalars = std::mem::take(&mut *self.0.scalars.lock());
        drop((shared, scalars));
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn batches_fit_the_limit() {
        let mut options = DeviceOptions::default();
        assert_eq!(batch_rows(&options, DeviceKind::Cpu, 8 << 30), 1 << 17);
        assert_eq!(batch_rows(&options, DeviceKind::Gpu, 8 << 30), 1 << 20);
        assert_eq!(batch_rows(&options, DeviceKind::Cpu, 16 << 20), 1 << 14);
        assert_eq!(batch_rows(&options, DeviceKind::Gpu, 1 << 16), FEWEST_ROWS);
        let text = ColumnType::of(&DataType::Utf8View, true).unwrap();
        assert_eq!(rows_of_bytes(1 << 20, &vec![text.clone(); 16]), 1 << 12);
        assert_eq!(rows_of_bytes(1 << 20, &vec![text; 1000]), FEWEST_ROWS);
        options.batch_rows = 77;
        assert_eq!(batch_rows(&options, DeviceKind::Cpu, 1 << 16), 77);
    }
}
