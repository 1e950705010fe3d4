// SPDX-License-Identifier: Apache-2.0
//! Upload of host rows.

use std::fmt;
use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, SchedulingType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::{OperatorMetrics, inner_methods, pass_through_methods, refuse_stream, refused_execution};

/// Uploads the rows of a host operator. Partitions decode in parallel; small batches are coalesced.
///
/// Partitioning and ordering are the input's.
#[derive(Debug)]
pub struct HostToDeviceExec {
    input: Arc<dyn ExecutionPlan>,
    origin: String,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

impl HostToDeviceExec {
    /// An upload of `input`'s rows. `origin`, for EXPLAIN: a host scan, or the operator.
    pub fn new(input: Arc<dyn ExecutionPlan>, origin: impl Into<String>) -> Self {
        let properties = Arc::new(input.properties().as_ref().clone().with_scheduling_type(SchedulingType::Cooperative));
        HostToDeviceExec { input, origin: origin.into(), properties, metrics: OperatorMetrics::new() }
    }

    /// The host operator.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Where the rows come from.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

impl DisplayAs for HostToDeviceExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.input.schema().fields().len();
        match format {
            DisplayFormatType::TreeRender => write!(f, "columns={columns}\nfrom={}", self.origin),
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "HostToDeviceExec: columns={columns}, from=[{}]", self.origin)
            }
        }
    }
}

impl ExecutionPlan for HostToDeviceExec {
    inner_methods! {
        "HostToDeviceExec",
        inputs: [input],
        exprs: |_node| std::iter::empty::<&Arc<dyn PhysicalExpr>>(),
        over: |node| HostToDeviceExec::new(input, node.origin.clone()),
    }
    refused_execution!(refuse_stream("HostToDeviceExec"));
    pass_through_methods!();

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
