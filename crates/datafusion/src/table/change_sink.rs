// SPDX-License-Identifier: Apache-2.0
//! Takes the rows of a changed resident table.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::StreamExt;

use crate::exec::{DeviceScanExec, DeviceToHostExec};
use crate::session::{DeviceOptions, kernel_options, task_context};
use crate::table::DeviceTable;
use crate::table::numbered::NUMBER;
use crate::table::snapshot::{Snapshot, SnapshotBuilder};
use crate::table::state::TableState;

/// The last column of an UPDATE's rows: whether the row has new values.
pub(super) const CHANGED: &str = "changed by the statement";

/// The rows that a changed table takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenRows {
    /// Those that stay.
    Kept,
    /// All, with the mark [`CHANGED`].
    Marked,
    /// The changed ones, each with its [`NUMBER`].
    Numbered,
}

/// A resident table as the target of a statement that changes or deletes rows.
#[derive(Debug, Clone)]
pub(super) struct ChangedTable {
    state: Arc<TableState>,
    /// The table's columns.
    columns: SchemaRef,
    rows: GivenRows,
    /// The columns of `rows`.
    given: SchemaRef,
    /// The rows before. They are those that the statement reads, unless another one changes them.
    before: Arc<Snapshot>,
}

impl ChangedTable {
    pub fn new(table: &DeviceTable, before: Arc<Snapshot>, rows: GivenRows) -> ChangedTable {
        let (columns, state) = (table.schema(), Arc::clone(table.state()));
        let last = match rows {
            GivenRows::Kept => None,
            GivenRows::Marked => Some(Field::new(CHANGED, DataType::Boolean, false)),
            GivenRows::Numbered => Some(Field::new(NUMBER, DataType::Int64, false)),
        };
        let given = Arc::new(Schema::new(columns.fields().iter().cloned().chain(last.map(Arc::new)).collect::<Vec<_>>()));
        ChangedTable { before, state, columns, rows, given }
    }

    /// The rows as the table has them, and the last column.
    fn split(&self, batch: &RecordBatch) -> Result<(RecordBatch, ArrayRef)> {
        let columns = batch.columns();
        let Some((last, columns)) = columns.split_last().filter(|(_, columns)| columns.len() == self.columns.fields().len())
        else {
            return internal_err!("changed rows of {} columns", columns.len());
        };
        Ok((RecordBatch::try_new(Arc::clone(&self.columns), columns.to_vec())?, Arc::clone(last)))
    }

    /// Writes all rows of the table, those with numbers in the place of the old ones. Returns how
    /// many they are.
    async fn replace(
        &self,
        mut rows: SendableRecordBatchStream,
        builder: &mut SnapshotBuilder,
        task: &Arc<TaskContext>,
    ) -> Result<u64> {
        let reservation = MemoryConsumer::new("changed rows of a resident table").register(task.memory_pool());
        // The new rows, and for each its number, batch and row. Batch 0 will be one of old rows.
        let (mut new_rows, mut places) = (Vec::new(), Vec::new());
        while let Some(batch) = rows.next().await {
            let (batch, numbers) = self.split(&batch?)?;
            let Some(numbers) = numbers.as_primitive_opt::<Int64Type>() else { return internal_err!("rows without numbers") };
            reservation.try_grow(batch.get_array_memory_size() + size_of_val(numbers.values().as_ref()) * 3)?;
            new_rows.push(batch);
            let batch = new_rows.len();
            places.extend(numbers.values().iter().enumerate().map(|(row, number)| (*number, batch, row)));
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return exec_err!("the condition chooses a row more than once; no row is changed");
        }
        let columns = (0..self.columns.fields().len()).collect();
        let scan = Arc::new(DeviceScanExec::try_new(Arc::clone(&self.before), columns)?);
        let (context, options) = task_context(task)?;
        let scan = DeviceToHostExec::try_new(scan, "the changed table", kernel_options(&options, &context)?)?;
        let mut old_rows = scan.execute(0, Arc::clone(task))?;
        let (mut first, mut rest) = (0, places.as_slice());
        while let Some(old) = old_rows.next().await {
            let old = RecordBatch::try_new(Arc::clone(&self.columns), old?.columns().to_vec())?;
            let end = first + old.num_rows() as i64;
            let (here, behind) = rest.split_at(rest.partition_point(|(number, ..)| *number < end));
            rest = behind;
            if here.is_empty() {
                builder.push(old)?;
            } else {
                let mut of_row: Vec<(usize, usize)> = (0..old.num_rows()).map(|row| (0, row)).collect();
                here.iter().for_each(|(number, batch, row)| of_row[(number - first) as usize] = (*batch, *row));
                let batches: Vec<&RecordBatch> = std::iter::once(&old).chain(&new_rows).collect();
                builder.push(interleave_record_batch(&batches, &of_row)?)?;
            }
            first = end;
        }
        Ok(places.len() as u64)
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
        f.write_str(match self.rows {
            GivenRows::Kept => "DeviceTable (delete)",
            GivenRows::Marked | GivenRows::Numbered => "DeviceTable (update)",
        })
    }
}

#[async_trait]
impl DataSink for ChangedTable {
    fn schema(&self) -> &SchemaRef {
        &self.given
    }

    /// Streams rows to the device, then publishes them. Returns how many were changed or deleted.
    async fn write_all(&self, mut rows: SendableRecordBatchStream, task: &Arc<TaskContext>) -> Result<u64> {
        let _publishing = self.state.publishing.lock().await;
        let current = self.state.current()?;
        if !Arc::ptr_eq(&current, &self.before) {
            return exec_err!("another statement has changed the table meanwhile: run this one again");
        }
        let builder = SnapshotBuilder::new(current.context(), &self.columns)?;
        let mut builder = builder.with_options(&DeviceOptions::of(task.session_config().options()));
        let before = current.num_rows() as u64;
        if self.rows == GivenRows::Numbered {
            let changed = self.replace(rows, &mut builder, task).await?;
            self.state.publish(builder.finish().await?)?;
            return Ok(changed);
        }
        let (mut written, mut marked) = (0, 0);
        while let Some(batch) = rows.next().await {
            let mut batch = batch?;
            written += batch.num_rows() as u64;
            if self.rows == GivenRows::Marked {
                let (rows, marks) = self.split(&batch)?;
                let Some(marks) = marks.as_boolean_opt() else { return internal_err!("rows without marks") };
                (batch, marked) = (rows, marked + marks.true_count() as u64);
            }
            builder.push(batch)?;
        }
        if written > before || (self.rows == GivenRows::Marked && written < before) {
            return internal_err!("{written} rows in the place of {before}; no row is changed");
        }
        self.state.publish(builder.finish().await?)?;
        Ok(if self.rows == GivenRows::Marked { marked } else { before - written })
    }
}
