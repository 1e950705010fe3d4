// SPDX-License-Identifier: Apache-2.0
//! Lowering of each device operator.

mod aggregate;
mod join;
mod library;
mod row_wise;
mod rows;
mod sort;
mod sources;
mod window;

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use kernels::ops::Options;

use super::pipeline::Pipeline;
use super::stage::Stage;
use crate::exec::DeviceOperator;

/// Lowers a device subtree.
pub(crate) fn lower(plan: &Arc<dyn ExecutionPlan>, options: &Options) -> Result<Stage> {
    Lowering { options, order_counts: true }.stage(plan)
}

/// The methods of this context lower one operator each, and the operators below it.
struct Lowering<'a> {
    options: &'a Options,
    /// Whether operators above may count on the promised order of the plan's rows.
    order_counts: bool,
}

impl<'a> Lowering<'a> {
    /// The lowering of the rows of an operator that reads them in any order, or counts on theirs.
    fn with_order(&self, order_counts: bool) -> Lowering<'a> {
        Lowering { order_counts, ..*self }
    }

    /// The stage of a subtree, which ends its pipeline.
    fn stage(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Stage> {
        self.pipeline(plan)?.materialise(plan.schema())
    }

    fn pipeline(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Pipeline<'a>> {
        // Rows of device memory have no other way to the host.
        #[cfg(test)]
        if !plan.children().is_empty() {
            super::failing::step(plan.name())?;
        }
        let Some(operator) = DeviceOperator::of(plan) else {
            return internal_err!("{} is not a device operator", plan.name());
        };
        let source = match operator {
            DeviceOperator::Filter(filter) => return self.filter(filter, child(plan)?),
            DeviceOperator::Projection(projection) => return self.projection(projection, child(plan)?, plan.schema()),
            DeviceOperator::DynamicFilter(filter) => return self.dynamic_filter(filter),
            DeviceOperator::Join(join) => return self.join(join),
            DeviceOperator::Upload(upload) => self.upload(upload, partitions(plan))?,
            DeviceOperator::Scan(scan) => self.scan(scan, plan.schema()),
            DeviceOperator::Stream(scan) => self.stream(scan, plan.schema())?,
            DeviceOperator::Limit(limit) => self.limit(limit, child(plan)?, partitions(plan))?,
            DeviceOperator::Shared(shared) => self.shared(shared)?,
            DeviceOperator::Reuse(reuse) => self.reuse(reuse)?,
            DeviceOperator::Aggregate(aggregate) if aggregate.is_of_libraries() => {
                self.library_aggregates(aggregate, self.with_order(true).stage(child(plan)?)?)?
            }
            DeviceOperator::Aggregate(aggregate) => self.aggregate(aggregate, child(plan)?)?,
            DeviceOperator::Sort(sort) => self.sort(sort, child(plan)?)?,
            DeviceOperator::Expand(expand) => self.expand(expand)?,
            DeviceOperator::Unnest(unnest) => self.unnest(unnest, self.stage(child(plan)?)?, plan)?,
            DeviceOperator::Futhark(futhark) => self.library_calls(futhark, self.stage(child(plan)?)?, plan)?,
            DeviceOperator::Union(union) => self.union(union)?,
            DeviceOperator::Window(window) => self.window(window, child(plan)?, plan.schema())?,
        };
        Ok(Pipeline::new(source, self.options))
    }
}

fn child(plan: &Arc<dyn ExecutionPlan>) -> Result<&Arc<dyn ExecutionPlan>> {
    match plan.children().as_slice() {
        [child] => Ok(child),
        children => internal_err!("{} has one child, not {}", plan.name(), children.len()),
    }
}

fn partitions(plan: &Arc<dyn ExecutionPlan>) -> usize {
    plan.output_partitioning().partition_count()
}
