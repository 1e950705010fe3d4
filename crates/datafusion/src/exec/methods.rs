// SPDX-License-Identifier: Apache-2.0
//! Macros for the methods of `ExecutionPlan` that several operators share.

use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;

/// The error of an operator that only a `DeviceToHostExec` can run.
pub(crate) fn refuse_stream(name: &str) -> Result<SendableRecordBatchStream> {
    internal_err!("{name} runs inside a DeviceToHostExec and has no rows of its own for the host")
}

/// Name, metrics and the like of an operator with fields `metrics` and a method `replace_children`.
macro_rules! common_methods {
    ($name:literal) => {
        fn name(&self) -> &str {
            $name
        }

        fn benefits_from_input_partitioning(&self) -> Vec<bool> {
            vec![false; self.children().len()]
        }

        fn with_new_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
        ) -> datafusion::common::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
            use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
            self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
        }

        fn metrics(&self) -> Option<datafusion::physical_plan::metrics::MetricsSet> {
            Some(self.metrics.clone_inner())
        }
    };
}
pub(crate) use common_methods;

/// `execute` of an operator that gives an error instead of rows.
macro_rules! refused_execution {
    ($error:expr) => {
        fn execute(
            &self,
            _partition: usize,
            _context: std::sync::Arc<datafusion::execution::TaskContext>,
        ) -> datafusion::common::Result<datafusion::execution::SendableRecordBatchStream> {
            $error
        }
    };
}
pub(crate) use refused_execution;

/// The methods of a leaf. `$rows` names the source of its rows.
macro_rules! leaf_methods {
    ($name:literal, rows of $rows:literal) => {
        $crate::exec::common_methods!($name);
        $crate::exec::refused_execution!(datafusion::common::internal_err!(
            "the rows of {} need a session with a device: build its state with SessionStateBuilderExt::with_device",
            $rows
        ));

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
    };
}
pub(crate) use leaf_methods;

/// The methods of an operator without a 1:1 host counterpart, but for `execute`.
///
/// `exprs` gives the expressions of a node. `over` makes the node over other inputs, which are
/// fields of the names in `inputs`.
macro_rules! inner_methods {
    ($name:literal, inputs: [$($input:ident),+], exprs: |$node:ident| $exprs:expr, over: |$of:ident| $over:expr $(,)?) => {
        $crate::exec::common_methods!($name);

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
    };
}
pub(crate) use inner_methods;

/// Implements `ExecutionPlan` for an operator with a field `host`: the host operator over the
/// device input, whose schema, properties and statistics it has.
///
/// Implements `DisplayAs` too, unless `plan of` stands before the name.
macro_rules! host_counterpart {
    ($node:ident, $name:literal) => {
        $crate::exec::host_counterpart!($node, $name, |node| node.host.properties());
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

        $crate::exec::host_counterpart!(plan of $node, $name, |$of| $properties);
    };
    (plan of $node:ident, $name:literal, |$of:ident| $properties:expr) => {
        impl datafusion::physical_plan::ExecutionPlan for $node {
            $crate::exec::common_methods!($name);
            $crate::exec::refused_execution!($crate::exec::refuse_stream($name));

            fn properties(&self) -> &std::sync::Arc<datafusion::physical_plan::PlanProperties> {
                let $of = self;
                $properties
            }

            fn maintains_input_order(&self) -> Vec<bool> {
                self.host.maintains_input_order()
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
pub(crate) use host_counterpart;

/// Order and statistics of an operator that passes the rows of its one input on, partition by
/// partition.
macro_rules! pass_through_methods {
    () => {
        fn maintains_input_order(&self) -> Vec<bool> {
            vec![true]
        }

        fn child_stats_requests(&self, partition: Option<usize>) -> Vec<datafusion::physical_plan::statistics::ChildStats> {
            vec![datafusion::physical_plan::statistics::ChildStats::At(partition)]
        }

        fn statistics_from_inputs(
            &self,
            input_stats: &[std::sync::Arc<datafusion::common::Statistics>],
            _args: &datafusion::physical_plan::statistics::StatisticsArgs,
        ) -> datafusion::common::Result<std::sync::Arc<datafusion::common::Statistics>> {
            match input_stats {
                [input] => Ok(std::sync::Arc::clone(input)),
                _ => Ok(std::sync::Arc::new(datafusion::common::Statistics::new_unknown(&self.schema()))),
            }
        }
    };
}
pub(crate) use pass_through_methods;
