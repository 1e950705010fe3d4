// SPDX-License-Identifier: Apache-2.0
//! Takes the rows of a changed resident table.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
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
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::StreamExt;

use crate::exec::{DeviceScanExec, DeviceToHostExec};
use crate::run::output_rows;
use crate::session::{DeviceOptions, kernel_options, task_context};
use crate::table::DeviceTable;
use crate::table::added_columns::{CHANGED, DELETED, NUMBER};
use crate::table::sink::nullable;
use crate::table::snapshot::{Snapshot, SnapshotBuilder};
use crate::table::state::TableState;

/// The rows that a changed table takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenRows {
    /// Those that stay.
    Kept,
    /// All, with the flag [`CHANGED`].
    Flagged,
    /// The changed ones, each with its [`NUMBER`].
    Numbered,
    /// The changed, deleted and inserted ones. Each has its [`NUMBER`], NULL for an inserted one,
    /// and the flag [`DELETED`].
    Merged,
}

/// A resident table as the target of a statement that changes or deletes rows.
#[derive(Debug, Clone)]
pub(super) struct ChangedTable {
    state: Arc<TableState>,
    /// The table's columns. The upload refuses NULLs in those that take none.
    columns: SchemaRef,
    rows: GivenRows,
    /// The columns of `rows`.
    given: SchemaRef,
    metrics: ExecutionPlanMetricsSet,
    /// The rows before. They are those read by the statement, unless another one changes them.
    before: Arc<Snapshot>,
}

impl ChangedTable {
    pub fn new(table: &DeviceTable, before: Arc<Snapshot>, rows: GivenRows) -> ChangedTable {
        let (columns, state) = (nullable(&table.schema()), Arc::clone(table.state()));
        let last = match rows {
            GivenRows::Kept => vec![],
            GivenRows::Flagged => vec![Field::new(CHANGED, DataType::Boolean, false)],
            GivenRows::Numbered => vec![Field::new(NUMBER, DataType::Int64, false)],
            GivenRows::Merged => {
                vec![Field::new(NUMBER, DataType::Int64, true), Field::new(DELETED, DataType::Boolean, false)]
            }
        };
        let fields = columns.fields().iter().cloned().chain(last.into_iter().map(Arc::new));
        let given = nullable(&Schema::new(fields.collect::<Vec<_>>()));
        ChangedTable { before, state, columns, rows, given, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// The rows as the table has them, and the `N` columns behind these.
    fn split<const N: usize>(&self, batch: &RecordBatch) -> Result<(RecordBatch, [ArrayRef; N])> {
        let all = batch.columns();
        let split = all.split_at_checked(self.columns.fields().len());
        let Some((columns, last)) = split.and_then(|(columns, last)| Some((columns, last.to_vec().try_into().ok()?))) else {
            return internal_err!("changed rows of {} columns", all.len());
        };
        Ok((RecordBatch::try_new(Arc::clone(&self.columns), columns.to_vec())?, last))
    }

    /// The rows as the table has them, their numbers, and which are deleted.
    fn split_numbered(&self, batch: &RecordBatch) -> Result<(RecordBatch, Int64Array, BooleanArray)> {
        let (batch, numbers, deleted) = match self.rows {
            GivenRows::Merged => {
                let (batch, [numbers, deleted]) = self.split(batch)?;
                (batch, numbers, deleted.as_boolean_opt().cloned())
            }
            GivenRows::Kept | GivenRows::Flagged | GivenRows::Numbered => {
                let (batch, [numbers]) = self.split(batch)?;
                let none = BooleanArray::from(vec![false; batch.num_rows()]);
                (batch, numbers, Some(none))
            }
        };
        match (numbers.as_primitive_opt::<Int64Type>(), deleted) {
            (Some(numbers), Some(deleted)) => Ok((batch, numbers.clone(), deleted)),
            _ => internal_err!("rows without numbers"),
        }
    }

    /// Writes all rows of the table: those with numbers instead of the old ones, the inserted ones
    /// behind them. Returns how many were changed, deleted or inserted.
    async fn replace(
        &self,
        mut rows: SendableRecordBatchStream,
        builder: &mut SnapshotBuilder,
        task: &Arc<TaskContext>,
    ) -> Result<u64> {
        let reservation = MemoryConsumer::new("changed rows of a resident table").register(task.memory_pool());
        // The new rows, and for each its number, batch and row. Batch 0 will be one of old rows. A
        // deleted row has neither batch nor row.
        let (mut new_rows, mut replaced, mut inserted) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(batch) = rows.next().await {
            let (batch, numbers, deleted) = self.split_numbered(&batch?)?;
            reservation.try_grow(batch.get_array_memory_size() + size_of_val(numbers.values().as_ref()) * 4)?;
            new_rows.push(batch);
            let batch = new_rows.len();
            for (row, number) in numbers.iter().enumerate() {
                match (number, self.rows) {
                    (Some(number), _) => replaced.push((number, (!deleted.value(row)).then_some((batch, row)))),
                    (None, GivenRows::Merged) => inserted.push((batch, row)),
                    (None, GivenRows::Kept | GivenRows::Flagged | GivenRows::Numbered) => {
                        return internal_err!("a changed row without a number");
                    }
                }
            }
        }
        replaced.sort_unstable();
        if replaced.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return exec_err!("the condition chooses a row more than once; no row is changed");
        }
        let columns = (0..self.columns.fields().len()).collect();
        let scan = Arc::new(DeviceScanExec::try_new(Arc::clone(&self.before), columns)?);
        let (context, options) = task_context(task)?;
        let scan = DeviceToHostExec::try_new(scan, "the changed table", kernel_options(&options, &context)?)?;
        let mut old_rows = scan.execute(0, Arc::clone(task))?;
        let (mut first, mut rest) = (0, replaced.as_slice());
        while let Some(old) = old_rows.next().await {
            let old = RecordBatch::try_new(Arc::clone(&self.columns), old?.columns().to_vec())?;
            let end = first + old.num_rows() as i64;
            let (here, behind) = rest.split_at(rest.partition_point(|(number, ..)| *number < end));
            rest = behind;
            if here.is_empty() {
                builder.push(old)?;
            } else {
                let mut of_row: Vec<_> = (0..old.num_rows()).map(|row| Some((0, row))).collect();
                here.iter().for_each(|(number, new)| of_row[(number - first) as usize] = *new);
                let of_row: Vec<(usize, usize)> = of_row.into_iter().flatten().collect();
                let batches: Vec<&RecordBatch> = std::iter::once(&old).chain(&new_rows).collect();
                builder.push(interleave_record_batch(&batches, &of_row)?)?;
            }
            first = end;
        }
        let empty = RecordBatch::new_empty(Arc::clone(&self.columns));
        let batches: Vec<&RecordBatch> = std::iter::once(&empty).chain(&new_rows).collect();
        for rows in inserted.chunks(task.session_config().batch_size().max(1)) {
            builder.push(interleave_record_batch(&batches, rows)?)?;
        }
        Ok((replaced.len() + inserted.len()) as u64)
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
        let sink = ChangedTable { metrics: ExecutionPlanMetricsSet::new(), ..self.clone() };
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}

impl DisplayAs for ChangedTable {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.rows {
            GivenRows::Kept => "DeviceTable (delete)",
            GivenRows::Flagged | GivenRows::Numbered => "DeviceTable (update)",
            GivenRows::Merged => "DeviceTable (merge)",
        })
    }
}

#[async_trait]
impl DataSink for ChangedTable {
    fn schema(&self) -> &SchemaRef {
        &self.given
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    /// Streams rows to the device, then publishes them. Returns how many were changed, deleted or
    /// inserted.
    async fn write_all(&self, mut rows: SendableRecordBatchStream, task: &Arc<TaskContext>) -> Result<u64> {
        let _publishing = self.state.publishing.lock().await;
        let current = self.state.current()?;
        if !Arc::ptr_eq(&current, &self.before) {
            return exec_err!("another statement has changed the table meanwhile: run this one again");
        }
        let time = MetricBuilder::new(&self.metrics).elapsed_compute(0);
        let builder = SnapshotBuilder::new(current.context(), current.schema())?;
        let mut builder = builder.with_options(&DeviceOptions::of(task.session_config().options()));
        let before = current.num_rows() as u64;
        let has_flags = match self.rows {
            GivenRows::Kept => false,
            GivenRows::Flagged => true,
            GivenRows::Numbered | GivenRows::Merged => {
                let changed = self.replace(rows, &mut builder, task).await?;
                let _timer = time.timer();
                self.state.publish(builder.finish().await?)?;
                output_rows(&self.metrics, 0).add(changed as usize);
                return Ok(changed);
            }
        };
        let (mut written, mut flagged) = (0, 0);
        while let Some(batch) = rows.next().await {
            let mut batch = batch?;
            written += batch.num_rows() as u64;
            if has_flags {
                let (rows, [flags]) = self.split(&batch)?;
                let Some(flags) = flags.as_boolean_opt() else { return internal_err!("rows without flags") };
                (batch, flagged) = (rows, flagged + flags.true_count() as u64);
            }
            let _timer = time.timer();
            builder.push(batch)?;
        }
        if written > before || (has_flags && written < before) {
            return internal_err!("{written} rows instead of {before}; no row is changed");
        }
        let _timer = time.timer();
        self.state.publish(builder.finish().await?)?;
        let changed = if has_flags { flagged } else { before - written };
        output_rows(&self.metrics, 0).add(changed as usize);
        Ok(changed)
    }
}
