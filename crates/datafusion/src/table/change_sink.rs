// SPDX-License-Identifier: Apache-2.0
//! Takes the rows of a changed resident table.

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::StreamExt;

use crate::session::DeviceOptions;
use crate::table::DeviceTable;
use crate::table::snapshot::{Snapshot, SnapshotBuilder};
use crate::table::state::TableState;

/// The last column of an UPDATE's rows: whether the row has new values.
pub(super) const CHANGED: &str = "changed by the statement";

/// A resident table as the target of a statement that changes or deletes rows: it takes the rows
/// that the table has afterwards.
#[derive(Debug, Clone)]
pub(super) struct ChangedTable {
    state: Arc<TableState>,
    /// The table's columns.
    columns: SchemaRef,
    /// Those, and a mark of changed rows.
    given: SchemaRef,
    /// The rows before. They are those that the statement reads, unless another one changes them.
    before: Arc<Snapshot>,
    marks_changes: bool,
}

impl ChangedTable {
    pub fn try_new(table: &DeviceTable, marks_changes: bool) -> Result<ChangedTable> {
        let columns = table.schema();
        let mark = marks_changes.then(|| Arc::new(Field::new(CHANGED, DataType::Boolean, false)));
        let given = Arc::new(Schema::new(columns.fields().iter().cloned().chain(mark).collect::<Vec<_>>()));
        let state = Arc::clone(table.state());
        Ok(ChangedTable { before: state.current()?, state, columns, given, marks_changes })
    }

    /// The rows as the table has them, and how many are marked.
    fn without_mark(&self, batch: RecordBatch) -> Result<(RecordBatch, u64)> {
        if !self.marks_changes {
            return Ok((batch, 0));
        }
        let columns: Vec<usize> = (0..self.columns.fields().len()).collect();
        let Some(marks) = batch.columns().get(columns.len()).and_then(|marks| marks.as_boolean_opt()) else {
            return internal_err!("rows of an UPDATE without a mark");
        };
        Ok((batch.project(&columns)?, marks.true_count() as u64))
    }
}

#[async_trait]
impl TableProvider for ChangedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.given)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _session: &dyn Session,
        _projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        internal_err!("a scan of the target of a change")
    }

    async fn insert_into(
        &self,
        _session: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        _insert: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(self.clone()), None)))
    }
}

impl DisplayAs for ChangedTable {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.marks_changes { "DeviceTable (update)" } else { "DeviceTable (delete)" })
    }
}

#[async_trait]
impl DataSink for ChangedTable {
    fn schema(&self) -> &SchemaRef {
        &self.given
    }

    /// Streams the rows to the device, then publishes them. Returns the number of rows that were
    /// changed or deleted.
    async fn write_all(&self, mut rows: SendableRecordBatchStream, task: &Arc<TaskContext>) -> Result<u64> {
        let _publishing = self.state.publishing.lock().await;
        let current = self.state.current()?;
        if !Arc::ptr_eq(&current, &self.before) {
            return exec_err!("another statement has changed the table meanwhile: run this one again");
        }
        let builder = SnapshotBuilder::new(current.context(), &self.columns)?;
        let mut builder = builder.with_options(&DeviceOptions::of(task.session_config().options()));
        let (mut written, mut changed) = (0, 0);
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            written += batch.num_rows() as u64;
            let (batch, marked) = self.without_mark(batch)?;
            changed += marked;
            builder.push(batch)?;
        }
        let before = current.num_rows() as u64;
        // Of an UPDATE, a row that two evaluations of a condition find different would be lost, or
        // twice there.
        if written > before || (self.marks_changes && written < before) {
            return exec_err!("the condition is not the same for each evaluation: {written} rows of {before}; no row is changed");
        }
        self.state.publish(builder.finish().await?)?;
        Ok(if self.marks_changes { changed } else { before - written })
    }
}
