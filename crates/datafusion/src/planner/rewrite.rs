// SPDX-License-Identifier: Apache-2.0
//! Rewriting of plan trees.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::exec::device_inputs;

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

/// An operator over other inputs.
pub(crate) fn with_children(plan: &Plan, children: Vec<Plan>) -> Result<Plan> {
    if plan.children().into_iter().zip(&children).all(|(old, new)| Arc::ptr_eq(old, new)) {
        return Ok(Arc::clone(plan));
    }
    Arc::clone(plan).replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}
