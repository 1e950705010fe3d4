// SPDX-License-Identifier: Apache-2.0
//! The planning rule: offloads supported operators to the session's device.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_err};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::error::RULE;
use crate::exec::{DeviceToHostExec, computes, is_trivial, reads_catalog, reads_device};
use crate::planner::most_rows::RowBounds;
use crate::planner::offload::Offloader;
use crate::planner::placement::host_operators;
use crate::planner::projection_keeper;
use crate::planner::support::{has_tiny_inputs, support_of};
use crate::planner::unnest_arrays::rewrite_computed_lists;
use crate::session::{DeviceOptions, DeviceRuntime, PlannedDevice, kernel_options_for};

/// Replaces host operators by offloaded subplans.
///
/// Runs before `EnsureCooperative` and the last filter pushdown. With `device.fallback = error`, a
/// plan that keeps a computing operator on the host fails here.
#[derive(Debug)]
pub struct DevicePlanner {
    runtime: Arc<DeviceRuntime>,
}

impl DevicePlanner {
    /// The rule's name. DataFusion wraps errors of the rule with it.
    pub const NAME: &str = RULE;

    /// A rule that plans for the device of `runtime`.
    pub fn new(runtime: Arc<DeviceRuntime>) -> Self {
        DevicePlanner { runtime }
    }
}

impl PhysicalOptimizerRule for DevicePlanner {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = DeviceOptions::of(config);
        self.runtime.note_settings(&options);
        let (plan, supported) = projection_keeper::release(plan)?;
        let resident = any(&plan, &reads_device)?;
        if !resident && (!options.enabled || reads_catalog(&plan) || !any(&plan, &computes)?) {
            return Ok(plan);
        }
        let strict = options.enabled && options.fallback.is_strict();
        let bounds = RowBounds::default();
        let pays = |node: &Arc<dyn ExecutionPlan>| !has_tiny_inputs(node, &options, &bounds);
        let movable = resident || any(&plan, &|node| !is_trivial(node) && support_of(node).is_ok() && pays(node))?;
        let device = if movable { Some(self.runtime.device_for_plan(&options)) } else { None };
        let offloaded = match device.transpose() {
            Ok(None) => plan,
            Ok(Some(device)) => {
                let plan = rewrite_computed_lists(projection_keeper::out_of_scans(plan)?)?;
                let kernels = kernel_options_for(&options, &device.info, device.memory_limit)?;
                let offloaded = Offloader::new(&options, config, kernels).with_supported(supported).offload(plan)?;
                note_for_explain(&offloaded, &device, &options)?;
                offloaded
            }
            Err(problem) if resident => return plan_err!("a table of device memory needs a device: {}", problem.reason),
            Err(problem) if strict => {
                return plan_err!("device.fallback = error and there is no device to run on: {}", problem.reason);
            }
            Err(problem) if options.enabled && problem.is_mistake => return plan_err!("{}", problem.reason),
            Err(_) => plan,
        };
        if strict && let Some(first) = host_operators(&offloaded, &options, None).first() {
            return plan_err!(
                "{} would run on the host: {}; device.fallback = error forbids it, SET device.fallback = 'host' allows it",
                first.operator,
                first.reason
            );
        }
        Ok(offloaded)
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Has EXPLAIN show which parts of a plan would start on the host, and their kernels.
fn note_for_explain(plan: &Arc<dyn ExecutionPlan>, device: &PlannedDevice, options: &DeviceOptions) -> Result<()> {
    plan.apply(|node| {
        if let Some(top) = node.downcast_ref::<DeviceToHostExec>() {
            top.note_start(device, options);
            if let Some(explained) = options.explained() {
                explained.note_kernels(|| top.kernel_sources());
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn any(plan: &Arc<dyn ExecutionPlan>, test: &dyn Fn(&Arc<dyn ExecutionPlan>) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        found |= test(node);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
