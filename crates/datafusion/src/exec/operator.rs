// SPDX-License-Identifier: Apache-2.0
//! The device operators as one enum.
//!
//! Each `match` on it lists all operators. A new operator is one row of `device_operators!`; the
//! compiler then lists the matches that must handle it. `docs/recipes/operator.md` has the other
//! places.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::union::UnionExec;

use crate::exec::{
    DeviceAggregateExec, DeviceDynamicFilterExec, DeviceExpandExec, DeviceFilterExec, DeviceFutharkExec, DeviceJoinExec,
    DeviceLimitExec, DeviceProjectionExec, DeviceReuseExec, DeviceScanExec, DeviceSharedExec, DeviceSortExec, DeviceStreamExec,
    DeviceUnionExec, DeviceUnnestExec, DeviceWindowExec, HostExec, HostToDeviceExec, OperatorMetrics, Sharing,
};
use crate::table::Snapshot;

macro_rules! device_operators {
    ($($variant:ident($node:ident),)*) => {
        /// An operator below a `DeviceToHostExec`.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum DeviceOperator<'a> {
            $($variant(&'a $node),)*
        }

        impl<'a> DeviceOperator<'a> {
            /// `None` for operators of the host, and for `DeviceToHostExec`, whose rows are the
            /// host's.
            pub fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<DeviceOperator<'a>> {
                $(if let Some(node) = plan.downcast_ref::<$node>() {
                    return Some(DeviceOperator::$variant(node));
                })*
                None
            }

            fn metrics(self) -> &'a OperatorMetrics {
                match self {
                    $(DeviceOperator::$variant(node) => &node.metrics,)*
                }
            }
        }
    };
}

device_operators! {
    Aggregate(DeviceAggregateExec),
    DynamicFilter(DeviceDynamicFilterExec),
    Expand(DeviceExpandExec),
    Filter(DeviceFilterExec),
    Futhark(DeviceFutharkExec),
    Join(DeviceJoinExec),
    Limit(DeviceLimitExec),
    Projection(DeviceProjectionExec),
    Reuse(DeviceReuseExec),
    Scan(DeviceScanExec),
    Shared(DeviceSharedExec),
    Sort(DeviceSortExec),
    Stream(DeviceStreamExec),
    Union(DeviceUnionExec),
    Unnest(DeviceUnnestExec),
    Upload(HostToDeviceExec),
    Window(DeviceWindowExec),
}

impl<'a> DeviceOperator<'a> {
    /// Whether the operator runs inside the kernels of the operator above it.
    fn is_fused(self) -> bool {
        use DeviceOperator::*;
        match self {
            Filter(_) | Projection(_) => true,
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Futhark(_) | Join(_) | Limit(_) | Reuse(_) | Scan(_) | Shared(_)
            | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// Whether the operator drops rows by a condition or a limit, or reads rows of a shared subplan
    /// doing so.
    fn drops_rows(self) -> bool {
        use DeviceOperator::*;
        match self {
            Filter(_) | DynamicFilter(_) | Limit(_) => true,
            Sort(sort) => sort.fetch_rows().is_some(),
            Reuse(reuse) => drops_rows(reuse.shared()),
            Aggregate(_) | Expand(_) | Futhark(_) | Join(_) | Projection(_) | Scan(_) | Shared(_) | Stream(_) | Union(_)
            | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// Whether the operator scans device memory: a resident table, or arrays of another library.
    fn reads_device(self) -> bool {
        use DeviceOperator::*;
        match self {
            Scan(_) | Stream(_) => true,
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Reuse(_) | Shared(_) | Sort(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// Whether the operator reads arrays produced meanwhile by another library.
    pub fn reads_producer(self) -> bool {
        use DeviceOperator::*;
        match self {
            Stream(_) => true,
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Reuse(_) | Scan(_) | Shared(_) | Sort(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// The plan of the host whose rows the operator uploads: no part of its offloaded subplan.
    pub fn host_input(self) -> Option<&'a Arc<dyn ExecutionPlan>> {
        use DeviceOperator::*;
        match self {
            Upload(upload) => Some(upload.input()),
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Reuse(_) | Scan(_) | Shared(_) | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Window(_) => None,
        }
    }

    /// Whether the operator gives the rows of all its inputs, in their own partitions.
    fn unites_inputs(self) -> bool {
        use DeviceOperator::*;
        match self {
            Union(_) => true,
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Reuse(_) | Scan(_) | Shared(_) | Sort(_) | Stream(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// How the operator shares the rows of a subplan.
    pub fn sharing(self) -> Option<&'a Sharing> {
        use DeviceOperator::*;
        match self {
            Shared(shared) => Some(shared.sharing()),
            Reuse(reuse) => Some(reuse.sharing()),
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Scan(_) | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => None,
        }
    }

    /// Whether each reader of shared rows does the operator's work for itself: it picks columns, or
    /// joins a subquery's value.
    pub fn stays_with_readers(self) -> bool {
        use DeviceOperator::*;
        match self {
            Projection(projection) => projection.expressions().iter().all(|output| output.expr.is::<Column>()),
            Join(join) => join.spec.scalar.is_some(),
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Limit(_) | Reuse(_) | Scan(_) | Shared(_)
            | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// Forgets what the operator's last run left behind.
    fn forget_run(self) {
        use DeviceOperator::*;
        self.metrics().clear();
        match self {
            Shared(shared) => shared.clear(),
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Reuse(_) | Scan(_) | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => {}
        }
    }

    /// Whether the operator can run again. It then runs no operator of the host and no library, and
    /// publishes nothing for scans of the host.
    fn is_repeatable(self) -> bool {
        use DeviceOperator::*;
        match self {
            Stream(_) | Upload(_) | Futhark(_) => false,
            Aggregate(aggregate) => !aggregate.is_of_libraries(),
            Join(join) => {
                join.dynamic_filters().scan.is_none() && !join.spec.scalar.as_ref().is_some_and(|subquery| subquery.publishes)
            }
            DynamicFilter(_) | Expand(_) | Filter(_) | Limit(_) | Projection(_) | Reuse(_) | Scan(_) | Shared(_) | Sort(_)
            | Union(_) | Unnest(_) | Window(_) => true,
        }
    }

    /// Whether a second run of the operator, in the same query, gives the same rows: as
    /// [`is_repeatable`](Self::is_repeatable), and files and tables of the host too. Rows that
    /// other subplans have read are not given again.
    fn can_run_again(self) -> bool {
        use DeviceOperator::*;
        match self {
            Upload(upload) => is_plain_scan(upload.input()),
            Shared(shared) => shared.sharing().cache.is_none(),
            Reuse(reuse) => reuse.sharing().cache.is_none(),
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Scan(_) | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Window(_) => self.is_repeatable(),
        }
    }

    /// Whether the operator holds all of a result smaller than its input: groups, or the first rows
    /// of an order.
    pub fn holds_result(self) -> bool {
        use DeviceOperator::*;
        match self {
            Aggregate(_) => true,
            Sort(sort) => sort.fetch_rows().is_some(),
            DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_) | Reuse(_) | Scan(_)
            | Shared(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// Whether each reader repeats the operator over rows held by an operator below.
    pub fn repeats_over_held_rows(self) -> bool {
        use DeviceOperator::*;
        match self {
            Filter(_) => true,
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_) | Reuse(_)
            | Scan(_) | Shared(_) | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// The snapshot that the operator scans.
    fn snapshot(self) -> Option<&'a Arc<Snapshot>> {
        use DeviceOperator::*;
        match self {
            Scan(scan) => Some(scan.snapshot()),
            Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_)
            | Reuse(_) | Shared(_) | Sort(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => None,
        }
    }

    /// Whether the operator does more than compute columns of single rows, pass rows on, or drop
    /// some.
    pub fn is_costly(self) -> bool {
        use DeviceOperator::*;
        match self {
            Aggregate(_) | Join(_) | Sort(_) | Window(_) | Reuse(_) => true,
            DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Limit(_) | Projection(_) | Scan(_) | Shared(_)
            | Stream(_) | Union(_) | Unnest(_) | Upload(_) => false,
        }
    }
}

/// Whether a plan node runs on the device.
pub(crate) fn is_device(plan: &Arc<dyn ExecutionPlan>) -> bool {
    DeviceOperator::of(plan).is_some()
}

/// Whether a plan node scans device memory.
pub(crate) fn reads_device(plan: &Arc<dyn ExecutionPlan>) -> bool {
    DeviceOperator::of(plan).is_some_and(DeviceOperator::reads_device)
}

/// The inputs of a device operator within its offloaded subplan. The operators below an upload are
/// the host's.
pub(crate) fn device_inputs(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<dyn ExecutionPlan>> {
    match DeviceOperator::of(plan) {
        Some(operator) if operator.host_input().is_none() => plan.children(),
        Some(_) | None => Vec::new(),
    }
}

/// Whether another run of a device subtree gives the same rows, but for metrics and cached rows.
/// [`forget_run`] clears those.
pub(crate) fn is_repeatable(plan: &Arc<dyn ExecutionPlan>) -> bool {
    DeviceOperator::of(plan).is_some_and(DeviceOperator::is_repeatable) && device_inputs(plan).into_iter().all(is_repeatable)
}

/// Whether a second run of a device subtree, in the same query, gives the same rows.
pub(crate) fn can_run_again(plan: &Arc<dyn ExecutionPlan>) -> bool {
    DeviceOperator::of(plan).is_some_and(DeviceOperator::can_run_again) && device_inputs(plan).into_iter().all(can_run_again)
}

/// Whether a host operator scans files or tables, without a dynamic filter: that of a finished run
/// would drop rows of the next one.
fn is_plain_scan(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let plan = plan.downcast_ref::<HostExec>().map_or(plan, HostExec::inner);
    let mut has_filter = false;
    let visited = plan.apply_expressions(&mut |expr| {
        has_filter |= expr.exists(|part| Ok(part.downcast_ref::<DynamicFilterPhysicalExpr>().is_some()))?;
        Ok(TreeNodeRecursion::Continue)
    });
    plan.is::<DataSourceExec>() && visited.is_ok() && !has_filter
}

/// Forgets what the last run of a device subtree left behind.
pub(crate) fn forget_run(plan: &Arc<dyn ExecutionPlan>) {
    if let Some(operator) = DeviceOperator::of(plan) {
        operator.forget_run();
    }
    device_inputs(plan).into_iter().for_each(forget_run);
}

/// The snapshots that a device subtree scans.
pub(crate) fn scanned_snapshots(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<Snapshot>> {
    let own = DeviceOperator::of(plan).and_then(DeviceOperator::snapshot);
    own.into_iter().chain(device_inputs(plan).into_iter().flat_map(scanned_snapshots)).collect()
}

/// Whether an operator, of the host too, gives the rows of all its inputs, in their own partitions.
pub(crate) fn unites_inputs(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<UnionExec>() || DeviceOperator::of(plan).is_some_and(DeviceOperator::unites_inputs)
}

/// Names of the operators that are fused into the operator above `input`.
pub(crate) fn fused_below(mut input: &Arc<dyn ExecutionPlan>) -> Vec<&str> {
    let mut names = Vec::new();
    while DeviceOperator::of(input).is_some_and(DeviceOperator::is_fused) {
        names.push(input.name());
        let Some(below) = input.children().first().copied() else { break };
        input = below;
    }
    names
}

/// Whether an operator of a device subtree drops rows.
pub(crate) fn drops_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    DeviceOperator::of(plan).is_some_and(DeviceOperator::drops_rows) || device_inputs(plan).into_iter().any(drops_rows)
}
