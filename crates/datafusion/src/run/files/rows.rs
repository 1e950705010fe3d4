// SPDX-License-Identifier: Apache-2.0
//! Batches of row groups: columns on the device beside those that are read now.

use std::collections::VecDeque;
use std::sync::Arc;

use columnar::{DeviceBatch, DeviceColumn};
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::RowGroupAccess;
use datafusion::object_store::ObjectStoreExt;
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use device::{Event, Queue};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::row_groups::{RowGroupSpan, needed};
use super::scan::CachedScan;
use crate::error::columnar_error;
use crate::graph::Stage;
use crate::run::DeviceBatchStream;
use crate::run::state::Run;
use crate::run::upload::{UploadedColumns, upload};
use crate::table::{FileVersion, RowGroupRange, RunFileCache};

/// A partition of a scan, as it reads its files.
struct ScanPartition {
    scan: CachedScan,
    number: usize,
    stage: Arc<Stage>,
    run: Arc<Run>,
    queue: Queue,
    /// Row groups whose columns were all on the device, and others.
    cached: Count,
    read: Count,
    /// Throttles uploads from one span to the next.
    consumed: Mutex<VecDeque<Event>>,
}

/// The rows of a partition.
pub(in crate::run) fn rows(
    scan: CachedScan,
    partition: usize,
    stage: &Arc<Stage>,
    run: &Arc<Run>,
    queue: Queue,
) -> DeviceBatchStream {
    let counter = |name| MetricBuilder::new(&stage.metrics.set()).counter(name, partition);
    let (cached, read) = (counter("row_groups_cached"), counter("row_groups_read"));
    let files = scan.files(partition);
    let (stage, run) = (Arc::clone(stage), Arc::clone(run));
    let consumed = Mutex::default();
    let partition = Arc::new(ScanPartition { scan, number: partition, stage, run, queue, cached, read, consumed });
    let files = stream::iter(files).then(move |file| Arc::clone(&partition).file(file));
    files.try_flatten().boxed()
}

/// Columns of consecutive row groups.
struct SpanRows {
    partition: Arc<ScanPartition>,
    file: Arc<FileVersion>,
    row_groups: RowGroupRange,
    rows: usize,
    /// Positions of the columns that are read.
    missing: Vec<usize>,
    /// Values of the others, by position.
    found: Vec<Option<VecDeque<DeviceColumn>>>,
    /// Values that were read, by position in `missing`.
    values: Vec<Vec<DeviceColumn>>,
}

impl ScanPartition {
    /// The rows of a file.
    async fn file(self: Arc<ScanPartition>, file: PartitionedFile) -> Result<DeviceBatchStream> {
        let Some(cache) = &self.run.file_cache else { return self.as_read_by_host(file) };
        let store = self.scan.config.object_store_url.as_str();
        let version = Arc::new(FileVersion::new(store, &file.object_meta, &file.partition_values));
        if cache.knows(&version) && !self.is_current(&version, &file).await {
            return self.as_read_by_host(file);
        }
        let batch_rows = self.run.batch_rows;
        let Some(needed) = needed(&self.scan, &file, self.number, batch_rows, &self.run.task).await else {
            return self.as_read_by_host(file);
        };
        let all = needed.all;
        let rows = stream::iter(needed.spans).then(move |span| {
            let (partition, file, version) = (Arc::clone(&self), file.clone(), Arc::clone(&version));
            async move { partition.span(&file, version, span, all).await }
        });
        Ok(rows.try_flatten().boxed())
    }

    /// Whether the store has the file as it was listed.
    async fn is_current(&self, version: &FileVersion, file: &PartitionedFile) -> bool {
        let Ok(store) = self.run.task.runtime_env().object_store(&self.scan.config.object_store_url) else { return false };
        store.head(&file.object_meta.location).await.is_ok_and(|meta| version.is_current(&meta))
    }

    /// The rows of a file, from DataFusion's scan alone.
    fn as_read_by_host(&self, file: PartitionedFile) -> Result<DeviceBatchStream> {
        let rows = self.scan.read_file(file, &self.run.task)?;
        Ok(upload(rows, &UploadedColumns::of(&self.stage), &self.run, self.queue.clone()))
    }

    /// Waits until few uploads are in the queue.
    async fn throttle(&self) -> Result<()> {
        let mut consumed = std::mem::take(&mut *self.consumed.lock());
        self.run.throttle(&mut consumed, &self.stage.operator).await?;
        *self.consumed.lock() = consumed;
        Ok(())
    }

    async fn span(
        self: Arc<ScanPartition>,
        file: &PartitionedFile,
        version: Arc<FileVersion>,
        span: RowGroupSpan,
        all: usize,
    ) -> Result<DeviceBatchStream> {
        let RowGroupSpan { row_groups, rows, part } = span;
        let columns = self.scan.columns.iter().zip(&self.stage.types);
        let get = |cache: &RunFileCache| {
            let found = columns.map(|(column, ty)| cache.get(&version, row_groups, column, ty));
            found.map(|values| values.map(|values| VecDeque::from(values.to_vec()))).collect()
        };
        let found: Vec<Option<VecDeque<DeviceColumn>>> = self.run.file_cache.as_ref().map_or_else(Vec::new, get);
        let missing: Vec<usize> =
            found.iter().enumerate().filter(|(_, values)| values.is_none()).map(|(index, _)| index).collect();
        if missing.is_empty() {
            self.cached.add(row_groups.number);
        } else {
            self.read.add(part.as_ref().map_or(row_groups.number, Vec::len));
            self.throttle().await?;
        }
        if let (false, Some(part)) = (missing.is_empty(), part) {
            // Few rows: they do not stay.
            let columns: Vec<usize> = (0..found.len()).collect();
            let rows = self.scan.read_row_groups(file, part, all, &columns, &self.run.task)?;
            return Ok(upload(rows, &UploadedColumns::of(&self.stage), &self.run, self.queue.clone()));
        }
        let batch_rows = self.run.rows_of_batch(&self.stage.types);
        let of_span = SpanRows {
            partition: Arc::clone(&self),
            file: version,
            row_groups,
            rows,
            values: vec![Vec::new(); missing.len()],
            missing,
            found,
        };
        if of_span.missing.is_empty() {
            let batches = of_span.cached_batches()?;
            let batches = batches.into_iter().flat_map(move |batch| batch.chunks(batch_rows).collect::<Vec<_>>());
            return Ok(stream::iter(batches.map(Ok)).boxed());
        }
        let missing = &of_span.missing;
        let whole = (row_groups.first..row_groups.first + row_groups.number).map(|index| (index, RowGroupAccess::Scan));
        let read = self.scan.read_row_groups(file, whole, all, missing, &self.run.task)?;
        let columns = UploadedColumns {
            schema: self.scan.schema_of(missing),
            types: missing.iter().map(|index| self.stage.types[*index].clone()).collect(),
            rows: Some(rows),
            operator: self.stage.operator.clone(),
        };
        let read = upload(read, &columns, &self.run, self.queue.clone());
        let batches = stream::try_unfold((read, of_span), |(mut read, mut rows)| async move {
            let batches = match read.try_next().await? {
                Some(batch) => rows.beside_found(&batch)?,
                None => return rows.keep().map(|()| None),
            };
            let batches = stream::iter(batches.into_iter().map(Ok::<_, DataFusionError>));
            Ok::<_, DataFusionError>(Some((batches, (read, rows))))
        });
        Ok(batches.try_flatten().boxed())
    }
}

impl SpanRows {
    /// All rows, of columns that are all found.
    fn cached_batches(mut self) -> Result<Vec<DeviceBatch>> {
        let rows = self.rows;
        let columns = self.found.iter_mut().map(|values| take(values.as_mut(), rows)).collect();
        self.batches(columns, rows)
    }

    /// A batch of columns that were read, beside the same rows of the others.
    fn beside_found(&mut self, batch: &DeviceBatch) -> Result<Vec<DeviceBatch>> {
        let rows = batch.num_rows();
        for (values, column) in self.values.iter_mut().zip(batch.columns()) {
            values.push(column.clone());
        }
        let mut read = batch.columns().iter().cloned();
        let columns = self.found.iter_mut().map(|values| match values {
            Some(values) => take(Some(values), rows),
            None => read.next().into_iter().collect(),
        });
        let columns = columns.collect();
        self.batches(columns, rows)
    }

    /// Batches of columns that may have parts of different rows.
    fn batches(&self, mut columns: Vec<VecDeque<DeviceColumn>>, rows: usize) -> Result<Vec<DeviceBatch>> {
        let (mut batches, mut left) = (Vec::new(), rows);
        while left > 0 {
            let shortest = columns.iter().map(|parts| parts.front().map_or(0, DeviceColumn::len)).min().unwrap_or(0).min(left);
            if shortest == 0 {
                return exec_err!("{}: {rows} rows of a file have a column of fewer", self.partition.stage.operator);
            }
            let parts = columns.iter_mut().flat_map(|parts| take(Some(parts), shortest)).collect();
            let schema = Arc::clone(&self.partition.stage.schema);
            let batch = DeviceBatch::try_new(schema, parts, shortest);
            batches.push(batch.map_err(|error| columnar_error(&self.partition.stage.operator, error))?);
            left -= shortest;
        }
        Ok(batches)
    }

    /// Keeps the columns that were read.
    ///
    /// Pages of a damaged file may have other rows than its metadata. That only matters beside
    /// other columns.
    fn keep(&mut self) -> Result<()> {
        let Some(cache) = &self.partition.run.file_cache else { return Ok(()) };
        for (index, values) in self.missing.iter().zip(std::mem::take(&mut self.values)) {
            let rows: usize = values.iter().map(DeviceColumn::len).sum();
            if rows == self.rows {
                cache.insert(&self.file, self.row_groups, &self.partition.scan.columns[*index], values);
            } else if self.missing.len() < self.found.len() {
                return exec_err!("{}: {rows} rows of row groups of {}", self.partition.stage.operator, self.rows);
            }
        }
        Ok(())
    }
}

/// Takes the next rows of a column, as many as there are of `rows`.
fn take(parts: Option<&mut VecDeque<DeviceColumn>>, rows: usize) -> VecDeque<DeviceColumn> {
    let (mut taken, mut left) = (VecDeque::new(), rows);
    let Some(parts) = parts else { return taken };
    while left > 0
        && let Some(part) = parts.pop_front()
    {
        if part.len() > left {
            parts.push_front(part.slice(left, part.len() - left));
            taken.push_back(part.slice(0, left));
            break;
        }
        left -= part.len();
        taken.push_back(part);
    }
    taken
}
