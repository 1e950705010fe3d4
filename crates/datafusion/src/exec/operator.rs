// SPDX-License-Identifier: Apache-2.0
//! The device operators as one enum.
//!
//! Each `match` on it lists all operators. A new operator is one row of `device_operators!`; the
//! compiler then lists the matches that must handle it. `docs/recipes/operator.md` has the other
//! places.

use std::sync::Arc;

use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;

use crate::exec::{
    DeviceAggregateExec, DeviceDynamicFilterExec, DeviceExpandExec, DeviceFilterExec, DeviceFutharkExec, DeviceJoinExec,
    DeviceLimitExec, DeviceProjectionExec, DeviceReuseExec, DeviceScanExec, DeviceSharedExec, DeviceSortExec, DeviceStreamExec,
    DeviceUnionExec, DeviceUnnestExec, DeviceWindowExec, HostToDeviceExec, OperatorMetrics,
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

    /// Whether the operator drops rows by a condition or a limit.
    fn drops_rows(self) -> bool {
        use DeviceOperator::*;
        match self {
            Filter(_) | DynamicFilter(_) | Limit(_) => true,
            Sort(sort) => sort.fetch_rows().is_some(),
            Aggregate(_) | Expand(_) | Futhark(_) | Join(_) | Projection(_) | Reuse(_) | Scan(_) | Shared(_) | Stream(_)
            | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
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

    /// Whether another run of the operator, with its state reset, gives the same rows. Streams of
    /// other libraries run once.
    fn can_run_again(self) -> bool {
        use DeviceOperator::*;
        match self {
            Stream(_) | Futhark(_) => false,
            Upload(upload) => host_can_run_again(upload.input()),
            Aggregate(aggregate) => !aggregate.is_of_libraries(),
            // Other subplans may have read the value.
            Join(join) => !join.spec.scalar.as_ref().is_some_and(|subquery| subquery.publishes),
            // Other subplans may have read the rows.
            Shared(shared) => shared.sharing().cache.is_none(),
            Reuse(reuse) => reuse.sharing().cache.is_none(),
            DynamicFilter(_) | Expand(_) | Filter(_) | Limit(_) | Projection(_) | Scan(_) | Sort(_) | Union(_) | Unnest(_)
            | Window(_) => true,
        }
    }

    /// Whether the operator holds all of its result, which is smaller than its input: groups, or
    /// the first rows of an order.
    pub fn holds_result(self) -> bool {
        use DeviceOperator::*;
        match self {
            Aggregate(_) => true,
            Sort(sort) => sort.fetch_rows().is_some(),
            DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Projection(_) | Reuse(_) | Scan(_)
            | Shared(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => false,
        }
    }

    /// Whether each reader repeats the operator over rows that an operator below holds.
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
        None | Some(DeviceOperator::Upload(_)) => Vec::new(),
        Some(_) => plan.children(),
    }
}

/// Whether another run of a device subtree gives the same rows, but for metrics and cached rows,
/// which [`forget_run`] clears.
pub(crate) fn is_repeatable(plan: &Arc<dyn ExecutionPlan>) -> bool {
    DeviceOperator::of(plan).is_some_and(DeviceOperator::is_repeatable) && device_inputs(plan).into_iter().all(is_repeatable)
}

/// Whether another run of a device subtree, with its states reset, gives the same rows.
pub(crate) fn can_run_again(plan: &Arc<dyn ExecutionPlan>) -> bool {
    DeviceOperator::of(plan).is_some_and(DeviceOperator::can_run_again) && device_inputs(plan).into_iter().all(can_run_again)
}

/// The same for operators of the host: those over files and tables, not over streams.
fn host_can_run_again(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.children().as_slice() {
        [] => plan.is::<DataSourceExec>() || plan.is::<EmptyExec>() || plan.is::<PlaceholderRowExec>(),
        children => children.iter().all(|child| host_can_run_again(child)),
    }
}

/// Forgets what the last run of a device subtree left behind.
pub(crate) fn forget_run(plan: &Arc<dyn ExecutionPlan>) {
    if let Some(operator) = DeviceOperator::of(plan) {
        operator.metrics().clear();
        if let DeviceOperator::Shared(shared) = operator {
            shared.clear();
        }
    }
    device_inputs(plan).into_iter().for_each(forget_run);
}

/// The snapshots that a device subtree scans.
pub(crate) fn scanned_snapshots(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<Snapshot>> {
    let own = DeviceOperator::of(plan).and_then(DeviceOperator::snapshot);
    own.into_iter().chain(device_inputs(plan).into_iter().flat_map(scanned_snapshots)).collect()
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
    match DeviceOperator::of(plan) {
        Some(DeviceOperator::Reuse(reuse)) => drops_rows(reuse.shared()),
        Some(operator) => operator.drops_rows() || device_inputs(plan).into_iter().any(drops_rows),
        None => false,
    }
}
