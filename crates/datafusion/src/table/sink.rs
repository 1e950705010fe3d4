// SPDX-License-Identifier: Apache-2.0
//! `INSERT INTO` a resident table.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::datasource::sink::DataSink;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::StreamExt;

use crate::session::DeviceOptions;
use crate::table::snapshot::SnapshotBuilder;
use crate::table::state::TableState;

/// Streams rows to the device, then publishes a new snapshot. Running scans keep the old one.
pub(crate) struct TableSink {
    schema: SchemaRef,
    state: Arc<TableState>,
    overwrite: bool,
}

impl TableSink {
    pub fn new(schema: SchemaRef, state: Arc<TableState>, overwrite: bool) -> Self {
        TableSink { schema, state, overwrite }
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
        &self.schema
    }

    async fn write_all(&self, mut rows: SendableRecordBatchStream, task: &Arc<TaskContext>) -> Result<u64> {
        // One insert at a time: each extends the rows of the one before.
        let _publishing = self.state.publishing.lock().await;
        let current = self.state.current()?;
        let builder = match self.overwrite {
            true => SnapshotBuilder::new(current.context(), &self.schema)?,
            false => SnapshotBuilder::extending(&current)?,
        };
        let mut builder = builder.with_options(&DeviceOptions::of(task.session_config().options()));
        let mut written = 0;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            written += batch.num_rows() as u64;
            builder.push(batch)?;
        }
        self.state.publish(builder.finish().await?)?;
        Ok(written)
    }
}
