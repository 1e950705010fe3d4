// SPDX-License-Identifier: Apache-2.0
//! Snapshots of a resident table.

use std::fmt;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch, Resident, ResidentBuilder};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue, Statistics};
use device::{Context, DeviceKind, Queue};

use crate::error::{columnar_error, device_error, op_error};
use crate::session::{DeviceOptions, kernel_options};
use crate::table::merge::{MergedSize, are_merged, merge_batches};

/// Batches on the device with their types and statistics. Immutable: an insert makes another
/// snapshot.
pub(crate) struct Snapshot {
    context: Context,
    table: Resident,
    statistics: Statistics,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("rows", &self.num_rows()).field("batches", &self.table.batches.len()).finish()
    }
}

impl Snapshot {
    pub fn new(context: Context, table: Resident) -> Self {
        let statistics = Statistics {
            num_rows: Precision::Exact(table.batches.iter().map(DeviceBatch::num_rows).sum()),
            total_byte_size: Precision::Exact(table.memory_bytes(None)),
            column_statistics: table
                .statistics
                .iter()
                .enumerate()
                .map(|(index, statistics)| ColumnStatistics {
                    byte_size: Precision::Exact(table.memory_bytes(Some(index))),
                    ..column_statistics(statistics)
                })
                .collect(),
        };
        Snapshot { context, table, statistics }
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.table.schema
    }

    pub fn types(&self) -> &[ColumnType] {
        &self.table.types
    }

    pub fn batches(&self) -> &[DeviceBatch] {
        &self.table.batches
    }

    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub fn num_rows(&self) -> usize {
        self.table.batches.iter().map(DeviceBatch::num_rows).sum()
    }
}

/// The operator that errors of uploads name.
pub(crate) const OPERATOR: &str = "DeviceTable";

/// Uploads rows batch by batch, in the narrowest layouts.
pub(crate) struct SnapshotBuilder {
    context: Context,
    queue: Queue,
    builder: ResidentBuilder,
    /// Batches that the table shares with an earlier snapshot.
    shared: usize,
    options: DeviceOptions,
}

impl SnapshotBuilder {
    /// A builder without rows.
    pub fn new(context: &Context, schema: &SchemaRef) -> Result<Self> {
        let queue = context.queue().map_err(|error| device_error(OPERATOR, error))?;
        let builder = ResidentBuilder::try_new(&queue, schema).map_err(|error| columnar_error(OPERATOR, error))?;
        Ok(SnapshotBuilder { context: context.clone(), queue, builder, shared: 0, options: DeviceOptions::default() }.sized())
    }

    /// A builder with the rows of a snapshot, whose batches are shared.
    pub fn extending(snapshot: &Snapshot) -> Result<Self> {
        let queue = snapshot.context.queue().map_err(|error| device_error(OPERATOR, error))?;
        let builder = ResidentBuilder::extending(&queue, &snapshot.table);
        let (context, shared) = (snapshot.context.clone(), snapshot.batches().len());
        Ok(SnapshotBuilder { context, queue, builder, shared, options: DeviceOptions::default() }.sized())
    }

    /// Full batches have `device.resident_batch_rows` rows.
    #[must_use]
    pub fn with_options(mut self, options: &DeviceOptions) -> Self {
        self.options = options.clone();
        self.sized()
    }

    /// Sets the size of uploads. Those that are large for the device's limit end earlier.
    fn sized(mut self) -> Self {
        let rows = if self.merges() { self.batch_rows().min(UPLOADED_ROWS) } else { self.batch_rows() };
        let bytes = self.context.pool().limit() / UPLOADS_IN_LIMIT;
        self.builder = self.builder.with_batch_rows(rows).with_batch_bytes(bytes);
        self
    }

    /// Rows of a full batch, for 0 by the device: each launch costs a GPU the time of some 10,000
    /// rows.
    fn batch_rows(&self) -> usize {
        match (self.options.resident_batch_rows, self.context.info().kind) {
            (0, DeviceKind::Cpu) => Resident::BATCH_ROWS,
            (0, DeviceKind::Gpu | DeviceKind::Accelerator) if self.merges() => MERGED_ROWS,
            (0, DeviceKind::Gpu | DeviceKind::Accelerator) => UNMERGED_ROWS,
            (rows, _) => rows,
        }
    }

    /// Whether batches are merged on the device.
    fn merges(&self) -> bool {
        self.context.info().kind != DeviceKind::Cpu && are_merged(self.builder.schema())
    }

    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        self.builder.push(batch).map_err(|error| columnar_error(OPERATOR, error))
    }

    pub async fn finish(self) -> Result<Snapshot> {
        let (merges, rows) = (self.merges(), self.batch_rows());
        let mut table = self.builder.finish().await.map_err(|error| columnar_error(OPERATOR, error))?;
        if merges && table.batches.len() > self.shared + 1 {
            let most = MergedSize { rows, bytes: self.context.pool().limit() / BATCHES_IN_LIMIT };
            let kernels = kernel_options(&self.options, &self.context)?;
            let merged = merge_batches(&self.queue, &kernels, &mut table, self.shared, most).await;
            merged.map_err(|error| op_error(OPERATOR, error))?;
        }
        Ok(Snapshot::new(self.context, table))
    }
}

/// Rows of a full batch on a GPU, with merged uploads and without.
const MERGED_ROWS: usize = 1 << 26;
const UNMERGED_ROWS: usize = 1 << 24;
/// Rows that the host collects before it uploads them to a GPU.
const UPLOADED_ROWS: usize = 1 << 22;
/// Uploads that the device's limit has room for.
const UPLOADS_IN_LIMIT: usize = 64;
/// Merged batches that it has room for, so that queries with several fit.
const BATCHES_IN_LIMIT: usize = 16;

/// Whether DataFusion may know this bound.
///
/// Its planner casts bounds to the type of a comparison. The cast to nanoseconds fails for days and
/// times long ago, even if the filter keeps no such row.
fn survives_comparisons(bound: &ScalarValue) -> bool {
    use ScalarValue::*;
    let (ticks, nanoseconds) = match bound {
        Date32(Some(days)) => (i64::from(*days), 86_400_000_000_000),
        TimestampSecond(Some(ticks), _) => (*ticks, 1_000_000_000),
        Date64(Some(ticks)) | TimestampMillisecond(Some(ticks), _) => (*ticks, 1_000_000),
        TimestampMicrosecond(Some(ticks), _) => (*ticks, 1_000),
        _ => return true,
    };
    ticks.checked_mul(nanoseconds).is_some()
}

fn column_statistics(column: &columnar::ColumnStatistics) -> ColumnStatistics {
    let value = |array: Option<&ArrayRef>| {
        let bound = array.and_then(|array| ScalarValue::try_from_array(array, 0).ok());
        bound.filter(survives_comparisons).map_or(Precision::Absent, Precision::Exact)
    };
    let (min, max) = column.min_max.as_ref().map(|(min, max)| (min, max)).unzip();
    ColumnStatistics {
        null_count: column.null_count.map_or(Precision::Absent, Precision::Exact),
        min_value: value(min),
        max_value: value(max),
        distinct_count: column.distinct_count.map_or(Precision::Absent, Precision::Exact),
        ..ColumnStatistics::new_unknown()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use device::testing::config;

    use super::*;

    #[tokio::test]
    async fn full_batches_have_the_rows_of_the_setting() {
        let context = Context::new(config().unwrap()).unwrap();
        let rows = Resident::BATCH_ROWS + 2;
        let column = Arc::new(Int64Array::from_iter_values(0..rows as i64)) as _;
        let rows = RecordBatch::try_from_iter([("i", column)]).unwrap();
        let half = rows.num_rows() / 2;
        let sliced = match context.info().kind {
            DeviceKind::Cpu => vec![Resident::BATCH_ROWS, 2],
            DeviceKind::Gpu | DeviceKind::Accelerator => vec![rows.num_rows()],
        };
        for (batch_rows, lengths) in [(0, sliced), (half, vec![half; 2]), (rows.num_rows(), vec![rows.num_rows()])] {
            let mut options = DeviceOptions::default();
            options.resident_batch_rows = batch_rows;
            let mut builder = SnapshotBuilder::new(&context, rows.schema_ref()).unwrap().with_options(&options);
            builder.push(rows.clone()).unwrap();
            let snapshot = builder.finish().await.unwrap();
            assert_eq!(snapshot.table.batches.iter().map(DeviceBatch::num_rows).collect::<Vec<_>>(), lengths, "{batch_rows}");
        }
    }
}
