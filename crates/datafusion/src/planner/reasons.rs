// SPDX-License-Identifier: Apache-2.0
//! The last rule: writes reasons beside operators of the host.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::HostExec;
use crate::planner::most_rows::RowBounds;
use crate::planner::placement::host_reason;
use crate::session::{DeviceOptions, DeviceRuntime};

/// Wraps each operator computing on the host in a [`HostExec`], which shows the reason in EXPLAIN.
#[derive(Debug)]
pub struct HostReasons {
    runtime: Arc<DeviceRuntime>,
}

impl HostReasons {
    /// A rule for plans made for the device of `runtime`.
    pub fn new(runtime: Arc<DeviceRuntime>) -> Self {
        HostReasons { runtime }
    }
}

impl PhysicalOptimizerRule for HostReasons {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = DeviceOptions::of(config);
        if !options.enabled {
            return Ok(plan);
        }
        let (absent, bounds) = (self.runtime.problem(), RowBounds::default());
        plan.transform_up(|node| {
            // The planner knew a better reason.
            if node.is::<HostExec>() {
                return Ok(Transformed::no(node));
            }
            Ok(match host_reason(&node, &options, &bounds, absent.as_deref()) {
                Some(reason) => Transformed::yes(Arc::new(HostExec::new(node, reason)) as Arc<dyn ExecutionPlan>),
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "HostReasons"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
