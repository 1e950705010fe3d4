// SPDX-License-Identifier: Apache-2.0
//! Rewriting of plan trees.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::AcrossPartitions;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions};

use crate::exec::{DeviceLimitExec, device_inputs};

/// A physical plan or subplan.
pub(super) type Plan = Arc<dyn ExecutionPlan>;

/// A device operator over `f` of its inputs. Plans below an upload stay.
pub(crate) fn map_device_inputs(plan: &Plan, mut f: impl FnMut(&Plan) -> Result<Plan>) -> Result<Plan> {
    let inputs = device_inputs(plan);
    match inputs.is_empty() {
        true => Ok(Arc::clone(plan)),
        false => with_children(plan, inputs.into_iter().map(&mut f).collect::<Result<Vec<_>>>()?),
    }
}

/// The rows of all partitions of a device operator as one partition, in no order.
pub(crate) fn in_one_partition(plan: Plan) -> Result<Plan> {
    Ok(Arc::new(DeviceLimitExec::try_new(Arc::new(GlobalLimitExec::new(plan, 0, None)))?))
}

/// Whether a reader may merge the partitions of a plan by an order of each of them.
///
/// A constant of each partition is an order.
pub(crate) fn has_ordered_partitions(plan: &Plan) -> bool {
    let constants = plan.equivalence_properties().constants();
    plan.output_partitioning().partition_count() > 1
        && (plan.output_ordering().is_some()
            || constants.iter().any(|constant| constant.across_partitions == AcrossPartitions::Heterogeneous))
}

/// An operator over other inputs.
pub(crate) fn with_children(plan: &Plan, children: Vec<Plan>) -> Result<Plan> {
    if plan.children().into_iter().zip(&children).all(|(old, new)| Arc::ptr_eq(old, new)) {
        return Ok(Arc::clone(plan));
    }
    Arc::clone(plan).replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}
