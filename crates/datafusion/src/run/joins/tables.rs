// SPDX-License-Identifier: Apache-2.0
//! Tables of the build sides.

use std::sync::{Arc, Weak};

use arrow::datatypes::DataType;
use columnar::ColumnType;
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use device::Queue;
use futures::TryStreamExt;
use futures::future::try_join_all;
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::ops::{BloomFilterUse, Input, Join, JoinChain, JoinTable};

use super::scan_filter::push_key_ranges;
use crate::error::op_error;
use crate::graph::{BuildSide, Joins, Side, Stage};
use crate::run::errors::explain;
use crate::run::memory::MemoryAttribution;
use crate::run::state::Run;
use crate::run::subqueries::rows_of;

/// The joins of a run with their tables. Dynamic filters that would drop few rows are left
/// out.
pub(in crate::run) struct Tables {
    pub joins: Vec<Join>,
    pub tables: Vec<Arc<JoinTable>>,
    /// Position of each join among those of the stage.
    pub numbers: Vec<usize>,
    /// Counter of removed rows of each dynamic filter.
    pub removed: Vec<Count>,
}

impl Tables {
    pub async fn build(joins: &Joins, run: &Arc<Run>, queue: &Queue) -> Result<Tables> {
        // Sides without a dynamic filter by another side's table are built at the same time.
        let of_these = |number| joins.builds().any(|side| side.number == Some(number));
        let first = joins.sides.iter().map(|side| async move {
            match side {
                Side::Build(side) if !side.stage.filters_by(&of_these) => build(side, run, queue).await.map(Some),
                Side::Build(_) | Side::Filter { .. } => Ok(None),
            }
        });
        let mut first = try_join_all(first).await?;
        let (mut used, mut tables, mut numbers, mut removed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The last join first: its table filters the build sides of the joins before it.
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
                        MetricBuilder::new(&metrics.set()).gauge("filter_bytes", 0).set(table.filter_bytes());
                    }
                    tables.push(table);
                    removed.push(MetricBuilder::new(&metrics.set()).counter("rows_removed", 0));
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
        if self.joins.is_empty() && !has_planned_types(chain.output_types(), stage) {
            // Without a join, rows would pass unchanged. Some layouts differ from those that the
            // stages above expect, so a filter that is always true writes the rows.
            let all = Literal { data_type: DataType::Boolean, value: LiteralValue::Bool(true) };
            chain = with_input(Input { filter: Some(Expr::Literal(all)), ..joins.input.clone() })?;
        }
        if !has_planned_types(chain.output_types(), stage) {
            return internal_err!("{}: {:?} instead of {:?}", stage.operator, chain.output_types(), stage.types);
        }
        Ok(chain)
    }
}

/// Whether columns have the types that were planned.
pub(super) fn has_planned_types(types: &[ColumnType], stage: &Stage) -> bool {
    let planned = |ty: &ColumnType| (ty.layout.clone(), ty.nullable, ty.data_type.clone());
    types.iter().map(planned).eq(stage.types.iter().map(planned))
}

/// Builds the table of a build side.
pub(super) async fn build(side: &BuildSide, run: &Arc<Run>, queue: &Queue) -> Result<Arc<JoinTable>> {
    let operator = &side.operator;
    let failed = |error| op_error(operator, error);
    let memory = MemoryAttribution::new(operator, "its build side");
    let table = async {
        let batches = match side.scalar() {
            Some(scalar) => rows_of(scalar, &side.stage, run).await?,
            None => memory.counted(run.merge(&side.stage)?).try_collect().await?,
        };
        let batch = side.concat.run(queue, batches).await.map_err(failed)?;
        match (side.build.build(queue, batch.clone()).await, batch) {
            (Ok(mut table), _) => {
                let wanted = BloomFilterUse { dynamic_filters: side.number.is_some(), search: side.probe_bloom_first };
                side.build.add_bloom_filter(queue, &mut table, wanted).await.map_err(failed)?;
                Ok(Arc::new(table))
            }
            (Err(error), Some(batch)) => Err(explain(error, operator, queue, &batch, &side.checks).await),
            (Err(error), None) => Err(failed(error)),
        }
    };
    let table = table.await.map_err(|error| memory.attributed(error))?;
    if let Some(number) = side.number {
        run.tables.lock().insert(number, Arc::downgrade(&table));
    }
    if let Some(filter) = &side.scan_filter {
        push_key_ranges(filter, &table)?;
    }
    Ok(table)
}
