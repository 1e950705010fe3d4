// SPDX-License-Identifier: Apache-2.0
//! Where host rows enter the device.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, SchedulingType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};

use crate::exec::{refuse_stream, statistics_of_the_input};

/// Uploads the rows of a host operator: partitions decode in parallel, small batches are gathered.
///
/// Partitioning and ordering are the input's. `reason` says why the rows start on the host.
#[derive(Debug)]
pub struct HostToDeviceExec {
    input: Arc<dyn ExecutionPlan>,
    reason: String,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl HostToDeviceExec {
    /// An upload of `input`'s rows, which are on the host for `reason`.
    pub fn new(input: Arc<dyn ExecutionPlan>, reason: impl Into<String>) -> Self {
        let properties = Arc::new(input.properties().as_ref().clone().with_scheduling_type(SchedulingType::Cooperative));
        HostToDeviceExec { input, reason: reason.into(), properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// The host operator.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Why the rows start on the host.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl DisplayAs for HostToDeviceExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.input.schema().fields().len();
        match format {
            DisplayFormatType::TreeRender => write!(f, "columns={columns}\nfrom={}", self.reason),
            _ => write!(f, "HostToDeviceExec: columns={columns}, from=[{}]", self.reason),
        }
    }
}

impl ExecutionPlan for HostToDeviceExec {
    fn name(&self) -> &str {
        "HostToDeviceExec"
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
            Ok([input]) => Ok(Arc::new(HostToDeviceExec::new(input, self.reason.clone()))),
            Err(children) => internal_err!("HostToDeviceExec has one child, not {}", children.len()),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        refuse_stream("HostToDeviceExec")
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    statistics_of_the_input!();

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
