// SPDX-License-Identifier: Apache-2.0
//! Rows in temporary files of the session's disk manager, in the layouts that they have on the
//! device.
//!
//! DataFusion's spill manager writes the files, so its settings hold: folders, quota and
//! compression. A file is gone once its rows are dropped, whatever the end of the query.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use columnar::{DeviceBatch, StorageFormat, StoredColumns};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::execution::spill_file::SpillFile;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::spill::SpillManager;
use device::Queue;
use futures::{StreamExt, stream};

use super::DeviceBatchStream;
use crate::error::columnar_error;
use crate::graph::Stage;

/// Writes and reads the rows of one operator.
#[derive(Clone)]
pub(super) struct Spill {
    manager: SpillManager,
    format: StorageFormat,
    operator: String,
}

/// Batches in a file.
#[derive(Clone)]
pub(super) struct SpilledBatches {
    file: Arc<dyn SpillFile>,
    /// The columns of each batch beside its rows.
    columns: Vec<StoredColumns>,
}

/// A few rows in host memory.
pub(super) struct StoredRows {
    rows: RecordBatch,
    columns: StoredColumns,
}

impl Spill {
    /// For the operator of a stage, whose metrics get the spilled files, bytes and rows.
    pub fn new(format: StorageFormat, stage: &Stage, task: &TaskContext) -> Spill {
        Spill::of(format, &stage.operator, &stage.metrics.set(), task)
    }

    /// For an operator with these metrics.
    pub fn of(format: StorageFormat, operator: &str, metrics: &ExecutionPlanMetricsSet, task: &TaskContext) -> Spill {
        let (metrics, schema) = (SpillMetrics::new(metrics, 0), Arc::clone(format.stored_schema()));
        let compression = task.session_config().options().execution.spill_compression;
        let manager = SpillManager::new(task.runtime_env(), metrics, schema).with_compression_type(compression);
        Spill { manager, format, operator: operator.to_owned() }
    }

    /// Starts a file.
    pub fn writer(&self, queue: &Queue) -> Result<SpillWriter> {
        let mut file = self.manager.create_in_progress_file(&self.operator).map_err(|error| self.not_written(error))?;
        let append: Append = Box::new(move |rows| match rows {
            Some(rows) => file.append_batch(rows).map(|_| None),
            None => file.finish(),
        });
        Ok(SpillWriter { spill: self.clone(), queue: queue.clone(), file: FileState::Idle(append), columns: vec![] })
    }

    /// The batches of a file, one after another.
    pub fn read(&self, queue: &Queue, spilled: SpilledBatches) -> Result<DeviceBatchStream> {
        let stored = self.manager.read_spill_as_stream_unbuffered(spilled.file, None).map_err(|error| self.not_read(error))?;
        let (spill, queue, written) = (self.clone(), queue.clone(), spilled.columns.len());
        // A stream of IPC that is cut between two messages ends without an error.
        let stored = stored.map(Some).chain(stream::repeat_with(|| None));
        let batches = stored.zip(stream::iter(spilled.columns).enumerate()).map(move |(rows, (number, columns))| {
            let rows = rows.unwrap_or_else(|| exec_err!("a file of {written} batches ends after {number}"));
            let rows = rows.map_err(|error| spill.not_read(error))?;
            spill.format.restore(&queue, &rows, &columns).map_err(|error| spill.failed(error))
        });
        Ok(batches.boxed())
    }

    /// Downloads rows as they are stored.
    pub async fn download(&self, queue: &Queue, batch: &DeviceBatch) -> Result<RecordBatch> {
        self.format.store(queue, batch).await.map_err(|error| self.failed(error))
    }

    /// The dictionaries that reading needs beside the stored rows of a batch.
    pub fn columns(&self, batch: &DeviceBatch) -> StoredColumns {
        self.format.columns(batch)
    }

    /// Keeps a few rows in host memory.
    pub async fn store(&self, queue: &Queue, batch: &DeviceBatch) -> Result<StoredRows> {
        let rows = self.download(queue, batch).await?;
        // Views keep a whole heap in memory, which may be one of the device.
        let columns = rows.columns().iter().map(|column| match column.as_binary_view_opt() {
            Some(views) => Arc::new(views.gc()) as _,
            None => Arc::clone(column),
        });
        let rows = RecordBatch::try_new(rows.schema(), columns.collect())?;
        Ok(StoredRows { rows, columns: self.columns(batch) })
    }

    /// Uploads rows that [`store`](Self::store) gave.
    pub fn restore(&self, queue: &Queue, stored: &StoredRows) -> Result<DeviceBatch> {
        self.format.restore(queue, &stored.rows, &stored.columns).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: columnar::Error) -> DataFusionError {
        columnar_error(&self.operator, error)
    }

    fn not_read(&self, error: DataFusionError) -> DataFusionError {
        error.context(format!("{} reads spilled rows", self.operator))
    }

    fn not_written(&self, error: DataFusionError) -> DataFusionError {
        error.context(format!("{} spills rows to disk", self.operator))
    }

    /// The error of a thread that has ended without a result.
    fn ended(&self, error: impl std::fmt::Display) -> DataFusionError {
        exec_datafusion_err!("{}: a spill failed: {error}", self.operator)
    }
}

/// Appends rows to a file, or ends it without rows.
type Append = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// The writer of a file: it writes one batch while the next one is computed. Threads of
/// DataFusion's for blocking work write, a batch each, so that no thread waits for the device.
pub(super) struct SpillWriter {
    spill: Spill,
    queue: Queue,
    file: FileState,
    columns: Vec<StoredColumns>,
}

enum FileState {
    Idle(Append),
    Writing(SpawnedTask<(Append, Result<()>)>),
    Failed,
}

impl SpillWriter {
    /// Adds a batch. May give the error of the batch before.
    pub async fn write(&mut self, batch: &DeviceBatch) -> Result<()> {
        let stored = self.spill.download(&self.queue, batch).await?;
        self.append(stored, self.spill.columns(batch)).await
    }

    /// Adds rows that were downloaded. May give the error of the batch before.
    pub async fn append(&mut self, stored: RecordBatch, columns: StoredColumns) -> Result<()> {
        self.columns.push(columns);
        let mut append = self.written().await?;
        self.file = FileState::Writing(SpawnedTask::spawn_blocking(move || {
            let result = append(Some(&stored)).map(drop);
            (append, result)
        }));
        Ok(())
    }

    /// The file with all batches; `None` without any.
    pub async fn finish(mut self) -> Result<Option<SpilledBatches>> {
        let mut append = self.written().await?;
        let ended = SpawnedTask::spawn_blocking(move || append(None)).join().await;
        let file = ended.map_err(|error| self.spill.ended(error))?.map_err(|error| self.spill.not_written(error))?;
        Ok(file.map(|file| SpilledBatches { file, columns: self.columns }))
    }

    /// The file once the batch before is written.
    async fn written(&mut self) -> Result<Append> {
        match std::mem::replace(&mut self.file, FileState::Failed) {
            FileState::Idle(append) => Ok(append),
            FileState::Writing(task) => {
                let (append, result) = task.join().await.map_err(|error| self.spill.ended(error))?;
                result.map(|()| append).map_err(|error| self.spill.not_written(error))
            }
            FileState::Failed => internal_err!("{}: a file that could not be written", self.spill.operator),
        }
    }
}

impl StoredRows {
    pub fn num_rows(&self) -> usize {
        self.rows.num_rows()
    }
}
