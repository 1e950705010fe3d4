// SPDX-License-Identifier: Apache-2.0
//! Reading a stream of device arrays that somebody else produces.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, ReplaceChildrenOptions,
};

use crate::exchange::Source;

/// Some columns of the arrays of a stream table, in place where they are memory of the session's device.
#[derive(Debug)]
pub struct DeviceStreamExec {
    source: Arc<Source>,
    columns: Vec<usize>,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceStreamExec {
    /// A scan of `columns` (positions in the arrays), in that order.
    pub(crate) fn try_new(source: Arc<Source>, columns: Vec<usize>) -> Result<Self> {
        let schema = Arc::new(source.schema().project(&columns)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(DeviceStreamExec { source, columns, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() })
    }

    /// Where the arrays come from.
    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// Positions of the scanned columns in the arrays.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }
}

impl DisplayAs for DeviceStreamExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let (source, names) = (self.source.name(), names.join(", "));
        match format {
            DisplayFormatType::TreeRender => write!(f, "source={source}\nprojection={names}"),
            _ => write!(f, "DeviceStreamExec: source={source}, projection=[{names}]"),
        }
    }
}

impl ExecutionPlan for DeviceStreamExec {
    fn name(&self) -> &str {
        "DeviceStreamExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
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
        if children.is_empty() { Ok(self) } else { internal_err!("DeviceStreamExec has no children") }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!(
            "the rows of a device stream need a session with a device: build its state with SessionStateBuilderExt::with_device"
        )
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
