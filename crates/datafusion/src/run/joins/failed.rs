// SPDX-License-Identifier: Apache-2.0
//! DataFusion's own message for a row that failed on its way through joins.
//!
//! A kernel reports that a row failed, but neither the pair nor the join. So:
//! 1. The batch is halved until one failing row is left.
//! 2. The candidate pairs of that row are written join by join, as plain columns.
//! 3. The host evaluates the expressions of each join for them.
//!
//! An unmatched row of the build side is known by its number.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{FieldRef, Schema};
use columnar::DeviceBatch;
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use device::Queue;
use kernels::expr::Expr;
use kernels::ops::{ChainState, Input, Join, JoinChain, JoinKind, JoinTable, Options};

use super::tables::Tables;
use crate::error::{columnar_error, op_error};
use crate::exec::panics;
use crate::graph::{BuildSideJoin, ChainPlan, Stage};

/// Candidate pairs that the host evaluates at once.
const ROWS_AT_ONCE: usize = 1 << 16;

/// The error of a batch of the probe side.
pub(super) async fn failed_chain(
    stage: &Stage,
    plan: &ChainPlan,
    tables: &Tables,
    queue: &Queue,
    batch: &DeviceBatch,
) -> DataFusionError {
    let evaluated = async {
        let row = failing_row(&tables.chain(plan, &stage.operator)?, &stage.operator, queue, batch).await?;
        let path = JoinPath::new(stage, plan, tables, queue);
        for (at, number) in tables.numbers.iter().enumerate() {
            let side = plan.sides.get(*number);
            path.evaluate(&row, at, side.map(|side| side.probe_checks()).unwrap_or_default()).await?;
            if let Some(condition) = side.and_then(|side| side.condition()) {
                path.evaluate_pairs(&row, at, condition).await?;
            }
        }
        path.evaluate(&row, tables.joins.len(), &plan.computed).await
    };
    message(evaluated.await, &stage.operator)
}

/// The error of an unmatched row of the build side, by its number.
pub(super) async fn failed_unmatched_build_row(
    stage: &Stage,
    plan: &ChainPlan,
    tables: &Tables,
    queue: &Queue,
    state: &ChainState,
    row: u64,
) -> DataFusionError {
    let path = JoinPath::new(stage, plan, tables, queue);
    let evaluated = async {
        let left_over = path.plain(path.joins)?.unmatched_build_row(queue, state, row).await;
        if let Some(row) = left_over.map_err(|error| op_error(&stage.operator, error))? {
            let row = path.download(path.joins, &row).await?;
            plan.computed.iter().try_for_each(|check| path.evaluate_on_host(check, &row).map(|_| ()))?;
        }
        Ok(())
    };
    message(evaluated.await, &stage.operator)
}

/// The error of a probe row of a [`BuildSideJoin`].
pub(super) async fn failed_build_side(
    error: kernels::Error,
    operator: &str,
    join: &BuildSideJoin,
    table: &Arc<JoinTable>,
    queue: &Queue,
    batch: &DeviceBatch,
) -> DataFusionError {
    let kernels::Error::Row { row } = error else { return op_error(operator, error) };
    let row = batch.slice(row as usize, 1);
    let path = JoinPath {
        operator,
        input: &join.input,
        joins: std::slice::from_ref(&join.join),
        tables: std::slice::from_ref(table),
        predicates: &join.predicates,
        options: &join.options,
        queue,
    };
    let evaluated = async {
        path.evaluate(&row, 0, &join.build.probe_checks).await?;
        match &join.build.condition {
            Some(condition) => path.evaluate_pairs(&row, 0, condition).await,
            None => Ok(()),
        }
    };
    message(evaluated.await, operator)
}

/// The host's error, else the device's.
fn message(evaluated: Result<()>, operator: &str) -> DataFusionError {
    evaluated.err().unwrap_or_else(|| op_error(operator, kernels::Error::JoinedRow))
}

/// The first failing row of a batch.
async fn failing_row(chain: &JoinChain, operator: &str, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
    let mut batch = batch.clone();
    while batch.num_rows() > 1 {
        let (first, second) = batch.halves();
        let mut state = chain.start();
        chain.push(&mut state, &first);
        batch = loop {
            match chain.next(queue, &mut state).await {
                Ok(Some(_)) => {}
                Ok(None) => break second,
                Err(kernels::Error::JoinedRow) => break first,
                Err(error) => return Err(op_error(operator, error)),
            }
        };
    }
    Ok(batch)
}

/// The joins on the path of a row.
struct JoinPath<'a> {
    operator: &'a str,
    input: &'a Input,
    joins: &'a [Join],
    tables: &'a [Arc<JoinTable>],
    /// Filters over the columns of all sides.
    predicates: &'a [Arc<dyn PhysicalExpr>],
    options: &'a Options,
    queue: &'a Queue,
}

impl<'a> JoinPath<'a> {
    fn new(stage: &'a Stage, plan: &'a ChainPlan, tables: &'a Tables, queue: &'a Queue) -> JoinPath<'a> {
        JoinPath {
            operator: &stage.operator,
            input: &plan.part.input,
            joins: &tables.joins,
            tables: &tables.tables,
            predicates: &plan.predicates,
            options: &plan.options,
            queue,
        }
    }

    /// Evaluates `checks` for the rows that `count` joins make of a row.
    ///
    /// # Errors
    /// The host's.
    async fn evaluate(&self, row: &DeviceBatch, count: usize, checks: &[Arc<dyn PhysicalExpr>]) -> Result<()> {
        let joins = self.joins.get(..count).unwrap_or_default();
        let evaluate = |rows: RecordBatch| {
            let columns = rows.num_columns();
            let rows = self.passing(rows, columns)?;
            checks.iter().try_for_each(|check| self.evaluate_on_host(check, &rows).map(|_| ()))
        };
        self.for_each_batch(row, joins, evaluate).await
    }

    /// Evaluates the condition of join `at` for pairs with equal keys.
    async fn evaluate_pairs(&self, row: &DeviceBatch, at: usize, condition: &Arc<dyn PhysicalExpr>) -> Result<()> {
        let mut joins: Vec<Join> = self.joins.iter().take(at + 1).cloned().collect();
        if let Some(join) = joins.last_mut() {
            (join.kind, join.residual, join.null_aware) = (JoinKind::Inner, None, false);
        }
        let before = self.joins.iter().take(at).map(|join| join.fields().len()).sum::<usize>();
        // Filters over columns of this join run after it.
        let columns = self.input.schema.fields().len() + before;
        let evaluate = |rows: RecordBatch| self.evaluate_on_host(condition, &self.passing(rows, columns)?).map(|_| ());
        self.for_each_batch(row, &joins, evaluate).await
    }

    /// Evaluates batches of the rows that joins make of a row, with the columns of all sides. Stops
    /// at a row that fails on the device.
    async fn for_each_batch(
        &self,
        row: &DeviceBatch,
        joins: &[Join],
        evaluate: impl Fn(RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let chain = self.plain(joins)?;
        let mut state = chain.start();
        chain.push(&mut state, row);
        loop {
            match chain.next(self.queue, &mut state).await {
                Ok(Some(batch)) => {
                    for rows in batch.chunks(ROWS_AT_ONCE) {
                        evaluate(self.download(joins, &rows).await?)?;
                    }
                }
                Ok(None) | Err(kernels::Error::JoinedRow) => return Ok(()),
                Err(error) => return Err(op_error(self.operator, error)),
            }
        }
    }

    /// A chain that gives the visible columns of all sides.
    fn plain(&self, joins: &[Join]) -> Result<JoinChain> {
        let outputs = self.fields(joins).into_iter().enumerate().filter(|(_, (_, visible))| *visible);
        let outputs = outputs.map(|(index, (field, _))| (Expr::Column(index), field.as_ref().clone().with_nullable(true)));
        let (input, tables) = (Input { filter: None, ..self.input.clone() }, self.tables.get(..joins.len()));
        JoinChain::try_new(input, joins, tables, outputs.collect(), self.options.clone())
            .map_err(|error| op_error(self.operator, error))
    }

    /// The columns of all sides, and whether operators above the joins can read them.
    fn fields(&self, joins: &[Join]) -> Vec<(FieldRef, bool)> {
        let of_input = self.input.schema.fields().iter().map(|field| (Arc::clone(field), true));
        let of_joins = joins.iter().flat_map(|join| {
            let visible = join.kind.reads_match();
            join.fields().iter().map(|field| (Arc::clone(field), visible)).collect::<Vec<_>>()
        });
        of_input.chain(of_joins).collect()
    }

    /// Rows of a [`plain`](Self::plain) chain. Invisible columns are NULL, so that positions stay.
    async fn download(&self, joins: &[Join], rows: &DeviceBatch) -> Result<RecordBatch> {
        let rows = columnar::download(self.queue, rows).await.map_err(|error| columnar_error(self.operator, error))?;
        let (mut visible, count) = (rows.columns().iter(), rows.num_rows());
        let fields = self.fields(joins);
        let columns = fields.iter().map(|(field, is_visible)| {
            let column = if *is_visible { visible.next().cloned() } else { None };
            column.unwrap_or_else(|| new_null_array(field.data_type(), count))
        });
        let columns = columns.collect();
        let fields: Vec<_> = fields.into_iter().map(|(field, _)| field.as_ref().clone().with_nullable(true)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
    }

    /// The rows that pass the filters over the first `columns` columns.
    fn passing(&self, mut rows: RecordBatch, columns: usize) -> Result<RecordBatch> {
        for predicate in self.predicates {
            if collect_columns(predicate).iter().all(|column| column.index() < columns) {
                let kept = self.evaluate_on_host(predicate, &rows)?.into_array(rows.num_rows())?;
                rows = filter_record_batch(&rows, as_boolean_array(&kept)?)?;
            }
        }
        Ok(rows)
    }

    fn evaluate_on_host(&self, expr: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<ColumnarValue> {
        panics::evaluate(self.operator, expr, rows)
    }
}
