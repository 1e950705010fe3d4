// SPDX-License-Identifier: Apache-2.0
//! Scalar subqueries whose value stays on the device: a column of the rows that ask for it, which a join with the subquery's one
//! row brings. Kernels read that row where it lies. Each runs once, before the rows of its offloaded subplan, whoever asks; scans of the host
//! that leave out parts of files by its value are told it.

mod value;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::scalar_subquery::{ScalarSubqueryExec, ScalarSubqueryLink};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::{DeviceLimitExec, DeviceToHostExec, DeviceUnionExec, HostToDeviceExec, is_device};
use crate::planner::dynamic_filters::{with_children, without_dynamic_filters};
use crate::planner::sharing::without_sharing;
use value::Value;

type Plan = Arc<dyn ExecutionPlan>;

/// A main query with the values of those subqueries on the device that one of its offloaded subplans asks for, and the subqueries that are
/// left: those of the host, those for which an operator of the host asks, and all where the query has several offloaded subplans beside each
/// other, which may share rows with subqueries that run before them. `offloaded subplan` puts an offloaded subplan anew over other operators.
pub(crate) fn with_values(
    subqueries: &ScalarSubqueryExec,
    mut main: Plan,
    placed: Vec<Plan>,
    offload: &dyn Fn(Plan, &str) -> Result<Plan>,
) -> Result<(Plan, Vec<(ScalarSubqueryLink, Plan)>)> {
    let mut left = Vec::new();
    let several = offloaded_subplans(&main) > 1;
    for (link, plan) in subqueries.subqueries().iter().zip(placed) {
        let value = Value::of(subqueries, link, &plan).filter(|_| !several);
        match value.map(|value| brought_below(value, &main, offload)).transpose()?.flatten() {
            Some(with_value) => main = with_value,
            None => left.push((link.clone(), plan)),
        }
    }
    Ok((main, left))
}

/// How many offloaded subplans a plan has that are below no other one.
fn offloaded_subplans(plan: &Plan) -> usize {
    if is_device(plan) || plan.is::<DeviceToHostExec>() { 1 } else { plan.children().into_iter().map(offloaded_subplans).sum() }
}

/// A plan whose one offloaded subplan that asks for a value has it brought within. `None` where somebody else asks too, or where nobody
/// can say that this offloaded subplan runs whenever the plan does: a subquery that fails fails the query.
fn brought_below(value: Value, plan: &Plan, offload: &dyn Fn(Plan, &str) -> Result<Plan>) -> Result<Option<Plan>> {
    let top = plan.downcast_ref::<DeviceToHostExec>();
    let operators = top.map_or(plan, DeviceToHostExec::input);
    if is_device(operators) && asks(operators, &value)? {
        let Some(top) = top else { return brought_within(value, operators) };
        let operators = without_sharing(&without_dynamic_filters(operators)?)?;
        let with_value = brought_within(value, &operators)?;
        return with_value.map(|with_value| offload(with_value, top.destination())).transpose();
    }
    if value.is_asked_for_by(plan)? {
        return Ok(None);
    }
    let mut children: Vec<Plan> = plan.children().into_iter().cloned().collect();
    let mut asking = Vec::new();
    for (index, child) in children.iter().enumerate() {
        if child.exists(|node| value.is_asked_for_by(node))? {
            asking.push(index);
        }
    }
    let runs_all = plan.is::<UnionExec>() || plan.is::<DeviceUnionExec>();
    let &[index] = asking.as_slice() else { return Ok(None) };
    if index > 0 && !runs_all {
        return Ok(None);
    }
    let Some(child) = brought_below(value, &children[index], offload)? else { return Ok(None) };
    children[index] = child;
    with_children(plan, children).map(Some)
}

/// Whether one of an offloaded subplan's operators asks for a value.
fn asks(operators: &Plan, value: &Value) -> Result<bool> {
    if value.is_asked_for_by(operators)? {
        return Ok(true);
    }
    if operators.is::<HostToDeviceExec>() {
        return Ok(false);
    }
    operators.children().into_iter().try_fold(false, |found, child| Ok(found || asks(child, value)?))
}

/// An offloaded subplan's operators in which joins bring the value to all of them that ask for it; `None` where they cannot, and where another
/// plan would come out of it than one for the same rows.
fn brought_within(mut value: Value, operators: &Plan) -> Result<Option<Plan>> {
    value.subquery.publishes = operators.exists(|node| Ok(!is_device(node) && value.is_asked_for_by(node)?))?;
    let mut with_value = value.brought(operators)?;
    // Each partition would run the subquery.
    if with_value.output_partitioning().partition_count() > 1 && operators.output_ordering().is_none() {
        with_value = Arc::new(DeviceLimitExec::try_new(Arc::new(GlobalLimitExec::new(with_value, 0, None)))?);
    }
    let in_order = match operators.output_ordering() {
        Some(ordering) => with_value.equivalence_properties().ordering_satisfy(ordering.clone())?,
        None => true,
    };
    let fits = in_order
        && with_value.output_partitioning().partition_count() == 1
        && with_value.schema() == operators.schema()
        && !with_value.exists(|node| Ok(is_device(node) && value.is_asked_for_by(node)?))?;
    Ok(fits.then_some(with_value))
}
