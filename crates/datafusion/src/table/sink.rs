// SPDX-License-Identifier: Apache-2.0
//! `INSERT INTO` a resident table.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Fields, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::datasource::sink::DataSink;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::StreamExt;

use crate::run::output_rows;
use crate::session::DeviceOptions;
use crate::table::snapshot::SnapshotBuilder;
use crate::table::state::TableState;

/// Streams rows to the device, then publishes a new snapshot. Running scans keep the old one.
pub(crate) struct TableSink {
    /// The table's columns.
    columns: SchemaRef,
    given: SchemaRef,
    state: Arc<TableState>,
    overwrite: bool,
    metrics: ExecutionPlanMetricsSet,
}

/// The columns of rows that a sink checks itself. `DataSinkExec` would refuse a NULL by the number
/// of its column; the upload names the column.
pub(super) fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Arc::new(Schema::new(fields.collect::<Fields>()))
}

impl TableSink {
    pub fn new(columns: SchemaRef, state: Arc<TableState>, overwrite: bool) -> Self {
        TableSink { given: nullable(&columns), columns, state, overwrite, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl fmt::Debug for TableSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableSink").field("overwrite", &self.overwrite).finish_non_exhaustive()
    }
}

impl DisplayAs for TableSink {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTable (overwrite={})", self.overwrite)
    }
}

#[async_trait]
impl DataSink for TableSink {
    fn schema(&self) -> &SchemaRef {
        &self.given
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    async fn write_all(&self, mut rows: SendableRecordBatchStream, task: &Arc<TaskContext>) -> Result<u64> {
        // One insert at a time: each extends the rows of the one before.
        let _publishing = self.state.publishing.lock().await;
        let current = self.state.current()?;
        let builder = match self.overwrite {
            true => SnapshotBuilder::new(current.context(), &self.columns)?,
            false => SnapshotBuilder::extending(&current)?,
        };
        let time = MetricBuilder::new(&self.metrics).elapsed_compute(0);
        let mut builder = builder.with_options(&DeviceOptions::of(task.session_config().options()));
        let mut written = 0;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            written += batch.num_rows() as u64;
            let _timer = time.timer();
            builder.push(batch)?;
        }
        let _timer = time.timer();
        self.state.publish(builder.finish().await?)?;
        output_rows(&self.metrics, 0).add(written as usize);
        Ok(written)
    }
}
