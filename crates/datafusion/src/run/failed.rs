// SPDX-License-Identifier: Apache-2.0
//! DataFusion's own message where a row failed on its way through joins.
//!
//! A kernel that goes through joins tells that a row failed, not of which pair, nor at which join. So the batch is halved until one
//! row of it is left that fails. What this row meets is then written join by join, as plain columns, and the host evaluates
//! what the joins compute of it. A row of the build side that nothing matched is known by its number.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{FieldRef, Schema};
use columnar::DeviceBatch;
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use device::Queue;
use kernels::expr::Expr;
use kernels::ops::{ChainState, Input, Join, JoinChain, JoinKind, JoinTable, Options};

use super::joins::Tables;
use super::{columnar_error, op_error};
use crate::graph::{Joins, Marks, Stage};

/// Rows that the host looks at together, of those that the failing row meets.
const ROWS_AT_ONCE: usize = 1 << 16;

/// Why a batch of the probe side failed on its way through joins.
pub(super) async fn failed_chain(
    stage: &Stage,
    joins: &Joins,
    tables: &Tables,
    queue: &Queue,
    batch: &DeviceBatch,
) -> DataFusionError {
    let looked_at = async {
        let row = failing_row(&tables.chain(stage, joins)?, &stage.operator, queue, batch).await?;
        let way = Way::through(stage, joins, tables, queue);
        for (at, number) in tables.numbers.iter().enumerate() {
            let side = joins.sides.get(*number);
            way.evaluate(&row, at, side.map(|side| side.probe_checks()).unwrap_or_default()).await?;
            if let Some(condition) = side.and_then(|side| side.condition()) {
                way.evaluate_pairs(&row, at, condition).await?;
            }
        }
        way.evaluate(&row, tables.joins.len(), &joins.computed).await
    };
    message(looked_at.await, &stage.operator)
}

/// Why a row of the build side failed, by its number among those that nothing matched.
pub(super) async fn failed_left_over(
    stage: &Stage,
    joins: &Joins,
    tables: &Tables,
    queue: &Queue,
    state: &ChainState,
    row: u64,
) -> DataFusionError {
    let way = Way::through(stage, joins, tables, queue);
    let looked_at = async {
        let left_over = way.plain(way.joins)?.unmatched_build_row(queue, state, row).await;
        if let Some(row) = left_over.map_err(|error| op_error(&stage.operator, error))? {
            let row = way.download(way.joins, &row).await?;
            joins.computed.iter().try_for_each(|check| check.evaluate(&row).map(|_| ()))?;
        }
        Ok(())
    };
    message(looked_at.await, &stage.operator)
}

/// Why a row of the probe side failed where rows of the build side are marked.
pub(super) async fn failed_mark(
    error: kernels::Error,
    operator: &str,
    marks: &Marks,
    table: &Arc<JoinTable>,
    queue: &Queue,
    batch: &DeviceBatch,
) -> DataFusionError {
    let kernels::Error::Row { row } = error else { return op_error(operator, error) };
    let row = batch.slice(row as usize, 1);
    let way = Way {
        operator,
        input: &marks.input,
        joins: std::slice::from_ref(&marks.join),
        tables: std::slice::from_ref(table),
        predicates: &marks.predicates,
        options: &marks.options,
        queue,
    };
    let looked_at = async {
        way.evaluate(&row, 0, &marks.build.probe_checks).await?;
        match &marks.build.condition {
            Some(condition) => way.evaluate_pairs(&row, 0, condition).await,
            None => Ok(()),
        }
    };
    message(looked_at.await, operator)
}

/// What the host found, or else what the device knows.
fn message(looked_at: Result<()>, operator: &str) -> DataFusionError {
    looked_at.err().unwrap_or_else(|| op_error(operator, kernels::Error::JoinedRow))
}

/// The first row of a batch that fails on its way.
async fn failing_row(chain: &JoinChain, operator: &str, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
    let mut batch = batch.clone();
    while batch.num_rows() > 1 {
        let half = batch.num_rows() / 2;
        let (first, second) = (batch.slice(0, half), batch.slice(half, batch.num_rows() - half));
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

/// The joins that a row goes through.
struct Way<'a> {
    operator: &'a str,
    input: &'a Input,
    joins: &'a [Join],
    tables: &'a [Arc<JoinTable>],
    /// Filters over the columns of all sides.
    predicates: &'a [Arc<dyn PhysicalExpr>],
    options: &'a Options,
    queue: &'a Queue,
}

impl<'a> Way<'a> {
    fn through(stage: &'a Stage, joins: &'a Joins, tables: &'a Tables, queue: &'a Queue) -> Way<'a> {
        Way {
            operator: &stage.operator,
            input: &joins.input,
            joins: &tables.joins,
            tables: &tables.tables,
            predicates: &joins.predicates,
            options: &joins.options,
            queue,
        }
    }

    /// Evaluates expressions of what `count` joins have made of a row, and the filters before.
    ///
    /// # Errors
    /// The host's, which is the message.
    async fn evaluate(&self, row: &DeviceBatch, count: usize, checks: &[Arc<dyn PhysicalExpr>]) -> Result<()> {
        let joins = self.joins.get(..count).unwrap_or_default();
        let look = |rows: RecordBatch| {
            let columns = rows.num_columns();
            let rows = self.passing(rows, columns)?;
            checks.iter().try_for_each(|check| check.evaluate(&rows).map(|_| ()))
        };
        self.each(row, joins, look).await
    }

    /// Evaluates the condition of join `at` of the pairs with equal keys.
    async fn evaluate_pairs(&self, row: &DeviceBatch, at: usize, condition: &Arc<dyn PhysicalExpr>) -> Result<()> {
        let mut joins: Vec<Join> = self.joins.iter().take(at + 1).cloned().collect();
        if let Some(join) = joins.last_mut() {
            (join.kind, join.residual, join.null_aware) = (JoinKind::Inner, None, false);
        }
        let before = self.joins.iter().take(at).map(|join| join.fields().len()).sum::<usize>();
        // Filters over the columns of this join come after it.
        let columns = self.input.schema.fields().len() + before;
        self.each(row, &joins, |rows| condition.evaluate(&self.passing(rows, columns)?).map(|_| ())).await
    }

    /// Looks at what the joins make of a row, with the columns of all sides, some rows after others, until it fails itself.
    async fn each(&self, row: &DeviceBatch, joins: &[Join], look: impl Fn(RecordBatch) -> Result<()>) -> Result<()> {
        let chain = self.plain(joins)?;
        let mut state = chain.start();
        chain.push(&mut state, row);
        loop {
            match chain.next(self.queue, &mut state).await {
                Ok(Some(batch)) => {
                    for rows in batch.chunks(ROWS_AT_ONCE) {
                        look(self.download(joins, &rows).await?)?;
                    }
                }
                Ok(None) | Err(kernels::Error::JoinedRow) => return Ok(()),
                Err(error) => return Err(op_error(self.operator, error)),
            }
        }
    }

    /// Joins that give the columns of all sides but those that nobody can see.
    fn plain(&self, joins: &[Join]) -> Result<JoinChain> {
        let outputs = self.fields(joins).into_iter().enumerate().filter(|(_, (_, seen))| *seen);
        let outputs = outputs.map(|(index, (field, _))| (Expr::Column(index), field.as_ref().clone().with_nullable(true)));
        let (input, tables) = (Input { filter: None, ..self.input.clone() }, self.tables.get(..joins.len()));
        JoinChain::try_new(input, joins, tables, outputs.collect(), self.options.clone())
            .map_err(|error| op_error(self.operator, error))
    }

    /// The columns of all sides, and whether what comes after the joins can see them.
    fn fields(&self, joins: &[Join]) -> Vec<(FieldRef, bool)> {
        let own = self.input.schema.fields().iter().map(|field| (Arc::clone(field), true));
        let of_joins = joins.iter().flat_map(|join| {
            let seen = join.kind.reads_match();
            join.fields().iter().map(|field| (Arc::clone(field), seen)).collect::<Vec<_>>()
        });
        own.chain(of_joins).collect()
    }

    /// Rows of [`plain`](Self::plain) joins, with NULL for what nobody can see, so that each column has its place.
    async fn download(&self, joins: &[Join], rows: &DeviceBatch) -> Result<RecordBatch> {
        let rows = columnar::download(self.queue, rows).await.map_err(|error| columnar_error(self.operator, error))?;
        let (mut seen, count) = (rows.columns().iter(), rows.num_rows());
        let fields = self.fields(joins);
        let columns = fields.iter().map(|(field, is_seen)| {
            let column = if *is_seen { seen.next().cloned() } else { None };
            column.unwrap_or_else(|| new_null_array(field.data_type(), count))
        });
        let columns = columns.collect();
        let fields: Vec<_> = fields.into_iter().map(|(field, _)| field.as_ref().clone().with_nullable(true)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
    }

    /// The rows that pass the filters over their first `columns`.
    fn passing(&self, mut rows: RecordBatch, columns: usize) -> Result<RecordBatch> {
        for predicate in self.predicates {
            if collect_columns(predicate).iter().all(|column| column.index() < columns) {
                let kept = predicate.evaluate(&rows)?.into_array(rows.num_rows())?;
                rows = filter_record_batch(&rows, as_boolean_array(&kept)?)?;
            }
        }
        Ok(rows)
    }
}
