// SPDX-License-Identifier: Apache-2.0
//! Keeps computed columns out of file scans.
//!
//! DataFusion merges projections into the file scan below them, where their expressions would run
//! on the host, unseen. Such a projection that has a device form is turned into a
//! [`DeviceProjectionExec`] before that rule runs, which leaves it alone, and back again right before
//! the planner places it.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::exec::DeviceProjectionExec;
use crate::planner::support::{device_form, is_trivial};
use crate::runtime::{DeviceRuntime, options_of};

/// Shields projections that compute from being merged into a file scan. Stands before the first
/// `ProjectionPushdown`.
#[derive(Debug)]
pub struct ProjectionKeeper {
    runtime: Arc<DeviceRuntime>,
}

impl ProjectionKeeper {
    /// A rule for plans made for the device of `runtime`.
    pub fn new(runtime: Arc<DeviceRuntime>) -> Self {
        ProjectionKeeper { runtime }
    }
}

impl PhysicalOptimizerRule for ProjectionKeeper {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = options_of(config);
        if !options.enabled {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            let computes = node.is::<ProjectionExec>() && !is_trivial(&node);
            if computes && device_form(&node).is_ok() && self.runtime.context(&options).is_ok() {
                return Ok(Transformed::yes(Arc::new(DeviceProjectionExec::try_new(node)?)));
            }
            Ok(Transformed::no(node))
        })
        .data()
    }

    fn name(&self) -> &str {
        "ProjectionKeeper"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Turns shielded projections back into host ones.
pub(crate) fn release(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match node.downcast_ref::<DeviceProjectionExec>() {
        Some(projection) => Ok(Transformed::yes(Arc::clone(&projection.host))),
        None => Ok(Transformed::no(node)),
    })
    .data()
}
