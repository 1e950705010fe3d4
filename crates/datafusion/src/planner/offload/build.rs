// SPDX-License-Identifier: Apache-2.0
//! Device operators over device inputs.

use std::sync::Arc;

use datafusion::common::{Result, internal_err, plan_datafusion_err};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::{
    AggregateSpec, DeviceAggregateExec, DeviceFilterExec, DeviceFutharkExec, DeviceProjectionExec, DeviceSortExec,
    DeviceWindowExec, window_exprs,
};
use crate::expr::AggregateCall;
use crate::planner::ordered_aggregates::ordered_calls;
use crate::planner::rewrite::{in_one_partition, with_children};
use crate::planner::support::support_of;

/// The order that a window function requires.
pub(super) fn order_of_window(function: &dyn WindowExpr) -> Option<LexOrdering> {
    let partitioned = function.partition_by().iter().map(|key| PhysicalSortExpr::new_default(Arc::clone(key)));
    LexOrdering::new(partitioned.chain(function.order_by().iter().cloned()))
}

/// A window operator over a device input, which is sorted and merged to one partition.
pub(super) fn windowed(
    plan: &Arc<dyn ExecutionPlan>,
    required: Option<LexOrdering>,
    mut input: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(required) = required
        && (input.output_partitioning().partition_count() != 1
            || !input.equivalence_properties().ordering_satisfy(required.clone())?)
    {
        // The order may have keys that the window itself does not need.
        let sort: Arc<dyn ExecutionPlan> = Arc::new(SortExec::new(required, input));
        support_of(&sort).map_err(|reason| plan_datafusion_err!("{} keeps the order of its input: {reason}", plan.name()))?;
        input = Arc::new(DeviceSortExec::try_new(sort)?);
    }
    if input.output_partitioning().partition_count() != 1 {
        input = in_one_partition(input)?;
    }
    Ok(Arc::new(DeviceWindowExec::try_new(with_children(plan, vec![input])?)?))
}

/// Offloads a window operator, filter or projection over a device input.
pub(super) fn device_operator(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let input = plan.children().first().copied().cloned();
    match (window_exprs(&plan), input) {
        (Some([first, ..]), Some(input)) => windowed(&plan, order_of_window(first.as_ref()), input),
        _ if plan.is::<FilterExec>() => Ok(Arc::new(DeviceFilterExec::try_new(plan)?)),
        _ if plan.is::<ProjectionExec>() => Ok(Arc::new(DeviceProjectionExec::try_new(plan)?)),
        _ => internal_err!("{} is not offloaded on its own", plan.name()),
    }
}

/// An aggregation over a device input. Calls of libraries in its expressions get an operator below.
pub(super) fn aggregated(mut spec: AggregateSpec, input: Arc<dyn ExecutionPlan>) -> Result<DeviceAggregateExec> {
    let exprs = spec.keys.iter().map(|(key, _)| key).chain(spec.calls.iter().flat_map(AggregateCall::exprs));
    let Some((calls, lifted)) = DeviceFutharkExec::lift(&exprs.cloned().collect::<Vec<_>>(), &input)? else {
        return Ok(DeviceAggregateExec::new(spec, input));
    };
    let mut lifted = lifted.into_iter();
    for ((key, _), lifted) in spec.keys.iter_mut().zip(lifted.by_ref()) {
        *key = lifted;
    }
    for call in &mut spec.calls {
        let exprs: Vec<_> = lifted.by_ref().take(call.exprs().count()).collect();
        *call = call.with_exprs(&exprs);
    }
    Ok(DeviceAggregateExec::new(spec, calls))
}

/// An aggregation that selects rows by rank, over window functions ranking them.
pub(super) fn ordered(spec: AggregateSpec, input: Arc<dyn ExecutionPlan>) -> Result<DeviceAggregateExec> {
    let (calls, input) = ordered_calls(&spec, input, &device_operator)?;
    Ok(DeviceAggregateExec::new(AggregateSpec { calls, ..spec }, input))
}

/// A host operator over a device input. Calls of libraries in its expressions get an operator
/// between them.
pub(super) fn above(plan: &Arc<dyn ExecutionPlan>, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let exprs: Vec<_> = projection.expr().iter().map(|output| Arc::clone(&output.expr)).collect();
        if let Some((calls, exprs)) = DeviceFutharkExec::lift(&exprs, &input)? {
            let outputs = exprs.into_iter().zip(projection.expr()).map(|(expr, output)| (expr, output.alias.clone()));
            let outputs = outputs.collect::<Vec<_>>();
            return Ok(Arc::new(ProjectionExec::try_new_with_schema_metadata(outputs, calls, &plan.schema())?));
        }
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>()
        && let Some((calls, exprs)) = DeviceFutharkExec::lift(&[Arc::clone(filter.predicate())], &input)?
        && let [predicate] = exprs.as_slice()
    {
        let all = || (0..input.schema().fields().len()).collect();
        let columns = filter.projection().as_ref().map_or_else(all, |projection| projection.to_vec());
        let filter = FilterExecBuilder::new(Arc::clone(predicate), calls).apply_projection(Some(columns))?;
        return Ok(Arc::new(filter.build()?));
    }
    with_children(plan, vec![input])
}
