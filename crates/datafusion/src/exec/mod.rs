// SPDX-License-Identifier: Apache-2.0
//! The physical operators, one per file.
//!
//! [`DeviceIslandExec`] is the only one that executes: it owns the subtree below it, down to the
//! [`DeviceUploadExec`]s, [`DeviceScanExec`]s and [`DeviceStreamExec`]s, and runs it as fused pipelines. The operators in
//! between exist for EXPLAIN, metrics and rewriting; executing one of them is an internal error,
//! never a quiet download.

mod aggregate;
mod dynamic_filter;
mod expand;
mod filter;
mod host;
mod island;
mod join;
mod limit;
mod projection;
mod scan;
mod shared;
mod sort;
mod stream;
mod union;
mod upload;
mod window;

pub(crate) use aggregate::AggregateSpec;
pub use aggregate::DeviceAggregateExec;
pub use dynamic_filter::DeviceDynamicFilterExec;
pub use expand::DeviceExpandExec;
pub(crate) use expand::GroupingSet;
pub use filter::DeviceFilterExec;
pub use host::HostExec;
pub use island::DeviceIslandExec;
pub use join::DeviceJoinExec;
pub(crate) use join::JoinSpec;
pub use limit::DeviceLimitExec;
pub use projection::DeviceProjectionExec;
pub use scan::DeviceScanExec;
pub use shared::{DeviceReuseExec, DeviceSharedExec};
pub use sort::DeviceSortExec;
pub use stream::DeviceStreamExec;
pub use union::DeviceUnionExec;
pub use upload::DeviceUploadExec;
pub use window::DeviceWindowExec;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::{ExecutionPlan, Partitioning, PlanProperties};

/// Whether a plan node computes on the device (below an island's top).
pub(crate) fn is_device(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<DeviceFilterExec>()
        || plan.is::<DeviceProjectionExec>()
        || plan.is::<DeviceAggregateExec>()
        || plan.is::<DeviceDynamicFilterExec>()
        || plan.is::<DeviceExpandExec>()
        || plan.is::<DeviceJoinExec>()
        || plan.is::<DeviceLimitExec>()
        || plan.is::<DeviceReuseExec>()
        || plan.is::<DeviceScanExec>()
        || plan.is::<DeviceSharedExec>()
        || plan.is::<DeviceSortExec>()
        || plan.is::<DeviceStreamExec>()
        || plan.is::<DeviceUnionExec>()
        || plan.is::<DeviceUploadExec>()
        || plan.is::<DeviceWindowExec>()
}

/// Names of the row-wise operators that run inside the kernels of the operator above them.
pub(crate) fn fused_below(input: &Arc<dyn ExecutionPlan>) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut plan = input;
    loop {
        if plan.is::<DeviceFilterExec>() {
            names.push("DeviceFilterExec");
        } else if plan.is::<DeviceProjectionExec>() {
            names.push("DeviceProjectionExec");
        } else {
            return names;
        }
        match plan.children().first() {
            Some(child) => plan = child,
            None => return names,
        }
    }
}

/// The properties of a leaf: one partition of rows in no order.
pub(crate) fn leaf_properties(schema: SchemaRef) -> Arc<PlanProperties> {
    let properties = PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        Boundedness::Bounded,
    );
    Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative))
}

/// The names of a scan's columns, as EXPLAIN lists them.
pub(crate) fn column_names(schema: &Schema) -> String {
    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
}

pub(crate) fn refuse<T>(name: &str) -> Result<T> {
    internal_err!("{name} runs inside a DeviceIslandExec and has no rows of its own for the host")
}

pub(crate) fn refuse_stream(name: &str) -> Result<SendableRecordBatchStream> {
    refuse(name)
}

/// The methods of `ExecutionPlan` that all leaves share, whatever they read; `rows` is what they are the rows of.
macro_rules! leaf_methods {
    ($name:literal, rows of $rows:literal) => {
        fn name(&self) -> &str {
            $name
        }

        fn properties(&self) -> &std::sync::Arc<datafusion::physical_plan::PlanProperties> {
            &self.properties
        }

        fn children(&self) -> Vec<&std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            Vec::new()
        }

        fn apply_expressions(
            &self,
            _f: &mut dyn FnMut(
                &std::sync::Arc<dyn datafusion::physical_expr::PhysicalExpr>,
            ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion>,
        ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion> {
            Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }

        fn replace_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
            _options: datafusion::physical_plan::ReplaceChildrenOptions,
        ) -> datafusion::common::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            if children.is_empty() { Ok(self) } else { datafusion::common::internal_err!("{} has no children", $name) }
        }

        fn with_new_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
        ) -> datafusion::common::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
            self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))
        }

        fn execute(
            &self,
            _partition: usize,
            _context: std::sync::Arc<datafusion::execution::TaskContext>,
        ) -> datafusion::common::Result<datafusion::execution::SendableRecordBatchStream> {
            datafusion::common::internal_err!(
                "the rows of {} need a session with a device: build its state with SessionStateBuilderExt::with_device",
                $rows
            )
        }

        fn metrics(&self) -> Option<datafusion::physical_plan::metrics::MetricsSet> {
            Some(self.metrics.clone_inner())
        }
    };
}
pub(crate) use leaf_methods;

/// The methods of `ExecutionPlan` that all operators share that stand for no single one of the host's: `exprs` gives those of
/// a node, `over` what it is over other inputs, which are fields of their names.
macro_rules! inner_methods {
    ($name:literal, inputs: [$($input:ident),+], exprs: |$node:ident| $exprs:expr, over: |$of:ident| $over:expr $(,)?) => {
        fn name(&self) -> &str {
            $name
        }

        fn benefits_from_input_partitioning(&self) -> Vec<bool> {
            vec![false; self.children().len()]
        }

        fn children(&self) -> Vec<&std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            vec![$(&self.$input),+]
        }

        fn apply_expressions(
            &self,
            f: &mut dyn FnMut(
                &std::sync::Arc<dyn datafusion::physical_expr::PhysicalExpr>,
            ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion>,
        ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion> {
            use datafusion::common::tree_node::TreeNodeRecursion;
            let $node = self;
            for expr in $exprs {
                if f(expr)? == TreeNodeRecursion::Stop {
                    return Ok(TreeNodeRecursion::Stop);
                }
            }
            Ok(TreeNodeRecursion::Continue)
        }

        fn replace_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
            _options: datafusion::physical_plan::ReplaceChildrenOptions,
        ) -> datafusion::common::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            match <[_; [$(stringify!($input)),+].len()]>::try_from(children) {
                Ok([$($input),+]) => {
                    let $of = self;
                    Ok(std::sync::Arc::new($over))
                }
                Err(children) => datafusion::common::internal_err!("{} over {} inputs", $name, children.len()),
            }
        }

        fn with_new_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
        ) -> datafusion::common::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
            self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
        }

        fn execute(
            &self,
            _partition: usize,
            _context: std::sync::Arc<datafusion::execution::TaskContext>,
        ) -> datafusion::common::Result<datafusion::execution::SendableRecordBatchStream> {
            crate::exec::refuse_stream($name)
        }

        fn metrics(&self) -> Option<datafusion::physical_plan::metrics::MetricsSet> {
            Some(self.metrics.clone_inner())
        }
    };
}
pub(crate) use inner_methods;

/// Implements `DisplayAs` and `ExecutionPlan` for a row-wise device operator that keeps the host
/// operator it stands for: schema, properties and statistics are that operator's, over the device child.
macro_rules! row_wise_operator {
    ($node:ident, $name:literal) => {
        $crate::exec::row_wise_operator!($node, $name, |node| node.host.properties());
    };
    ($node:ident, $name:literal, |$of:ident| $properties:expr) => {
        impl datafusion::physical_plan::DisplayAs for $node {
            fn fmt_as(
                &self,
                format: datafusion::physical_plan::DisplayFormatType,
                f: &mut std::fmt::Formatter<'_>,
            ) -> std::fmt::Result {
                use datafusion::physical_plan::DisplayFormatType;
                if format == DisplayFormatType::TreeRender {
                    return self.host.fmt_as(format, f);
                }
                write!(f, "Device")?;
                self.host.fmt_as(format, f)
            }
        }

        impl datafusion::physical_plan::ExecutionPlan for $node {
            fn name(&self) -> &str {
                $name
            }

            fn properties(&self) -> &std::sync::Arc<datafusion::physical_plan::PlanProperties> {
                let $of = self;
                $properties
            }

            fn maintains_input_order(&self) -> Vec<bool> {
                self.host.maintains_input_order()
            }

            fn benefits_from_input_partitioning(&self) -> Vec<bool> {
                vec![false; self.host.children().len()]
            }

            fn children(&self) -> Vec<&std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
                self.host.children()
            }

            fn apply_expressions(
                &self,
                f: &mut dyn FnMut(
                    &std::sync::Arc<dyn datafusion::physical_expr::PhysicalExpr>,
                ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion>,
            ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion> {
                self.host.apply_expressions(f)
            }

            fn replace_children(
                self: std::sync::Arc<Self>,
                children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
                options: datafusion::physical_plan::ReplaceChildrenOptions,
            ) -> datafusion::common::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
                let host = std::sync::Arc::clone(&self.host).replace_children(children, options)?;
                Ok(std::sync::Arc::new(Self::try_new(host)?))
            }

            fn with_new_children(
                self: std::sync::Arc<Self>,
                children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
            ) -> datafusion::common::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
                use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
                self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
            }

            fn execute(
                &self,
                _partition: usize,
                _context: std::sync::Arc<datafusion::execution::TaskContext>,
            ) -> datafusion::common::Result<datafusion::execution::SendableRecordBatchStream> {
                crate::exec::refuse_stream($name)
            }

            fn metrics(&self) -> Option<datafusion::physical_plan::metrics::MetricsSet> {
                Some(self.metrics.clone_inner())
            }

            fn child_stats_requests(&self, partition: Option<usize>) -> Vec<datafusion::physical_plan::statistics::ChildStats> {
                self.host.child_stats_requests(partition)
            }

            fn statistics_from_inputs(
                &self,
                input_stats: &[std::sync::Arc<datafusion::common::Statistics>],
                args: &datafusion::physical_plan::statistics::StatisticsArgs,
            ) -> datafusion::common::Result<std::sync::Arc<datafusion::common::Statistics>> {
                self.host.statistics_from_inputs(input_stats, args)
            }

            fn supports_limit_pushdown(&self) -> bool {
                self.host.supports_limit_pushdown()
            }

            fn cardinality_effect(&self) -> datafusion::physical_plan::execution_plan::CardinalityEffect {
                self.host.cardinality_effect()
            }
        }
    };
}
pub(crate) use row_wise_operator;
