// SPDX-License-Identifier: Apache-2.0
//! Methods of `ExecutionPlan` that several operators share, as macros: the trait has one object for each operator.

use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;

/// The methods of `ExecutionPlan` that all device operators below an offloaded subplan share; `execute` is what comes instead of rows.
macro_rules! device_methods {
    ($name:literal, execute: $execute:expr) => {
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

        fn execute(
            &self,
            _partition: usize,
            _context: std::sync::Arc<datafusion::execution::TaskContext>,
        ) -> datafusion::common::Result<datafusion::execution::SendableRecordBatchStream> {
            $execute
        }

        fn metrics(&self) -> Option<datafusion::physical_plan::metrics::MetricsSet> {
            Some(self.metrics.clone_inner())
        }
    };
}
pub(crate) use device_methods;

/// The methods of `ExecutionPlan` that all leaves share, whatever they read; `rows` is what they are the rows of.
macro_rules! leaf_methods {
    ($name:literal, rows of $rows:literal) => {
        $crate::exec::device_methods!(
            $name,
            execute: datafusion::common::internal_err!(
                "the rows of {} need a session with a device: build its state with SessionStateBuilderExt::with_device",
                $rows
            )
        );

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

/// The methods of `ExecutionPlan` that all operators share that stand for no single one of the host's: `exprs` gives those of
/// a node, `over` what it is over other inputs, which are fields of their names.
macro_rules! inner_methods {
    ($name:literal, inputs: [$($input:ident),+], exprs: |$node:ident| $exprs:expr, over: |$of:ident| $over:expr $(,)?) => {
        $crate::exec::device_methods!($name, execute: $crate::exec::refuse_stream($name));

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

/// Implements `DisplayAs` and `ExecutionPlan` for a row-wise device operator that keeps the host
/// operator it stands for: schema, properties and statistics are that operator's, over the device child. With `plan of` before
/// the name, `ExecutionPlan` alone.
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

        $crate::exec::row_wise_operator!(plan of $node, $name, |$of| $properties);
    };
    (plan of $node:ident, $name:literal, |$of:ident| $properties:expr) => {
        impl datafusion::physical_plan::ExecutionPlan for $node {
            $crate::exec::device_methods!($name, execute: $crate::exec::refuse_stream($name));

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
pub(crate) use row_wise_operator;

/// The methods of `ExecutionPlan` that say that the rows are those of the one input, partition by partition.
macro_rules! statistics_of_the_input {
    () => {
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
pub(crate) use statistics_of_the_input;

pub(crate) fn refuse<T>(name: &str) -> Result<T> {
    internal_err!("{name} runs inside a DeviceToHostExec and has no rows of its own for the host")
}

pub(crate) fn refuse_stream(name: &str) -> Result<SendableRecordBatchStream> {
    refuse(name)
}
