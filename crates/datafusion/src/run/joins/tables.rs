// SPDX-License-Identifier: Apache-2.0
//! Tables of the build sides.

use std::sync::{Arc, Weak};

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch};
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use device::Queue;
use futures::future::try_join_all;
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::ops::{BloomFilterUse, ChainPart, Input, Join, JoinChain, JoinTable};

use super::collected::{CollectedSide, PartitionedSide, collect_build_side};
use super::scan_filter::push_key_ranges;
use crate::error::op_error;
use crate::graph::{BuildSide, ChainPlan, Side, Stage};
use crate::run::errors::explain;
use crate::run::memory::{MemoryAttribution, free_bytes};
use crate::run::state::Run;
use crate::run::subqueries::rows_of;

/// The joins of a run with their tables. Dynamic filters that would drop few rows are left
/// out.
pub(in crate::run) struct Tables {
    pub joins: Vec<Join>,
    pub tables: Vec<Arc<JoinTable>>,
    /// Position of each join among those of the plan.
    pub numbers: Vec<usize>,
    /// Counter of removed rows of each dynamic filter.
    pub removed: Vec<Count>,
}

/// The joins of a run with their build sides. Dynamic filters that would drop few rows are left
/// out.
pub(super) struct BuiltSides {
    pub joins: Vec<Join>,
    pub sides: Vec<BuiltSide>,
    /// Position of each join among those of the plan.
    pub numbers: Vec<usize>,
    /// Counter of removed rows of each dynamic filter.
    pub removed: Vec<Count>,
}

/// The rows of a build side.
pub(super) enum BuiltSide {
    Table(Arc<JoinTable>),
    /// On disk, for they are more than device memory holds.
    Spilled(Box<PartitionedSide>),
}

impl BuiltSides {
    pub async fn build(plan: &ChainPlan, stage: &Stage, run: &Arc<Run>, queue: &Queue) -> Result<BuiltSides> {
        // Sides without a dynamic filter by another side's table may be built at the same time.
        let of_these = |number| plan.builds().any(|side| side.filters.number == Some(number));
        let may_spill = run.may_spill() && plan.may_store();
        let first = plan.sides.iter().map(|side| async move {
            match side {
                Side::Build(side) if !side.stage.filters_by(&of_these) => {
                    build(side, may_spill, stage, run, queue).await.map(Some)
                }
                Side::Build(_) | Side::Filter { .. } => Ok(None),
            }
        });
        let first: Vec<_> = first.collect();
        let sides = plan.builds().filter(|side| side.scalar().is_none());
        let mut first = match may_build_together(sides.map(|side| side.input_bytes), free_bytes(queue)) {
            true => try_join_all(first).await?,
            false => {
                let mut built = Vec::with_capacity(first.len());
                for side in first {
                    built.push(side.await?);
                }
                built
            }
        };
        let mut built = BuiltSides { joins: vec![], sides: vec![], numbers: vec![], removed: vec![] };
        // The last join first: its table filters the build sides of the joins before it.
        for (number, (join, side)) in plan.part.joins.iter().zip(&plan.sides).enumerate().rev() {
            match side {
                Side::Build(side) => built.sides.push(match first[number].take() {
                    Some(side) => side,
                    None => build(side, may_spill, stage, run, queue).await?,
                }),
                Side::Filter { number, metrics, .. } => {
                    let table = run.tables.lock().get(number).and_then(Weak::upgrade);
                    let Some(table) = table.filter(|table| table.filters(join.keys.len())) else { continue };
                    if table.filter_bytes() > 0 {
                        MetricBuilder::new(&metrics.set()).gauge("filter_bytes", 0).set(table.filter_bytes());
                    }
                    built.sides.push(BuiltSide::Table(table));
                    built.removed.push(MetricBuilder::new(&metrics.set()).counter("rows_removed", 0));
                }
            }
            built.joins.push(join.clone());
            built.numbers.push(number);
        }
        built.joins.reverse();
        built.sides.reverse();
        built.numbers.reverse();
        built.removed.reverse();
        Ok(built)
    }

    /// The tables, if no side is on disk.
    pub fn into_tables(self) -> std::result::Result<Arc<Tables>, BuiltSides> {
        let tables = self.sides.iter().map(|side| match side {
            BuiltSide::Table(table) => Some(Arc::clone(table)),
            BuiltSide::Spilled(_) => None,
        });
        match tables.collect::<Option<Vec<_>>>() {
            Some(tables) => {
                let BuiltSides { joins, numbers, removed, sides: _ } = self;
                Ok(Arc::new(Tables { joins, tables, numbers, removed }))
            }
            None => Err(self),
        }
    }
}

impl Tables {
    /// The chain that writes the joined rows.
    pub fn chain(&self, plan: &ChainPlan, operator: &str) -> Result<JoinChain> {
        let with_filter = |filter| {
            let ChainPart { input, outputs, .. } = plan.part.clone();
            let part = ChainPart { input: Input { filter, ..input }, joins: self.joins.clone(), outputs };
            part.chain(Some(&self.tables), &plan.options).map_err(|error| op_error(operator, error))
        };
        let mut chain = with_filter(plan.part.input.filter.clone())?;
        if self.joins.is_empty() && !same_types(chain.output_types(), &plan.types) {
            // Without a join, rows would pass unchanged. Some layouts differ from those that the
            // stages above expect, so an always true filter writes the rows.
            let all = Literal { data_type: DataType::Boolean, value: LiteralValue::Bool(true) };
            chain = with_filter(Some(Expr::Literal(all)))?;
        }
        if !same_types(chain.output_types(), &plan.types) {
            return internal_err!("{operator}: {:?} instead of {:?}", chain.output_types(), plan.types);
        }
        Ok(chain)
    }
}

/// Whether sides may be built at the same time: their inputs together fit half of the free memory.
/// A side whose rows are not known is built alone.
fn may_build_together(mut input_bytes: impl Iterator<Item = Option<usize>>, free: usize) -> bool {
    let sum = input_bytes.try_fold(0_usize, |sum, bytes| Some(sum.saturating_add(bytes?)));
    sum.is_some_and(|sum| sum <= free / 2)
}

/// Whether columns have the planned types.
pub(super) fn same_types(types: &[ColumnType], planned: &[ColumnType]) -> bool {
    let facts = |ty: &ColumnType| (ty.layout.clone(), ty.nullable, ty.data_type.clone());
    types.iter().map(facts).eq(planned.iter().map(facts))
}

/// Builds a side: to a table, or on disk if `may_spill` and it does not fit memory.
pub(super) async fn build(side: &BuildSide, may_spill: bool, stage: &Stage, run: &Arc<Run>, queue: &Queue) -> Result<BuiltSide> {
    let memory = MemoryAttribution::new(&side.operator, "its build side");
    let built = async {
        let (batches, _reservation) = match side.scalar() {
            Some(scalar) => (rows_of(scalar, &side.stage, run).await?, None),
            None => {
                let rows = memory.counted(run.merge(&side.stage)?);
                match collect_build_side(rows, side, may_spill && !side.keeps_order, stage, run, queue).await? {
                    CollectedSide::Rows(batches, reservation) => (batches, Some(reservation)),
                    CollectedSide::Spilled(spilled) => {
                        memory.spilled();
                        return Ok(BuiltSide::Spilled(spilled));
                    }
                }
            }
        };
        build_table(side, batches, side.filters.number.is_some(), queue).await.map(BuiltSide::Table)
    };
    let built = built.await.map_err(|error| memory.attributed(error))?;
    let table = match &built {
        BuiltSide::Table(table) => Some(table.as_ref()),
        BuiltSide::Spilled(_) => None,
    };
    if let (Some(number), BuiltSide::Table(table)) = (side.filters.number, &built) {
        run.tables.lock().insert(number, Arc::downgrade(table));
    }
    if let Some(filter) = &side.filters.scan {
        push_key_ranges(filter, table)?;
    }
    Ok(built)
}

/// The table of a build side's rows, for `dynamic_filters` too.
pub(super) async fn build_table(
    side: &BuildSide,
    batches: Vec<DeviceBatch>,
    dynamic_filters: bool,
    queue: &Queue,
) -> Result<Arc<JoinTable>> {
    let operator = &side.operator;
    let failed = |error| op_error(operator, error);
    let batch = side.concat.run(queue, batches).await.map_err(failed)?;
    match (side.build.build(queue, batch.clone()).await, batch) {
        (Ok(mut table), _) => {
            let wanted = BloomFilterUse { dynamic_filters, search: side.probe_bloom_first };
            side.build.add_bloom_filter(queue, &mut table, wanted).await.map_err(failed)?;
            Ok(Arc::new(table))
        }
        (Err(error), Some(batch)) => Err(explain(error, operator, queue, &batch, &side.checks).await),
        (Err(error), None) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_built_together_if_half_of_the_memory_holds_them() {
        assert!(may_build_together([Some(10), Some(40)].into_iter(), 100));
        assert!(!may_build_together([Some(10), Some(41)].into_iter(), 100));
        assert!(!may_build_together([Some(0), None].into_iter(), 100));
        assert!(!may_build_together([Some(1), Some(usize::MAX)].into_iter(), 100));
        assert!(may_build_together([].into_iter(), 0));
    }
}
