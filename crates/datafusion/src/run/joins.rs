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
use futures::future::try_join_all;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::ops::{
    BloomFilterUse, ChainState, FirstStep, FusedJoins, Input, Join, JoinChain, JoinTable, Throttle, VisitedBitmap,
};

use super::failed::{failed_chain, failed_left_over, failed_mark};
use super::gather::gather;
use super::held::Held;
use super::subqueries::rows_of;
use super::{BATCHES_STARTED, DeviceBatchStream, Run, explain, merge, op_error, started};
use crate::graph::{AggregateOp, BuildSide, Joins, ScanFilter, Side, Stage, StageKind};

/// Rows that probe the tables of one join after another.
pub(super) fn join(stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let StageKind::Join(joins) = &stage.kind else { return internal_err!("a join stage") };
        let tables = Arc::new(Tables::build(joins, &run, &queue).await?);
        written(&stage, joins, &run, queue, &tables)
    })
    .try_flatten()
    .boxed()
}

/// The rows of joins, with their columns.
fn written(stage: &Arc<Stage>, joins: &Joins, run: &Arc<Run>, queue: Queue, tables: &Arc<Tables>) -> Result<DeviceBatchStream> {
    let (chain, operator) = (tables.chain(stage, joins)?, stage.operator.clone());
    let probing = Probing::new(chain.is_empty(), chain, stage, tables, run, &queue)?;
    let state = (Some(probing), Arc::clone(run));
    let batches = stream::try_unfold(state, |(probing, run)| async move {
        let Some(mut probing) = probing else { return Ok::<_, DataFusionError>(None) };
        if let Some(batch) = probing.next().await? {
            return Ok(Some((stream::iter(vec![Ok(batch)]), (Some(probing), run))));
        }
        let rest = probing.finish(&run).await?;
        let rest = rest.into_iter().map(Ok::<_, DataFusionError>).collect::<Vec<_>>();
        Ok(Some((stream::iter(rest), (None, run))))
    });
    let batches = batches.try_flatten().boxed();
    Ok(match joins.gathers.clone() {
        Some(concat) => gather(batches, concat, run.batch_rows, queue, operator),
        None => batches,
    })
}

/// An aggregation that goes through the last joins below it itself, if the tables allow it.
pub(super) fn aggregate(stage: Arc<Stage>, below: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let StageKind::Aggregate { over_joins: Some(over), checks, .. } = &stage.kind else {
            return internal_err!("an aggregate stage over joins");
        };
        let StageKind::Join(joins) = &below.kind else { return internal_err!("a join stage") };
        let of_joins = run.metered(&run.queue, &below.metrics, 0);
        let joined_rows = MetricBuilder::new(&below.metrics).output_rows(0);
        let tables = Arc::new(Tables::build(joins, &run, &of_joins).await?);
        let (input, outputs) = (joins.input.clone(), joins.outputs.clone());
        let chain = JoinChain::before_aggregation(input, &tables.joins, Some(&tables.tables), outputs, &joins.options);
        let (chain, joined) = chain.map_err(|error| op_error(&below.operator, error))?;
        let op = joined.as_ref().map(|joined| over.aggregate(joined, &joins.options)).transpose();
        let op = op.map_err(|error| op_error(&stage.operator, error))?.flatten();
        let (Some(op), Some(joined)) = (op.filter(|op| gives(op.output_types(), &stage)), joined) else {
            let rows =
                written(&below, joins, &run, of_joins, &tables)?.inspect_ok(move |batch| joined_rows.add(batch.num_rows()));
            return Ok(super::aggregate(rows.boxed(), Arc::clone(&stage), queue));
        };
        let nothing = chain.is_empty() || joined.is_empty();
        let mut probing = Probing::new(nothing, chain, &below, &tables, &run, &of_joins)?;
        let failed = |error| op_error(&stage.operator, error);
        // Operators have no type in common, but the same steps.
        macro_rules! finished {
            ($op:ident) => {{
                let mut state = $op.start();
                let mut throttle = Throttle::default();
                while let Some(batch) = probing.next().await? {
                    for piece in joined.slices(&queue, &batch) {
                        joined.throttle(&queue, &mut throttle, &piece).await.map_err(failed)?;
                        if let Err(error) = $op.push(&queue, &mut state, &piece).await {
                            return Err(
                                failed_joined(error, &stage.operator, &joined, &probing.pushed, &queue, &piece, checks).await
                            );
                        }
                    }
                }
                let (before, within) = (probing.removed(), $op.joined_rows(&queue, &state));
                let (removed, operator) = (tables.removed.clone(), stage.operator.clone());
                run.at_end(async move {
                    let (before, within) = futures::try_join!(before, within).map_err(|error| op_error(&operator, error))?;
                    joined_rows.add(within.kept as usize);
                    count(&removed, before.into_iter().chain(within.removed));
                    Ok(())
                });
                $op.finish(&queue, state).await.map_err(failed)?
            }};
        }
        let batches = match op {
            AggregateOp::Reduce(op) => vec![finished!(op)],
            AggregateOp::GroupBy(op) => finished!(op),
        };
        let batches = batches.into_iter().filter(|batch| batch.num_rows() > 0);
        Ok(stream::iter(batches.map(Ok).collect::<Vec<_>>()).boxed())
    })
    .try_flatten()
    .boxed()
}

/// Adds to each dynamic filter's counter.
fn count(counters: &[Count], removed: impl IntoIterator<Item = u64>) {
    counters.iter().zip(removed).for_each(|(counter, rows)| counter.add(rows as usize));
}

/// Rows on their way through joins.
struct Probing {
    queue: Queue,
    chain: Arc<JoinChain>,
    state: ChainState,
    /// Pieces of the probe side that have been through the first step, each with the batch that it comes from.
    begun: BoxStream<'static, Result<(DeviceBatch, FirstStep)>>,
    pushed: Pushed,
}

/// The rows that are on their way, for messages.
#[derive(Clone)]
struct Pushed {
    stage: Arc<Stage>,
    tables: Arc<Tables>,
    batch: Option<DeviceBatch>,
}

impl Pushed {
    /// The message for an error on the way.
    async fn failed(&self, error: kernels::Error, queue: &Queue) -> DataFusionError {
        match (&error, &self.batch, &self.stage.kind) {
            (kernels::Error::JoinedRow, Some(batch), StageKind::Join(joins)) => {
                failed_chain(&self.stage, joins, &self.tables, queue, batch).await
            }
            _ => op_error(&self.stage.operator, error),
        }
    }
}

impl Probing {
    /// Where no row can stay (`nothing`), the probe side is not read.
    fn new(
        nothing: bool,
        chain: JoinChain,
        stage: &Arc<Stage>,
        tables: &Arc<Tables>,
        run: &Arc<Run>,
        queue: &Queue,
    ) -> Result<Probing> {
        let StageKind::Join(joins) = &stage.kind else { return internal_err!("a join stage") };
        let input = if nothing { stream::empty().boxed() } else { merge(&joins.probe, run)? };
        let (state, chain, queue) = (chain.start(), Arc::new(chain), queue.clone());
        let pushed = Pushed { stage: Arc::clone(stage), tables: Arc::clone(tables), batch: None };
        let filter = (Arc::clone(&chain), queue.clone(), pushed.clone());
        let pieces = input.and_then(move |batch| {
            let (chain, queue, pushed) = filter.clone();
            async move {
                match chain.filtered(&queue, &batch).await {
                    Ok(rows) => Ok(stream::iter(chain.slices(&queue, &rows).map(move |piece| Ok((batch.clone(), piece))))),
                    Err(error) => Err(Pushed { batch: Some(batch), ..pushed }.failed(error, &queue).await),
                }
            }
        });
        let begin = (chain.first_step(&queue, &state), pushed.clone(), queue.clone());
        let begun = pieces.try_flatten().map(move |piece: Result<(DeviceBatch, DeviceBatch)>| {
            let (begin, pushed, queue) = &begin;
            let begun = piece.map(|(batch, piece)| (batch, begin(piece)));
            let (pushed, queue) = (pushed.clone(), queue.clone());
            started(async move {
                let (batch, begun) = begun?;
                match begun.await {
                    Ok(begun) => Ok((batch, begun)),
                    Err(error) => Err(Pushed { batch: Some(batch), ..pushed }.failed(error, &queue).await),
                }
            })
        });
        Ok(Probing { queue, chain, state, begun: begun.buffered(BATCHES_STARTED).boxed(), pushed })
    }

    /// The next rows.
    async fn next(&mut self) -> Result<Option<DeviceBatch>> {
        loop {
            match self.chain.next(&self.queue, &mut self.state).await {
                Ok(None) => {}
                Ok(batch) => return Ok(batch),
                Err(error) => return Err(self.pushed.failed(error, &self.queue).await),
            }
            let Some(begun) = self.begun.next().await else { return Ok(None) };
            let (batch, begun) = begun?;
            self.chain.resume(&mut self.state, begun);
            self.pushed.batch = Some(batch);
        }
    }

    /// Rows that each dynamic filter has removed.
    fn removed(&self) -> impl Future<Output = kernels::Result<Vec<u64>>> + Send + use<> {
        self.chain.removed(&self.queue, &self.state)
    }

    /// What remains of the build side once every row was probed.
    async fn finish(self, run: &Run) -> Result<Option<DeviceBatch>> {
        let stage = &self.pushed.stage;
        let (removed, counters, operator) = (self.removed(), self.pushed.tables.removed.clone(), stage.operator.clone());
        run.at_end(async move {
            count(&counters, removed.await.map_err(|error| op_error(&operator, error))?);
            Ok(())
        });
        match (self.chain.finish(&self.queue, &self.state).await, &stage.kind) {
            (Ok(rest), _) => Ok(rest),
            (Err(kernels::Error::Row { row }), StageKind::Join(joins)) => {
                Err(failed_left_over(stage, joins, &self.pushed.tables, &self.queue, &self.state, row).await)
            }
            (Err(error), _) => Err(op_error(&stage.operator, error)),
        }
    }
}

/// The joins that are to be gone through, without filters that are of no use, and their tables.
pub(super) struct Tables {
    pub joins: Vec<Join>,
    pub tables: Vec<Arc<JoinTable>>,
    /// The number of each join among those of the stage.
    pub numbers: Vec<usize>,
    /// Where to count the rows that each of the other filters removes.
    removed: Vec<Count>,
}

impl Tables {
    async fn build(joins: &Joins, run: &Arc<Run>, queue: &Queue) -> Result<Tables> {
        // Those that ask for no table of the others are built at the same time.
        let of_these = |number| joins.builds().any(|side| side.number == Some(number));
        let first = joins.sides.iter().map(|side| async move {
            match side {
                Side::Build(side) if !side.stage.asks_for_table(&of_these) => build(side, run, queue).await.map(Some),
                _ => Ok(None),
            }
        });
        let mut first = try_join_all(first).await?;
        let (mut used, mut tables, mut numbers, mut removed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The last join first: its table filters what the tables of those before it are built of.
        for (number, (join, side)) in joins.joins.iter().zip(&joins.sides).enumerate().rev() {
            match side {
                Side::Build(side) => tables.push(match first[number].take() {
                    Some(table) => table,
                    None => build(side, run, queue).await?,
                }),
                Side::Filter { number, metrics, .. } => {
                    let table = run.tables.lock().get(number).and_then(Weak::upgrade);
                    let Some(table) = table.filter(|table| join.can_filter_by(table)) else { continue };
                    if table.filter_bytes() > 0 {
                        MetricBuilder::new(metrics).gauge("filter_bytes", 0).set(table.filter_bytes());
                    }
                    tables.push(table);
                    removed.push(MetricBuilder::new(metrics).counter("rows_removed", 0));
                }
            }
            used.push(join.clone());
            numbers.push(number);
        }
        used.reverse();
        tables.reverse();
        numbers.reverse();
        removed.reverse();
        Ok(Tables { joins: used, tables, numbers, removed })
    }

    /// The chain that writes the joined rows.
    pub fn chain(&self, stage: &Stage, joins: &Joins) -> Result<JoinChain> {
        let with_input = |input| {
            JoinChain::try_new(input, &self.joins, Some(&self.tables), joins.outputs.clone(), joins.options.clone())
                .map_err(|error| op_error(&stage.operator, error))
        };
        let mut chain = with_input(joins.input.clone())?;
        if self.joins.is_empty() && !gives(chain.output_types(), stage) {
            // Rows that go through no join are passed on as they lie, which the stages above do not expect of all layouts.
            let all = Literal { data_type: DataType::Boolean, value: LiteralValue::Bool(true) };
            chain = with_input(Input { filter: Some(Expr::Literal(all)), ..joins.input.clone() })?;
        }
        if !gives(chain.output_types(), stage) {
            return internal_err!("{}: {:?} instead of {:?}", stage.operator, chain.output_types(), stage.types);
        }
        Ok(chain)
    }
}

/// Whether columns of these types are those that were planned.
fn gives(types: &[ColumnType], stage: &Stage) -> bool {
    let form = |ty: &ColumnType| (ty.layout.clone(), ty.nullable, ty.data_type.clone());
    types.iter().map(form).eq(stage.types.iter().map(form))
}

/// The table of a build side.
async fn build(side: &BuildSide, run: &Arc<Run>, queue: &Queue) -> Result<Arc<JoinTable>> {
    let operator = &side.operator;
    let failed = |error| op_error(operator, error);
    let held = Held::by(operator, "its build side");
    let table = async {
        let batches = match &side.scalar {
            Some(scalar) => rows_of(scalar, &side.stage, run).await?,
            None => held.counted(merge(&side.stage, run)?).try_collect().await?,
        };
        let batch = side.concat.run(queue, batches).await.map_err(failed)?;
        match (side.build.build(queue, batch.clone()).await, batch) {
            (Ok(mut table), _) => {
                let wanted = BloomFilterUse { dynamic_filters: side.number.is_some(), search: side.asks_first };
                side.build.add_bloom_filter(queue, &mut table, wanted).await.map_err(failed)?;
                Ok(Arc::new(table))
            }
            (Err(error), Some(batch)) => Err(explain(error, operator, queue, &batch, &side.checks).await),
            (Err(error), None) => Err(failed(error)),
        }
    };
    let table = table.await.map_err(|error| held.named(error))?;
    if let Some(number) = side.number {
        run.tables.lock().insert(number, Arc::downgrade(&table));
    }
    if let Some(filter) = &side.scan_filter {
        tell_scans(filter, &table)?;
    }
    Ok(table)
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
        let table = build(&marks.build, &run, &queue).await?;
        // As DataFusion, which reads the rows of joins without keys all the same.
        let empty = table.gives_nothing(marks.join.kind) && !marks.join.keys.is_empty();
        let op = VisitedBitmap::try_new(marks.input.clone(), &marks.join, Some(Arc::clone(&table)), marks.options.clone())
            .map_err(|error| op_error(&stage.operator, error))?;
        let mut state = op.start();
        let mut input = if empty { stream::empty().boxed() } else { merge(&marks.probe, &run)? };
        while let Some(batch) = input.next().await {
            let batch = batch?;
            if let Err(error) = op.push(&queue, &mut state, &batch).await {
                return Err(failed_mark(error, &stage.operator, marks, &table, &queue, &batch).await);
            }
        }
        drop(input);
        let batches = op.finish(&queue, state).await.map_err(|error| op_error(&stage.operator, error))?;
        Ok(stream::iter(batches.into_iter().map(Ok)))
    })
    .try_flatten()
    .boxed()
}

/// Why an aggregation failed at a row of the probe side: DataFusion's message for what the joins make of it.
async fn failed_joined(
    error: kernels::Error,
    operator: &str,
    joined: &FusedJoins,
    pushed: &Pushed,
    queue: &Queue,
    batch: &DeviceBatch,
    checks: &[Arc<dyn PhysicalExpr>],
) -> DataFusionError {
    let kernels::Error::Row { row } = error else { return op_error(operator, error) };
    match joined.write_row(queue, &batch.slice(row as usize, 1)).await {
        Ok(Some(written)) => explain(kernels::Error::Row { row: 0 }, operator, queue, &written, checks).await,
        Ok(None) => pushed.failed(kernels::Error::JoinedRow, queue).await,
        Err(error) => pushed.failed(error, queue).await,
    }
}
