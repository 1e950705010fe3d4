// SPDX-License-Identifier: Apache-2.0
//! DataFusion's own message where a row failed on its way through joins.
//!
//! A kernel that goes through joins tells that a row failed, not of which pair, nor at which join. So the batch is halved until one
//! row of it is left that fails. What this row meets is then written join by join, as plain columns, and the host evaluates
//! what the joins compute of it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use columnar::DeviceBatch;
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use device::Queue;
use kernels::expr::Expr;
use kernels::ops::{Input, Join, JoinChain, JoinKind, JoinTable, Options};

use super::joins::Tables;
use super::{columnar_error, op_error};
use crate::graph::{Joins, Marks, Stage};

/// Rows that the failing row may meet at a join. Of more, the host looks at none.
const MOST_ROWS: usize = 1 << 20;

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
        let way = Way {
            operator: &stage.operator,
            input: &joins.input,
            joins: &tables.joins,
            tables: &tables.tables,
            predicates: &joins.predicates,
            options: &joins.options,
            queue,
            row: &row,
        };
        for (at, number) in tables.numbers.iter().enumerate() {
            let side = joins.sides.get(*number);
            way.evaluate(at, side.map(|side| side.probe_checks()).unwrap_or_default()).await?;
            if let Some(condition) = side.and_then(|side| side.condition()) {
                way.evaluate_pairs(at, condition).await?;
            }
        }
        way.evaluate(tables.joins.len(), &joins.computed).await
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
        row: &row,
    };
    let looked_at = async {
        way.evaluate(0, &marks.build.probe_checks).await?;
        match &marks.build.condition {
            Some(condition) => way.evaluate_pairs(0, condition).await,
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

/// A row of the probe side, and the joins that it goes through.
struct Way<'a> {
    operator: &'a str,
    input: &'a Input,
    joins: &'a [Join],
    tables: &'a [Arc<JoinTable>],
    /// Filters over the columns of all sides.
    predicates: &'a [Arc<dyn PhysicalExpr>],
    options: &'a Options,
    queue: &'a Queue,
    row: &'a DeviceBatch,
}

impl Way<'_> {
    /// Evaluates expressions of what `count` joins have made of the row, and the filters before.
    ///
    /// # Errors
    /// The host's, which is the message.
    async fn evaluate(&self, count: usize, checks: &[Arc<dyn PhysicalExpr>]) -> Result<()> {
        for rows in self.rows(self.joins.get(..count).unwrap_or_default()).await? {
            let columns = rows.num_columns();
            let rows = self.passing(rows, columns)?;
            for check in checks {
                check.evaluate(&rows)?;
            }
        }
        Ok(())
    }

    /// Evaluates the condition of join `at` of the pairs with equal keys.
    async fn evaluate_pairs(&self, at: usize, condition: &Arc<dyn PhysicalExpr>) -> Result<()> {
        let mut joins: Vec<Join> = self.joins.iter().take(at + 1).cloned().collect();
        if let Some(join) = joins.last_mut() {
            (join.kind, join.residual, join.null_aware) = (JoinKind::Inner, None, false);
        }
        let before = self.joins.iter().take(at).map(|join| join.fields().len()).sum::<usize>();
        for rows in self.rows(&joins).await? {
            // Filters over the columns of this join come after it.
            let rows = self.passing(rows, self.input.schema.fields().len() + before)?;
            condition.evaluate(&rows)?;
        }
        Ok(())
    }

    /// What the joins make of the row, with the columns of all sides; nothing where this is too much, or fails itself.
    async fn rows(&self, joins: &[Join]) -> Result<Vec<RecordBatch>> {
        let failed = |error| op_error(self.operator, error);
        let mut fields = self.input.schema.fields().to_vec();
        fields.extend(joins.iter().flat_map(|join| join.fields().to_vec()));
        let outputs = fields.iter().enumerate();
        let outputs = outputs.map(|(index, field)| (Expr::Column(index), field.as_ref().clone().with_nullable(true)));
        let (input, tables) = (Input { filter: None, ..self.input.clone() }, self.tables.get(..joins.len()));
        let chain = JoinChain::try_new(input, joins, tables, outputs.collect(), self.options.clone()).map_err(failed)?;
        let (mut state, mut rows, mut count) = (chain.start(), Vec::new(), 0);
        chain.push(&mut state, self.row);
        loop {
            match chain.next(self.queue, &mut state).await {
                Ok(Some(batch)) if count + batch.num_rows() <= MOST_ROWS => {
                    count += batch.num_rows();
                    let batch = columnar::download(self.queue, &batch).await;
                    rows.push(batch.map_err(|error| columnar_error(self.operator, error))?);
                }
                Ok(None) => return Ok(rows),
                Ok(Some(_)) | Err(kernels::Error::JoinedRow) => return Ok(vec![]),
                Err(error) => return Err(failed(error)),
            }
        }
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
