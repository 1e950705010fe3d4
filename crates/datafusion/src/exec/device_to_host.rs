// SPDX-License-Identifier: Apache-2.0
//! The top of a device subtree: lowers it to pipelines, runs them, downloads the result.

use std::fmt;
use std::sync::Arc;

use columnar::ColumnType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    ReplaceChildrenOptions,
};
use kernels::ops::Options;

use crate::exec::{HostToDeviceExec, is_device, statistics_of_the_input};
use crate::expr::awaits_subquery;
use crate::graph::{self, Stage};
use crate::run::{self, DeviceBatchStream};

/// Runs the device operators below it as fused pipelines.
///
/// [`execute`](ExecutionPlan::execute) downloads the rows; [`execute_device`](Self::execute_device)
/// leaves them on the device. The node holds no device: the session's comes from the `TaskContext`.
#[derive(Debug)]
pub struct DeviceToHostExec {
    input: Arc<dyn ExecutionPlan>,
    reason: String,
    options: Options,
    stage: Arc<Stage>,
    /// Whether the stages are made anew for each run, with values that are not known before.
    awaits_subqueries: bool,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl DeviceToHostExec {
    /// The top of `input`'s device operators. `reason` says why rows leave the device here.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, reason: impl Into<String>, options: Options) -> Result<Self> {
        let stage = graph::lower(&input, &options)?;
        // Each partition of the plan runs by itself: one too many would give rows twice.
        let partitions = input.output_partitioning().partition_count();
        if stage.partitions != partitions {
            return internal_err!("{} has {partitions} partitions and runs in {}", input.name(), stage.partitions);
        }
        let mut awaits_subqueries = false;
        input.apply(|node| {
            if !is_device(node) || node.is::<HostToDeviceExec>() {
                return Ok(TreeNodeRecursion::Jump);
            }
            node.apply_expressions(&mut |expr| {
                awaits_subqueries |= awaits_subquery(expr);
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        let properties = Arc::new(input.properties().as_ref().clone().with_scheduling_type(SchedulingType::Cooperative));
        Ok(DeviceToHostExec {
            input,
            reason: reason.into(),
            options,
            stage: Arc::new(stage),
            awaits_subqueries,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// The device operators.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Why rows leave the device here.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// How the kernels are shaped.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Runs one partition and leaves its rows on the device.
    ///
    /// # Errors
    /// If the session has no device, or a kernel cannot be made; errors of the run come with the stream.
    pub fn execute_device(&self, partition: usize, task: Arc<TaskContext>) -> Result<DeviceBatchStream> {
        run::execute_device(&self.ready_stage()?, partition, &task)
    }

    /// The stages with the values of scalar subqueries, which have run by now.
    fn ready_stage(&self) -> Result<Arc<Stage>> {
        if !self.awaits_subqueries {
            return Ok(Arc::clone(&self.stage));
        }
        Ok(Arc::new(graph::lower(&self.input, &self.options)?))
    }

    /// How the columns lie on the device.
    pub(crate) fn types(&self) -> &[ColumnType] {
        &self.stage.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_texts(&self) -> Vec<(String, String)> {
        self.stage.kernel_texts()
    }
}

impl DisplayAs for DeviceToHostExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = self.stage.pipelines();
        match format {
            DisplayFormatType::TreeRender => write!(f, "pipelines={kernels}\ndownload={}", self.reason),
            DisplayFormatType::Default => {
                write!(f, "DeviceToHostExec: pipelines={kernels}, download=[{}]", self.reason)
            }
            DisplayFormatType::Verbose => {
                write!(
                    f,
                    "DeviceToHostExec: pipelines={kernels}, download=[{}], profile={}",
                    self.reason,
                    self.options.profile.name()
                )?;
                write!(f, "{}", sizes(&self.options))?;
                for (name, text) in self.kernel_texts() {
                    write!(f, "\n-- kernel {name}\n{text}\n-- end of {name}")?;
                }
                Ok(())
            }
        }
    }
}

/// The sizes that are not the profile's own choice.
fn sizes(options: &Options) -> String {
    let own = Options::new(options.profile);
    [
        ("work_group_size", options.work_group_size, own.work_group_size),
        ("compaction_tile_rows", options.compaction_tile_rows, own.compaction_tile_rows),
        ("max_work_groups", options.max_work_groups, own.max_work_groups),
    ]
    .into_iter()
    .filter(|(_, size, own)| size != own)
    .map(|(name, size, _)| format!(", {name}={size}"))
    .collect()
}

impl ExecutionPlan for DeviceToHostExec {
    fn name(&self) -> &str {
        "DeviceToHostExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(DeviceToHostExec::try_new(input, self.reason.clone(), self.options.clone())?)),
            Err(children) => internal_err!("DeviceToHostExec has one child, not {}", children.len()),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, task: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let stream = run::execute_host(&self.ready_stage()?, self.schema(), partition, &task, &self.metrics)?;
        Ok(make_cooperative(stream))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    statistics_of_the_input!();
}
