// SPDX-License-Identifier: Apache-2.0
//! The state of a resident table at one moment.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch, Layout, Resident, ResidentBuilder};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue, Statistics};
use device::Context;
use parking_lot::RwLock;

use crate::run::columnar_error;
use crate::runtime::device_error;

/// What a table's scans and inserts share.
pub(crate) struct TableState {
    snapshot: RwLock<Arc<Snapshot>>,
    /// Held by an insert while it turns the current snapshot into the next.
    pub publishing: tokio::sync::Mutex<()>,
}

impl TableState {
    pub fn new(snapshot: Snapshot) -> Self {
        TableState { snapshot: RwLock::new(Arc::new(snapshot)), publishing: tokio::sync::Mutex::new(()) }
    }

    pub fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read())
    }

    pub fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.write() = Arc::new(snapshot);
    }
}

impl fmt::Debug for TableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.current().fmt(f)
    }
}

/// Batches on the device with their types and statistics. Never changes: an insert makes another.
pub(crate) struct Snapshot {
    context: Context,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    batches: Vec<DeviceBatch>,
    statistics: Statistics,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("rows", &self.num_rows()).field("batches", &self.batches.len()).finish()
    }
}

impl Snapshot {
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub fn types(&self) -> &[ColumnType] {
        &self.types
    }

    pub fn batches(&self) -> &[DeviceBatch] {
        &self.batches
    }

    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub fn num_rows(&self) -> usize {
        self.batches.iter().map(DeviceBatch::num_rows).sum()
    }

    /// The rows of this snapshot, then those of `added`.
    pub async fn append(&self, added: Snapshot) -> Result<Snapshot> {
        if added.num_rows() == 0 || self.num_rows() == 0 {
            let some = if added.num_rows() == 0 { self } else { &added };
            return Ok(Snapshot {
                context: some.context.clone(),
                schema: Arc::clone(&self.schema),
                types: some.types.clone(),
                batches: some.batches.clone(),
                statistics: some.statistics.clone(),
            });
        }
        if let Some(types) = common_types(&self.types, &added.types) {
            let statistics = Statistics::try_merge_iter([&self.statistics, &added.statistics], &self.schema)?;
            let batches = self.batches.iter().chain(&added.batches).cloned().collect();
            return Ok(Snapshot { context: self.context.clone(), schema: Arc::clone(&self.schema), types, batches, statistics });
        }
        // The new rows need other types (wider numbers, NULLs, another dictionary): lay all of it anew.
        let queue = self.context.queue().map_err(device_error)?;
        let mut builder = SnapshotBuilder::new(&self.context, &self.schema)?;
        for batch in self.batches.iter().chain(&added.batches) {
            builder.push(columnar::download(&queue, batch).await.map_err(columnar_error)?)?;
        }
        builder.finish()
    }
}

/// Types under which batches of both can be read, without touching either.
fn common_types(left: &[ColumnType], right: &[ColumnType]) -> Option<Vec<ColumnType>> {
    left.iter()
        .zip(right)
        .map(|(left, right)| {
            // Codes mean something only together with their dictionary.
            let dictionary = matches!(left.layout, Layout::Dictionary { .. });
            if dictionary || left.layout != right.layout || left.nullable != right.nullable {
                return None;
            }
            let bounds = match (left.bounds, right.bounds) {
                (Some(left), Some(right)) => Some((left.0.min(right.0), left.1.max(right.1))),
                _ => None,
            };
            Some(ColumnType { bounds, ..left.clone() })
        })
        .collect()
}

/// Uploads rows batch by batch, in the narrowest types.
pub(crate) struct SnapshotBuilder {
    context: Context,
    schema: SchemaRef,
    builder: ResidentBuilder,
}

impl SnapshotBuilder {
    pub fn new(context: &Context, schema: &SchemaRef) -> Result<Self> {
        let queue = context.queue().map_err(device_error)?;
        let builder = ResidentBuilder::try_new(&queue, schema).map_err(columnar_error)?;
        Ok(SnapshotBuilder { context: context.clone(), schema: Arc::clone(schema), builder })
    }

    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        self.builder.push(batch).map_err(columnar_error)
    }

    pub fn finish(self) -> Result<Snapshot> {
        let Resident { types, batches, statistics, .. } = self.builder.finish().map_err(columnar_error)?;
        let rows = batches.iter().map(DeviceBatch::num_rows).sum();
        let column_statistics = statistics.iter().map(column_statistics).collect();
        let statistics = Statistics {
            num_rows: Precision::Exact(rows),
            total_byte_size: Precision::Exact(batches.iter().map(DeviceBatch::memory_bytes).sum()),
            column_statistics,
        };
        Ok(Snapshot { context: self.context, schema: self.schema, types, batches, statistics })
    }
}

fn column_statistics(column: &columnar::ColumnStatistics) -> ColumnStatistics {
    let value = |array: &Option<arrow::array::ArrayRef>| {
        array.as_ref().and_then(|array| ScalarValue::try_from_array(array, 0).ok()).map_or(Precision::Absent, Precision::Exact)
    };
    ColumnStatistics {
        null_count: Precision::Exact(column.null_count),
        min_value: value(&column.min),
        max_value: value(&column.max),
        distinct_count: column.distinct_count.map_or(Precision::Absent, Precision::Exact),
        ..ColumnStatistics::new_unknown()
    }
}
