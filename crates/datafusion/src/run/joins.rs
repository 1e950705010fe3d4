// SPDX-License-Identifier: Apache-2.0
//! Runs joins: first the tables of the build sides, then the rows that probe them.

use std::sync::{Arc, Weak};

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::ops::{ChainState, Input, JoinChain, JoinTable, Mark};

use super::gather::gather;
use super::{DeviceBatchStream, Run, check_again, explain, merge, op_error};
use crate::graph::{BuildSide, Joins, Marks, ScanFilter, Side, Stage, StageKind};

/// Rows that probe the tables of one join after another.
pub(super) fn join(stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let StageKind::Join(joins) = &stage.kind else { return internal_err!("a join stage") };
        let gathers = joins.gathers.clone();
        let (chain, removed) = chain(&stage, joins, &run, &queue).await?;
        // Where a build side has no rows, the probe side need not be read.
        let probing = if chain.is_empty() { stream::empty().boxed() } else { merge(&joins.probe, &run)? };
        let state = Probing { state: Some(chain.start()), chain, input: probing, removed };
        let (gathering, operator) = (queue.clone(), stage.operator.clone());
        let batches = stream::try_unfold((state, stage, queue), |(mut probing, stage, queue)| async move {
            let batches = probing.next(&stage, &queue).await?;
            Ok::<_, DataFusionError>(batches.map(|batches| (stream::iter(batches.into_iter().map(Ok)), (probing, stage, queue))))
        });
        let batches = batches.try_flatten().boxed();
        Ok(match gathers {
            Some(concat) => gather(batches, concat, run.batch_rows, gathering, operator),
            None => batches,
        })
    })
    .try_flatten()
    .boxed()
}

struct Probing {
    input: DeviceBatchStream,
    chain: JoinChain,
    /// `None` once everything is said.
    state: Option<ChainState>,
    /// Where to count the rows that each dynamic filter removes.
    removed: Vec<Count>,
}

impl Probing {
    async fn next(&mut self, stage: &Stage, queue: &Queue) -> Result<Option<Vec<DeviceBatch>>> {
        let failed = |error| op_error(&stage.operator, error);
        while let Some(state) = &mut self.state {
            if let Some(batch) = self.chain.next(queue, state).await.map_err(failed)? {
                return Ok(Some(vec![batch]));
            }
            if let Some(batch) = self.input.next().await {
                self.chain.push(state, &batch?);
                continue;
            }
            let removed = self.chain.removed(queue, state).await.map_err(failed)?;
            self.removed.iter().zip(removed).for_each(|(count, rows)| count.add(rows as usize));
            let Some(state) = self.state.take() else { return Ok(None) };
            return Ok(Some(self.chain.finish(queue, state).await.map_err(failed)?));
        }
        Ok(None)
    }
}

/// The joins with their tables, but for filters that are of no use; counters of the rows that the others remove.
async fn chain(stage: &Stage, joins: &Joins, run: &Arc<Run>, queue: &Queue) -> Result<(JoinChain, Vec<Count>)> {
    let (mut used, mut tables, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    // The last join first: its table filters what the tables of those before it are built of.
    for (join, side) in joins.joins.iter().zip(&joins.sides).rev() {
        match side {
            Side::Build(side) => tables.push(build(side, &stage.operator, run, queue).await?),
            Side::Filter { number, metrics } => {
                let table = run.tables.lock().get(number).and_then(Weak::upgrade);
                let Some(table) = table.filter(|table| join.can_filter_by(table)) else { continue };
                tables.push(table);
                removed.push(MetricBuilder::new(metrics).counter("rows_removed", 0));
            }
        }
        used.push(join.clone());
    }
    used.reverse();
    tables.reverse();
    removed.reverse();
    let with_input = |input| {
        JoinChain::try_new(input, &used, Some(&tables), joins.outputs.clone(), joins.options.clone())
            .map_err(|error| op_error(&stage.operator, error))
    };
    let mut chain = with_input(joins.input.clone())?;
    if used.is_empty() && !gives(&chain, stage) {
        // Rows that go through no join are passed on as they lie, which the stages above do not expect of all layouts.
        let all = Literal { data_type: DataType::Boolean, value: LiteralValue::Bool(true) };
        chain = with_input(Input { filter: Some(Expr::Literal(all)), ..joins.input.clone() })?;
    }
    if !gives(&chain, stage) {
        return internal_err!("{}: {:?} instead of {:?}", stage.operator, chain.output_types(), stage.types);
    }
    Ok((chain, removed))
}

/// Whether a chain gives the columns that were planned.
fn gives(chain: &JoinChain, stage: &Stage) -> bool {
    let form = |ty: &ColumnType| (ty.layout.clone(), ty.nullable, ty.data_type.clone());
    chain.output_types().iter().map(form).eq(stage.types.iter().map(form))
}

/// The table of a build side.
async fn build(side: &BuildSide, operator: &str, run: &Arc<Run>, queue: &Queue) -> Result<Arc<JoinTable>> {
    let batches: Vec<DeviceBatch> = merge(&side.stage, run)?.try_collect().await?;
    let batch = side.concat.run(queue, batches).await.map_err(|error| op_error(operator, error))?;
    match side.build.build(queue, batch.clone()).await {
        Ok(table) => {
            let table = Arc::new(table);
            if let Some(number) = side.number {
                run.tables.lock().insert(number, Arc::downgrade(&table));
            }
            if let Some(filter) = &side.scan_filter {
                tell_scans(filter, &table)?;
            }
            Ok(table)
        }
        Err(error) => Err(match &batch {
            Some(batch) => explain(error, operator, queue, batch, &side.checks).await,
            None => op_error(operator, error),
        }),
    }
}

/// Tells host scans the ranges of a table's keys, so that they skip what cannot have a match.
fn tell_scans(filter: &ScanFilter, table: &JoinTable) -> Result<()> {
    let Some(told) = filter.filter.downcast_ref::<DynamicFilterPhysicalExpr>() else { return Ok(()) };
    let ranges = table.key_ranges(filter.keys.len()).unwrap_or_default();
    let mut conditions: Option<Arc<dyn PhysicalExpr>> = None;
    for ((key, data_type), (least, most)) in filter.keys.iter().zip(&filter.types).zip(ranges) {
        let (Some(least), Some(most)) = (value_of(data_type, least), value_of(data_type, most)) else { continue };
        for (operator, bound) in [(Operator::GtEq, least), (Operator::LtEq, most)] {
            let condition: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(Arc::clone(key), operator, lit(bound)));
            conditions = Some(match conditions {
                Some(others) => Arc::new(BinaryExpr::new(others, Operator::And, condition)),
                None => condition,
            });
        }
    }
    if let Some(conditions) = conditions {
        told.update(conditions)?;
    }
    told.mark_complete();
    Ok(())
}

/// The value that a digit of a join's numbers stands for, of the types whose order it keeps.
fn value_of(data_type: &DataType, digit: u64) -> Option<ScalarValue> {
    let signed = (digit ^ 1 << 63) as i64;
    Some(match data_type {
        DataType::Int8 => ScalarValue::Int8(Some(signed.try_into().ok()?)),
        DataType::Int16 => ScalarValue::Int16(Some(signed.try_into().ok()?)),
        DataType::Int32 => ScalarValue::Int32(Some(signed.try_into().ok()?)),
        DataType::Int64 => ScalarValue::Int64(Some(signed)),
        DataType::UInt8 => ScalarValue::UInt8(Some(digit.try_into().ok()?)),
        DataType::UInt16 => ScalarValue::UInt16(Some(digit.try_into().ok()?)),
        DataType::UInt32 => ScalarValue::UInt32(Some(digit.try_into().ok()?)),
        DataType::UInt64 => ScalarValue::UInt64(Some(digit)),
        DataType::Date32 => ScalarValue::Date32(Some(signed.try_into().ok()?)),
        _ => return None,
    })
}

/// Rows of a build side, marked where the probe side matches them.
pub(super) fn mark(stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let StageKind::Mark(marks) = &stage.kind else { return internal_err!("a mark stage") };
        let table = build(&marks.build, &stage.operator, &run, &queue).await?;
        let empty = table.num_rows() == 0;
        let op = Mark::try_new(marks.input.clone(), &marks.join, Some(table), marks.options.clone())
            .map_err(|error| op_error(&stage.operator, error))?;
        let mut state = op.start();
        let mut input = if empty { stream::empty().boxed() } else { merge(&marks.probe, &run)? };
        while let Some(batch) = input.next().await {
            let batch = batch?;
            if let Err(error) = op.push(&queue, &mut state, &batch).await {
                return Err(failed_probe(error, &stage.operator, marks, &queue, &batch).await);
            }
        }
        drop(input);
        let batches = op.finish(&queue, state).await.map_err(|error| op_error(&stage.operator, error))?;
        Ok(stream::iter(batches.into_iter().map(Ok)))
    })
    .try_flatten()
    .boxed()
}

/// Why a row of the probe side failed: by itself, or else with a row of the build side.
async fn failed_probe(
    error: kernels::Error,
    operator: &str,
    marks: &Marks,
    queue: &Queue,
    batch: &DeviceBatch,
) -> DataFusionError {
    let kernels::Error::Row { row } = error else { return op_error(operator, error) };
    match check_again(row, operator, queue, batch, &marks.checks).await {
        Ok(_) => failed_row(error, operator),
        Err(error) => error,
    }
}

/// The error of a row of several sides.
fn failed_row(error: kernels::Error, operator: &str) -> DataFusionError {
    match error {
        kernels::Error::Row { .. } => {
            let what = "an expression over joined rows failed (overflow, division by zero or a cast)";
            op_error(operator, kernels::Error::Unsupported(what.into()))
        }
        error => op_error(operator, error),
    }
}
