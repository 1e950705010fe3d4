// SPDX-License-Identifier: Apache-2.0
//! Subplans that differ only in their columns become one subplan with the columns of all. Each use
//! picks its own.
//!
//! DataFusion's optimizer leaves each use of a CTE only the columns that it reads.
//!
//! A fallible expression is merged only if every use computes it; else a use that never runs could
//! raise its error. Uses that differ in such an expression share the rows below it.

mod joins;
mod merged;
mod operators;
mod scans;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::projection::ProjectionExec;

use self::merged::{Merged, column_of, input, moved};
use self::operators::merge;
use crate::exec::{DeviceOperator, DeviceProjectionExec, device_inputs};
use crate::planner::rewrite::{Plan, map_device_inputs};
use crate::planner::same::{contains_below, is_cached, same_rows};

/// Merges subplans that `wanted` accepts.
pub(super) fn with_merged_subplans(mut plans: Vec<Plan>, wanted: &dyn Fn(&Plan) -> bool) -> Result<Vec<Plan>> {
    while let Some(uses) = first_group(&plans, wanted) {
        let merged = plans.iter().map(|plan| with_uses(plan, &uses)).collect::<Result<Vec<_>>>()?;
        // Each step leaves fewer costly operators, which bounds the number of steps.
        if costly_operators(&merged) >= costly_operators(&plans) {
            break;
        }
        plans = merged;
    }
    Ok(plans)
}

/// Number of different costly operators.
fn costly_operators(plans: &[Plan]) -> usize {
    let is_costly = |plan: &Plan| DeviceOperator::of(plan).is_some_and(DeviceOperator::is_costly);
    let mut found = Vec::new();
    plans.iter().for_each(|plan| collect(plan, &is_costly, &mut found));
    found.len()
}

/// Collects different subplans of one run, upper ones first.
fn collect(plan: &Plan, wanted: &dyn Fn(&Plan) -> bool, found: &mut Vec<Plan>) {
    if is_cached(plan) || found.iter().any(|known| same_rows(known, plan)) {
        return;
    }
    if wanted(plan) {
        found.push(Arc::clone(plan));
    }
    device_inputs(plan).into_iter().for_each(|child| collect(child, wanted, found));
}

/// Subplans that can be merged, each with its replacement.
fn first_group(plans: &[Plan], wanted: &dyn Fn(&Plan) -> bool) -> Option<Vec<(Plan, Plan)>> {
    let mut subplans = Vec::new();
    // Projections stay with the uses.
    let wanted = |plan: &Plan| !plan.is::<DeviceProjectionExec>() && wanted(plan);
    plans.iter().for_each(|plan| collect(plan, &wanted, &mut subplans));
    subplans.iter().enumerate().find_map(|(index, first)| {
        let mut merged = Merged::same(first).plan;
        let mut uses = vec![(Arc::clone(first), Merged::same(first).a)];
        for other in &subplans[index + 1..] {
            if uses.iter().any(|(known, _)| contains_below(known, other) || contains_below(other, known)) {
                continue;
            }
            let Some(both) = merge(&merged, other, true) else { continue };
            for (_, columns) in &mut uses {
                columns.iter_mut().for_each(|column| *column = both.a[*column]);
            }
            uses.push((Arc::clone(other), both.b));
            merged = both.plan;
        }
        let picked = uses.into_iter().map(|(plan, columns)| picked(&merged, &columns, &plan).map(|picked| (plan, picked)));
        picked.collect::<Option<Vec<_>>>().filter(|uses| uses.len() > 1)
    })
}

/// The columns of a use, by their names and in its order. `None` if the merged subplan loses a
/// property.
fn picked(merged: &Plan, columns: &[usize], use_of: &Plan) -> Option<Plan> {
    let schema = use_of.schema();
    let picked = if merged.schema() == schema && columns.iter().enumerate().all(|(index, column)| index == *column) {
        Arc::clone(merged)
    } else {
        let outputs =
            columns.iter().zip(schema.fields()).map(|(column, field)| (column_of(merged, *column), field.name().clone()));
        let projection = ProjectionExec::try_new_with_schema_metadata(outputs, Arc::clone(merged), &schema).ok()?;
        Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?)
    };
    let in_order = match use_of.output_ordering() {
        Some(ordering) => picked.equivalence_properties().ordering_satisfy(ordering.clone()).ok()?,
        None => true,
    };
    let partitions = |plan: &Plan| plan.output_partitioning().partition_count();
    (in_order && picked.schema() == schema && partitions(&picked) == partitions(use_of)).then_some(picked)
}

/// Replaces the uses within a plan.
fn with_uses(plan: &Plan, uses: &[(Plan, Plan)]) -> Result<Plan> {
    if is_cached(plan) {
        return Ok(Arc::clone(plan));
    }
    if let Some((_, replacement)) = uses.iter().find(|(subplan, _)| same_rows(subplan, plan)) {
        return Ok(Arc::clone(replacement));
    }
    let with = map_device_inputs(plan, |child| with_uses(child, uses))?;
    Ok(if Arc::ptr_eq(&with, plan) { with } else { one_projection(&with).unwrap_or(with) })
}

/// Merges a projection with the projection below it, if that only passes columns on.
fn one_projection(plan: &Plan) -> Option<Plan> {
    let upper = plan.downcast_ref::<DeviceProjectionExec>()?;
    let (columns, below) = (passed_columns(input(plan)?)?, input(input(plan)?)?);
    let outputs = upper.expressions().iter().map(|output| Some((moved(&output.expr, &columns, below)?, output.alias.clone())));
    let outputs = outputs.collect::<Option<Vec<_>>>()?;
    let projection = ProjectionExec::try_new_with_schema_metadata(outputs, Arc::clone(below), &plan.schema()).ok()?;
    Some(Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?))
}

/// The columns that a projection passes on; `None` if it computes.
pub(super) fn passed_columns(plan: &Plan) -> Option<Vec<usize>> {
    let outputs = plan.downcast_ref::<DeviceProjectionExec>()?.expressions().iter();
    outputs.map(|output| output.expr.downcast_ref::<Column>().map(Column::index)).collect()
}
