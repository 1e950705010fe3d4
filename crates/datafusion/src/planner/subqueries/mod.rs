// SPDX-License-Identifier: Apache-2.0
//! Scalar subqueries whose value stays on the device.
//!
//! - A join with the subquery's one row brings the value as a column. Kernels read that row in
//!   place.
//! - A subquery runs once, before the rows of its offloaded subplan.
//! - Host scans that prune files by the value get it too.

mod value;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::scalar_subquery::{ScalarSubqueryExec, ScalarSubqueryLink};

use crate::exec::{DeviceToHostExec, device_inputs, is_device, unites_inputs};
use crate::planner::dynamic_filters::without_dynamic_filters;
use crate::planner::rewrite::{Plan, in_one_partition, with_children};
use crate::planner::sharing::without_sharing;
use value::SubqueryValue;

/// The main query with values of subqueries on the device, and the subqueries that are left:
/// - subqueries of the host,
/// - subqueries whose value an operator of the host reads,
/// - all subqueries, if the main query has several offloaded subplans side by side. These may share
///   rows with subqueries that run before them.
///
/// `offload` puts a `DeviceToHostExec` like another over changed operators.
pub(crate) fn with_values(
    subqueries: &ScalarSubqueryExec,
    mut main: Plan,
    placed: Vec<Plan>,
    offload: &dyn Fn(Plan, &DeviceToHostExec) -> Result<Plan>,
) -> Result<(Plan, Vec<(ScalarSubqueryLink, Plan)>)> {
    let mut left = Vec::new();
    let has_several = offloaded_subplans(&main) > 1;
    for (link, plan) in subqueries.subqueries().iter().zip(placed) {
        let value = SubqueryValue::of(subqueries, link, &plan).filter(|_| !has_several);
        match value.map(|value| joined_below(value, &main, offload)).transpose()?.flatten() {
            Some(with_value) => main = with_value,
            None => left.push((link.clone(), plan)),
        }
    }
    Ok((main, left))
}

/// Number of offloaded subplans of a plan, without those below others.
fn offloaded_subplans(plan: &Plan) -> usize {
    if is_device(plan) || plan.is::<DeviceToHostExec>() { 1 } else { plan.children().into_iter().map(offloaded_subplans).sum() }
}

/// Joins the value within the one offloaded subplan of `plan` that reads it. `None` if
/// - another operator reads it too, or
/// - the subplan may not run although the plan does: a failing subquery must fail the query.
fn joined_below(
    value: SubqueryValue,
    plan: &Plan,
    offload: &dyn Fn(Plan, &DeviceToHostExec) -> Result<Plan>,
) -> Result<Option<Plan>> {
    let top = plan.downcast_ref::<DeviceToHostExec>();
    let operators = top.map_or(plan, DeviceToHostExec::input);
    if is_device(operators) && subplan_reads(operators, &value)? {
        let Some(top) = top else { return joined_within(value, operators) };
        let operators = without_sharing(&without_dynamic_filters(operators)?)?;
        let with_value = joined_within(value, &operators)?;
        return with_value.map(|with_value| offload(with_value, top)).transpose();
    }
    if value.is_read_by(plan)? {
        return Ok(None);
    }
    let mut children: Vec<Plan> = plan.children().into_iter().cloned().collect();
    let mut readers = Vec::new();
    for (index, child) in children.iter().enumerate() {
        if child.exists(|node| value.is_read_by(node))? {
            readers.push(index);
        }
    }
    let &[index] = readers.as_slice() else { return Ok(None) };
    if index > 0 && !unites_inputs(plan) {
        return Ok(None);
    }
    let Some(child) = joined_below(value, &children[index], offload)? else { return Ok(None) };
    children[index] = child;
    with_children(plan, children).map(Some)
}

/// Whether an operator of an offloaded subplan reads the value.
fn subplan_reads(operators: &Plan, value: &SubqueryValue) -> Result<bool> {
    let reads = value.is_read_by(operators)?;
    device_inputs(operators).into_iter().try_fold(reads, |found, input| Ok(found || subplan_reads(input, value)?))
}

/// Joins the value for all operators of an offloaded subplan that read it. `None` if the join is
/// not supported or loses a property of the plan.
fn joined_within(mut value: SubqueryValue, operators: &Plan) -> Result<Option<Plan>> {
    value.subquery.publishes = operators.exists(|node| Ok(!is_device(node) && value.is_read_by(node)?))?;
    let mut with_value = value.joined_for_readers(operators)?;
    // Each partition would run the subquery.
    if with_value.output_partitioning().partition_count() > 1 && operators.output_ordering().is_none() {
        with_value = in_one_partition(with_value)?;
    }
    let in_order = match operators.output_ordering() {
        Some(ordering) => with_value.equivalence_properties().ordering_satisfy(ordering.clone())?,
        None => true,
    };
    let fits = in_order
        && with_value.output_partitioning().partition_count() == 1
        && with_value.schema() == operators.schema()
        && !with_value.exists(|node| Ok(is_device(node) && value.is_read_by(node)?))?;
    Ok(fits.then_some(with_value))
}
